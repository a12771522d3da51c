#!/usr/bin/env python3
"""Draws the JSON of `tilewright bench --json FILE` as bars.

usage: plot_bench.py FILE [--metric ms|tflops|gbs|ratio] [--op OP] [--out PICTURE] [--text]

One group of bars for each case and operation, one bar for each implementation. Rows whose check
failed are hatched and marked; rows without the metric are left out. --text prints the bars instead
and needs no matplotlib.
"""

import argparse
import json
import pathlib
import sys

METRICS = {
    "ms": "milliseconds (lower is better)",
    "tflops": "TFLOP/s",
    "gbs": "GB/s",
    "ratio": "times the baseline's speed",
}


def read_rows(path, metric, op):
    """(device, rows that have the metric); SystemExit says what is wrong with the file."""
    try:
        data = json.loads(path.read_text())
        rows = [
            row
            for row in data["rows"]
            if row[metric] is not None and (op is None or row["op"] == op)
        ]
        for row in rows:
            float(row[metric]), str(row["case"]), str(row["op"]), str(row["impl"]), bool(row["ok"])
        return str(data["device"]), rows
    except OSError as error:
        sys.exit(f"plot_bench: cannot read {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"plot_bench: {path} is no output of tilewright bench --json: {error!r}")


def group(rows):
    """{(case, op): {impl: row}} in the file's order."""
    groups = {}
    for row in rows:
        groups.setdefault((row["case"], row["op"]), {})[row["impl"]] = row
    return groups


def print_bars(device, groups, metric):
    print(f"{device}: {METRICS[metric]}")
    top = max(row[metric] for bars in groups.values() for row in bars.values())
    for (case, op), bars in groups.items():
        print(f"{case} {op}")
        for impl, row in bars.items():
            bar = "#" * max(1, round(40 * row[metric] / top)) if top > 0 else ""
            mark = "" if row["ok"] else "  CHECK FAILED"
            print(f"  {impl:16} {row[metric]:10.3f} {bar}{mark}")


def draw(device, groups, metric, out):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_bench: drawing needs matplotlib (pip install matplotlib); --text does not")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    impls = list(dict.fromkeys(impl for bars in groups.values() for impl in bars))
    width = 0.8 / len(impls)
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.2 * len(groups) * len(impls) / 2), 4.5))
    for number, impl in enumerate(impls):
        at, heights, failed = [], [], []
        for index, bars in enumerate(groups.values()):
            if impl in bars:
                at.append(index + (number - (len(impls) - 1) / 2) * width)
                heights.append(bars[impl][metric])
                failed.append(not bars[impl]["ok"])
        drawn = axes.bar(at, heights, width, label=impl)
        axes.bar_label(drawn, fmt="%.3g", fontsize=7)
        for bar, bad in zip(drawn, failed, strict=True):
            if bad:
                bar.set_hatch("xx")
    labels = [f"{case}\n{op}" for case, op in groups]
    axes.set_xticks(range(len(groups)), labels, fontsize=8)
    axes.set_ylabel(METRICS[metric])
    axes.set_title(f"{device} (hatched: the check failed)")
    if metric == "ratio":
        axes.axhline(1, color="black", linewidth=0.8)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=150)
    print(out)


def main():
    parser = argparse.ArgumentParser(description="Draws the JSON of tilewright bench as bars.")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--metric", choices=METRICS, default="ms")
    parser.add_argument("--op", help="this operation alone: forward, backward, build, compile")
    parser.add_argument("--out", type=pathlib.Path, help="default: FILE with .png")
    parser.add_argument("--text", action="store_true", help="print the bars")
    options = parser.parse_args()

    device, rows = read_rows(options.file, options.metric, options.op)
    if not rows:
        sys.exit(f"plot_bench: no row of {options.file} has {options.metric}")
    groups = group(rows)
    if options.text:
        print_bars(device, groups, options.metric)
    else:
        draw(device, groups, options.metric, options.out or options.file.with_suffix(".png"))


if __name__ == "__main__":
    main()
