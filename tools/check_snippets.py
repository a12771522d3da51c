#!/usr/bin/env python3
"""Checks that documents quote files word for word: docs/reference/examples.md the files that its
sections name, the cases in docs/reference/attention.md examples/python/notebook.py,
docs/reference/c_api.md examples/c, and README.md the CMake of tests/consumer. tools/run_snippets.py
runs all other code.

usage: check_snippets.py

A section names its file in a link; its block of C++ must occur in that file word for word, possibly
indented as a whole. Every example must be named.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "examples.md"
LINK = re.compile(r"\]\((?:\.\./)+(examples/[\w.]+)\)")
CODE = re.compile(r"^```cpp\n(.*?)^```", re.MULTILINE | re.DOTALL)
C = re.compile(r"^```c\n(.*?)^```", re.MULTILINE | re.DOTALL)
CMAKE = re.compile(r"^```cmake\n(.*?)^```", re.MULTILINE | re.DOTALL)


CASES = ROOT / "docs" / "reference" / "attention.md"
NOTEBOOK = ROOT / "examples" / "python" / "notebook.py"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
    blocks = PYTHON.findall(CASES.read_text().partition("## The notebook's cases")[2])
    notebook = NOTEBOOK.read_text()
    for case in re.findall(r'^cases\["(\w+)"\]', notebook, re.MULTILINE):
        if not any(f'cases["{case}"]' in block for block in blocks):
            bad.append(f"{CASES.name} does not show the case {case}")
    for block in blocks:
        # A block is contiguous in the file, or in parts where two empty lines separate them.
        for part in block.strip("\n").split("\n\n\n"):
            if part not in notebook:
                bad.append(f"{CASES.name}: not in {NOTEBOOK.name}: {part.splitlines()[0]}")
    programs = [path.read_text() for path in (ROOT / "examples" / "c").glob("*.c")]
    for block in C.findall((ROOT / "docs" / "reference" / "c_api.md").read_text()):
        if not any(stands_in(block, text) for text in programs):
            bad.append(f"c_api.md: not in examples/c: {block.splitlines()[0]}")
    consumer = (ROOT / "tests" / "consumer" / "CMakeLists.txt").read_text()
    for block in CMAKE.findall((ROOT / "README.md").read_text()):
        if block not in consumer:
            bad.append(f"README.md: not in tests/consumer/CMakeLists.txt: {block}")
    for line in bad:
        print(f"docs: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
