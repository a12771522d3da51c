"""Kernels of `tilewright bench cpu` as Halide pipelines: rows in parallel, columns in vectors.

Dimensions are in Halide's order, the innermost first.
"""

import functools

import halide as hl

x, y, z, u, v, xi, yi = (hl.Var(name) for name in ("x", "y", "z", "u", "v", "xi", "yi"))
VECTOR = 16


def by_rows(out):
    """The schedule of elementwise kernels: some rows are a task, columns are vectors."""
    return out.split(y, y, yi, 8, hl.TailStrategy.GuardWithIf).parallel(y).vectorize(x, VECTOR)


def add(a, r, bias):
    out = hl.Func("add")
    out[x, y] = a[x, y] + r[x, y]
    return by_rows(out)


def scale_shift_relu(a, r, bias):
    out = hl.Func("scale_shift_relu")
    out[x, y] = hl.max(a[x, y] * hl.f32(1.5) + bias[x], hl.f32(0)) + r[x, y]
    return by_rows(out)


def bias_gelu_residual(a, r, bias):
    out = hl.Func("bias_gelu_residual")
    t = a[x, y] + bias[x]
    inner = hl.f32(0.7978845608) * (t + hl.f32(0.044715) * t * t * t)
    e = hl.exp(hl.f32(2) * inner)
    out[x, y] = t * (hl.f32(1) - hl.f32(1) / (e + hl.f32(1))) + r[x, y]
    return by_rows(out)


