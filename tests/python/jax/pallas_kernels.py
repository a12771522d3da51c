"""Shared by the tests of Pallas kernels: shapes, random arrays, comparisons, a one-tile kernel."""

import jax
import jax.numpy as jnp
import numpy as np

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
