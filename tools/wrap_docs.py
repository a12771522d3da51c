#!/usr/bin/env python3
"""Wraps the prose of README.md, CONTRIBUTING.md, docs/, src/ and examples/ at 100 columns.

usage: wrap_docs.py [--check]     --check changes nothing, and names the lines that are too long

Paragraphs and list items with a longer line are refilled. Code, tables, headings and HTML stay as
they are, and a line may be longer if it is one word (a link, a span of code).
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 100
FENCE = re.compile(r" *(```|~~~)")
ITEM = re.compile(r"( *)([-*+]|\d+\.) +")
KEPT = re.compile(r" *(\||#|<|!\[|\[[^\]]+\]:)")  # tables, headings, HTML, pictures, definitions
# Would become a list, a heading or a quotation at the start of a line.
NO_START = re.compile(r"([-+*#>|=]+|\d+[.)])$")
# A span of code or a link's target is one word.
WORD = re.compile(r"(?:`[^`]*`|\]\([^)]*\)|[^\s`])+")


def pages():
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
        ROOT / "src" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def fill(words, first, rest):
    """The words in lines that begin with `first`, then with `rest`."""
    lines, line = [], first + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH and not NO_START.match(word):
            lines.append(line)
            line = rest + word
        else:
            line += " " + word
    return [*lines, line]


def paragraphs(lines):
    """[(first line, last line + 1)] of the paragraphs and list items that may be filled."""
    found, start, fenced = [], None, False

    def end(number):
        nonlocal start
        if start is not None:
            found.append((start, number))
        start = None

    for number, line in enumerate(lines):
        if FENCE.match(line):
            end(number)
            fenced = not fenced
        elif fenced:
            continue
        elif not line.strip() or KEPT.match(line):
            end(number)
        elif ITEM.match(line):
            end(number)
            start = number
        elif start is None and not line.startswith("    "):
            start = number
    end(len(lines))
    return found


def wrapped(text):
    lines = text.split("\n")
    for start, end in reversed(paragraphs(lines)):
        if max(map(len, lines[start:end])) <= WIDTH:
            continue
        item = ITEM.match(lines[start])
        first = item[0] if item else re.match(" *", lines[start])[0]
        paragraph = "\n".join(lines[start:end])[len(first) :]
        filled = fill(WORD.findall(paragraph.replace("\n", " ")), first, " " * len(first))
        lines[start:end] = filled
    return "\n".join(lines)


def main():
    bad = 0
    for page in pages():
        text = page.read_text()
        new = wrapped(text)
        if new == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{page.relative_to(ROOT)}: lines longer than {WIDTH}: run tools/wrap_docs.py")
            bad += 1
        else:
            page.write_text(new)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
