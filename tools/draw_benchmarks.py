#!/usr/bin/env python3
"""Draws the tables of docs/benchmarks.md and of README.md's results as bars, into docs/figures.

usage: draw_benchmarks.py [--check]     --check draws nothing, and fails where a chart is out of date
       draw_benchmarks.py --suite FILE...  prints the table of `tilewright bench cpu --json FILE`:
                                           medians, where there are several runs
       draw_benchmarks.py --head-dims FILE  that of `bench attention --sweep-head-dim --json FILE`

A chart's file name contains its section's title. The tables have the columns work, against,
forward, backward; if a cell has several numbers, the bar shows their mean. A table with the column
kernel and one for each other implementation becomes a line of points for each kernel, one with the
column head dimension a line for each other column.
"""

import json
import math
import pathlib
import re
import statistics
import sys
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
COLOURS = {"forward": "#3f51b5", "backward": "#f28e2b"}
WIDTH, BAR, GAP = 420, 13, 9  # pixels: length of the longest bar, width of a bar, gap between rows
LETTER = 7.4  # pixels per letter of a name
FONT = "font-family='sans-serif' font-size='13'"


def mean(cell):
    numbers = [float(n) for n in re.findall(r"\d+\.?\d*", cell)]
    return sum(numbers) / len(numbers) if numbers else None


def rows_of(section):
    """[(work, against, {pass: (mean, text)})] of the section's table of peers, not of others."""
    table = re.search(r"^\| work \| against \|.*\n(?:^\|.*\|\n)+", section, re.MULTILINE)
    section = table[0] if table else ""
    rows = []
    for line in re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]:
        work, against, *cells = (cell.strip() for cell in line.split("|"))
        passes = zip(COLOURS, cells[:2], strict=True)
        rows.append((work, against, {name: (mean(c), c) for name, c in passes if mean(c)}))
    return rows


def chart(title, rows):
    top = max(value for _, _, bars in rows for value, _ in bars.values())
    scale = WIDTH / top
    left = round(LETTER * max(len(f"{work} vs {against}") for work, against, _ in rows)) + 15
    y, parts = 58, []
    for work, against, bars in rows:
        height = BAR * len(bars)
        middle = y + height / 2 + 4
        name = f"{escape(work)} <tspan fill='#888'>vs {escape(against)}</tspan>"
        parts.append(f"<text x='{left - 8}' y='{middle}' text-anchor='end' {FONT}>{name}</text>")
        for i, (pass_name, (value, text)) in enumerate(bars.items()):
            at = y + i * BAR
            parts.append(
                f"<rect x='{left}' y='{at}' width='{value * scale:.1f}' height='{BAR - 1}' "
                f"fill='{COLOURS[pass_name]}'/>"
                f"<text x='{left + value * scale + 5:.1f}' y='{at + 10}' font-family='sans-serif' "
                f"font-size='11' fill='#444'>{text}</text>"
            )
        y += height + GAP
    one = left + scale
    parts.append(
        f"<line x1='{one:.1f}' x2='{one:.1f}' y1='52' y2='{y}' stroke='#222' stroke-dasharray='4 3'/>"
    )
    legend, x = [], left
    for pass_name, colour in COLOURS.items():
        if any(pass_name in bars for _, _, bars in rows):
            legend.append(
                f"<rect x='{x}' y='32' width='12' height='12' fill='{colour}'/>"
                f"<text x='{x + 17}' y='43' {FONT}>{pass_name}</text>"
            )
            x += 95
    legend.append(f"<text x='{x}' y='43' {FONT}>dashed: equal speed</text>")
    width, height = left + WIDTH + 110, y + 10
    body = "\n".join([*legend, *parts])
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' "
        f"height='{height}'>\n<rect width='100%' height='100%' fill='white'/>\n"
        f"<text x='10' y='20' font-family='sans-serif' font-size='15' font-weight='bold'>"
        f"{escape(title)}: times as fast</text>\n{body}\n</svg>\n"
    )


