"""Kernels written in Python on JAX arrays: ops that jit and vmap take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright as tw
import tilewright.jax as twj


@tw.kernel
def scaled(x, y, o, total, *, alpha):
    o[...] = x[...] * alpha + y[...]
    total[...] = tw.sum(x[...])


def scaled_call():
    return tw.call(
        scaled,
        out_shape=(tw.ShapeDtype((4, 8), jnp.float32), tw.ShapeDtype((), jnp.float32)),
        alpha=3.0,
    )


def test_eager_jit_and_vmap():
    f = scaled_call()
    x = jnp.arange(32, dtype=jnp.float32).reshape(4, 8)
    y = jnp.ones((4, 8), jnp.float32)
    for g in (f, jax.jit(f), jax.jit(lambda x, y: f(x * 1, y))):
        o, total = g(x, y)
        assert isinstance(o, jax.Array)
        np.testing.assert_allclose(o, 3 * x + y)
        np.testing.assert_allclose(total, x.sum())
    batch = jnp.stack([x, x + 1])
    o, total = jax.vmap(f, in_axes=(0, None))(batch, y)
    np.testing.assert_allclose(o, 3 * batch + y)
    np.testing.assert_allclose(total, batch.sum((1, 2)))
    o, _ = tw.vmap(f, (0, None))(batch, y)
    np.testing.assert_allclose(o, 3 * batch + y)


def test_the_derivative_of_a_kernel_without_one_says_how_to_give_it():
    f = scaled_call()
    x = jnp.ones((4, 8))
    gradient = jax.grad(lambda x: f(x, x)[1])
    for g in (gradient, jax.jit(gradient)):
        with pytest.raises(NotImplementedError, match=r"tilewright.jax.op\(f, vjp=...\)"):
            g(x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32])
def test_dtypes_and_several_shapes(dtype):
    def kernel(x, o):
        o[...] = x[...] + x[...]

    f = tw.call(kernel, out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype))
    for shape in ((3,), (2, 5)):
        x = jnp.ones(shape, dtype)
        z = f(x)
        assert z.dtype == dtype and z.shape == shape
        assert (z == 2).all()


def test_aliases_leave_the_input_as_it_is():
    def kernel(x, o):
        o[...] = x[...] + 1

    x = jnp.zeros(5, jnp.float32)
    z = tw.call(kernel, out_shape=tw.ShapeDtype((5,), np.float32), aliases={0: 0})(x)
    np.testing.assert_array_equal(z, np.ones(5))
    np.testing.assert_array_equal(x, np.zeros(5))


def test_absent_inputs():
    def kernel(x, bias, o):
        o[...] = x[...] if bias is None else x[...] + bias[...]

    f = tw.call(kernel, out_shape=tw.ShapeDtype((4,), np.float32))
    x = jnp.arange(4, dtype=jnp.float32)
    np.testing.assert_array_equal(f(x, None), x)
    np.testing.assert_array_equal(f(x, x), 2 * x)


def test_dynamic_dimensions_are_those_of_the_call():
    def kernel(x, o):
        def step(i, total):
            return total + tw.sum(x[tw.ds(i * 16, 16)])

        o[...] = tw.for_loop(0, tw.cdiv(x.extent(0), 16), step, 0.0)

    f = tw.call(kernel, out_shape=tw.ShapeDtype((), np.float32), dynamic={0: (0,)})
    for n in (5, 40):
        x = jnp.arange(n, dtype=jnp.float32)
        np.testing.assert_allclose(f(x), x.sum())


def test_the_checked_mode():
    def kernel(x, o):
        o[...] = x[tw.ds(tw.program_id(0) + 1, 4)]

    f = tw.call(kernel, grid=1, out_shape=tw.ShapeDtype((4,), np.float32), interpret=True)
    with pytest.raises(Exception, match="outside its extents"):
        f(jnp.zeros(4, jnp.float32)).block_until_ready()
    z = f(jnp.ones(5, jnp.float32))
    np.testing.assert_array_equal(z, np.ones(4))


def test_refusals():
    f = scaled_call()
    x = jnp.zeros((4, 8), jnp.float32)
    with pytest.raises(TypeError, match="no `out` with JAX arrays"):
        f(x, x, out=np.zeros((4, 8), np.float32))
    with pytest.raises(ValueError, match=r"broadcast|expected"):
        f(x, jnp.zeros((4, 9), jnp.float32))
    line = scaled.function.__code__.co_firstlineno + 2
    with pytest.raises(ValueError, match=rf"test_kernels.py:{line}"):
        f(x, jnp.zeros((4, 9), jnp.float32))


def test_an_op_with_a_derivative():
    def square(x, o):
        o[...] = x[...] * x[...]

    def twice_times(x, dy, o):
        o[...] = x[...] * dy[...] * 2

    like_x = {"out_shape": lambda x, *_: tw.ShapeDtype(x.shape, x.dtype)}
    forward, backward = tw.call(square, **like_x), tw.call(twice_times, **like_x)
    op = twj.op(forward, vjp=lambda inputs, outputs, dy: backward(inputs[0], dy))
    x = jnp.arange(5, dtype=jnp.float32)
    np.testing.assert_array_equal(op(x), x * x)
    gradient = jax.jit(jax.grad(lambda x: (op(x) * 3).sum()))(x)
    np.testing.assert_allclose(gradient, 6 * x)
