"""Bad input is refused by name, at tracing if it can be known then."""

import jax
import jax.numpy as jnp
import pytest
from dense_attention import normal
from jax.experimental import pallas as pl

import tilewright.jax as twj

Q = normal(0, (1, 2, 16, 8))
ONES = jnp.ones(8)
COPY = """
func @copy(%x: ref<f32[8]>, %y: ref<f32[8]>) grid [1] {
  %zero = constant 0 : i64
  %a = load %x[%zero : 8] : f32[8]
  store %y[%zero : 8], %a
  yield
}"""


def attend(**options):
    return lambda: twj.flex_attention(Q, Q, Q, **options)


def of_shape(*shape):
    return lambda: twj.flex_attention(*[jnp.ones(shape)] * 3)


def scored(mod):
    return attend(score_mod=mod)


def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def pallas(shape=(8,), dtype=jnp.float32, **options):
    out = jax.ShapeDtypeStruct(shape, dtype)
    return lambda: jax.jit(twj.pallas_call(kernel, out, **options))(jnp.ones(shape, dtype))


CASES = {
    "head_dim 0": (of_shape(1, 2, 16, 0), ValueError, "expected head dimensions of at least 1"),
    "rank 3": (of_shape(2, 16, 8), ValueError, "expected query of rank 4"),
    "a scalar": (of_shape(), ValueError, "expected query of rank 4"),
    "int arrays": (
        lambda: twj.flex_attention(*[jnp.ones((1, 1, 4, 4), jnp.int32)] * 3),
        TypeError,
        "expected query of float32, .* but got int32",
    ),
    "mixed dtypes": (
        lambda: twj.flex_attention(Q, Q.astype(jnp.bfloat16), Q),
        TypeError,
        "expected key of float32, the query's dtype",
    ),
    "no array": (lambda: twj.flex_attention(Q, None, Q), TypeError, "key to be an array"),
    "infinite scale": (attend(scale=float("inf")), ValueError, "expected a finite scale"),
    "text as scale": (attend(scale="a"), TypeError, "expected scale to be a number"),
    "several scales": (
        lambda: jax.jit(lambda s: twj.flex_attention(Q, Q, Q, scale=s))(jnp.ones(2)),
        TypeError,
        "expected scale to be a number but got",
    ),
    "negative window": (attend(window=(-5, 3)), ValueError, "window bounds of at least -1"),
    "half a window": (attend(window=(2,)), TypeError, r"window to be two integers \(left, right\)"),
    "dropout 1": (attend(dropout=1), ValueError, r"expected dropout in \[0, 1\)"),
    "dropout nan": (attend(dropout=float("nan")), ValueError, r"expected dropout in \[0, 1\)"),
    "text as seed": (attend(dropout=0.5, seed="x"), TypeError, "seed to be an integer scalar"),
    "float seed": (attend(dropout=0.5, seed=1.5), TypeError, "seed to be an integer scalar"),
    "a key as seed": (
        attend(dropout=0.5, seed=jax.random.key(0)),
        TypeError,
        "seed to be an integer scalar",
    ),
    "layout": (attend(layout="sbhd"), ValueError, 'expected layout "bhsd" or "bshd"'),
    "float segments": (
        attend(segment_ids=jnp.zeros((1, 16))),
        TypeError,
        "expected segment_ids of integers",
    ),
    "segments of keys alone": (
        attend(kv_segment_ids=jnp.zeros((1, 16), jnp.int32)),
        ValueError,
        "expected segment_ids with kv_segment_ids",
    ),
    "starts of nothing": (
        attend(cu_seqlens=jnp.zeros(0, jnp.int32)),
        ValueError,
        "expected cu_seqlens of N",
    ),
    "int sinks": (attend(sinks=jnp.ones(2, jnp.int32)), TypeError, "expected sinks of floats"),
    "options in no dict": (attend(kernel_options=3), TypeError, "kernel_options to be a dict"),
    "unknown option": (attend(kernel_options={"FOO": 1}), ValueError, "expected kernel_options of"),
    "dense block mask": (
        attend(block_mask=jnp.ones((16, 16), bool)),
        TypeError,
        "expected block_mask to be a BlockMask",
    ),
    "mod that is none": (scored(3), TypeError, "expected score_mod to be a function"),
    "bool score": (scored(lambda s, b, h, i, j: i > j), ValueError, "to return a number"),
    "vector score": (scored(lambda s, b, h, i, j: ONES), ValueError, "to return a number"),
    "no score": (scored(lambda s, b, h, i, j: None), ValueError, "it returns nothing"),
    "complex score": (
        scored(lambda s, b, h, i, j: (s * 1j).real),
        NotImplementedError,
        r"expected a mod of real numbers but got complex64 .* at .*test_bad_input.py:\d+",
    ),
    "callback": (
        scored(lambda s, b, h, i, j: jax.pure_callback(abs, jax.ShapeDtypeStruct((), s.dtype), s)),
        NotImplementedError,
        r"primitive pure_callback; mods run .* at .*test_bad_input.py:\d+",
    ),
    "long loop": (
        scored(lambda s, b, h, i, j: jax.lax.fori_loop(0, 10**6, lambda n, c: c + 1, s)),
        NotImplementedError,
        "expected a loop of at most 1024 steps",
    ),
    "mha blocks": (
        lambda: twj.mha(Q, Q, Q, None, block_q=0),
        ValueError,
        r"\[mha\] expected block_q of at least 1",
    ),
    "mha block sizes": (
        lambda: twj.mha(Q, Q, Q, None, block_sizes=5),
        TypeError,
        r"\[mha\] expected block_sizes to be a BlockSizes but got 5",
    ),
    "mha backward": (
        lambda: twj.mha(Q, Q, Q, None, backward_pass_impl="cudnn"),
        ValueError,
        'expected backward_pass_impl "triton" or "xla"',
    ),
    "text as eps": (
        lambda: twj.rms_norm(Q, None, "a"),
        TypeError,
        r"\[rms_norm\] expected eps to be a number but got 'a'",
    ),
    "traced eps": (
        lambda: jax.jit(lambda e: twj.layer_norm(Q, eps=e))(1e-5),
        TypeError,
        r"\[layer_norm\] expected eps to be a number known when the function is traced",
    ),
    "infinite eps": (lambda: twj.rms_norm(Q, None, float("inf")), ValueError, "a finite eps"),
    "scalar weight": (lambda: twj.rms_norm(Q, 2.0), ValueError, "expected a weight whose shape"),
    "op of nothing": (lambda: twj.op(COPY)(), TypeError, "expected at least one array"),
    "op of None": (lambda: twj.op(COPY)(None), TypeError, "argument 0 to be an array"),
    "op of too many": (lambda: twj.op(COPY)(ONES, ONES), TypeError, "expected 1 arrays but got 2"),
    "op of another shape": (
        lambda: twj.op(COPY)(jnp.ones(7)),
        ValueError,
        r"expected `x` to be f32\[8\] but got float32\[7\]",
    ),
    "op of no program": (lambda: twj.op("func @")(ONES), ValueError, "expected a name"),
    "traced dropout": (
        lambda: jax.jit(lambda x, p: twj.flex_attention(x, x, x, dropout=p))(Q, 0.5),
        TypeError,
        "expected dropout to be a number known when the function is traced",
    ),
    "traced causal": (
        lambda: jax.jit(lambda x, c: twj.flex_attention(x, x, x, causal=c))(Q, True),
        TypeError,
        "expected causal to be a bool known when the function is traced",
    ),
    "argument of a mask": (
        lambda: twj.masks.sliding_window("a"),
        TypeError,
        r"^\[sliding_window\] expected sliding_window\(w: int\) but got sliding_window\('a'\)$",
    ),
    "argument of a score": (
        lambda: twj.scores.softcap(cap="x"),
        TypeError,
        r"^\[softcap\] expected softcap\(cap: float, .*\) but got softcap\(cap='x'\)$",
    ),
    "compiler_params": (
        lambda: twj.pallas_call(lambda x, o: None, ONES, compiler_params={"num_warps": 4})(ONES),
        TypeError,
        "expected compiler_params to be a CompilerParams of Pallas but got dict",
    ),
    "op of a number": (lambda: twj.op(3), TypeError, "expected IR text or a function"),
    "negative grid": (
        pallas(grid=(-1,)),
        ValueError,
        r"kernel `kernel`: expected grid extents of at least 0 but got \(-1,\)",
    ),
    "complex kernel": (
        pallas(dtype=jnp.complex64),
        NotImplementedError,
        "kernel `kernel` uses elements of complex64",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_is_refused(name):
    call, error, message = CASES[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("derivative", [jax.jacfwd, lambda f: lambda x: jax.jvp(f, (x,), (x,))])
def test_forward_mode_is_refused(derivative):
    operations = {
        "flex_attention": lambda x: twj.flex_attention(x, x, x),
        "rms_norm": twj.rms_norm,
        "layer_norm": twj.layer_norm,
    }
    for name, operation in operations.items():
        with pytest.raises(NotImplementedError, match=rf"\[{name}\] .* forward mode was asked for"):
            derivative(operation)(Q)
    # Inside of jit JAX may refuse first, with its own text.
    with pytest.raises((TypeError, NotImplementedError), match="forward.mode"):
        jax.jit(derivative(operations["flex_attention"]))(Q)


def test_second_derivatives_are_refused_by_the_name_of_the_function():
    attention = {
        "plain": lambda x: twj.flex_attention(x, x, x),
        "causal, in jit": jax.jit(lambda x: twj.flex_attention(x, x, x, causal=True)),
        "mha": lambda x: twj.mha(x, x, x, None),
    }
    norms = {"rms_norm": twj.rms_norm, "layer_norm": twj.layer_norm}
    operations = [("flex_attention", f) for f in attention.values()] + list(norms.items())
    for name, operation in operations:

        def total(x, operation=operation):
            return operation(x).sum()

        for second in (jax.hessian(total), jax.grad(lambda x: jax.grad(total)(x).sum())):
            with pytest.raises(NotImplementedError, match=rf"^\[{name}\] .*a second derivative"):
                second(Q)


def everything(x, weight):
    """Every operation, forward and backward."""

    def loss(x, weight):
        out, lse = twj.flex_attention(x, x, x, causal=True, return_lse=True)
        out = out + twj.mha(*[jnp.swapaxes(x, 1, 2)] * 3, None).swapaxes(1, 2)
        y = twj.layer_norm(twj.rms_norm(out, weight), weight, weight)
        return y.sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum()

    return jax.jit(jax.value_and_grad(loss, (0, 1)))(x, weight)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", [(0, 2, 16, 8), (1, 0, 16, 8), (1, 2, 0, 8), (1, 1, 1, 1)])
def test_nothing_and_little(shape, wide):
    with jax.enable_x64(wide):
        x, weight = jnp.ones(shape), jnp.ones(shape[-1])
        value, gradients = everything(x, weight)
        assert jnp.isfinite(value)
        assert [g.shape for g in gradients] == [x.shape, weight.shape]
        assert all(jnp.isfinite(g).all() for g in gradients)


def test_batches_of_nothing():
    x, weight = jnp.ones((0, 1, 2, 16, 8)), jnp.ones(8)
    assert jax.vmap(lambda x: twj.flex_attention(x, x, x))(x).shape == x.shape
    gradient = jax.vmap(jax.grad(lambda x, w: twj.rms_norm(x, w).sum(), (0, 1)), (0, None))
    assert [g.shape for g in gradient(x, weight)] == [x.shape, (0, 8)]
    assert jax.vmap(twj.op(COPY))(jnp.ones((0, 8))).shape == (0, 8)
    out = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert jax.vmap(twj.pallas_call(kernel, out))(jnp.ones((0, 8))).shape == (0, 8)


def test_numbers_without_a_type():
    """Python and NumPy numbers, weak types, integers wider than 64 bits."""
    x = jnp.broadcast_to(jnp.asarray(1.0), (1, 1, 4, 4))
    y = twj.flex_attention(x, x, x, scale=1, window=(10**30, 0), dropout=0.5, seed=10**30)
    assert (y.dtype, y.weak_type) == (jnp.float32, False)
    y = twj.flex_attention([[[[1.0]]]], [[[[1.0]]]], [[[[2.0]]]])
    assert y.item() == 2
    assert twj.rms_norm([3.0, 4.0]).shape == (2,)


def test_no_kernel():
    with pytest.raises(TypeError, match="expected kernel to be a function of Refs but got None"):
        twj.pallas_call(None, jax.ShapeDtypeStruct((8,), jnp.float32))


def test_indices_far_outside():
    """Clamped as in jnp in mods; dropped in kernels."""
    table = jnp.arange(4.0)

    def far(s, b, h, i, j):
        return s + table[i * 1000] + table[j * -1000 - 5]

    x = jnp.ones((1, 1, 4, 4))
    assert jnp.isfinite(twj.flex_attention(x, x, x, far)).all()

    def store(x_ref, o_ref):
        o_ref[pl.ds(pl.program_id(0) * 1000, 8)] = x_ref[...]

    out = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert (twj.pallas_call(store, out, grid=(3,))(ONES) == 1).all()
