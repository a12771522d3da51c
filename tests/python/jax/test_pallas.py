"""Kernels written with pl.* against NumPy, and the forms in which they may be called."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

import tilewright.jax as twj

F32 = jnp.float32


def shape(*extents, dtype=F32):
    return jax.ShapeDtypeStruct(extents, dtype)


def normal(seed, *extents, dtype=F32):
    return jax.random.normal(jax.random.key(seed), extents, F32).astype(dtype)


def equal(have, want):
    np.testing.assert_array_equal(np.asarray(have), np.asarray(want))


def near(have, want, tolerance=1e-6):
    have, want = np.asarray(have, np.float64), np.asarray(want, np.float64)
    assert have.shape == want.shape
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    assert np.abs(have - want).max(initial=0) <= tolerance * scale


def tile(function, *operands, like=None, **options):
    """function(values...) -> value as a kernel of one program."""
    out = like or jax.eval_shape(function, *operands)

    def kernel(*refs):
        *sources, target = refs
        target[...] = function(*(source[...] for source in sources))

    return twj.pallas_call(kernel, shape(*out.shape, dtype=out.dtype), **options)(*operands)


# ---- The quickstart.


def test_quickstart_add_and_iota():
    def add(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    @jax.jit
    def add_vectors(x, y):
        return twj.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    equal(add_vectors(jnp.arange(8), jnp.arange(8)), np.arange(8) * 2)

    def iota(o_ref):
        i = pl.program_id(0)
        o_ref[i] = i

    equal(twj.pallas_call(iota, shape(8, dtype=jnp.int32), grid=(8,))(), np.arange(8))

    def iota_blocks(o_ref):
        o_ref[...] = jnp.full(o_ref.shape, pl.program_id(0))

    spec = pl.BlockSpec((1,), lambda i: (i,))
    out = twj.pallas_call(iota_blocks, shape(8, dtype=jnp.int32), grid=(8,), out_specs=spec)()
    equal(out, np.arange(8))


def matmul(x, y, activation=lambda z: z):
    def kernel(x_ref, y_ref, z_ref):
        z_ref[...] = activation(x_ref[...] @ y_ref[...])

    rows, columns = x.shape[0], y.shape[1]
    return twj.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, columns), x.dtype),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((rows // 2, x.shape[1]), lambda i, j: (i, 0)),
            pl.BlockSpec((y.shape[0], columns // 2), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((rows // 2, columns // 2), lambda i, j: (i, j)),
    )(x, y)


def test_quickstart_matmul_fused_and_batched():
    x, y = normal(0, 128, 64), normal(1, 64, 32)
    near(jax.jit(functools.partial(matmul, activation=jax.nn.relu))(x, y), jax.nn.relu(x @ y))
    xs, ys = normal(2, 4, 32, 16), normal(3, 4, 16, 8)
    near(jax.jit(jax.vmap(matmul))(xs, ys), xs @ ys)
    near(jax.vmap(matmul, in_axes=(0, None))(xs, ys[0]), xs @ ys[0])
    near(jax.vmap(jax.vmap(matmul))(xs[None], ys[None]), (xs @ ys)[None])


# ---- The pages on grids, block specs and software pipelining.


def test_pipelined_add_and_sums():
    def add_matrices(x_ref, y_ref, z_ref):
        z_ref[...] = x_ref[...] + y_ref[...]

    x, y = normal(0, 512, 256), normal(1, 512, 256)
    spec = pl.BlockSpec((256, 256), lambda i: (i, 0))
    out = twj.pallas_call(
        add_matrices, shape(512, 256), grid=(2,), in_specs=[spec, spec], out_specs=spec
    )(x, y)
    equal(out, x + y)

    def sum_rows(x_ref, o_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    def blocked_sum(x, block=(32, 64)):
        reduced, *rest = x.shape
        grid = (*(n // b for n, b in zip(rest, block, strict=True)), reduced)
        return twj.pallas_call(
            sum_rows,
            shape(*rest),
            grid=grid,
            in_specs=[pl.BlockSpec((None, *block), lambda i, j, k: (k, i, j))],
            out_specs=pl.BlockSpec(block, lambda i, j, k: (i, j)),
        )(x)

    x = normal(0, 8, 64, 128)
    near(blocked_sum(x), x.sum(0))


def test_an_output_block_that_is_visited_again_runs_in_order():
    def total(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.sum(x_ref[...], keepdims=True)

    x = normal(0, 64, 128)
    out = twj.pallas_call(
        total,
        shape(1, 1),
        grid=(8,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 1), lambda i: (0, 0)),
    )(x)
    near(out, np.asarray(x, np.float64).sum(keepdims=True), 1e-5)


def test_blocks_shared_by_neighbouring_steps_and_in_reverse():
    def add(x_ref, o_ref):
        @pl.when(pl.program_id(0) % 2 == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    x = jnp.arange(16.0)
    spec = pl.BlockSpec((2,), lambda i: (i,))
    out = twj.pallas_call(
        add, shape(8), grid=(8,), in_specs=[spec], out_specs=pl.BlockSpec((2,), lambda i: (i // 2,))
    )(x)
    equal(out, np.arange(16.0).reshape(4, 2, 2).sum(1).ravel())

    def copy(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    last_first = pl.BlockSpec((2,), lambda i: (7 - i,))
    out = twj.pallas_call(copy, shape(16), grid=(8,), in_specs=[spec], out_specs=last_first)(x)
    equal(out, np.arange(16.0).reshape(8, 2)[::-1].ravel())

    def running(x_ref, o_ref, total):
        @pl.when(pl.program_id(0) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]
        o_ref[...] = total[...]

    scratch = [pl.MemoryRef(jax.core.ShapedArray((2,), F32), pl.ANY)]
    out = twj.pallas_call(
        running, shape(16), grid=(8,), in_specs=[spec], out_specs=spec, scratch_shapes=scratch
    )(x)
    equal(out, np.arange(16.0).reshape(8, 2).cumsum(0).ravel())


def test_matmul_with_a_scratch_accumulator():
    def kernel(x_ref, y_ref, z_ref, accumulator):
        k = pl.program_id(2)

        @pl.when(k == 0)
        def _():
            accumulator[...] = jnp.zeros_like(accumulator)

        accumulator[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            z_ref[...] = accumulator[...].astype(z_ref.dtype)

    x, y = normal(0, 64, 96, dtype=jnp.bfloat16), normal(1, 96, 64, dtype=jnp.bfloat16)
    out = twj.pallas_call(
        kernel,
        grid_spec=pl.GridSpec(
            grid=(2, 2, 3),
            in_specs=[
                pl.BlockSpec((32, 32), lambda i, j, k: (i, k)),
                pl.BlockSpec((32, 32), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((32, 32), lambda i, j, k: (i, j)),
            scratch_shapes=[pl.MemoryRef(jax.core.ShapedArray((32, 32), F32), pl.ANY)],
        ),
        out_shape=shape(64, 64, dtype=jnp.bfloat16),
    )(x, y)
    want = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
    near(out, want, 2**-7)


def test_edges_of_blocks_and_squeezed_element_and_missing_specs():
    def scale(x_ref, s_ref, o_ref):
        o_ref[...] = x_ref[...] * s_ref[0]

    x = normal(0, 10, 7)
    out = twj.pallas_call(
        scale,
        shape(10, 7),
        grid=(3, 2),
        in_specs=[pl.BlockSpec((4, 4), lambda i, j: (i, j)), pl.BlockSpec((1,), lambda i, j: (0,))],
        out_specs=pl.BlockSpec((4, 4), lambda i, j: (i, j)),
    )(x, jnp.full((1,), 3.0))
    equal(out, x * 3)

    def overlapping(x_ref, o_ref):
        o_ref[...] = jnp.sum(x_ref[...], keepdims=True)

    out = twj.pallas_call(
        overlapping,
        shape(4),
        grid=(4,),
        in_specs=[pl.BlockSpec((pl.Element(3),), lambda i: (2 * i,))],
        out_specs=pl.BlockSpec((1,), lambda i: (i,)),
    )(jnp.arange(9.0))
    equal(out, [3, 9, 15, 21])

    def optional(x_ref, bias_ref, o_ref):
        assert bias_ref is None
        o_ref[...] = x_ref[...]

    equal(
        twj.pallas_call(
            optional, shape(3), in_specs=[pl.BlockSpec(), None], out_specs=pl.BlockSpec()
        )(jnp.ones(3), None),
        np.ones(3),
    )


def test_several_outputs_and_trees_of_them():
    def kernel(pair, out):
        out["sum"][...] = pair[0][...] + pair[1][...]
        out["product"][...] = pair[0][...] * pair[1][...]

    x, y = normal(0, 5, 3), normal(1, 5, 3)
    out = twj.pallas_call(kernel, {"sum": shape(5, 3), "product": shape(5, 3)})((x, y))
    equal(out["sum"], x + y)
    equal(out["product"], x * y)


def test_an_aliased_input_is_updated_in_place():
    def kernel(x_ref, o_ref):
        o_ref[2] = x_ref[0] + 10

    x = jnp.arange(4.0)
    equal(twj.pallas_call(kernel, shape(4), input_output_aliases={0: 0})(x), [0, 1, 10, 3])
    equal(x, np.arange(4))  # without a donation the caller's array is a copy's source


def test_a_grid_with_a_bound_known_at_run_time():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + pl.num_programs(0)

    @jax.jit
    def run(n, x):
        spec = pl.BlockSpec((2,), lambda i: (i,))
        call = twj.pallas_call(kernel, shape(8), grid=(n,), in_specs=[spec], out_specs=spec,
                               input_output_aliases={0: 0})  # fmt: skip
        return call(x)

    equal(run(jnp.int32(3), jnp.zeros(8)), [3, 3, 3, 3, 3, 3, 0, 0])


# ---- Refs.


def test_slices_strides_and_integers():
    def kernel(x_ref, i_ref, o_ref):
        i = i_ref[0]
        o_ref[0, :] = x_ref[i, pl.ds(i, 4)]
        o_ref[1, pl.ds(0, 2)] = x_ref[1, pl.ds(1, 2, 3)]
        o_ref[1, 2:4] = x_ref.at[2].at[pl.ds(i + 1, 2)][...]
        o_ref[2, ...] = x_ref[-1, :4]

    x = jnp.arange(24.0).reshape(3, 8)
    out = twj.pallas_call(kernel, shape(3, 4))(x, jnp.array([2]))
    equal(out, [[18, 19, 20, 21], [9, 12, 19, 20], [16, 17, 18, 19]])


def test_gathers_and_scatters():
    def kernel(x_ref, i_ref, o_ref, s_ref):
        o_ref[...] = x_ref[i_ref[...], 1]
        s_ref[...] = jnp.zeros_like(s_ref)
        s_ref[i_ref[...]] = i_ref[...].astype(F32)

    x, i = jnp.arange(12.0).reshape(6, 2), jnp.array([4, 0, 5, 2])
    out, scattered = twj.pallas_call(kernel, (shape(4), shape(6)))(x, i)
    equal(out, x[i, 1])
    equal(scattered, [0, 0, 2, 0, 4, 5])


def test_masks_and_others():
    def kernel(x_ref, n_ref, o_ref):
        position = pl.program_id(0) * 8 + jnp.arange(8)
        x = plgpu.load(x_ref.at[position], mask=position < n_ref[0], other=-1.0)
        plgpu.store(o_ref.at[position], x, mask=position % 3 != 1)

    out = twj.pallas_call(
        kernel, shape(16), grid=(2,), input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(),
    )(jnp.arange(16.0), jnp.array([11]))  # fmt: skip
    want = np.where(np.arange(16) < 11, np.arange(16), -1)
    equal(out, np.where(np.arange(16) % 3 != 1, want, np.arange(16)))


def test_tiles_of_rows_and_columns_are_slices():
    def kernel(x_ref, o_ref):
        i = pl.program_id(0)
        rows, columns = i * 4 + jnp.arange(4), jnp.arange(8)
        o_ref[rows[:, None], columns[None, :]] = 2 * x_ref[rows[:, None], columns[None, :]]

    x = normal(0, 12, 8)
    equal(twj.pallas_call(kernel, shape(12, 8), grid=(3,))(x), 2 * x)


def test_atomics():
    x = jax.random.randint(jax.random.key(0), (128,), 0, 10)

    def extremes(x_ref, low_ref, o_ref):
        plgpu.atomic_max(o_ref, (0,), jnp.max(x_ref[...]))
        plgpu.atomic_min(o_ref, (1,), jnp.min(x_ref[...]))

    found = twj.pallas_call(
        extremes,
        shape(2, dtype=jnp.int32),
        grid=(8,),
        in_specs=[pl.BlockSpec((16,), lambda i: (i,)), pl.BlockSpec()],
        input_output_aliases={1: 0},
    )(x, jnp.array([-1, 99], jnp.int32))
    equal(found, [x.max(), x.min()])

    def count(x_ref, zero_ref, o_ref):
        plgpu.atomic_add(o_ref, (x_ref[...],), jnp.ones(16, jnp.int32))

    counted = twj.pallas_call(
        count,
        shape(10, dtype=jnp.int32),
        grid=(8,),
        in_specs=[pl.BlockSpec((16,), lambda i: (i,)), pl.BlockSpec()],
        input_output_aliases={1: 0},
    )(x, jnp.zeros(10, jnp.int32))
    equal(counted, np.bincount(np.asarray(x), minlength=10))


def test_scoped_memory():
    def kernel(x_ref, o_ref):
        def body(scratch):
            scratch[...] = x_ref[...] * 2
            o_ref[...] = scratch[...] + 1

        pl.run_scoped(body, pl.MemoryRef(jax.core.ShapedArray((4,), F32), pl.ANY))

    equal(twj.pallas_call(kernel, shape(4))(jnp.arange(4.0)), [1, 3, 5, 7])


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
    for function in (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin):
        near(tile(lambda v, f=function: f(v, axis=1), x), function(x, axis=1))
    near(tile(lambda v: lax.cumsum(v, axis=0, reverse=True), x), lax.cumsum(x, 0, reverse=True))
    near(tile(jax.nn.softmax, x), jax.nn.softmax(x))
    near(tile(lambda v: jax.nn.logsumexp(v, axis=-1), x), jax.nn.logsumexp(x, axis=-1))


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


# ---- Around a call.


def test_jvp_and_custom_vjp():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.sin(x_ref[...])

    @jax.custom_vjp
    def sine(x):
        return twj.pallas_call(kernel, shape(8))(x)

    def cosine(x_ref, g_ref, o_ref):
        o_ref[...] = jnp.cos(x_ref[...]) * g_ref[...]

    sine.defvjp(lambda x: (sine(x), x),
                lambda x, g: (twj.pallas_call(cosine, shape(8))(x, g),))  # fmt: skip
    x = normal(0, 8)
    near(jax.jit(jax.grad(lambda v: sine(v).sum()))(x), jnp.cos(x))
    near(jax.vmap(jax.grad(lambda v: sine(v).sum()))(normal(1, 3, 8)), jnp.cos(normal(1, 3, 8)))
    _, tangent = jax.jvp(lambda v: twj.pallas_call(kernel, shape(8))(v), (x,), (jnp.ones(8),))
    near(tangent, jnp.cos(x))


def test_install_takes_over_and_gives_back():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def run(**options):
        return pl.pallas_call(kernel, shape(4), **options)(jnp.arange(4.0))

    with twj.install_pallas():
        equal(run(), [0, 2, 4, 6])
        with twj.install_pallas():
            equal(run(name="again"), [0, 2, 4, 6])
        equal(run(name="after"), [0, 2, 4, 6])
        equal(run(interpret=True), [0, 2, 4, 6])
        lowered = jax.jit(run).lower().as_text()
        assert "tilewright_program" in lowered
        assert "tilewright_program" not in jax.jit(lambda: run(interpret=True)).lower().as_text()
    with pytest.raises(ValueError, match="interpret"):
        run(name="no longer")
    with pytest.raises(ValueError, match="expected interpret to be one of"):
        twj.install_pallas(interpret="slow")


def test_ahead_of_time_export_and_scan():
    x = jnp.arange(8.0)

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    def step(v):
        return twj.pallas_call(kernel, shape(8))(v)

    equal(jax.jit(step).lower(x).compile()(x), x + 1)
    checks = [jax.export.DisabledSafetyCheck.custom_call("tilewright_program")]
    exported = jax.export.export(jax.jit(step), disabled_checks=checks)(x)
    equal(exported.call(x), x + 1)
    equal(jax.jit(lambda v: lax.scan(lambda c, _: (step(c), None), v, None, length=5)[0])(x), x + 5)


def test_shard_map_over_devices():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 3

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    def triple(x):
        return twj.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = normal(0, 8, 16)
    equal(triple(x), x * 3)


def test_prefetched_scalars_choose_blocks():
    from jax.experimental.pallas import tpu as pltpu

    def kernel(order_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] + order_ref[pl.program_id(0)].astype(F32)

    order = jnp.array([2, 0, 1], jnp.int32)
    x = jnp.arange(6.0)
    out = twj.pallas_call(
        kernel,
        shape(6),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((2,), lambda i, order_ref: (order_ref[i],))],
            out_specs=pl.BlockSpec((2,), lambda i, order_ref: (i,)),
        ),
    )(order, x)
    equal(out, [4 + 2, 5 + 2, 0, 1, 2 + 1, 3 + 1])


def test_debug_print_and_name(capfd):
    def kernel(x_ref, o_ref):
        pl.debug_print("program {} reads {}", pl.program_id(0), x_ref[0])
        o_ref[...] = x_ref[...]

    out = twj.pallas_call(kernel, shape(1), grid=(1,), name="talkative")(jnp.array([5.0]))
    out.block_until_ready()
    assert "program 0 reads 5" in capfd.readouterr().err


def test_lowering_for_cuda_carries_the_hints():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    params = plgpu.CompilerParams(num_warps=8, num_stages=3)
    call = twj.pallas_call(kernel, shape(8), compiler_params=params)
    checks = [jax.export.DisabledSafetyCheck.custom_call("tilewright_program")]
    lower = jax.export.export(jax.jit(call), platforms=["cuda"], disabled_checks=checks)
    text = lower(shape(8)).mlir_module()
    assert "tilewright_program" in text
    assert "num_warps 8 num_stages 3" in text

    with twj.install_pallas(cuda=True):
        plain = pl.pallas_call(kernel, shape(8), compiler_params=params)
        lower = jax.export.export(jax.jit(plain), platforms=["cuda"], disabled_checks=checks)
        assert "tilewright_program" in lower(shape(8)).mlir_module()
