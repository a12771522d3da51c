#!/usr/bin/env python3
"""Draws the figures of the documentation into docs/figures.

Draws a 2-D grid and the blocks of a matmul (docs/reference/language.md) and, with build/tilewright,
the masks of docs/reference/masks.md. `examples/python/notebook.py 256 docs/figures` draws the
figures of docs/reference/attention.md.
"""

import subprocess
from pathlib import Path

CELL = 36  # pixels of one cell of a drawing
FONT = "font-family='sans-serif' font-size='13'"
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1"]
INK = "#444"


def text(x, y, content, anchor="middle", extra=""):
    return (
        f"<text x='{x}' y='{y}' text-anchor='{anchor}' {FONT} fill='{INK}' {extra}>{content}</text>"
    )


def rectangle(x, y, width, height, fill="none", opacity=1.0):
    return (
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='{fill}' "
        f"fill-opacity='{opacity}' stroke='{INK}'/>"
    )


def document(width, height, parts):
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}'>\n<rect width='100%' height='100%' fill='white'/>\n"
        f"{body}\n</svg>\n"
    )


def grid_figure(rows=3, columns=4):
    """A 2-D grid: program ids, and the order in which programs are numbered."""
    cell = 2 * CELL
    left, top = 110, 50
    parts = [text(left + columns * cell / 2, 22, "program_id(1), the last axis, counts fastest")]
    for j in range(columns):
        parts.append(text(left + (j + 0.5) * cell, top - 8, f"j = {j}"))
    for i in range(rows):
        parts.append(text(left - 10, top + (i + 0.5) * cell + 4, f"program_id(0): i = {i}", "end"))
        for j in range(columns):
            x, y = left + j * cell, top + i * cell
            parts.append(rectangle(x, y, cell, cell, COLOURS[i % 4], 0.25))
            parts.append(
                text(x + cell / 2, y + cell / 2 - 2, f"({i}, {j})", extra="font-weight='bold'")
            )
            parts.append(text(x + cell / 2, y + cell / 2 + 16, f"program {i * columns + j}"))
    width = left + columns * cell + 40
    parts.insert(0, "<g transform='translate(40 0)'>")
    parts.append("</g>")
    return document(width + 40, top + rows * cell + 20, parts)


def array(name, x, y, cells):
    """A 2 x 2 array of quadrants; `cells` gives the programs that see each quadrant."""
    size = 3 * CELL
    parts = [text(x + size, y - 10, name, extra="font-weight='bold'")]
    for (i, j), programs in cells.items():
        left, top = x + j * size, y + i * size
        for n, program in enumerate(programs):
            width = size / len(programs)
            parts.append(rectangle(left + n * width, top, width, size, COLOURS[program], 0.45))
        parts.append(rectangle(left, top, size, size))
    return parts


def matmul_figure():
    """Which block of x, y and z each program of the 2 x 2 matmul sees."""
    size = 6 * CELL
    gap = 70
    top = 70
    corners = [(0, 0), (0, 1), (1, 0), (1, 1)]
    arrays = [
        ("x: {512, 1024}, (i, j) -> block(i, 0)", {(i, j): [2 * i, 2 * i + 1] for i, j in corners}),
        ("y: {1024, 512}, (i, j) -> block(0, j)", {(i, j): [j, 2 + j] for i, j in corners}),
        ("z: {512, 512}, (i, j) -> block(i, j)", {(i, j): [2 * i + j] for i, j in corners}),
    ]
    parts = []
    for n, (name, cells) in enumerate(arrays):
        parts += array(name, 40 + n * (size + gap), top, cells)
    for n, symbol in enumerate(["@", "="]):
        x = 40 + size + n * (size + gap) + gap / 2
        parts.append(text(x, top + size / 2 + 6, symbol, extra="style='font-size:24px'"))
    for program, (i, j) in enumerate(corners):
        x, y = 40 + program * 190, top + size + 40
        parts.append(rectangle(x, y - 12, 16, 16, COLOURS[program], 0.45))
        parts.append(text(x + 24, y + 1, f"program (i, j) = ({i}, {j})", "start"))
    parts.append(
        text(40, 24, "The 1024 x 1024 arrays; a stripe per program that reads the place", "start")
    )
    return document(3 * size + 2 * gap + 80, top + size + 70, parts)


MASKS = {
    "causal": "causal",
    "window": "sliding_window(12)",
    "prefix": "prefix_lm(16)",
    "natten": "natten(8, 8, 5, 5)",
    "diffusion": "block_diffusion(32, 8)",
    "strided": "strided(8)",
}


def draw_masks(folder, program):
    """Draws 64 x 64 pairs of each mask."""
    for name, mask in MASKS.items():
        command = [program, "mask", mask, "--q-len", "64", "--kv-len", "64"]
        picture = folder / f"mask_{name}.svg"
        subprocess.run([*command, "--svg", picture], check=True, stdout=subprocess.DEVNULL)


def main():
    root = Path(__file__).resolve().parent.parent
    folder = root / "docs" / "figures"
    folder.mkdir(exist_ok=True)
    (folder / "grid.svg").write_text(grid_figure())
    (folder / "matmul_blocks.svg").write_text(matmul_figure())
    program = root / "build" / "tilewright"
    if not program.exists():
        raise SystemExit("the pictures of masks need build/tilewright: ./dev build")
    draw_masks(folder, program)


if __name__ == "__main__":
    main()
