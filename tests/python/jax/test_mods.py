"""What mods may contain: every primitive that jnp produces, the libraries, and named refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import attention, close, normal, over_pairs

import tilewright as tw
import tilewright.jax as twj
from tilewright import _core, _functions
from tilewright.jax import _mods
from tilewright.jax._jaxpr.composites import COMPOSITE

TABLE = normal(0, (3, 9))
ENDS = jnp.array([3, 4, 9])
FLAT = normal(1, (9,))
INTS = jnp.array([3, -1, 4, 1, -5, 9, 2, 6, 5])
CUBE = normal(2, (2, 3, 4))
NARROW = normal(3, (9,), jnp.bfloat16)
BIAS = TABLE[:, None]
SCALAR = jnp.float32(0.75)


@jax.jit
def inner(x, y):
    return x * y - jnp.float32(1)


def loop(s, b, h, i, j):
    return jax.lax.fori_loop(0, 3, lambda n, c: c * 0.5 + TABLE[n, i], s)


def while_loop(s, b, h, i, j):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + FLAT[c[0]]), (0, s))[
        1
    ]


def scanned(s, b, h, i, j):
    return jax.lax.scan(lambda c, row: (c + row[i], row[j]), s, TABLE)[0]


SCORES = {
    "arithmetic": lambda s, b, h, i, j: -s * 2 + s / 3 - (i + 1) + b,
    "abs_sign": lambda s, b, h, i, j: abs(s) * jnp.sign(s - 0.1) + jnp.sign(i - j) + abs(i - j),
    "extremes": lambda s, b, h, i, j: jnp.maximum(s, 0.1) + jnp.minimum(i, j) + jnp.clip(s, -1, 1),
    "powers": lambda s, b, h, i, j: s**2 + s**3 + abs(s) ** 0.5 + (s * s + 1) ** -2 + jnp.square(s),
    "int_powers": lambda s, b, h, i, j: s + (i - j) ** 2 + i**3 + s**0,
    "exponentials": lambda s, b, h, i, j: jnp.exp(s) + jnp.exp2(s) + jnp.expm1(s),
    "logarithms": lambda s, b, h, i, j: jnp.log(abs(s) + 1) + jnp.log1p(s * s) + jnp.log2(i + 1),
    "sigmoids": lambda s, b, h, i, j: jnp.tanh(s) + jax.nn.sigmoid(s) + jax.lax.erf(s),
    "roots": lambda s, b, h, i, j: jnp.sqrt(s * s) + jax.lax.rsqrt(s * s + 1) + jnp.cbrt(s + 3),
    "neighbours": lambda s, b, h, i, j: s
    + jax.lax.nextafter(jax.lax.stop_gradient(s), jnp.asarray(9, s.dtype)),
    "trigonometry": lambda s, b, h, i, j: jnp.sin(s + i) + jnp.cos(s - j),
    "inverse_trigonometry": lambda s, b, h, i, j: jnp.tan(s / 4)
    + jnp.arctan(s)
    + jnp.arcsin(jnp.tanh(s) / 2)
    + jnp.arccos(jnp.tanh(s) / 2)
    + jnp.arctan2(s, j - 3.5),
    "hyperbolic": lambda s, b, h, i, j: jnp.sinh(s / 2)
    + jnp.cosh(s / 2)
    + jnp.arcsinh(s)
    + jnp.arccosh(s * s + 1.5)
    + jnp.arctanh(jnp.tanh(s) / 2)
    + jax.scipy.special.erfc(s),
    "activations": lambda s, b, h, i, j: jax.nn.gelu(s) + jax.nn.softplus(s) + jax.nn.silu(s),
    "finite": lambda s, b, h, i, j: jnp.where(jnp.isfinite(s / (i - j)), s, 2 * s),
    "rounding": lambda s, b, h, i, j: s + jnp.floor(s) + jnp.ceil(s) + jnp.round(3 * s),
    "comparisons": lambda s, b, h, i, j: s
    + (i == j) * 1.0
    + (i != j) * 2.0
    + (i < j) * 4.0
    + (i >= j) * 8.0
    + (s > 0) * 16
    + (s <= 0) * 32,
    "logic": lambda s, b, h, i, j: jnp.where(
        ((i > j) & ~(s > 0)) | ((h == 1) ^ (b == 0)), s, jnp.where(jnp.isnan(s), 0.0, -s)
    ),
    "bits": lambda s, b, h, i, j: s
    + ((i & 3) | (j ^ 5))
    + (~i)
    + (i << 2)
    + (j >> 1)
    - (i - j >> 1),
    "wrapping": lambda s, b, h, i, j: s
    + ((i * 73856093) ^ (j * 19349663)) % 7
    + (i * -1640531527 >> 28),
    "unsigned": lambda s, b, h, i, j: s
    + ((i.astype(jnp.uint32) * jnp.uint32(2654435769)) >> 28).astype(jnp.float32),
    "narrow": lambda s, b, h, i, j: s
    + (i * 40).astype(jnp.int8)
    + (i * 40).astype(jnp.uint8)
    + NARROW[j],
    "division": lambda s, b, h, i, j: s + (i - j) // 3 + (i - j) % 3 + i // 2 * 10 + (j - i) // -2,
    "truncation": lambda s, b, h, i, j: s + jax.lax.div(i - j, 3) + jax.lax.rem(i - j, 3),
    "remainder": lambda s, b, h, i, j: s + jnp.fmod(s, 0.3) + jnp.mod(i - j, 4) + jnp.mod(i, j - 3),
    "casts": lambda s, b, h, i, j: s
    + s.astype(jnp.int32)
    + (s > 0).astype(int)
    + (i + 0.5).astype(int),
    "table": lambda s, b, h, i, j: s + TABLE[h, i] + FLAT[j] + TABLE[h, 2] + FLAT[3],
    "relative": lambda s, b, h, i, j: s + FLAT[i - j + 4] * TABLE[h, (i - j) % 9],
    "negative": lambda s, b, h, i, j: s + FLAT[-i - 1] + FLAT[i - 20] + FLAT[j + 100] + FLAT[-1],
    "chained": lambda s, b, h, i, j: s + FLAT[INTS[i]] + FLAT[INTS[INTS[j]]],
    "take": lambda s, b, h, i, j: s
    + jnp.take(FLAT, i, mode="clip")
    + jnp.nan_to_num(jnp.take(FLAT, i + 6))
    + FLAT.at[j].get(),
    "outside": lambda s, b, h, i, j: s + FLAT.at[i + 5].get(mode="fill", fill_value=2.0),
    "ints": lambda s, b, h, i, j: s + INTS[i] * INTS[j] + jnp.take(INTS, i, mode="clip"),
    "rows": lambda s, b, h, i, j: s
    + (CUBE[b, h] * CUBE[0, h]).sum()
    + jnp.dot(CUBE[b, 0], CUBE[1, h])
    + CUBE[b].reshape(6, 2)[i % 6, 1],
    "reductions": lambda s, b, h, i, j: s
    + CUBE[b, h].max()
    - CUBE[b, h].min()
    + CUBE[b, h].prod()
    + CUBE[b, h].mean()
    + CUBE[b].sum(0)[1],
    "dynamic_row": lambda s, b, h, i, j: s + jax.lax.dynamic_slice(FLAT, (i,), (3,)).sum(),
    "small_arrays": lambda s, b, h, i, j: s
    + jnp.array([1.0, 2.0, 4.0])[h]
    + jnp.stack([s, -s, 2 * s]).max()
    + jnp.cumsum(CUBE[b, h])[2]
    + jnp.pad(CUBE[b, h], 1, constant_values=2)[i % 6],
    "counts": lambda s, b, h, i, j: s
    + (jnp.arange(3) * CUBE[b, h, :3]).sum()
    + (jnp.arange(4) == i % 4).sum(),
    "cond": lambda s, b, h, i, j: jax.lax.cond(i > j, lambda x: x * 2, lambda x: x - 1, s),
    "switch": lambda s, b, h, i, j: jax.lax.switch(i - 1, [jnp.sin, jnp.cos, lambda x: 2 * x], s),
    "piecewise": lambda s, b, h, i, j: jnp.piecewise(
        s, [i > j, i < j], [lambda x: x, lambda x: -x, 0.0]
    ),
    "select": lambda s, b, h, i, j: jnp.select([i > j, i == j], [s, 2 * s], -s),
    "searches": lambda s, b, h, i, j: s
    + jnp.searchsorted(jnp.array([2, 5, 7]), i, side="right")
    + jnp.searchsorted(ENDS, j)
    + jnp.interp(j + 0.5, jnp.array([1.0, 4.0, 8.0]), jnp.array([0.0, 3.0, 1.0])),
    "polynomial": lambda s, b, h, i, j: jnp.polyval(jnp.array([0.5, -1.0, 2.0]), s),
    "loop": loop,
    "while": while_loop,
    "scan": scanned,
    "jit": lambda s, b, h, i, j: inner(s, SCALAR) + inner(s, FLAT[i]),
    "scalar": lambda s, b, h, i, j: s * SCALAR,
    "constant": lambda s, b, h, i, j: jnp.where(i >= j, s, -jnp.inf),
    "checkpoint": lambda s, b, h, i, j: jax.checkpoint(jnp.sin)(s),
    "library": lambda s, b, h, i, j: twj.scores.softcap(5)(s, b, h, i, j)
    + twj.scores.bias(BIAS)(s, b, h, i, j),
}
SHAPE = (2, 3, 9, 9)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    """The mod's text, evaluated pair by pair by the library, against jnp."""
    mod = SCORES[name]
    scores = normal(5, SHAPE)
    want = over_pairs(mod if name != "library" else library_in_jnp, *SHAPE, scores)
    have = evaluate(mod, scores)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(have), finite)
    np.testing.assert_allclose(have[finite], np.asarray(want)[finite], rtol=2e-6, atol=2e-6)


