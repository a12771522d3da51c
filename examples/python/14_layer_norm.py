"""LayerNorm forward and backward: the forward pass also outputs the statistics, so that the
backward pass reads the rows once; a second call adds up partial sums of the weight and bias
gradients."""

import numpy as np

import tilewright as tw

ROWS, COLUMNS, BLOCK, EPS = 45, 200, 8, 1e-5
PROGRAMS = tw.cdiv(ROWS, BLOCK)
rows = tw.BlockSpec((BLOCK, tw.all), lambda i: (i, 0))
row_values = tw.BlockSpec(BLOCK, lambda i: i)
part = tw.BlockSpec((None, tw.all), lambda i: (i, 0))
matrix = tw.ShapeDtype((ROWS, COLUMNS), np.float32)
column = tw.ShapeDtype((ROWS,), np.float32)
partial = tw.ShapeDtype((PROGRAMS, COLUMNS), np.float32)


@tw.kernel
def layer_norm(x, weight, bias, y, mean, inverse):
    values = tw.load(x, other=0)
    m = tw.mean(values, 1, keepdims=True)
    centred = values - m
    r = tw.rsqrt(tw.mean(tw.square(centred), 1, keepdims=True) + EPS)
    y[...] = centred * r * weight[...] + bias[...]
    mean[...] = tw.squeeze(m, 1)
    inverse[...] = tw.squeeze(r, 1)


@tw.kernel
def layer_norm_backward(x, mean, inverse, dy, weight, dx, d_weight, d_bias):
    # Rows past the end read 0 everywhere and add nothing.
    m = tw.load(mean, other=0)[:, None]
    r = tw.load(inverse, other=0)[:, None]
    normal = (tw.load(x, other=0) - m) * r
    gradient = tw.load(dy, other=0)
    scaled = gradient * weight[...]
    dx[...] = (
        scaled
        - tw.mean(scaled, 1, keepdims=True)
        - normal * tw.mean(scaled * normal, 1, keepdims=True)
    ) * r
    d_weight[...] = tw.sum(gradient * normal, 0)
    d_bias[...] = tw.sum(gradient, 0)


@tw.kernel
def sum_of_parts(parts, total):
    total[...] = tw.sum(parts[...], 0)


forward = tw.call(
    layer_norm,
    grid=PROGRAMS,
    in_specs=rows,
    out_specs=[rows, row_values, row_values],
    out_shape=(matrix, column, column),
)
backward = tw.call(
    layer_norm_backward,
    grid=PROGRAMS,
    in_specs=[rows, row_values, row_values, rows],
    out_specs=[rows, part, part],
    out_shape=(matrix, partial, partial),
)
total = tw.call(sum_of_parts, out_shape=tw.ShapeDtype((COLUMNS,), np.float32))

generator = np.random.default_rng(1)
x, dy = generator.uniform(-1, 1, (2, ROWS, COLUMNS)).astype(np.float32)
weight, bias = generator.uniform(-1, 1, (2, COLUMNS)).astype(np.float32)

y, mean, inverse = forward(x, weight, bias)
dx, weights, biases = backward(x, mean, inverse, dy, weight)

wide = x.astype(np.float64)
centred = wide - wide.mean(1, keepdims=True)
r = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + EPS)
normal = centred * r
scaled = dy * weight.astype(np.float64)
average = (scaled * normal).mean(1, keepdims=True)
for name, result, expected in [
    ("layer_norm", y, normal * weight + bias),
    ("dx", dx, (scaled - scaled.mean(1, keepdims=True) - normal * average) * r),
    ("dweight", total(weights), (dy * normal).sum(0)),
    ("dbias", total(biases), dy.sum(0)),
]:
    error = np.abs(result - expected).max()
    print(f"{name}: largest error {error:.3g}")
    assert error < 1e-5
