#!/usr/bin/env python3
"""Checks that every relative link and anchor in the Markdown files leads somewhere, and that the
tests named in them exist.

usage: check_links.py
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CITED = re.compile(
    r"`(?:\w+/)?([A-Z]\w*[a-z]\w*)\.([A-Z]\w*[a-z]\w*|\*)`"  # Suite.Test or Suite.*
    r"|`((?:[\w/]+/)?\w+_test\.cpp|(?:[\w/]+/)?test_\w+(?:\.py)?)`"
    r"|`(?:[\w/]+/)?(test_\w+\.py)::(test_\w+)`"
)


def known_tests():
    """Suites and cases of C++ tests, and functions and files of Python tests."""
    cases, functions = set(), set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        found = re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)
        cases |= set(found)
    for path in (ROOT / "tests").rglob("test_*.py"):
        functions |= set(re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE))
    return cases, functions


def is_known(citation, tests):
    """Whether the test that a match of CITED names exists."""
    cases, functions = tests
    suite, case, name, file, function = citation
    if file:
        found = (ROOT / "tests").rglob(file)
        return any(re.search(rf"^ *def {function}\b", f.read_text(), re.MULTILINE) for f in found)
    if suite:
        return any(s == suite and case in ("*", c) for s, c in cases)
    file = name if "." in name else f"{name}.py"
    return name in functions or any((ROOT / "tests").rglob(pathlib.PurePath(file).name))


def anchors(path):
    """The anchors of a file's headings, as GitHub generates them."""
    found = set()
    for title in re.findall(r"^#+ +(.*)$", FENCE.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", title.lower())
        found.add(text.strip().replace(" ", "-"))
    return found


def main():
    bad = 0
    tests = known_tests()
    pages = [*ROOT.glob("*.md")]
    for folder in ("docs", "src", "bench", "examples", "python"):
        pages += (ROOT / folder).rglob("*.md")
    for page in sorted(pages):
        for citation in CITED.finditer(page.read_text()):
            if not is_known(citation.groups(), tests):
                print(f"{page.relative_to(ROOT)}: there is no test {citation[0]}")
                bad += 1
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name) if name else page
            lost = not target.exists()
            if not lost and anchor and target.suffix == ".md":
                lost = anchor not in anchors(target)
            if lost:
                print(f"{page.relative_to(ROOT)}: {link} leads nowhere")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
