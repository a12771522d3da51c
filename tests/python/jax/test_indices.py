"""Indices of captured arrays in mods written in jnp, and mistakes in such mods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import attention, close, normal

import tilewright as tw
import tilewright.jax as twj

Q, K, V = (normal(i, (1, 2, 12, 8)) for i in range(3))
TABLE = normal(3, (2, 5, 6))
SHORT = jnp.array([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, i, j: s + SHORT[-1] * SHORT[-4],
        lambda s, b, h, i, j: s + SHORT[j % 4 - 4],
        lambda s, b, h, i, j: s + SHORT[(j - i) % 7 - 3],
        lambda s, b, h, i, j: s + TABLE[h - 1, -2, i % 6],
        lambda s, b, h, i, j: s + TABLE[h, :, 0].sum() + TABLE[..., 2][h, -1],
        lambda s, b, h, i, j: s + TABLE[h, 1:3, ::2].max(),
        lambda s, b, h, i, j: s + SHORT[jnp.stack([i, j]) % 4].sum(),
        lambda s, b, h, i, j: s + TABLE[:, jnp.array([[0, -1], [2, 3]]), j % 6][h, 1].max(),
        lambda s, b, h, i, j: s + jax.vmap(lambda row: row[j % 6])(TABLE[h]).sum(),
    ],
)
def test_indices_are_those_of_numpy(mod):
    close(twj.flex_attention(Q, K, V, mod), attention(Q, K, V, mod)[0])


@pytest.mark.parametrize(
    ("mod", "text"),
    [
        (
            lambda s, b, h, i, j: s + SHORT[4],
            r"-4 to 3 in dimension 0 .* but got 4 at .*indices\.py",
        ),
        (lambda s, b, h, i, j: s + SHORT[-5], "-4 to 3 in dimension 0 .* but got -5"),
        (lambda s, b, h, i, j: s + TABLE[h, 7, i], "-5 to 4 in dimension 1 .* but got 7"),
    ],
)
def test_static_indices_outside_are_errors(mod, text):
    with pytest.raises(
        IndexError, match=r"\[flex_attention\] score_mod: expected an index of " + text
    ):
        twj.flex_attention(Q, K, V, mod)


def test_modes_of_gathers_keep_their_meaning():
    def mod(s, b, h, i, j):
        filled = SHORT.at[jnp.array(9)].get(mode="fill", fill_value=2.0)
        return s * filled + SHORT.at[i + 9].get(mode="clip")

    close(twj.flex_attention(Q, K, V, mod), attention(Q, K, V, mod)[0])


@pytest.mark.usefixtures("on_cpu")
def test_the_checked_mode_names_array_and_line():
    def mod(s, b, h, i, j):
        s = s * 2
        return s + SHORT[j - 2]  # the line

    def inside(s, b, h, i, j):
        return s + SHORT[j % 4 - 4] + SHORT[jnp.clip(j, 0, 3)] * TABLE[h, -1, i // 2]

    checked = {"checked": True}
    line = mod.__code__.co_firstlineno + 2
    close(
        twj.flex_attention(Q, K, V, inside, kernel_options=checked),
        twj.flex_attention(Q, K, V, inside),
        8,
    )
    with pytest.raises(Exception, match=rf"capture `SHORT`.*test_indices\.py:{line}"):
        twj.flex_attention(Q, K, V, mod, kernel_options=checked).block_until_ready()
    ids = jnp.zeros(10, jnp.int32)
    with pytest.raises(Exception, match=r"capture `ids`.*test_indices\.py"):
        twj.flex_attention(
            Q,
            K,
            V,
            mod,
            mask_mod=lambda b, h, i, j: (ids[i] == ids[j]) & (j < 6),
            kernel_options=checked,
        ).block_until_ready()


@pytest.mark.parametrize(
    "mod",
    [
        lambda b, h, i, j: i >= j and i < 5,
        lambda b, h, i, j: not i >= j,
        lambda b, h, i, j: 0 <= i - j < 5,
        lambda b, h, i, j: min(i, j) > 2,
    ],
)
def test_truth_values_name_the_operators(mod):
    with pytest.raises(TypeError) as error:
        twj.flex_attention(Q, K, V, mask_mod=mod)
    for name in ("&, | and ~", "jnp.minimum", "jnp.maximum", "jnp.where", "(a < b) & (b < c)"):
        assert name in str(error.value)


CAPTURE = tw.capture(np.ones(12, np.float32))


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, i, j: s + CAPTURE[i],
        lambda s, b, h, i, j: tw.where(i >= j, s, 0.0),
        lambda s, b, h, i, j: tw.tanh(s),
        lambda s, b, h, i, j: tw.maximum(s, 0),
        lambda s, b, h, i, j: tw.clamp(s, -1, 1),
    ],
)
def test_functions_of_the_numpy_front_end_are_named(mod):
    for call in (twj.flex_attention, jax.jit(lambda *a: twj.flex_attention(*a, mod))):
        with pytest.raises(TypeError, match=r"mods of tilewright\.jax read JAX arrays and use jnp"):
            call(*(Q, K, V), *(() if call is not twj.flex_attention else (mod,)))
