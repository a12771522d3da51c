"""Your first kernel"""

#: A kernel is a function of *Refs*, references to arrays. It loads tiles, computes with them and
#: stores them; a grid of programs runs it, each on a block of every array. This notebook writes a
#: row-wise softmax, runs it, finds a mistake in it and looks at what it becomes. It needs NumPy and
#: Tilewright, no GPU.
import pathlib
import tempfile

import numpy as np

import tilewright as tw

# ---- A kernel and its call
#: `x[...]` loads the block that a program sees, and assigning to `out[...]` stores it. `tw.call`
#: says which blocks: here 64 programs with 8 rows of 1024 columns each.


@tw.kernel
def softmax(x, out):
    row = x[...]
    e = tw.exp(row - tw.max(row, 1, keepdims=True))
    out[...] = e / tw.sum(e, 1, keepdims=True)


def call_of(kernel, columns, **options):
    rows = tw.BlockSpec((8, 1024), lambda i: (i, 0))
    return tw.call(
        kernel,
        grid=64,
        in_specs=rows,
        out_specs=rows,
        out_shape=tw.ShapeDtype((512, columns), np.float32),
        **options,
    )


softmax_rows = call_of(softmax, 1024)
x = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
y = softmax_rows(x)
print(y.shape, np.allclose(y.sum(1), 1, atol=1e-5))

# ---- Let the checked mode find a mistake
#: Elements outside an array are read as 0, and `exp(0)` is 1: with 1000 columns a block of 1024
#: sums 24 elements too many. The checked mode stops at the first use of an element that nobody
#: defined.
try:
    call_of(softmax, 1000, interpret=True)(x[:, :1000])
except ValueError as error:
    print("expected a defined value" in str(error))

#: `other` says what such elements are.


@tw.kernel
def masked_softmax(x, out):
    row = tw.load(x, other=-np.inf)  # exp(-inf) is 0: no part of the sum
    e = tw.exp(row - tw.max(row, 1, keepdims=True))
    out[...] = e / tw.sum(e, 1, keepdims=True)


y = call_of(masked_softmax, 1000, interpret=True)(x[:, :1000])
print(np.allclose(y.sum(1), 1, atol=1e-5))

# ---- What it becomes
#: The traced program is text. The same program becomes bytecode for CPUs and CUDA C++ for GPUs.
softmax_rows = call_of(masked_softmax, 1000)
softmax_rows(np.ascontiguousarray(x[:, :1000]))
print(softmax_rows.ir())

# ---- What it costs
#: Work is counted in the program, nothing runs. A softmax does few operations for each byte, so
#: memory limits it.
cost = softmax_rows.cost()
print(f"{cost.flops / 1e6:.1f} MFLOP, {cost.transcendentals / 1e6:.1f} M exponentials")
print(f"{cost.array_bytes / 1e6:.1f} MB of arrays, {cost.intensity:.2f} FLOP for each byte")
print("under the roof of", cost.roof(peak_flops=2e11, bytes_per_second=5e10))

# ---- All of its forms on one page
#: `show` writes source, IR, bytecode, CUDA, PTX and SASS side by side, with lines that belong
#: together linked. Without a path it opens the page in the browser.
page = softmax_rows.show(pathlib.Path(tempfile.mkdtemp(), "masked_softmax.html"))
print("<title>masked_softmax</title>" in pathlib.Path(page).read_text())