# The columns of `tilewright bench cpu`: how its rows name an implementation, title, colour.
SUITE = {
    "plain": ("plain C++", "#222"),
    "onednn": ("oneDNN", "#f28e2b"),
    "torch": ("PyTorch", "#d62728"),
    "torch-compile": ("torch.compile", "#9467bd"),
    "numba": ("Numba", "#2ca02c"),
    "halide": ("Halide", "#3f51b5"),
}


def suite_table(paths):
    """The Markdown table of runs' JSON: by kernel, times of others divided by the tile program's, as
    medians over the runs."""
    ratios = {}
    for path in paths:
        kernels = {}
        for row in json.loads(pathlib.Path(path).read_text())["rows"]:
            kernels.setdefault(row["case"], {})[row["impl"]] = row["ms"]
        for name, times in kernels.items():
            of_kernel = ratios.setdefault(name, {})
            for impl, ms in times.items():
                of_kernel.setdefault(impl, []).append(ms / times["tilewright"])
    others = [impl for impl in SUITE if any(impl in of for of in ratios.values())]
    lines = [
        "| kernel | " + " | ".join(SUITE[impl][0] for impl in others) + " |",
        "|---" * (len(others) + 1) + "|",
    ]
    for name, of_kernel in ratios.items():
        medians = [
            statistics.median(of_kernel[impl]) if impl in of_kernel else None for impl in others
        ]
        cells = ("" if r is None else f"{r:.3g}" if r >= 10 else f"{r:.2f}" for r in medians)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def suite_chart(title, section):
    """A line of points for each kernel, on a logarithmic scale."""
    table = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[0]
    header, _, *rows = (line[1:-1] for line in table.splitlines())
    columns = [cell.strip() for cell in header.split("|")][1:]
    colours = dict(SUITE.values())
    kernels = []
    for line in rows:
        name, *cells = (cell.strip() for cell in line.split("|"))
        kernels.append((name, [float(cell) if cell else None for cell in cells]))
    values = [value for _, points in kernels for value in points if value]
    low, high = math.log10(min(values)), math.log10(max(values))
    left = round(LETTER * max(len(name) for name, _ in kernels)) + 15

    def place(value):
        return left + 20 + (math.log10(value) - low) / (high - low) * 1.5 * WIDTH

    top, step = 76, 18
    bottom = top + step * len(kernels)
    parts = []
    for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if not low <= math.log10(value) <= high:
            continue
        style = "stroke='#222' stroke-dasharray='4 3'" if value == 1 else "stroke='#ddd'"
        at = place(value)
        parts.append(
            f"<line x1='{at:.1f}' x2='{at:.1f}' y1='{top - 8}' y2='{bottom}' {style}/>"
            f"<text x='{at:.1f}' y='{top - 12}' text-anchor='middle' font-family='sans-serif' "
            f"font-size='11' fill='#444'>{value:g}</text>"
        )
    for number, (name, points) in enumerate(kernels):
        y = top + step * number + step // 2
        parts.append(f"<text x='{left}' y='{y + 4}' text-anchor='end' {FONT}>{escape(name)}</text>")
        parts += [
            f"<circle cx='{place(value):.1f}' cy='{y}' r='4.5' fill='{colours[column]}' "
            f"fill-opacity='0.85'/>"
            for column, value in zip(columns, points, strict=True)
            if value
        ]
    x = left
    for column in columns:
        parts.append(
            f"<circle cx='{x + 6}' cy='42' r='5' fill='{colours[column]}'/>"
            f"<text x='{x + 16}' y='46' {FONT}>{escape(column)}</text>"
        )
        x += round(LETTER * len(column)) + 34
    width, height = round(left + 1.5 * WIDTH + 60), bottom + 12
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' "
        f"height='{height}'>\n<rect width='100%' height='100%' fill='white'/>\n"
        f"<text x='10' y='20' font-family='sans-serif' font-size='15' font-weight='bold'>"
        f"{escape(title)}: times as fast as others</text>\n{body}\n</svg>\n"
    )


