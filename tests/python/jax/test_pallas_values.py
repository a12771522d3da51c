"""Values of Pallas kernels against JAX and NumPy: control flow, functions, shapes, dots."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from pallas_kernels import F32, equal, near, normal, shape, tile

import tilewright.jax as twj

# ---- Control flow.


def test_loops_and_branches():
    def kernel(x_ref, n_ref, o_ref):
        n = n_ref[0]
        o_ref[0] = lax.fori_loop(0, n, lambda i, s: s + x_ref[i], 0.0)
        o_ref[1] = lax.fori_loop(2, 5, lambda i, s: s + x_ref[i] * i.astype(F32), 0.0)
        o_ref[2] = lax.while_loop(lambda v: v < 100, lambda v: v * 2, x_ref[1])
        o_ref[3] = lax.cond(n > 2, lambda: x_ref[3], lambda: x_ref[4])
        o_ref[4] = lax.switch(n, [lambda: 0.0, lambda: 1.0, lambda: 2.0])

        @pl.loop(0, 3)
        def _(i):
            o_ref[5 + i] = x_ref[i] + 1

    x = jnp.arange(1.0, 9)
    for n in (1, 4):
        out = twj.pallas_call(kernel, shape(8))(x, jnp.array([n]))
        want = [float(x[:n].sum()), 3 * 2 + 4 * 3 + 5 * 4, 128, 4 if n > 2 else 5, min(n, 2)]
        equal(out, [*want, 2, 3, 4])


def test_scans_over_rows():
    def kernel(x_ref, o_ref, last_ref):
        def step(carry, row):
            carry = carry * 0.5 + row
            return carry, carry

        last, rows = lax.scan(step, jnp.zeros(4), x_ref[...])
        o_ref[...] = rows
        last_ref[...] = last

    x = normal(0, 6, 4)
    rows, last = twj.pallas_call(kernel, (shape(6, 4), shape(4)))(x)
    want_last, want = lax.scan(lambda c, r: (c * 0.5 + r,) * 2, jnp.zeros(4), x)
    near(rows, want)
    near(last, want_last)

    def backwards(x_ref, o_ref):
        _, rows = lax.scan(lambda c, r: (c + r, c), 0.0, x_ref[...], reverse=True)
        o_ref[...] = rows

    out = twj.pallas_call(backwards, shape(4))(jnp.arange(4.0))
    equal(out, [6, 5, 3, 0])


def test_loops_that_count_twice():
    def kernel(o_ref):
        i, j = lax.fori_loop(3, 7, lambda k, c: (c[0] + 1, c[1] + k), (10, 0))
        o_ref[0] = i
        o_ref[1] = j

    equal(twj.pallas_call(kernel, shape(2, dtype=jnp.int32))(), [14, 18])


# ---- Values.

UNARY = """abs sign exp exp2 expm1 log log1p tanh sin cos sqrt floor ceil tan sinh cosh arcsinh
           arctan arcsin arccos cbrt""".split()


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(name):
    x = jnp.linspace(0.02, 0.98, 64)
    if name in ("floor", "ceil", "sign", "arctan", "tanh", "arcsinh", "cbrt", "sinh"):
        x = jnp.linspace(-9, 9, 65)
    function = getattr(jnp, name)
    want = getattr(np, name)(np.asarray(x, np.float64))
    near(tile(function, x), want, 1e-6)


def test_more_functions():
    x, y = normal(0, 64), normal(1, 64)
    near(tile(jnp.arctan2, y, x), np.arctan2(np.float64(y), np.float64(x)))
    near(tile(jax.nn.gelu, x), jax.nn.gelu(x))
    near(tile(jax.nn.sigmoid, x), jax.nn.sigmoid(x))
    near(tile(lax.erf, x), lax.erf(x))
    near(tile(lax.rsqrt, abs(x)), lax.rsqrt(abs(x)), 1e-5)
    near(tile(lambda v: v**3, x), x**3)
    near(tile(lambda v: v**-2, x + 4), (x + 4) ** -2.0)
    near(tile(lambda v: jnp.abs(v) ** 0.7, x), jnp.abs(x) ** 0.7)
    near(tile(jnp.arccosh, 1 + abs(x)), np.arccosh(1 + abs(np.float64(x))), 1e-5)
    near(tile(jnp.arctanh, jnp.tanh(x)), np.arctanh(np.tanh(np.float64(x))), 1e-5)
    equal(tile(jnp.isfinite, jnp.array([1.0, jnp.inf, jnp.nan, -jnp.inf])), [1, 0, 0, 0])
    equal(tile(lambda v: lax.round(v, lax.RoundingMethod.AWAY_FROM_ZERO),
               jnp.array([0.5, -1.5, 0.49999997, 2.4])), [1, -2, 0, 2])  # fmt: skip
    equal(tile(jnp.round, jnp.array([0.5, 1.5, -2.5])), [0, 2, -2])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_functions_of_narrow_floats_are_rounded_once(dtype):
    x = jnp.linspace(0.02, 4.0, 64).astype(dtype)
    for name in ("tan", "sinh", "cosh", "arcsinh", "arctan", "cbrt"):
        want = getattr(np, name)(np.asarray(x, np.float64))
        have = np.asarray(tile(getattr(jnp, name), x), np.float64)
        # Half an ulp, and a little for f32's own error.
        assert (
            np.abs(have - want) <= 0.51 * float(jnp.finfo(dtype).eps) * np.abs(want)
        ).all(), name
    want = np.asarray(x[16:], np.float64) ** 7
    have = np.asarray(tile(lambda v: v**7, x[16:]), np.float64)
    assert (np.abs(have - want) <= 0.51 * float(jnp.finfo(dtype).eps) * want).all()


def test_functions_near_overflow():
    x = jnp.array([-89.2, -80.0, 0.0, 89.2, jnp.inf])
    for name in ("sinh", "cosh"):
        want = getattr(np, name)(np.asarray(x, np.float64))
        np.testing.assert_allclose(tile(getattr(jnp, name), x), want, rtol=1e-5)
    x = jnp.array([1.0, 1e10, 1e30])
    np.testing.assert_allclose(tile(jnp.arccosh, x), np.arccosh(np.float64(x)), rtol=1e-6)


def test_erfc_and_exact_gelu():
    x = jnp.linspace(-6, 9, 256)
    want = np.array([math.erfc(v) for v in np.asarray(x, np.float64)])
    have = np.asarray(tile(lax.erfc, x), np.float64)
    # exp(-x * x) turns the rounding error of x * x, half an ulp of 81, into a relative error.
    assert np.abs(have / want - 1).max() <= 81 * 2**-24 + 2**-20
    equal(tile(lax.erfc, jnp.array([jnp.inf, -jnp.inf, jnp.nan, 0.0])), [0, 2, np.nan, 1])
    near(tile(lambda v: jax.nn.gelu(v, approximate=False), x), jax.nn.gelu(x, approximate=False))


def test_nextafter():
    tiny = jnp.finfo(F32).tiny
    x = jnp.array([1.0, -1.0, 1.5, jnp.inf, jnp.nan, 2.0, -2 * tiny])
    y = jnp.array([2.0, -3.0, -1.0, 0.0, 1.0, 2.0, 0.0])
    equal(tile(lax.nextafter, x, y), np.nextafter(np.asarray(x), np.asarray(y)))
    half = normal(0, 64, dtype=jnp.bfloat16)
    equal(tile(lambda v: lax.nextafter(v, jnp.zeros_like(v)), half),
          lax.nextafter(half, jnp.zeros_like(half)))  # fmt: skip


def test_integers():
    a = jnp.array([7, -7, 7, -7, 0, 5], jnp.int32)
    b = jnp.array([2, 2, -2, -2, 3, 5], jnp.int32)
    for function in (jnp.floor_divide, jnp.remainder, lax.div, lax.rem, jnp.bitwise_xor):
        equal(tile(function, a, b), function(a, b))
    equal(tile(lambda v: v // 3, a), a // 3)
    equal(tile(lambda v: v % 4, a), a % 4)
    equal(tile(lambda v: v >> 1, a), a >> 1)
    equal(tile(lambda v: lax.shift_right_logical(v, 1), a), lax.shift_right_logical(a, 1))
    equal(tile(lax.population_count, a), lax.population_count(a))
    equal(tile(lax.clz, a), lax.clz(a))
    u = jnp.array([1, 200, 255], jnp.uint8)
    equal(tile(lambda v: v + 100, u), u + 100)
    equal(tile(lambda v: v.astype(jnp.int8), u), u.astype(jnp.int8))


def test_conversions():
    x = jnp.array([1.5, -2.7, 300.2, 0.0])
    for dtype in (jnp.int32, jnp.bfloat16, jnp.float16, jnp.bool_, jnp.float8_e4m3fn):
        equal(tile(lambda v, to=dtype: v.astype(to), x).astype(F32), x.astype(dtype).astype(F32))
    equal(tile(lambda v: lax.bitcast_convert_type(v, jnp.int32), x),
          lax.bitcast_convert_type(x, jnp.int32))  # fmt: skip
    equal(tile(lambda v: lax.reduce_precision(v, 8, 7), x), lax.reduce_precision(x, 8, 7))


def test_f64(x64):
    x = jax.random.normal(jax.random.key(0), (16, 16), jnp.float64)
    near(tile(lambda v: jnp.tanh(v) @ v, x), jnp.tanh(x) @ x, 1e-13)
    near(tile(jnp.arctan, x * 3), jnp.arctan(x * 3), 1e-14)


def test_reductions_and_scans():
    x = normal(0, 6, 10)
    for function in (jnp.sum, jnp.max, jnp.min, jnp.argmax, jnp.argmin, jnp.prod, jnp.mean):
        for axis in (0, 1):
            near(tile(lambda v, f=function, a=axis: f(v, axis=a), x), function(x, axis=axis))
    near(tile(lambda v: jnp.sum(v, keepdims=True), x), jnp.sum(x, keepdims=True))
    equal(tile(lambda v: jnp.any(v > 2, axis=0), x), jnp.any(x > 2, axis=0))
    equal(tile(lambda v: jnp.all(v > -1, axis=1), x), jnp.all(x > -1, axis=1))
    for function in (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp):
        near(tile(lambda v, f=function: f(v, axis=1), x), function(x, axis=1))
    near(tile(lambda v: lax.cumsum(v, axis=0, reverse=True), x), lax.cumsum(x, 0, reverse=True))
    some = jnp.where(x < 0, -jnp.inf, x * 50)
    sums = tile(lambda v: lax.cumlogsumexp(v, 1, True), some)
    near(jnp.exp(sums / 100), jnp.exp(lax.cumlogsumexp(some, 1, True) / 100))
    near(tile(jax.nn.softmax, x), jax.nn.softmax(x))
    near(tile(lambda v: jax.nn.logsumexp(v, axis=-1), x), jax.nn.logsumexp(x, axis=-1))


def test_operators_of_the_kernel():
    x, i = normal(0, 6, 11), jnp.broadcast_to(jnp.arange(11), (6, 11))

    def then(f, g):
        return f[0] * g[0], f[1] * g[0] + g[1]

    for axis in (0, 1):
        for reverse in (False, True):

            def scanned(v, axis=axis, reverse=reverse):
                return lax.associative_scan(then, (v, v + 1), reverse, axis)[1]

            near(tile(scanned, x), scanned(x), 1e-5)

    def larger(a, b):
        keep = jnp.abs(a[0]) >= jnp.abs(b[0])
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    def place(v, w):
        return lax.reduce((v, w), (jnp.float32(0), jnp.int32(-1)), larger, (1,))[1]

    equal(tile(place, x, i), place(x, i))

    def both(v):
        return lax.reduce(v, jnp.float32(2), lambda a, b: a + b - a * b, (0, 1))

    near(tile(both, x), both(x), 1e-4)
    empty = lax.reduce(x[:, :0], jnp.float32(3), lambda a, b: a + b - a * b, (1,))
    equal(tile(lambda v: lax.reduce(v[:, :0], jnp.float32(3), lambda a, b: a + b - a * b, (1,)), x),
          empty)  # fmt: skip


def test_shapes():
    x = normal(0, 4, 6)
    functions = [
        lambda v: v.T,
        lambda v: v.reshape(2, 2, 6),
        lambda v: v.reshape(-1),
        lambda v: v[:, None, :] + v[None, :, :],
        lambda v: jnp.concatenate([v, 2 * v], axis=1),
        lambda v: jnp.stack([v, -v], axis=1),
        lambda v: jnp.pad(v, ((1, 2), (0, 3)), constant_values=7),
        lambda v: v[1:3, ::2],
        lambda v: jnp.split(v, 2, axis=1)[1],
        lambda v: jnp.tile(v, (2, 1)),
        lambda v: jnp.flip(v, axis=1),
        lambda v: jnp.roll(v, 2, axis=0),
        lambda v: jnp.swapaxes(v[None], 0, 2),
        lambda v: jnp.tril(v),
        lambda v: jnp.where(v > 0, v, 0) * jnp.arange(6.0),
        lambda v: v.at[1].set(0.0),
        lambda v: jnp.take(v, jnp.arange(3) * 2 % 4, axis=0),
        lambda v: lax.dynamic_slice(v, (v[0, 0].astype(jnp.int32) + 9, 1), (2, 3)),
        lambda v: lax.dynamic_update_slice(v, v[:2, :2], (1, v[0, 1].astype(jnp.int32) + 1)),
    ]
    for i, function in enumerate(functions):
        near(tile(function, x), function(x)), i


def test_gathers_and_scatters_within_a_value():
    x = normal(0, 6, 16)
    i = jax.random.randint(jax.random.key(1), (6, 16), 0, 16)
    functions = [
        lambda v, w: jnp.take_along_axis(v, w, axis=1),
        lambda v, w: jnp.take_along_axis(v, w % 6, axis=0),
        lambda v, w: jnp.put_along_axis(v, w[:, :1], 7.0, axis=1, inplace=False),
        lambda v, w: v.reshape(6, 4, 4)[w[0, :3] % 6, :, w[1, :3] % 4],
        lambda v, w: jnp.take(v, w[0, 0] % 6, axis=0),
        lambda v, w: jax.vmap(lambda k: lax.dynamic_slice(v, (k, k), (2, 3)))(w[0, :5]),
        lambda v, w: v.at[:, 0].set(v[:, 1]).at[:, 2:].set(v[:, 1:-1]),
        lambda v, w: v.at[1:3].add(1.0),
        lambda v, w: jax.vmap(lambda row, k: row.at[k].add(2.0))(v, w[:, 0]),
        # Elements out of bounds are filled, or dropped.
        lambda v, w: v.at[w[0] + 2, w[1]].get(mode="fill", fill_value=7.0),
        lambda v, w: v.at[w[0] + 2, w[1] + 2].set(3.0, mode="drop"),
        lambda v, w: lax.pad(v, 9.0, ((1, -1, 2), (-1, 2, 1))),
    ]
    for function in functions:
        equal(tile(function, x, i), function(x, i))


def test_sorts():
    x = normal(0, 6, 16)
    x = x.at[1, 3].set(jnp.nan).at[2, 2].set(-jnp.inf).at[1, 5].set(jnp.nan)
    ties = jnp.round(x * 2)
    functions = [
        jnp.sort,
        lambda v: jnp.sort(v, axis=0),
        lambda v: jnp.sort(v, descending=True),
        jnp.argsort,
        lambda v: lax.top_k(v, 3)[0],
        lambda v: lax.top_k(v, 3)[1],
        lambda v: jnp.median(v, axis=1),
    ]
    for function in functions:
        equal(tile(function, ties), function(ties))
    equal(tile(lambda v, w: lax.sort((v, w), num_keys=2)[1], ties, -x),
          lax.sort((ties, -x), num_keys=2)[1])  # fmt: skip
    words = jax.random.randint(jax.random.key(0), (33,), -100, 100, jnp.int8)
    equal(tile(jnp.sort, words), jnp.sort(words))


def test_random_keys_give_the_numbers_of_jax():
    wrap = jax.random.wrap_key_data
    functions = [
        lambda k: jax.random.bits(wrap(k), (8, 16)),
        lambda k: jax.random.bits(jax.random.fold_in(wrap(k), 5), (4,), "uint8"),
        lambda k: jax.random.bits(jax.random.split(wrap(k), 3)[2], (4,)),
        lambda k: sum(jax.random.bits(one, (4,)) for one in jax.random.split(wrap(k))),
        lambda k: jax.random.bits(jax.random.key(k[1]), (4,)),
        lambda k: jax.random.uniform(wrap(k), (5, 7)),
        lambda k: jax.random.randint(wrap(k), (16,), 0, 10),
        lambda k: jax.random.permutation(wrap(k), 16),
        lambda k: jax.random.categorical(wrap(k), jnp.arange(8.0)),
        lambda k: jax.vmap(lambda one: jax.random.bits(one, (4,)))(jax.random.split(wrap(k), 3)),
        lambda k: jax.random.key_data(
            lax.fori_loop(0, 3, lambda i, key: jax.random.split(key)[0], wrap(k))
        ),
    ]
    words = jax.random.key_data(jax.random.key(3))
    for function in functions:
        equal(tile(function, words), function(words))
    draw = lambda k: jax.random.normal(wrap(k), (8, 16))  # noqa: E731
    near(tile(draw, words), draw(words), 1e-5)


def test_dots():
    a, b = normal(0, 16, 24), normal(1, 24, 8)
    near(tile(lambda p, q: p @ q, a, b), a @ b)
    near(tile(lambda p, q: jnp.dot(p.T, q), a.T, b), a @ b)
    near(tile(lambda p, q: lax.dot_general(p, q, (((1,), (1,)), ((), ()))), a, b.T), a @ b)
    near(tile(lambda p, q: lax.dot_general(p, q, (((0,), (1,)), ((), ()))), a.T, b.T), a @ b)
    near(tile(lambda p, q: plgpu.dot(p, q, trans_a=True, trans_b=True), a.T, b.T), a @ b)
    near(tile(lambda p, q: p @ q, a, b[:, 0]), a @ b[:, 0])
    near(tile(lambda p, q: p @ q, a[0], b), a[0] @ b)
    near(tile(jnp.outer, a[0], b[0]), jnp.outer(a[0], b[0]))
    c, d = normal(2, 3, 8, 16), normal(3, 3, 16, 4)
    near(tile(lambda p, q: jnp.einsum("bij,bjk->bik", p, q), c, d), c @ d)
    near(tile(lambda p, q: jnp.einsum("ibj,bjk->bik", p, q), c.swapaxes(0, 1), d), c @ d)
    near(tile(lambda p, q, r: p @ q + r, a, b, normal(4, 16, 8)), a @ b + normal(4, 16, 8))
    half, quarter = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    out = tile(lambda p, q: jnp.dot(p, q, preferred_element_type=F32), half, quarter)
    assert out.dtype == F32
    near(out, np.asarray(half, np.float64) @ np.asarray(quarter, np.float64))
    i8 = jax.random.randint(jax.random.key(5), (16, 16), -100, 100, jnp.int8)
    equal(tile(lambda p: jnp.dot(p, p, preferred_element_type=jnp.int32), i8),
          np.asarray(i8, np.int32) @ np.asarray(i8, np.int32))  # fmt: skip


# ---- Many dimensions.


@pytest.mark.parametrize("extents", [(2, 1, 3, 4, 5), (1, 1, 2, 3, 1, 4), (2, 1, 3, 1, 2, 1, 2, 9)])
def test_tiles_of_many_dimensions(extents):
    x, rank = normal(0, *extents), len(extents)
    near(tile(lambda x: jnp.exp(x) * x + 1, x), jnp.exp(x) * x + 1)
    for axis in range(rank):
        near(tile(lambda x: x.sum(axis), x), x.sum(axis))  # noqa: B023
        equal(tile(lambda x: x - x.max(axis, keepdims=True), x), x - x.max(axis, keepdims=True))  # noqa: B023
        equal(tile(lambda x: jnp.argmin(x, axis), x), jnp.argmin(x, axis))  # noqa: B023
        near(tile(lambda x: jnp.cumsum(x, axis), x), jnp.cumsum(x, axis))  # noqa: B023
    backwards = tuple(reversed(range(rank)))
    equal(tile(lambda x: x.transpose(backwards), x), x.transpose(backwards))
    equal(tile(lambda x: x.reshape(-1, extents[-1]), x), x.reshape(-1, extents[-1]))
    equal(tile(lambda x: jnp.concatenate([x, -x], 2), x), jnp.concatenate([x, -x], 2))
    equal(tile(lambda x: jnp.flip(x, 2), x), jnp.flip(x, 2))
    equal(tile(lambda x: jnp.sort(x, -1), x), jnp.sort(x, -1))
    y = x.swapaxes(-1, -2)
    near(tile(lambda x, y: x @ y, x, y), x @ y, 1e-5)


def test_blocks_of_many_dimensions():
    x = normal(0, 2, 3, 2, 4, 16, 8)

    def kernel(x_ref, scale_ref, o_ref):
        o_ref[...] = x_ref[...] * scale_ref[...]

    spec = pl.BlockSpec((1, 3, 1, 2, 8, 8), lambda b, h, i, j: (b, 0, h, i, j, 0))
    scale = normal(1, 1, 3, 1, 1, 1, 8)
    whole = pl.BlockSpec(scale.shape, lambda *_: (0,) * 6)
    call = twj.pallas_call(
        kernel, shape(*x.shape), grid=(2, 2, 2, 2), in_specs=[spec, whole], out_specs=spec
    )
    equal(call(x, scale), x * scale)
    equal(jax.vmap(call, (0, None))(x[None], scale)[0], x * scale)

    def masked(x_ref, o_ref):
        inside = lax.broadcasted_iota(jnp.int32, x_ref.shape, 4) % 3 > 0
        value = plgpu.load(x_ref.at[...], mask=inside, other=7.0)
        plgpu.store(o_ref.at[...], value)

    block = pl.BlockSpec((1, 1, 2, 4, 16, 8), lambda b, h: (b, h, 0, 0, 0, 0))
    call = twj.pallas_call(masked, shape(*x.shape), grid=(2, 3), in_specs=[block], out_specs=block)
    inside = jnp.arange(16)[:, None] % 3 > 0
    equal(call(x), jnp.where(inside, x, 7.0))
