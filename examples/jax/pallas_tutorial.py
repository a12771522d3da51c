"""Pallas kernels on the CPU at native speed: a tour, each step checked against jnp."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

import tilewright.jax as twj

# ---- A kernel: a function of Refs, run once for each point of a grid.


def matmul_kernel(x_ref, y_ref, z_ref, *, activation):
    z_ref[...] = activation(x_ref[...] @ y_ref[...])


@functools.partial(jax.jit, static_argnames="activation")
def matmul(x, y, activation=lambda z: z):
    """Blocks of 128 x 128, with a fused activation; programs of the grid run on all cores."""
    (m, k), n = x.shape, y.shape[1]
    return twj.pallas_call(
        functools.partial(matmul_kernel, activation=activation),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, 128), pl.cdiv(n, 128)),
        in_specs=[
            pl.BlockSpec((128, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, 128), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
    )(x, y)


keys = jax.random.split(jax.random.key(0), 3)
x, y = jax.random.normal(keys[0], (300, 200)), jax.random.normal(keys[1], (200, 170))
print("matmul, blocks past the edge:", abs(matmul(x, y, jax.nn.gelu) - jax.nn.gelu(x @ y)).max())
assert jnp.allclose(matmul(x, y, jax.nn.gelu), jax.nn.gelu(x @ y), atol=1e-4)

# ---- vmap adds an axis to the grid.

batch = jax.random.normal(keys[2], (4, 300, 200))
assert jnp.allclose(jax.vmap(matmul, in_axes=(0, None))(batch, y), batch @ y, atol=1e-4)
print("vmap: ok")

# ---- Steps of a grid that add into one block: this is detected, and they run in order.


def sum_kernel(x_ref, o_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


def sum_over_first(x, block=64):
    steps, n = x.shape
    return twj.pallas_call(
        sum_kernel,
        jax.ShapeDtypeStruct((n,), x.dtype),
        grid=(n // block, steps),
        in_specs=[pl.BlockSpec((None, block), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((block,), lambda j, i: (j,)),
    )(x)


z = jax.random.normal(keys[0], (20, 256))
assert jnp.allclose(sum_over_first(z), z.sum(0), atol=1e-5)
print("sum over a sequential axis: ok")

# ---- Attention with a running maximum: loops, dynamic slices, masks.


def attention_kernel(q_ref, k_ref, v_ref, o_ref, *, block):
    start = pl.program_id(1) * block
    q = q_ref[...] * q_ref.shape[-1] ** -0.5

    def body(i, carry):
        high, total, acc = carry
        keys = pl.ds(i * block, block)
        scores = q @ k_ref[keys, :].T
        row = start + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        column = i * block + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.where(row >= column, scores, -1e30)
        top = jnp.maximum(high, scores.max(-1))
        p, scale = jnp.exp(scores - top[:, None]), jnp.exp(high - top)
        return top, total * scale + p.sum(-1), acc * scale[:, None] + p @ v_ref[keys, :]

    rows = q_ref.shape[0]
    start_carry = (jnp.full(rows, -1e30), jnp.zeros(rows), jnp.zeros(o_ref.shape))
    _, total, acc = lax.fori_loop(0, pl.program_id(1) + 1, body, start_carry)
    o_ref[...] = acc / total[:, None]


def attention(q, k, v, block=64):
    heads, length, dim = q.shape
    rows = pl.BlockSpec((None, block, dim), lambda h, i: (h, i, 0))
    whole = pl.BlockSpec((None, length, dim), lambda h, i: (h, 0, 0))
    return twj.pallas_call(
        functools.partial(attention_kernel, block=block),
        jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(heads, length // block),
        in_specs=[rows, whole, whole],
        out_specs=rows,
    )(q, k, v)


q, k, v = (jax.random.normal(key, (2, 256, 32)) for key in keys)
scores = jnp.einsum("hqd,hkd->hqk", q, k) / 32**0.5
scores = jnp.where(jnp.tril(jnp.ones((256, 256), bool)), scores, -jnp.inf)
assert jnp.allclose(jax.jit(attention)(q, k, v), jax.nn.softmax(scores) @ v, atol=1e-5)
print("attention: ok")

# ---- A custom derivative: custom_vjp around calls, as usual.


@jax.custom_vjp
def silu(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = jax.nn.silu(x_ref[...])

    return twj.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def silu_gradient(x, dy):
    def kernel(x_ref, dy_ref, dx_ref):
        s = jax.nn.sigmoid(x_ref[...])
        dx_ref[...] = dy_ref[...] * s * (1 + x_ref[...] * (1 - s))

    return (twj.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, dy),)


silu.defvjp(lambda x: (silu(x), x), silu_gradient)
want = jax.grad(lambda x: jax.nn.silu(x).sum())(z)
assert jnp.allclose(jax.grad(lambda x: silu(x).sum())(z), want, atol=1e-5)
print("gradient: ok")

# ---- interpret=True is the checked mode: it finds errors that otherwise go unnoticed.


def shifted(x_ref, o_ref):
    o_ref[...] = x_ref[pl.ds(pl.program_id(0) + 1, 4)]


try:
    twj.pallas_call(
        shifted,
        jax.ShapeDtypeStruct((4,), jnp.float32),
        interpret=True,
        grid=(1,),
        compiler_params=None,
    )(jnp.arange(4.0)).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print("checked mode:", str(error).splitlines()[0])
else:
    raise AssertionError("the checked mode let an index outside pass")

# ---- Kernels of libraries run unchanged.

with twj.install_pallas():

    def double(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    out = pl.pallas_call(double, jax.ShapeDtypeStruct((8,), jnp.float32))(jnp.arange(8.0))
assert jnp.array_equal(out, 2 * jnp.arange(8.0))
print("pl.pallas_call taken over: ok")
