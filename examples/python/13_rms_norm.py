"""RMSNorm of bf16 rows with f32 weights, forward and backward: each program handles a block of
rows; the weight's gradient is summed per program and then, in order, over the programs."""

import ml_dtypes
import numpy as np

import tilewright as tw

ROWS, COLUMNS, BLOCK, EPS = 50, 300, 8, 1e-5
PROGRAMS = tw.cdiv(ROWS, BLOCK)
rows = tw.BlockSpec((BLOCK, tw.all), lambda i: (i, 0))
row_values = tw.BlockSpec(BLOCK, lambda i: i)
part = tw.BlockSpec((None, tw.all), lambda i: (i, 0))


@tw.kernel
def rms_norm(x, weight, y, inverse):
    values = tw.load(x, other=0).to(np.float32)
    r = tw.rsqrt(tw.mean(tw.square(values), 1) + EPS)
    y[...] = values * r[:, None] * weight[...]
    inverse[...] = r


@tw.kernel
def rms_norm_backward(x, inverse, dy, weight, dx, d_weight):
    # Rows past the end read 0 everywhere and add nothing.
    r = tw.load(inverse, other=0)[:, None]
    normal = tw.load(x, other=0).to(np.float32) * r
    gradient = tw.load(dy, other=0)
    scaled = gradient * weight[...]
    mean = tw.mean(scaled * normal, 1, keepdims=True)
    dx[...] = ((scaled - normal * mean) * r).to(dx.dtype)
    d_weight[...] = tw.sum(gradient * normal, 0)


@tw.kernel
def sum_of_parts(parts, total):
    total[...] = tw.sum(parts[...], 0)


forward = tw.call(
    rms_norm,
    grid=PROGRAMS,
    in_specs=rows,
    out_specs=[rows, row_values],
    out_shape=(tw.ShapeDtype((ROWS, COLUMNS), np.float32), tw.ShapeDtype((ROWS,), np.float32)),
)
backward = tw.call(
    rms_norm_backward,
    grid=PROGRAMS,
    in_specs=[rows, row_values, rows],
    out_specs=[rows, part],
    out_shape=(
        tw.ShapeDtype((ROWS, COLUMNS), ml_dtypes.bfloat16),
        tw.ShapeDtype((PROGRAMS, COLUMNS), np.float32),
    ),
)
total = tw.call(sum_of_parts, out_shape=tw.ShapeDtype((COLUMNS,), np.float32))

generator = np.random.default_rng(1)
x = generator.uniform(-1, 1, (ROWS, COLUMNS)).astype(ml_dtypes.bfloat16)
weight = generator.uniform(-1, 1, COLUMNS).astype(np.float32)
dy = generator.uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32)

y, inverse = forward(x, weight)
dx, parts = backward(x, inverse, dy, weight)
d_weight = total(parts)

wide = x.astype(np.float64)
r = 1 / np.sqrt((wide**2).mean(1, keepdims=True) + EPS)
normal = wide * r
scaled = dy * weight.astype(np.float64)
expected_dx = (scaled - normal * (scaled * normal).mean(1, keepdims=True)) * r
for name, result, expected, tolerance in [
    ("rms_norm", y, normal * weight, 1e-6),
    ("dx", dx.astype(np.float64), expected_dx, 1e-2),
    ("dweight", d_weight, (dy * normal).sum(0), 1e-5),
]:
    error = np.abs(result - expected).max()
    print(f"{name}: largest error {error:.3g}")
    assert error < tolerance