def test_composed_scores():
    scores = normal(5, SHAPE)
    have = evaluate(twj.scores.compose(twj.scores.softcap(5), twj.scores.bias(BIAS)), scores)
    want = over_pairs(lambda s, b, h, i, j: 5 * jnp.tanh((s + TABLE[h, j]) / 5), *SHAPE, scores)
    np.testing.assert_allclose(have, np.asarray(want), rtol=2e-6, atol=2e-6)


def library_in_jnp(s, b, h, i, j):
    return 5 * jnp.tanh(s / 5) + s + TABLE[h, j]


def evaluate(mod, scores):
    """The traced mod on these scores, in NumPy: lse of attention with one key at a time."""
    traced = _mods.trace("test", "score_mod", mod, False, _functions.Sizes(*SHAPE))
    arrays = [np.asarray(x) for x in traced.arrays]
    batch, heads, queries, keys = SHAPE
    query = np.asarray(scores, np.float32)
    core = tw._core
    captures = [core.capture(tw._arrays.to_tensor("test", "array", x), "", False) for x in arrays]
    options = core.AttentionOptions()
    options.score_mod = core.Mod.from_ir(traced.text, captures)
    options.scale = 1.0
    result = np.empty(SHAPE, np.float32)
    one_hot = np.broadcast_to(np.eye(keys, dtype=np.float32), (batch, heads, keys, keys)).copy()
    for key in range(keys):
        # All other keys are masked, so that lse is the score of this one.
        only = core.BlockMask.from_dense(
            tw._arrays.to_tensor(
                "test", "mask", np.broadcast_to(np.arange(keys) == key, SHAPE).copy()
            ),
            [64, 64],
        )
        options.block_mask = only
        tensors = [tw._arrays.to_tensor("test", "x", x) for x in (query, one_hot, one_hot)]
        result[..., key] = np.asarray(core.attention(*tensors, options=options).lse)
    return result