def head_dim_table(path):
    """The Markdown table of a sweep's JSON: milliseconds by head dimension, empty where a row is
    missing or wrong."""
    cells, columns = {}, []
    for row in json.loads(pathlib.Path(path).read_text())["rows"]:
        dim = int(re.search(r" D(\d+)", row["case"])[1])
        name = row["op"] if row["impl"] == "tilewright" else f"{row['op']}, {row['impl']}"
        if name not in columns:
            columns.append(name)
        if row["ok"]:
            cells.setdefault(dim, {})[name] = f"{row['ms']:.3g}"
    lines = ["| head dimension | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for dim, times in sorted(cells.items()):
        lines.append(f"| {dim} | " + " | ".join(times.get(name, "") for name in columns) + " |")
    return "\n".join(lines)


def head_dim_chart(title, section):
    """A line of milliseconds over the head dimension for each column of the table."""
    table = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[0]
    header, _, *rows = (
        [cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
    )
    rows = [[float(cell) if cell else None for cell in row] for row in rows]
    widest = max(row[0] for row in rows)
    slowest = max(value for row in rows for value in row[1:] if value)
    left, top, width, height = 60, 60, 1.5 * WIDTH, 300

    def place(dim, value):
        return f"{left + dim / widest * width:.1f},{top + height - value / slowest * height:.1f}"

    parts = []
    for i in range(5):
        value = slowest * i / 4
        y = top + height - i / 4 * height
        parts.append(
            f"<line x1='{left}' x2='{left + width}' y1='{y}' y2='{y}' stroke='#ddd'/>"
            f"<text x='{left - 6}' y='{y + 4}' text-anchor='end' {FONT}>{value:.2g}</text>"
        )
    for dim in range(0, int(widest) + 1, 32):
        x = place(dim, 0).partition(",")[0]
        parts.append(
            f"<text x='{x}' y='{top + height + 18}' text-anchor='middle' {FONT}>{dim}</text>"
        )
    legend = left
    for number, name in enumerate(header[1:], 1):
        colour = COLOURS[name.partition(",")[0]]
        dashes = " stroke-dasharray='5 4'" if "," in name else ""
        points = " ".join(place(row[0], row[number]) for row in rows if row[number])
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'{dashes}/>"
            f"<line x1='{legend}' x2='{legend + 22}' y1='42' y2='42' stroke='{colour}' "
            f"stroke-width='2'{dashes}/><text x='{legend + 28}' y='46' {FONT}>{escape(name)}</text>"
        )
        legend += round(LETTER * len(name)) + 48
    body = "\n".join(parts)
    across, down = round(left + width + 30), top + height + 34
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {across} {down}' width='{across}' "
        f"height='{down}'>\n<rect width='100%' height='100%' fill='white'/>\n"
        f"<text x='10' y='20' font-family='sans-serif' font-size='15' font-weight='bold'>"
        f"{escape(title)}: milliseconds</text>\n{body}\n</svg>\n"
    )


def charts():
    """{file name: SVG}"""
    drawn = {}
    for section in re.split(r"^## ", (ROOT / "docs/benchmarks.md").read_text(), flags=re.M)[1:]:
        title = section.splitlines()[0]
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        if re.search(r"^\| kernel \|", section, re.MULTILINE):
            drawn[f"benchmarks-{stem}.svg"] = suite_chart(title, section)
        elif re.search(r"^\| head dimension \|", section, re.MULTILINE):
            drawn[f"benchmarks-{stem}.svg"] = head_dim_chart(title, section)
        elif rows := rows_of(section):
            drawn[f"benchmarks-{stem}.svg"] = chart(title, rows)
    results = (ROOT / "README.md").read_text().partition("\n## Results")[2].partition("\n## ")[0]
    if results:
        drawn["results.svg"] = chart("Tilewright", rows_of(results))
    return drawn


def main():
    if sys.argv[1:2] == ["--suite"] and len(sys.argv) >= 3:
        print(suite_table(sys.argv[2:]))
        return 0
    if sys.argv[1:2] == ["--head-dims"] and len(sys.argv) == 3:
        print(head_dim_table(sys.argv[2]))
        return 0
    bad = 0
    for name, svg in charts().items():
        path = FIGURES / name
        if "--check" not in sys.argv[1:]:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            print(f"docs/figures/{name} differs from its table: run tools/draw_benchmarks.py")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
