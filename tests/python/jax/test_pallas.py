"""Kernels written with pl.*: grids, block specs, Refs, and the ways of calling them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.pallas import primitives
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from pallas_kernels import F32, equal, near, normal, shape

import tilewright.jax as twj

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
    equal(x, np.arange(4))  # without a donation the caller's array is copied first


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


def test_a_stride_of_zero_repeats():
    def kernel(x_ref, o_ref):
        o_ref[:, 0] = x_ref[pl.ds(1, 4, 0), 1]
        o_ref[:, 1:] = x_ref[pl.ds(1, 4, 0), pl.ds(2, 5)]
        o_ref[pl.ds(0, 1, 0), 0:1] = x_ref[pl.ds(0, 1, 0), pl.ds(7, 1, 0)]

    x = normal(0, 3, 8)
    want = np.broadcast_to(x[1:2, 1:7], (4, 6)).copy()
    want[0, 0] = x[0, 7]
    equal(twj.pallas_call(kernel, shape(4, 6))(x), want)


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


def test_a_masked_swap_gives_back_what_it_did_not_store():
    def kernel(_, mask_ref, y_ref, old_ref):
        value = jnp.arange(8.0)
        old_ref[...] = primitives.swap(y_ref, (slice(None),), value, mask=mask_ref[...])

    y, mask = jnp.arange(8.0) + 100, jnp.arange(8) % 3 == 0
    call = twj.pallas_call(kernel, (shape(8), shape(8)), input_output_aliases={0: 0})
    stored, old = call(y, mask)
    equal(stored, jnp.where(mask, jnp.arange(8.0), y))
    equal(old, jnp.where(mask, y, jnp.arange(8.0)))


def test_branches_for_platforms():
    def kernel(x_ref, o_ref):
        o_ref[...] = lax.platform_dependent(
            x_ref[...], cuda=lambda x: x + 1, cpu=lambda x: x + 2, default=lambda x: x + 3
        )
        o_ref[4:] = jnp.diagonal(x_ref[...].reshape(2, 4)[:, 2:])[:1].repeat(4)

    out = twj.pallas_call(kernel, shape(8))(jnp.arange(8.0))
    equal(out, [2, 3, 4, 5, 2, 2, 2, 2])


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


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_atomics_of_bits(name):
    """Many programs, and several lanes of each, update each element."""
    bits = jax.random.bits(jax.random.key(0), (8, 16), "uint32").view(jnp.int32)
    places = jax.random.randint(jax.random.key(1), (8, 16), 0, 6)  # 5 is out of bounds

    def kernel(bits_ref, places_ref, _, o_ref):
        apply = getattr(plgpu, f"atomic_{name}")
        apply(o_ref, (places_ref[0],), bits_ref[0], mask=bits_ref[0] % 4 != 1)

    start = jnp.full(5, 0x5A5A5A5A, jnp.int32)
    row = pl.BlockSpec((1, 16), lambda i: (i, 0))
    out = twj.pallas_call(
        kernel,
        shape(5, dtype=jnp.int32),
        grid=(8,),
        in_specs=[row, row, pl.BlockSpec()],
        input_output_aliases={2: 0},
    )(bits, places, start)
    want = np.array(start)
    for at, value in zip(np.ravel(places), np.ravel(bits), strict=True):
        if at < 5 and value % 4 != 1:
            want[at] = getattr(np, f"bitwise_{name}")(want[at], value)
    equal(out, want)

    def scalar(_, o_ref, old_ref):
        old_ref[0] = getattr(plgpu, f"atomic_{name}")(o_ref, (3,), jnp.int32(0x0FF0))

    out, old = twj.pallas_call(
        scalar, (shape(5, dtype=jnp.int32), shape(1, dtype=jnp.int32)), input_output_aliases={0: 0}
    )(start)
    equal(out, start.at[3].set(getattr(jnp, f"bitwise_{name}")(start[3], 0x0FF0)))
    equal(old, start[3:4])


def test_scoped_memory():
    def kernel(x_ref, o_ref):
        def body(scratch):
            scratch[...] = x_ref[...] * 2
            o_ref[...] = scratch[...] + 1

        pl.run_scoped(body, pl.MemoryRef(jax.core.ShapedArray((4,), F32), pl.ANY))

    equal(twj.pallas_call(kernel, shape(4))(jnp.arange(4.0)), [1, 3, 5, 7])


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


def test_install_takes_over_and_gives_back(on_cpu):
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


def test_shard_map_over_devices(eight_devices):
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
    printed = capfd.readouterr()
    assert "program 0 reads 5" in printed.err + printed.out  # a GPU prints to the latter


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