def test_every_primitive_with_a_rule_is_tested():
    """The cases above include all primitives that the translator supports."""
    from tilewright.jax._jaxpr.mods.translate import ModWalker
    from tilewright.jax._jaxpr.walker import Walker

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    seen = set()

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            seen.add(equation.primitive.name)
            for inside in jax.tree.leaves(list(equation.params.values()), is_leaf=_has_equations):
                if _has_equations(inside):
                    visit(getattr(inside, "jaxpr", inside))

    for mod in SCORES.values():
        visit(jax.make_jaxpr(mod)(scalar, *[position] * 4).jaxpr)
    other_versions = {
        "empty",
        "empty2",
        "expand_dims",
        "add_any",
        "log2",
        "one_minus_square",
        "polynomial",
        "lt_to",
        "le_to",
    }
    rare = {"rev", "transpose", "cumprod", "cummax", "cummin", "argmin", "reduce_and", "reduce_or"}
    rare |= {"where", "floor_divide", "shift_right_logical", "remainder", "clamp"}
    rare.add("dim_as_value")  # in exports with symbolic shapes
    assert set(ModWalker.rules) - set(Walker.rules) - seen <= other_versions | rare


def _has_equations(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


# JAX cannot differentiate two of them as they are: a while loop, and a library mod's constants.
@pytest.mark.parametrize("name", sorted(SCORES.keys() - {"while", "library"}))
def test_gradients_agree_with_jax(name):
    """Our gradients are derived from the tile IR, not by JAX."""
    q, k, v = (normal(i, (2, 3, 9, 4)) for i in range(3))
    globals_before = dict(TABLE=TABLE, FLAT=FLAT, CUBE=CUBE)

    def loss(f):
        def call(q, arrays):
            globals().update(arrays)
            try:
                return jnp.sin(f(q, k, v, SCORES[name])).sum()
            finally:
                globals().update(globals_before)

        return jax.jit(jax.grad(call, (0, 1)))

    have = loss(twj.flex_attention)(q, globals_before)
    want = loss(lambda *a: attention(*a)[0])(q, globals_before)
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        close(a, b, 256)


@pytest.mark.parametrize(
    ("mask", "same"),
    [
        (
            lambda: twj.masks.causal() & twj.masks.sliding_window(3),
            tw.masks.causal() & tw.masks.sliding_window(3),
        ),
        (lambda: ~twj.masks.prefix_lm(4) | (lambda b, h, i, j: i == j), None),
        (lambda: twj.masks.document(INTS), tw.masks.document(np.asarray(INTS))),
        (
            lambda: twj.masks.jagged(lambda b, h, i, j: i >= j, jnp.array([0, 4, 9])),
            tw.masks.jagged(tw.masks.causal(), np.array([0, 4, 9])),
        ),
        (
            lambda: twj.masks.offset(twj.masks.causal(), 2, 0),
            tw.masks.offset(tw.masks.causal(), 2, 0),
        ),
        (lambda: twj.and_masks(twj.masks.causal(), lambda b, h, i, j: INTS[i] > 0), None),
        (lambda: twj.or_masks(lambda b, h, i, j: INTS[i] > 0, twj.masks.causal()), None),
    ],
)
def test_library_masks(mask, same):
    have = twj.create_mask(mask(), 1, 1, 9, 9)
    i, j = np.arange(9)[:, None], np.arange(9)
    if same is not None:
        np.testing.assert_array_equal(have, tw.create_mask(same, 1, 1, 9, 9))
    elif "~" in repr(mask()):
        np.testing.assert_array_equal(have[0, 0], ~((j < 4) | (i >= j)) | (i == j))
    else:
        positive = np.broadcast_to(np.asarray(INTS)[:, None] > 0, (9, 9))
        both = "&" in repr(mask()) or "and_masks" in repr(mask())
        np.testing.assert_array_equal(
            have[0, 0], (i >= j) & positive if both else (i >= j) | positive
        )


def test_library_scores_of_traced_arrays_have_gradients():
    q, k, v = (normal(i, (1, 2, 9, 4)) for i in range(3))
    table = normal(3, (2, 9, 9))

    def loss(f):
        return jax.jit(jax.grad(lambda t: jnp.sin(f(t)).sum()))

    have = loss(lambda t: twj.flex_attention(q, k, v, twj.scores.bias(t)))(table)
    want = loss(lambda t: attention(q, k, v, lambda s, b, h, i, j: s + t[h, i, j])[0])(table)
    close(have, want)


Q = normal(9, (1, 1, 4, 4))


@pytest.mark.parametrize(
    ("mod", "error", "message"),
    [
        (
            lambda s, b, h, i, j: jax.random.uniform(jax.random.key(0))
            + s * jax.random.normal(jax.random.key(i)),
            NotImplementedError,
            r"primitive random_\w+; attention has a dropout.* at .*test_mods.py:\d+",
        ),
        (
            lambda s, b, h, i, j: jax.debug.print("{}", s) or s,
            NotImplementedError,
            "primitive debug_\\w+; mods run",
        ),
        (
            lambda s, b, h, i, j: jax.lax.while_loop(lambda c: c < i, lambda c: c + 1, 0) + s,
            NotImplementedError,
            "a loop of a constant number of steps.*test_mods.py",
        ),
        (
            lambda s, b, h, i, j: jnp.sort(jnp.stack([s, -s]))[0],
            NotImplementedError,
            "the primitive sort",
        ),
        (
            lambda s, b, h, i, j: jnp.stack([s, s]),
            ValueError,
            r"expected score_mod to return a number but it returns float32\[2\]",
        ),
        (
            lambda s, b, h, i, j: i > j,
            ValueError,
            "expected score_mod to return a number but it returns bool",
        ),
        (lambda s, b, h, i, j: None, ValueError, "to return a number but it returns nothing"),
        (lambda s, b, h, i, j: s if i > j else 0.0, TypeError, "score_mod to choose by jnp.where"),
        (
            lambda s, b, h, i, j: s + np.ones(4)[i],
            TypeError,
            "score_mod to read JAX arrays.*jnp.asarray",
        ),
        (
            lambda s, i, j: s,
            TypeError,
            r"expected score_mod to be a function \(score, b, h, q_idx, kv_idx\)",
        ),
        (3, TypeError, "expected score_mod to be a function .* but got int"),
        (twj.masks.causal(), TypeError, "expected score_mod to be a function .* but got a mask"),
    ],
)
def test_refusals(mod, error, message):
    with pytest.raises(error, match=message):
        jax.jit(lambda q: twj.flex_attention(q, Q, Q, mod))(Q)


@jax.custom_vjp
def clipped_gradient(x):
    return 2 * x


clipped_gradient.defvjp(lambda x: (2 * x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


@jax.custom_jvp
def doubled(x, y):
    return x * y


doubled.defjvp(lambda x, dx: (doubled(*x), 5 * dx[0] * x[1] + 7 * dx[1]))

OWN_RULES = {
    "custom_vjp": lambda a, t: lambda s, b, h, i, j: clipped_gradient(s * a[h]) + t[i - j + 8],
    "custom_jvp": lambda a, t: lambda s, b, h, i, j: doubled(s, a[h] + t[3]) + jax.nn.relu(s),
    "stop_gradient": lambda a, t: lambda s, b, h, i, j: s * jax.lax.stop_gradient(a[h]) + t[j],
    "filled": lambda a, t: lambda s, b, h, i, j: clipped_gradient(s)
    + t.at[i + 12].get(mode="fill", fill_value=0.5) * a[2],
    "rows": lambda a, t: lambda s, b, h, i, j: doubled(s, 1.0)
    + jax.lax.dynamic_slice(t, (i,), (3,)).sum()
    + t[2:5].prod(),
    "cond": lambda a, t: lambda s, b, h, i, j: jax.lax.cond(
        i > j, lambda x: clipped_gradient(x) * t[i], lambda x: x * t[j + 1], s
    ),
}


@pytest.mark.parametrize("name", OWN_RULES)
def test_derivative_rules_of_the_user_are_respected(name):
    q, k, v = (normal(i, (1, 3, 9, 4)) for i in range(3))
    a, t = normal(3, (3,)), normal(4, (17,))

    def loss(f):
        return jax.jit(
            jax.grad(lambda q, a, t: jnp.sin(f(q, OWN_RULES[name](a, t))).sum(), (0, 1, 2))
        )

    have = loss(lambda q, mod: twj.flex_attention(q, k, v, mod))(q, a, t)
    want = loss(lambda q, mod: attention(q, k, v, mod)[0])(q, a, t)
    for x, y in zip(have, want, strict=True):
        close(x, y, 256)
    mapped = jax.vmap(loss(lambda q, mod: twj.flex_attention(q, k, v, mod)), (0, None, None))
    for x, y in zip(mapped(jnp.stack([q, q]), a, t), have, strict=True):
        close(x[1], y)


def test_derivatives_of_hijax_primitives_are_respected():
    hijax = pytest.importorskip("jax.experimental.hijax")
    if not hasattr(hijax, "HiPrim"):
        pytest.skip("NOT RUN: primitives of this kind came with JAX 0.12")

    class Scaled(hijax.HiPrim):
        """x * 1.5, whose derivative says 2."""

        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return x * 1.5

        def jvp(self, primals, tangents):
            return self(*primals), tangents[0] * 2

        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp
        lin, linearized = hijax.linearize_from_jvp

    @jax.custom_vjp
    def scaled(x):
        return x * 1.5

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: (2 * g,))
    q, k, v = (normal(i, (1, 2, 9, 4)) for i in range(3))

    def gradient(function):
        def mod(s, b, h, i, j):
            return function(s)

        return jax.grad(lambda q: jnp.sin(twj.flex_attention(q, k, v, mod)).sum())(q)

    close(gradient(lambda s: Scaled(jax.typeof(s))(s)), gradient(scaled), 256)


@pytest.mark.parametrize("own_rules", [False, True])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_narrow_captures_are_rounded_once(own_rules, dtype):
    @jax.custom_vjp
    def half(x):
        return x * 0.5

    half.defvjp(lambda x: (half(x), None), lambda _, g: (g * 0.5,))
    q, k, v, dout = (normal(i, (1, 1, 200, 8)) for i in range(4))
    table = normal(5, (4,), dtype)
    rule = half if own_rules else lambda x: x * 0.5

    def gradient(table, at, **how):
        def loss(table):
            def mod(s, b, h, i, j):
                return s * rule(table.at[at(i, j)].get(**how).astype(jnp.float32))

            return (twj.flex_attention(q, k, v, mod) * dout).sum()

        return jax.grad(loss)(table)

    for at in (lambda i, j: (i + j) % 4, lambda i, j: i // 50, lambda i, j: (i - j) % 7):
        for how in ({}, {"mode": "fill", "fill_value": 1}):
            want = gradient(table.astype(jnp.float32), at, **how).astype(dtype)
            np.testing.assert_array_equal(
                *(np.asarray(x, np.float32) for x in (gradient(table, at, **how), want))
            )


def test_mods_and_masks_of_the_numpy_front_end():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((1, 2, 40, 8)), jnp.float32) for _ in range(3))
    slopes = np.array([0.5, -0.25], np.float32)
    score, mask = tw.parse_mod("alibi(slopes)", slopes=slopes), tw.parse_mod("causal")
    block_mask = tw.create_block_mask(tw.masks.sliding_window(9), None, None, 40, 40)
    have = jax.jit(
        lambda q: twj.flex_attention(q, k, v, score, block_mask=block_mask, mask_mod=mask)
    )(q)
    want = twj.flex_attention(
        *(q, k, v),
        lambda s, b, h, i, j: s + jnp.asarray(slopes)[h] * (j - i),
        mask_mod=lambda b, h, i, j: (i >= j) & (i - j <= 9),
    )
    np.testing.assert_allclose(have, want, atol=1e-6)
    assert twj.create_block_mask(mask, None, None, 40, 40).to("cpu").shape == (1, 1, 40, 40)


def test_functions_of_the_table_are_not_composed():
    assert not set(COMPOSITE) & {function.jax for function in _core.elementwise_functions()}
