#!/usr/bin/env python3
"""Runs the code in README.md and docs/: what a reader copies must work as it is.

usage: run_snippets.py python            runs the blocks of Python that this interpreter has the packages for
       run_snippets.py cpp FILE          writes the blocks of C++ as one file, a function each
       run_snippets.py program PROGRAM   runs that file, compiled
       run_snippets.py shell BUILD       runs the blocks of shell with the programs of a build folder
       run_snippets.py list              every block, and what runs it

Each block runs in a namespace (C++: a function, shell: a folder) of its own. Below a line
`<!-- snippets follow each other -->`, to the end of the section (above the first: of the page), a
block of Python sees what those before it defined. A block of `text` right after a block is the
expected output. Every block names its language. `<!-- not run: reason -->` above a block skips it;
the reason is printed.
"""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import traceback
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHARED = "<!-- snippets follow each other -->"
EXCUSE = re.compile(r"<!-- not run: (.*?) -->\s*$")
RUN_BY = {
    "python": "python",
    "cpp": "cpp",
    "sh": "shell",
    "c": "examples/c, whose text it is",
    "cmake": "tests/consumer, whose text it is",
    "text": None,
}


# Its blocks are parts of programs that run as tests; tools/check_snippets.py compares the texts.
PARTS_OF_PROGRAMS = ROOT / "docs" / "reference" / "examples.md"


@dataclass
class Block:
    place: str  # page:line
    language: str
    code: str
    output: str | None  # what it prints, if the page shows that
    excuse: str | None
    shared: str | None  # the section whose namespace it is in


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page):
    text = page.read_text()
    found = list(FENCE.finditer(text))
    for i, match in enumerate(found):
        before = text[: match.start()]
        section = before[before.rfind("\n## ") + 1 :]
        following = found[i + 1] if i + 1 < len(found) else None
        output = None
        if (
            following
            and following[2] == "text"
            and not text[match.end() : following.start()].strip()
        ):
            output = following[3]
        excuse = EXCUSE.search(before)
        place = f"{page.relative_to(ROOT)}:{before.count(chr(10)) + 1}"
        shared = f"{page} {section.splitlines()[0]}" if SHARED in section else None
        if SHARED in text.partition("\n## ")[0]:
            shared = str(page)
        code = textwrap.dedent(match[3])
        yield Block(place, match[2], code, output, excuse and excuse[1], shared)


def all_blocks(language=None):
    found = [block for page in pages() if page != PARTS_OF_PROGRAMS for block in blocks_of(page)]
    return [block for block in found if language in (None, block.language)]


def wanted(language):
    """The blocks to run; prints why the others are skipped."""
    for block in all_blocks(language):
        if block.excuse:
            print(f"{block.place}: not run: {block.excuse}")
        else:
            yield block


def differs(block, printed):
    """How the output of a block differs from what its page shows."""
    if block.output is None or printed.strip() == block.output.strip():
        return None
    return f"{block.place}: expected\n{block.output}but it printed\n{printed}"


def report(failures, count, what):
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{count - len(failures)} of {count} {what} run")
    return 1 if failures else 0


def missing_package(code):
    """The first package that the code imports and this interpreter lacks."""
    for name in re.findall(r"^\s*(?:import|from)\s+(\w[\w.]*)", code, re.MULTILINE):
        if importlib.util.find_spec(name.split(".")[0]) is None:
            return name.split(".")[0]
        if name.startswith("tilewright.") and importlib.util.find_spec(name.split(".")[1]) is None:
            return name.split(".")[1]  # tilewright.jax needs jax
    return None


def run_python():
    namespaces, failures, count, skipped = {}, [], 0, {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in wanted("python"):
            package = missing_package(block.code) or skipped.get(block.shared)
            if package:
                if block.shared:
                    skipped[block.shared] = package
                print(f"{block.place}: not run: {package} is not installed")
                continue
            count += 1
            fresh = {"__name__": "__main__"}
            sys.argv[1:] = []
            names = namespaces.setdefault(block.shared, fresh) if block.shared else fresh
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    exec(compile(block.code, block.place, "exec"), names)
            except Exception:
                failures.append(f"{block.place}: {traceback.format_exc()}")
                continue
            if failure := differs(block, printed.getvalue()):
                failures.append(failure)
    return report(failures, count, "blocks of Python")


CPP_HEAD = """// Generated from the documentation: a function for each block of C++.
#include <tilewright/tilewright.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <utility>
#include <vector>

namespace tw = tilewright;

"""


def write_cpp(path):
    text, calls = CPP_HEAD, ""
    for i, block in enumerate(wanted("cpp")):
        body = re.sub(r"^(#include .*|namespace tw = .*)$", "", block.code, flags=re.MULTILINE)
        body = body.replace("int main() {", "{")
        page, line = block.place.split(":")
        text += f'static void block_{i}() {{\n#line {int(line) + 1} "{page}"\n{body}}}\n\n'
        on_gpu = "true" if "Device::cuda" in body else "false"
        calls += f'    run("{block.place}", {on_gpu}, block_{i});\n'
    text += """static void run(const char* place, bool on_gpu, void (*block)()) {
    std::printf("\\n=== %s\\n", place);
    if (on_gpu && tw::devices().size() == 1)
        std::printf("not run: this machine has no GPU\\n");
    else
        block();
    std::fflush(stdout);
    std::cout << std::flush;
}

"""
    text += f"int main() {{\n    std::cout.setf(std::ios::unitbuf);\n{calls}    return 0;\n}}\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return 0


def run_program(program):
    blocks = {block.place: block for block in wanted("cpp")}
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TILEWRIGHT_CACHE_DIR=folder)
        done = subprocess.run(
            [program], cwd=folder, env=environment, capture_output=True, text=True
        )
    parts = re.split(r"^=== (.*)\n", done.stdout, flags=re.MULTILINE)
    ran = dict(zip(parts[1::2], parts[2::2], strict=True))
    failures, count = [], len(blocks)
    if done.returncode != 0:
        failures.append(f"{list(ran)[-1:]}: exit status {done.returncode}\n{done.stderr}")
    for place, block in blocks.items():
        printed = ran.get(place)
        if printed is None:
            failures.append(f"{place}: did not run")
        elif printed.startswith("not run:"):
            print(f"{place}: {printed.strip()}")
            count -= 1
        elif failure := differs(block, printed):
            failures.append(failure)
    return report(failures, count, "blocks of C++")


def run_shell(build):
    failures, count = [], 0
    environment = dict(os.environ, PATH=f"{build.resolve()}:{os.environ['PATH']}")
    for block in wanted("sh"):
        count += 1
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["sh", "-e"],
                input=block.code,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
        if done.returncode != 0:
            failures.append(f"{block.place}: exit status {done.returncode}\n{done.stderr}")
        elif failure := differs(block, done.stdout):
            failures.append(failure)
    return report(failures, count, "blocks of shell")


def list_blocks():
    bad = 0
    for block in all_blocks():
        known = block.language in RUN_BY
        bad += not known
        runner = RUN_BY.get(block.language, "names no language that runs")
        if runner:
            print(f"{block.place}: {f'not run: {block.excuse}' if block.excuse else runner}")
    return 1 if bad else 0


def main():
    match sys.argv[1:]:
        case ["python"]:
            return run_python()
        case ["cpp", path]:
            return write_cpp(pathlib.Path(path))
        case ["program", program]:
            return run_program(pathlib.Path(program).resolve())
        case ["shell", build]:
            return run_shell(pathlib.Path(build))
        case ["list"]:
            return list_blocks()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
