"""The site's C++ and C reference: one Markdown page for each public header, made from its
declarations and their comments. Doxygen tells what is declared where; the text is the header's.
"""

import pathlib
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include" / "tilewright"
# Headers without functions for users: export macros, umbrella headers, DLPack's own header.
LEFT_OUT = {"compiler.h", "dlpack.h", "lang.h", "tilewright.h", "version.h"}

DOXYFILE = """
INPUT = "{include}"
RECURSIVE = YES
OUTPUT_DIRECTORY = "{out}"
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = TW_API= TW_C_API=
QUIET = YES
WARN_AS_ERROR = YES
AUTOLINK_SUPPORT = NO
"""


@dataclass(frozen=True)
class Entity:
    name: str
    kind: str
    line: int  # of the name, from 1
    end: int  # of the body; 0 without one
    public: bool


def entity(element, name):
    """An Entity, and the header in which it is declared."""
    place = element.find("location")
    header = place.get("file")
    end = int(place.get("bodyend") or 0) if place.get("bodyfile") == header else 0
    public = element.get("prot") in (None, "public")
    return header, Entity(name, element.get("kind"), int(place.get("line")), end, public)


def declared():
    """{header: (entities at namespace level, members of classes)}"""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = DOXYFILE.format(include=INCLUDE, out=folder)
        subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, cwd=ROOT)
        for path in sorted(pathlib.Path(folder, "xml").glob("*.xml")):
            for compound in ElementTree.parse(path).getroot().iter("compounddef"):
                kind, name = compound.get("kind"), compound.findtext("compoundname")
                if kind not in ("namespace", "file", "class", "struct", "union"):
                    continue
                if "detail" in name.split("::") or "@" in name:
                    continue
                scope = name.split("::")[1:]  # without tilewright
                is_class = kind in ("class", "struct", "union")
                if is_class:
                    header, item = entity(compound, scope[-1] if scope else name)
                    nested = len(scope) > 1 and scope[0][0].isupper()
                    found.setdefault(header, ([], []))[nested].append(item)
                for member in compound.iter("memberdef"):
                    member_name = member.findtext("name")
                    in_c = kind == "file" and compound.findtext("compoundname") == "c_api.h"
                    if member.get("kind") == "friend" or (kind == "file" and not in_c):
                        continue
                    if kind == "namespace":
                        member_name = "::".join([*scope, member_name])
                    header, item = entity(member, member_name)
                    found.setdefault(header, ([], []))[is_class].append(item)
    return found


def start_of(lines, line):
    """The first line of the declaration whose name is on `line` (both from 0)."""
    while line > 0:
        before = lines[line - 1].split("//")[0].rstrip()
        if not before.strip() or before.endswith((";", "{", "}", ":")) or before.startswith("#"):
            break
        line -= 1
    return line


def comment_above(lines, line):
    """The text of the `///` lines above `line`."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("///"):
        first -= 1
    return [text.lstrip()[3:].removeprefix(" ") for text in lines[first:line]]


def declaration(lines, first):
    """A function's declaration without its body and initialisers."""
    depth, text = 0, []
    for line in lines[first:]:
        code, mark, remark = line.partition("//")
        for i, letter in enumerate(code):
            depth += (letter in "([") - (letter in ")]")
            initialisers = letter == ":" and code[i - 1 : i + 2] == " : "
            if depth == 0 and (letter in ";{" or initialisers or code[i:].startswith("= default")):
                end = code[i:].rstrip() if code[i] == "=" else ";"
                note = f"  //{remark}" if mark and remark.startswith("/<") else ""
                if code[:i].strip():
                    text.append(code[:i].rstrip() + " " * (code[i] == "=") + end + note)
                else:
                    text[-1] += ";"
                return text
        text.append(line)
    return text


def class_text(lines, first, item, members):
    """A class as in its header, without private members and bodies."""
    functions = {start_of(lines, m.line - 1): m for m in members if m.kind == "function"}
    text, number, hidden = [], first, False
    while number < item.end - 1:
        line = lines[number]
        if label := re.match(r" *(public|private|protected):$", line):
            hidden = label[1] != "public"
        if hidden or "friend " in line:
            number += 1
        elif number in functions:
            short = declaration(lines, number)
            text += short
            number = max(number + len(short), functions[number].end)
        else:
            text.append(line)
            number += 1
    while not text[-1].strip():
        del text[-1]
    return [*text, lines[item.end - 1]]


def prose(comment):
    """A comment as Markdown that renders as the same characters; code in backticks is kept."""
    parts = re.split(r"(`[^`]*`)", "\n".join(comment))
    shown = (re.sub(r"([*_\[\]])", r"\\\1", part) for part in parts[::2])
    parts[::2] = [part.replace("<", "&lt;") for part in shown]
    return "".join(parts).splitlines()


def page(header, entities, members):
    """The Markdown page of a header."""
    lines = header.read_text().splitlines()
    opening = []
    for line in lines:
        if not line.startswith("//"):
            break
        opening.append(line[2:].removeprefix(" "))
    shown = header.relative_to(ROOT / "include")
    out = [f"# {shown}", "", *prose(opening), ""]
    blocks = []  # (name, comment, text, first line, last line)
    for item in sorted(set(entities), key=lambda e: e.line):
        if not item.public or not item.name:
            continue
        first = start_of(lines, item.line - 1)
        if item.kind in ("class", "struct", "enum"):
            if not item.end:
                continue  # only declared
            text = class_text(
                lines, first, item, [m for m in members if item.line < m.line < item.end]
            )
        else:
            text = declaration(lines, first)
        comment = comment_above(lines, first)
        last = max(first + len(text), item.end)
        # Declarations without a comment, directly below one with a comment, share it.
        if not comment and blocks and blocks[-1][4] == first:
            blocks[-1][0].append(item.name)
            blocks[-1][2].extend(text)
            blocks[-1][4] = last
        else:
            blocks.append([[item.name], comment, text, first, last])
    for names, comment, text, _, _ in blocks:
        title = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
        language = "c" if header.name == "c_api.h" else "cpp"
        out += [f"## {title}", "", f"```{language}", *text, "```", "", *prose(comment), ""]
    return "\n".join(out)


def pages():
    """{path below the reference: Markdown} for all public headers, by name."""
    made = {}
    for header, (entities, members) in sorted(declared().items()):
        path = ROOT / header
        if path.name not in LEFT_OUT:
            name = path.relative_to(INCLUDE).with_suffix("")
            made[str(name)] = page(path, entities, members)
    return made


if __name__ == "__main__":
    for text in pages().values():
        print(text)
