#!/usr/bin/env python3
"""The summary that ends `./dev demo`: one screen from the log and JSON of `tilewright bench flex`.

usage: demo_summary.py LOG JSON

Exit status 1 if a case is wrong or missing.
"""

import json
import re
import sys

#: Cases whose pictures are shown side by side: of one size, and visibly different.
PICTURES = ("causal", "document", "sasa", "natten")
CASE = re.compile(r"^== (\w+) ==\nBlockMask\(.*\n\(.*\)\n((?:[ ░█▒▓]*\n)+?)\)", re.MULTILINE)
PICTURE_ROWS = 8


def pictures(log):
    """Lines of the pictures side by side, with their names below."""
    found = {name: text.split("\n")[:-1] for name, text in CASE.findall(log)}
    shown = [name for name in PICTURES if len(found.get(name, ())) == PICTURE_ROWS]
    widths = [max(len(name), *map(len, found[name])) for name in shown]
    rows = [[found[name][i] for name in shown] for i in range(PICTURE_ROWS)] if shown else []
    return [
        "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [*rows, shown]
        if row
    ]


def table(rows):
    """Lines of the table, and whether every case is correct."""
    ours, causal = {}, {}
    for row in rows:
        if row["impl"] in ("tilewright", "causal"):
            of = ours if row["impl"] == "tilewright" else causal
            of.setdefault(row["case"], {})[row["op"]] = row
    lines = [
        f"{'':16}{'forward':>10}{'':10}{'backward':>12}",
        f"{'case':16}{'ms':>10}{'GFLOP/s':>10}{'ms':>12}{'GFLOP/s':>10}   correct",
    ]
    all_correct = bool(ours)
    for case, passes in ours.items():
        both = [passes.get(op) for op in ("forward", "backward")]
        correct = all(row is not None and row["ok"] for row in both)
        all_correct &= correct
        cells = [
            f"{row['ms']:.2f}" + f"{row['tflops'] * 1e3:10.1f}" if row else f"{'-':>10}"
            for row in both
        ]
        errors = max((row["error"] or 0 for row in both if row), default=0)
        verdict = f"yes ({errors:.0e})" if correct else "NO"
        lines.append(f"{case:16}{cells[0]:>20}{cells[1]:>22}   {verdict}")
    return lines, all_correct


def main():
    log, report = sys.argv[1:]
    with open(report) as file:
        bench = json.load(file)
    with open(log, errors="replace") as file:
        text = file.read()
    lines, correct = table(bench["rows"])
    print(f"Tilewright {bench['version']}: the FlexAttention notebook on {bench['device']}")
    print()
    print(*pictures(text), sep="\n")
    print()
    print(*lines, sep="\n")
    print()
    print("correct: largest error of outputs and gradients beside the dense f64 reference")
    return 0 if correct and bench["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
