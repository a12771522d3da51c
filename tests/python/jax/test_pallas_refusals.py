"""What Pallas kernels may not do: refused by name, with the user's line; and the checked mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu

import tilewright.jax as twj


def shape(*extents, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(extents, dtype)


def refusal(kernel, out, *operands, **options):
    with pytest.raises(NotImplementedError) as caught:
        twj.pallas_call(kernel, out, **options)(*operands)
    return str(caught.value)


def test_primitives_are_named_with_their_line():
    def kernel(x_ref, o_ref):
        x = x_ref[...]
        o_ref[...] = lax.digamma(x)  # the line that is named

    line = kernel.__code__.co_firstlineno + 2
    text = refusal(kernel, shape(8), jnp.arange(8.0), name="gamma")
    assert "[pallas] kernel `gamma` uses `digamma`" in text
    assert f"test_pallas_refusals.py:{line}" in text

    def callback(x_ref, o_ref):
        jax.debug.callback(lambda v: None, x_ref[0])
        o_ref[...] = x_ref[...]

    assert "`debug_callback`" in refusal(callback, shape(8), jnp.arange(8.0))


def test_what_machines_of_other_kinds_have():
    def assembly(x_ref, o_ref):
        (y,) = plgpu.elementwise_inline_asm(
            "add.f32 $0, $1, $1;", args=[x_ref[...]], constraints="=f,f", pack=1,
            result_shape_dtypes=[shape(8)],
        )  # fmt: skip
        o_ref[...] = y

    assert "inline assembly" in refusal(assembly, shape(8), jnp.arange(8.0))


def test_stores_to_inputs_and_large_tiles():
    def store(x_ref, o_ref):
        x_ref[0] = 1.0
        o_ref[...] = x_ref[...]

    assert "a store to the input `x_ref`" in refusal(store, shape(8), jnp.arange(8.0))

    def prefetched(n_ref, x_ref, o_ref):
        n_ref[0] = 1
        o_ref[...] = x_ref[...]

    specs = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(1,), in_specs=[pl.BlockSpec()], out_specs=pl.BlockSpec()
    )
    text = refusal(prefetched, shape(8), jnp.zeros(1, jnp.int32), jnp.arange(8.0), grid_spec=specs)
    assert "a store to the input `index0`" in text

    def deep(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    many = (2, *[1] * 8)
    assert "an array of 9 dimensions" in refusal(deep, shape(*many), jnp.zeros(many))

    def deeper(x_ref, o_ref):
        o_ref[...] = jnp.zeros((2, 3))
        o_ref[...] += x_ref[jnp.arange(6).reshape(2, 3) % 2].sum((2, 3, 4, 5, 6, 7, 8))

    text = refusal(deeper, shape(2, 3), jnp.zeros((2, *[1] * 7)))
    assert "an access of 9 dimensions, of which a tile has at most 8" in text

    def reshaped(x_ref, o_ref):
        o_ref[...] = x_ref[...].reshape(many).sum()

    text = refusal(reshaped, shape(), jnp.zeros(2))
    assert "a tile of 9 dimensions, of which there may be 8" in text

    def complex_numbers(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    assert "elements of complex64" in refusal(complex_numbers, shape(2, dtype=jnp.complex64),
                                              jnp.zeros(2, jnp.complex64))  # fmt: skip


def test_random_keys():
    def typed(key_ref, o_ref):
        o_ref[...] = jax.random.uniform(key_ref[...], (8,))

    text = refusal(typed, shape(8), jax.random.key(0))
    assert "the Ref `key_ref` of random keys; pass jax.random.key_data(keys)" in text

    def other_kind(words_ref, o_ref):
        key = jax.random.wrap_key_data(words_ref[...], impl="rbg")
        o_ref[...] = jax.random.uniform(key, (8,))

    words = jnp.zeros(4, jnp.uint32)
    assert "keys of the kind key<rbg>" in refusal(other_kind, shape(8), words)


def test_bounds_of_a_grid_are_scalars():
    def kernel(o_ref):
        o_ref[...] = jnp.zeros(8)

    @jax.jit
    def run(n):
        return twj.pallas_call(kernel, shape(8), grid=(n,))()

    with pytest.raises(NotImplementedError, match=r"to be int32 scalars but got int32\[1\]"):
        run(jnp.array([3], jnp.int32))


def test_slices_of_stride_zero_are_only_read():
    def kernel(x_ref, o_ref):
        o_ref[pl.ds(0, 4, 0)] = x_ref[...]

    assert "a store through a slice of stride 0" in refusal(kernel, shape(4), jnp.arange(4.0))


# ---- The checked mode: interpret=True.


def checked(kernel, out, *operands, **options):
    call = twj.pallas_call(kernel, out, interpret=True, **options)
    return jax.block_until_ready(call(*operands))


def error_of(kernel, out, *operands, **options):
    with pytest.raises(Exception) as caught:  # noqa: PT011  (jaxlib's own class)
        checked(kernel, out, *operands, **options)
    return str(caught.value)


def test_checked_mode_computes():
    def kernel(x_ref, o_ref):
        o_ref[...] = lax.fori_loop(0, 3, lambda i, v: v * 2, x_ref[...])

    np.testing.assert_array_equal(checked(kernel, shape(4), jnp.arange(4.0)), np.arange(4) * 8)


def test_checked_mode_reports_an_index_outside():
    def kernel(x_ref, i_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(i_ref[0], 4)]

    line = kernel.__code__.co_firstlineno + 1
    text = error_of(kernel, shape(4), jnp.arange(8.0), jnp.array([6]))
    assert "x_ref" in text
    assert f"test_pallas_refusals.py:{line}" in text


def test_checked_mode_reports_an_index_that_leaves_its_block():
    def kernel(x_ref, i_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(i_ref[0], 2)]

    spec = pl.BlockSpec((4,), lambda i: (i,))
    text = error_of(
        kernel, shape(4), jnp.arange(8.0), jnp.array([3]), grid=(2,),
        in_specs=[spec, pl.BlockSpec()], out_specs=pl.BlockSpec((2,), lambda i: (i,)),
    )  # fmt: skip
    assert "index into `x_ref` leaves its block of 4 elements" in text


def test_checked_mode_reports_races_and_undefined_values():
    def collide(o_ref):
        o_ref[0] = pl.program_id(0).astype(jnp.float32)

    text = error_of(collide, shape(1), grid=(4,), compiler_params=plgpu.CompilerParams(num_warps=1))
    assert "program" in text
    assert "wrote it" in text

    def undefined(o_ref):
        o_ref[...] = o_ref[...] + 1

    assert "defined" in error_of(undefined, shape(4))
