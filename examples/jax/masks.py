"""Masks for a long context: built, measured, drawn, used under jit."""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import tilewright.jax as twj

LENGTH = 1 << 17
lengths = np.random.default_rng(0).multinomial(LENGTH, np.full(40, 1 / 40))
documents = jnp.asarray(np.repeat(np.arange(40), lengths), jnp.int32)


def packed(b, h, i, j):
    """Documents, causal, with a window; every document's first tokens are visible in all of it."""
    start = starts[documents[i]]
    return (documents[i] == documents[j]) & (i >= j) & ((i - j < 4096) | (j < start + 4))


starts = jnp.asarray(np.concatenate([[0], np.cumsum(lengths)[:-1]]), jnp.int32)
mask = twj.create_block_mask(packed, None, None, LENGTH, LENGTH)
print(mask)
print(f"{LENGTH} tokens: {mask.sparsity():.1f}% of the blocks are empty, {mask.nbytes} bytes")
with tempfile.TemporaryDirectory() as folder:
    picture = pathlib.Path(folder, "packed.png")
    mask.save(picture)
    print("picture of", picture.stat().st_size, "bytes")

short = twj.create_block_mask(packed, None, None, 512, 512)
q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 2, 512, 32))
attend = jax.jit(lambda q, mask: twj.flex_attention(q, k, v, block_mask=mask))  # a pytree
out = attend(q, short)
dense = twj.create_mask(packed, None, None, 512, 512)
scores = jnp.where(dense, jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(32), -jnp.inf)
error = jnp.abs(out - jax.nn.softmax(scores) @ v).max()
print("error", error)
assert error < 1e-5
