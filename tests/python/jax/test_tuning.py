"""tw.autotune and the hints for CPUs on JAX arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright as tw
import tilewright.jax as twj

SHAPE = tw.ShapeDtype((64, 512), np.float32)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


def tuned():
    @tw.autotune([{"rows": 0, "lanes": 0}, {"rows": 8, "lanes": 128}], "square")
    def square(rows, lanes):
        def kernel(x, o):
            o[...] = x[...] * x[...]

        return tw.call(kernel, out_shape=SHAPE, tile_rows=rows, tile_lanes=lanes)

    return square


def ramp():
    return jnp.arange(64 * 512, dtype=jnp.float32).reshape(64, 512) / 1000


def test_arrays_and_traced_values():
    square = tuned()
    assert np.array_equal(square(ramp()), ramp() * ramp())
    assert square.num_measured == 2
    assert np.array_equal(jax.jit(square)(ramp()), ramp() * ramp())
    assert square.num_measured == 2  # chosen before

    fresh = tuned()
    assert np.array_equal(jax.jit(lambda x: fresh(x) + 1)(ramp()), ramp() * ramp() + 1)
    assert fresh.num_measured == 0  # from the disk


def test_measures_under_jit():
    square = tuned()
    assert np.array_equal(jax.jit(square)(ramp()), ramp() * ramp())
    assert square.num_measured == 2


def test_as_an_op_with_a_derivative():
    op = twj.op(tuned(), vjp=lambda inputs, output, d: (2 * inputs[0] * d,))
    x = ramp()
    assert np.allclose(jax.jit(jax.grad(lambda x: op(x).sum()))(x), 2 * x)


def test_hints_reach_the_program():
    def kernel(x, o):
        o[...] = x[...] + 1

    f = tw.call(kernel, out_shape=SHAPE, tile_rows=8, tile_lanes=128)
    assert np.array_equal(jax.jit(f)(ramp()), ramp() + 1)
    assert "8, 128" in jax.jit(f).lower(ramp()).as_text()
    whole = tw.call(kernel, out_shape=SHAPE)
    assert "8, 128" not in jax.jit(whole).lower(ramp()).as_text()
