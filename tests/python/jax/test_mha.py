"""mha against mha_reference and against JAX's own definition, under both signatures."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import close, normal

import tilewright.jax as twj


def inputs(length=37, dtype=jnp.float32):
    return [normal(i, (2, length, 3, 16), dtype) for i in range(3)]


IDS = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 3, (2, 37))), jnp.int32)


@pytest.mark.parametrize(
    ("causal", "ids", "impl"),
    [(c, i, "triton") for c, i in itertools.product([False, True], [None, IDS])]
    + [(True, IDS, "xla")],
)
def test_values_and_gradients(causal, ids, impl):
    def loss(f):
        def call(q, k, v):
            out = f(q, k, v, ids, sm_scale=0.2, causal=causal)
            return (out.astype(jnp.float32) ** 2).sum(), out

        return jax.jit(jax.grad(call, (0, 1, 2), has_aux=True))

    have, out = loss(functools.partial(twj.mha, backward_pass_impl=impl))(*inputs())
    want, dense = loss(twj.mha_reference)(*inputs())
    close(out, dense)
    for a, b in zip(have, want, strict=True):
        close(a, b)


def test_reference_is_that_of_jax():
    theirs = pytest.importorskip("jax.experimental.pallas.ops.gpu.attention")
    arguments = (*inputs(), IDS, 0.7, True)
    close(
        jax.jit(twj.mha_reference, static_argnums=(4, 5))(*arguments),
        theirs.mha_reference(*arguments),
    )


class BlockSizes:
    """As JAX's: some sizes may be None."""

    def __init__(self):
        self.block_q, self.block_k, self.block_q_dkv = 64, 512, None


def test_the_block_sizes_of_jax():
    theirs = pytest.importorskip("jax.experimental.pallas.ops.gpu.attention")
    q, k, v = inputs()
    sizes = theirs.BlockSizes.get_default()
    out = twj.mha(q, k, v, None)
    close(twj.mha(q, k, v, None, 1.0, False, sizes), out, 8)
    close(twj.mha(q, k, v, None, block_sizes=sizes), out, 8)


def test_both_signatures():
    q, k, v = inputs()
    out = twj.mha(q, k, v, None)
    checked = jax.default_backend() == "cpu"  # the checked mode runs there
    older = twj.mha(q, k, v, None, 1.0, False, 32, 16, "xla", 4, 3, None, checked, False)
    newer = twj.mha(q, k, v, None, 1.0, False, BlockSizes(), "xla", 8, 1, None, False, False)
    named = twj.mha(q, k, v, segment_ids=None, block_sizes=BlockSizes(), num_warps=4)
    for other in (older, newer, named):
        close(other, out, 8)
    out, lse = twj.mha(
        q,
        k,
        v,
        None,
        1.0,
        False,
        BlockSizes(),
        "triton",
        None,
        2,
        None,
        False,
        False,
        return_residuals=True,
    )
    logits = jnp.einsum("bqhc,bkhc->bhqk", q, k)
    close(lse, jnp.log2(jnp.exp2(logits * np.log2(np.e)).sum(-1)))


def test_debug_prints(capsys):
    twj.mha(*inputs(), None, debug=True)
    assert "mha: q (2, 37, 3, 16)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"backward_pass_impl": "cuda"},
            ValueError,
            'backward_pass_impl "triton" or "xla" but got \'cuda\'',
        ),
        ({"block_q": 0}, ValueError, "expected block_q of at least 1 but got 0"),
        ({"num_warps": "4"}, TypeError, "expected num_warps to be an integer"),
        (
            {"block_q": BlockSizes(), "block_sizes": BlockSizes()},
            TypeError,
            "expected one block_sizes",
        ),
        ({"segment_ids": IDS[:, :5]}, ValueError, r"expected segment_ids of shape \(2, 37\)"),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        twj.mha(*inputs(), options.pop("segment_ids", None), **options)
