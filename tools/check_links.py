#!/usr/bin/env python3
"""Checks that every relative link and anchor of the Markdown files leads somewhere.

usage: check_links.py
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(path):
    """The anchors of a file's headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ +(.*)$", FENCE.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", title.lower())
        found.add(text.strip().replace(" ", "-"))
    return found


def main():
    bad = 0
    pages = [*ROOT.glob("*.md")]
    for folder in ("docs", "src", "bench", "examples", "python"):
        pages += (ROOT / folder).rglob("*.md")
    for page in sorted(pages):
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
