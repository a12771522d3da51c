#!/usr/bin/env python3
"""Checks that the code of docs/examples.md is the text of the files that its sections name.

usage: check_snippets.py

A section names its file in a link; its block of C++ must stand in that file word for word, indented
as a whole. Every example must be named.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "examples.md"
LINK = re.compile(r"\]\(\.\./(examples/[\w.]+)\)")
CODE = re.compile(r"^```cpp\n(.*?)^```", re.MULTILINE | re.DOTALL)


def stands_in(snippet, text):
    """Whether the lines of `snippet`, all indented alike, follow each other in `text`."""
    return any(textwrap.indent(snippet, " " * spaces) in text for spaces in range(0, 17, 4))


def main():
    bad = []
    named = set()
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        files = LINK.findall(section)
        named.update(files)
        blocks = CODE.findall(section)
        if not files or not blocks:
            bad.append(f"{title}: expected a link to an example and a block of C++")
        for block in blocks:
            if not any(stands_in(block, (ROOT / name).read_text()) for name in files):
                bad.append(f"{title}: the code differs from {' and '.join(files)}")
    for path in sorted((ROOT / "examples").glob("[0-9]*.cpp")):
        readme = path.name in (ROOT / "README.md").read_text()
        if f"examples/{path.name}" not in named and not readme:
            bad.append(f"examples/{path.name} is not shown")
    for line in bad:
        print(f"docs/examples.md: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
