#!/usr/bin/env python3
"""Draws the JSON of `tilewright bench --json FILE` as bars.

usage: plot_bench.py FILE [--metric ms|tflops|gbs|ratio] [--op OP] [--out PICTURE] [--text]

One group of bars for each case and operation, one bar for each implementation, on a logarithmic
scale if they differ much. Rows whose check failed are hatched and marked; rows without the metric
are left out and counted. FILE may be - for standard input, PICTURE a .png, .svg or .pdf. --text
prints the bars instead and needs no matplotlib.
"""

import argparse
import json
import pathlib
import sys
import textwrap

METRICS = {
    "ms": "median milliseconds (lower is better)",
    "tflops": "TFLOP/s (higher is better)",
    "gbs": "GB/s (higher is better)",
    "ratio": "times the baseline's speed (above 1: faster)",
}
# Bars whose lengths differ by this factor are drawn on a logarithmic scale.
LOG_RANGE = 30
LABEL_COLUMNS = 34


def fail(message):
    print(f"[plot_bench] {message}", file=sys.stderr)
    sys.exit(2)


def read_rows(path, metric, op):
    """(the run's data, rows with the metric, number without); exits with a message on errors."""
    try:
        data = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text())
        asked = [row for row in data["rows"] if op is None or row["op"] == op]
        rows = [row for row in asked if row[metric] is not None]
        for row in rows:
            float(row[metric]), str(row["case"]), str(row["op"]), str(row["impl"]), bool(row["ok"])
        str(data["device"])
        return data, rows, len(asked) - len(rows)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        fail(f"expected the output of tilewright bench --json but got {path}: {error!r}")


def group(rows):
    """{(case, op): {impl: row}} in the file's order."""
    groups = {}
    for row in rows:
        groups.setdefault((row["case"], row["op"]), {})[row["impl"]] = row
    return groups


def title_of(data, metric, groups, left_out):
    """The title: what the picture shows, the machine and the run."""
    ops = list(dict.fromkeys(op for _, op in groups))
    lines = [f"{', '.join(ops)}: {METRICS[metric]}", str(data["device"])]
    if data.get("options"):
        lines.append(textwrap.shorten("tilewright " + " ".join(map(str, data["options"])), 100))
    facts = [f"tilewright {data['version']}"] if data.get("version") else []
    facts += [data["date"]] if data.get("date") else []
    facts += [] if data.get("complete", True) else ["the run was cut short"]
    facts += [f"{left_out} rows without this figure are left out"] if left_out else []
    if any(not row["ok"] for bars in groups.values() for row in bars.values()):
        facts.append("hatched: the check failed")
    return lines + ([", ".join(facts)] if facts else [])


def print_bars(title, groups, metric):
    print("\n".join(title))
    top = max(row[metric] for bars in groups.values() for row in bars.values())
    for (case, op), bars in groups.items():
        print(f"{case} {op}")
        for impl, row in bars.items():
            bar = "#" * max(1, round(40 * row[metric] / top)) if top > 0 else ""
            mark = "" if row["ok"] else "  CHECK FAILED"
            print(f"  {impl:16} {row[metric]:10.3f} {bar}{mark}")


def figure_of(title, groups, metric):
    """The bars as a matplotlib figure."""
    try:
        import matplotlib
    except ImportError:
        fail("expected matplotlib, to draw, but it is missing (pip install matplotlib; or --text)")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    impls = list(dict.fromkeys(impl for bars in groups.values() for impl in bars))
    colours = dict(zip(impls, pyplot.get_cmap("tab10").colors * len(impls), strict=False))
    # Groups are below each other, which leaves room for names, with an empty line in between.
    places, labels, at = [], [], 0.0
    bars_of = {impl: [] for impl in impls}
    for (case, op), bars in groups.items():
        label = textwrap.fill(case, LABEL_COLUMNS) + f"\n{op}"
        height = max(len(bars), 0.8 * (label.count("\n") + 1))
        for number, (impl, row) in enumerate(bars.items()):
            bars_of[impl].append((at + (height - len(bars)) / 2 + number + 0.5, row))
        places.append(at + height / 2)
        labels.append(label)
        at += height + 0.6
    values = [row[metric] for bars in groups.values() for row in bars.values()]
    positive = [value for value in values if value > 0]
    log = bool(positive) and max(positive) / min(positive) > LOG_RANGE
    figure, axes = pyplot.subplots(figsize=(10, 1.4 + 0.24 * at + 0.2 * len(title)))
    for impl, drawn in bars_of.items():
        bars = axes.barh(
            [place for place, _ in drawn],
            [row[metric] for _, row in drawn],
            0.86,
            label=impl,
            color=colours[impl],
        )
        for bar, (_, row) in zip(bars, drawn, strict=True):
            if not row["ok"]:
                bar.set_hatch("xx")
        words = [f"{row[metric]:.3g}" + ("" if row["ok"] else " failed") for _, row in drawn]
        axes.bar_label(bars, words, fontsize=8, padding=3)
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(at, -0.6)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(positive) / 2, max(positive) * 2.5)
    else:
        axes.set_xlim(0, max([*values, 0.001]) * 1.12)
    axes.set_xlabel(METRICS[metric] + (", logarithmic" if log else ""))
    if metric == "ratio":
        axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(impls) > 1:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.set_title("\n".join(title), fontsize=9, loc="left")
    return figure


def main():
    parser = argparse.ArgumentParser(description="Draws the JSON of tilewright bench as bars.")
    parser.add_argument("file", type=pathlib.Path, help="of tilewright bench --json; - for stdin")
    parser.add_argument("--metric", choices=METRICS, default="ms", help="default: ms")
    parser.add_argument("--op", help="this operation alone: forward, backward, build, compile")
    parser.add_argument("--out", type=pathlib.Path, help="default: FILE with .png")
    parser.add_argument("--text", action="store_true", help="print the bars")
    options = parser.parse_args()

    data, rows, left_out = read_rows(options.file, options.metric, options.op)
    if not rows:
        fail(f"expected rows with {options.metric} but {options.file} has none")
    if str(options.file) == "-" and options.out is None and not options.text:
        fail("expected --out with standard input but got none")
    groups = group(rows)
    title = title_of(data, options.metric, groups, left_out)
    if options.text:
        print_bars(title, groups, options.metric)
    else:
        out = options.out or options.file.with_suffix(".png")
        figure_of(title, groups, options.metric).savefig(out, dpi=150, bbox_inches="tight")
        print(out)


if __name__ == "__main__":
    main()
