"""Attention by its definition in jnp: dense, and differentiable by JAX."""

import re

import jax
import jax.numpy as jnp
import numpy as np


def over_pairs(mod, batch, heads, queries, keys, score=None):
    """A mod evaluated on every pair: (batch, heads, queries, keys)."""
    index = [jnp.arange(n, dtype=jnp.int32) for n in (batch, heads, queries, keys)]
    lead = () if score is None else (0,)
    for axis in reversed(range(4)):
        mod = jax.vmap(mod, (*lead, *(0 if i == axis else None for i in range(4))))
    return mod(*index) if score is None else mod(score, *index)


def attention(query, key, value, score_mod=None, mask_mod=None, scale=None, sinks=None):
    """(out, lse, max_scores), BHSD; a fully masked row gives 0 and -inf."""
    group = query.shape[1] // key.shape[1]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    q, k, v = (x.astype(wide) for x in (query, key, value))
    k, v = (jnp.repeat(x, group, 1) for x in (k, v))
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * scale
    if score_mod is not None:
        scores = over_pairs(score_mod, *scores.shape, scores)
    keep = jnp.ones(scores.shape, bool)
    if mask_mod is not None:
        keep = over_pairs(mask_mod, *scores.shape)
    scores = jnp.where(keep, scores, -jnp.inf)
    most = scores.max(-1, initial=-jnp.inf)
    shift = jax.lax.stop_gradient(jnp.where(jnp.isneginf(most), 0, most))
    weights = jnp.where(jnp.isneginf(scores), 0, jnp.exp(scores - shift[..., None]))
    total = weights.sum(-1)
    if sinks is not None:
        total = total + jnp.exp(sinks[:, None] - shift)
    empty = total == 0
    out = (weights @ v) / jnp.where(empty, 1, total)[..., None]
    lse = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)) + shift)
    return out.astype(value.dtype), lse, most


def close(have, want, units=64):
    """Asserts equality within some units in the last place of the largest value, and of -inf."""
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    unit = float(jnp.finfo(want.dtype).eps)
    have, want = (np.asarray(a, np.float64) for a in (have, want))
    np.testing.assert_array_equal(np.isneginf(have), np.isneginf(want))
    have, want = (np.where(np.isneginf(a), 0, a) for a in (have, want))
    error = np.abs(have - want).max(initial=0)
    assert error <= units * unit * max(1.0, np.abs(want).max(initial=0))


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def collectives(compiled):
    """The collective operations of a compiled function, by name."""
    names = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return re.findall(rf" ({names})(?:-start)?\(", compiled.as_text())