def total(value, extent, operation, start):
    """A reduction of value(column) over a row, in VECTOR partial results."""
    partial, whole = hl.Func(), hl.Func()
    columns, lanes = hl.RDom([(0, extent // VECTOR)]), hl.RDom([(0, VECTOR)])
    partial[u, y] = hl.f32(start)
    partial[u, y] = operation(partial[u, y], value(columns.x * VECTOR + u))
    whole[y] = hl.f32(start)
    whole[y] = operation(whole[y], partial[lanes.x, y])
    return partial, whole


def in_rows(out, partials, wholes):
    """Computes reductions of a row where the row is computed."""
    out.parallel(y, 8).vectorize(x, VECTOR)
    for partial in partials:
        partial.compute_at(out, y).vectorize(u).update().vectorize(u)
    for whole in wholes:
        whole.compute_at(out, y)
    return out


def softmax(a):
    n = a.width()
    out, weights = hl.Func("softmax"), hl.Func("weights")
    part_most, most = total(lambda c: a[c, y], n, hl.max, -3e38)
    weights[x, y] = hl.exp(a[x, y] - most[y])
    part_sum, whole = total(lambda c: weights[c, y], n, lambda s, t: s + t, 0)
    out[x, y] = weights[x, y] / whole[y]
    in_rows(out, [part_most, part_sum], [most, whole])
    weights.compute_at(out, y).vectorize(x, VECTOR)
    return out


def layer_norm(a, weight, bias):
    n = a.width()
    out = hl.Func("layer_norm")
    plus = lambda s, t: s + t  # noqa: E731
    part_sum, whole = total(lambda c: a[c, y], n, plus, 0)

    def deviation(c):
        return a[c, y] - whole[y] * hl.f32(1 / n)

    part_squares, squares = total(lambda c: deviation(c) * deviation(c), n, plus, 0)
    factor = hl.f32(1) / hl.sqrt(squares[y] * hl.f32(1 / n) + hl.f32(1e-5))
    out[x, y] = deviation(x) * factor * weight[x] + bias[x]
    return in_rows(out, [part_sum, part_squares], [whole, squares])


def rotary(a, cosines, sines):
    half = cosines.width()
    out = hl.Func("rotary")
    c, s = cosines[x % half, y], sines[x % half, y]
    other = a[(x + half) % (2 * half), y]
    out[x, y] = a[x, y] * c + hl.select(x < half, -other, other) * s
    out.bound(x, 0, 2 * half).split(x, u, x, half).unroll(u)
    return out.parallel(y, 64).vectorize(x, VECTOR)


def transpose(a):
    out = hl.Func("transpose")
    out[x, y] = a[y, x]
    out.tile(x, y, xi, yi, 16, 16).vectorize(xi).unroll(yi).parallel(y)
    return out


def prefix_mask(scores, prefixes):
    out = hl.Func("prefix_mask")
    out[x, y, z] = hl.select((x <= y) | (x < prefixes[z]), scores[x, y, z], hl.f32(-1e30))
    return out.fuse(y, z, v).parallel(v, 64).vectorize(x, VECTOR)


def cumsum_rows(a):
    out = hl.Func("cumsum_rows")
    rows = hl.RDom([(1, a.height() - 1)])
    out[x, y] = a[x, y]
    out[x, rows.x] = out[x, rows.x - 1] + a[x, rows.x]
    out.parallel(y, 64).vectorize(x, VECTOR)
    update = out.update()
    update.split(x, u, xi, 64).reorder(xi, rows.x, u).vectorize(xi, VECTOR).parallel(u)
    return out


def sliding_sum(a):
    out = hl.Func("sliding_sum")
    out[x, y] = functools.reduce(lambda s, t: s + t, (a[x + k, y] for k in range(9)))
    return by_rows(out)


def depthwise(a, weights):
    out = hl.Func("depthwise")
    out[x, y, z] = functools.reduce(
        lambda s, t: s + t,
        (weights[i, j, z] * a[x + i, y + j, z] for j in range(3) for i in range(3)),
    )
    return out.parallel(z).vectorize(x, VECTOR)


def around(a):
    return a[x + 1, y] + a[x + 1, y + 2] + a[x, y + 1] + a[x + 2, y + 1]


def stencil(a):
    out = hl.Func("stencil")
    out[x, y] = hl.f32(0.5) * a[x + 1, y + 1] + hl.f32(0.125) * around(a)
    return by_rows(out)


def jacobi(a, f):
    out = hl.Func("jacobi")
    out[x, y] = hl.f32(0.25) * (around(a) - f[x, y])
    return by_rows(out)


def blur(a):
    out, sums = hl.Func("blur"), hl.Func("sums")
    four, six = hl.f32(4), hl.f32(6)
    sums[x, y] = a[x, y] + a[x, y + 4] + four * (a[x, y + 1] + a[x, y + 3]) + six * a[x, y + 2]
    near = four * (sums[x + 1, y] + sums[x + 3, y])
    out[x, y] = (sums[x, y] + sums[x + 4, y] + near + six * sums[x + 2, y]) * hl.f32(1 / 256)
    by_rows(out)
    sums.compute_at(out, yi).vectorize(x, VECTOR)
    return out


def histogram(a, zeros):
    out = hl.Func("histogram")
    elements = hl.RDom([(0, a.width())])
    out[x] = 0
    out[hl.clamp(a[elements.x], 0, zeros.width() - 1)] += 1
    return out


def embedding(table, ids):
    out = hl.Func("embedding")
    out[x, y] = table[x, hl.clamp(ids[y], 0, table.height() - 1)]
    return out.parallel(y, 64).vectorize(x, VECTOR)


def matmul_f32(a, w):
    out, product = hl.Func("matmul_f32"), hl.Func("product")
    k = hl.RDom([(0, a.width())])
    product[x, y] = hl.f32(0)
    product[x, y] += a[k.x, y] * w[x, k.x]
    out[x, y] = product[x, y]
    out.tile(x, y, xi, yi, 64, 4).vectorize(xi, VECTOR).unroll(yi).parallel(y)
    product.compute_at(out, x).vectorize(x, VECTOR).unroll(x).unroll(y)
    product.update().reorder(x, y, k.x).vectorize(x, VECTOR).unroll(x).unroll(y)
    return out


FUNCTIONS = {
    function.__name__: function
    for function in (
        add, scale_shift_relu, bias_gelu_residual, softmax, layer_norm, rotary, transpose,
        prefix_mask, cumsum_rows, sliding_sum, depthwise, stencil, jacobi, blur, histogram,
        embedding, matmul_f32,
    )
}  # fmt: skip


def prepare(job, arrays):
    """As prepare_torch of cpu_peers.py."""
    import numpy as np

    if job["kernel"] not in FUNCTIONS:
        raise NotImplementedError(job["kernel"])
    _, dtype, shape = job["output"]
    if job["kernel"] in ("softmax", "layer_norm") and shape[-1] % VECTOR:
        raise NotImplementedError(f"rows of {shape[-1]}")
    result = np.zeros(shape, {"f32": np.float32, "i32": np.int32}[dtype])
    inputs, output = [hl.Buffer(array) for array in arrays], hl.Buffer(result)
    pipeline = FUNCTIONS[job["kernel"]](*inputs)
    pipeline.compile_jit()

    def run(kept=(arrays, inputs)):  # the pipeline has their addresses
        pipeline.realize(output)
        return result

    return run, lambda array: array
