"""mha with the signatures of jax.experimental.pallas.ops.gpu.attention."""

import dataclasses
import functools
import math
import operator

import jax
import jax.numpy as jnp

from .._synonyms import names_synonyms
from ._attention import flex_attention


@names_synonyms
def mha(
    q,
    k,
    v,
    segment_ids,
    sm_scale=1.0,
    causal=False,
    block_q=128,
    block_k=128,
    backward_pass_impl="triton",
    num_warps=None,
    num_stages=2,
    grid=None,
    interpret=False,
    debug=False,
    *,
    block_sizes=None,
    return_residuals=False,
    precision=None,
):
    """``softmax(sm_scale * q k^T) v`` of q, k, v (batch, sequence, heads, head dimension).

    Lengths need not be multiples of the blocks. segment_ids (batch, sequence) or None: only equal
    ids attend; no gradient. causal counts from the top left. A BlockSizes may be passed in place of
    block_q; the arguments after it are then those of JAX's current signature. Block sizes,
    num_warps and num_stages other than these defaults are hints, like kernel_options of
    `flex_attention`: block_q_dkv and block_kv_dkv are those of the backward pass, which computes dQ
    in the same loop, so that block_q_dq and block_kv_dq have no effect. They change results by
    rounding only. grid must be None: kernels choose it. backward_pass_impl: "triton", this
    library's kernel, or "xla", the derivative of `mha_reference`. interpret runs in the checked
    mode; debug prints the call when it is traced. precision is that of f32 products on GPUs: "ieee"
    (also None), "tf32" or "bf16x3", as in kernel_options. With return_residuals returns (out, lse), lse
    (batch, heads, sequence) to base 2, as JAX does. Raises ValueError or TypeError if an argument
    does not fit.
    """
    hints = (block_q, block_k, backward_pass_impl, num_warps, num_stages, grid, interpret, debug)
    if hasattr(block_q, "block_q"):
        if block_sizes is not None:
            raise TypeError("[mha] expected one block_sizes but got two")
        block_sizes = block_q
        block_q = block_k = 128
        if isinstance(hints[1], str):  # one position earlier than in the older signature
            defaults = (128, 128, "triton", None, 2, None, False, False)
            given = [
                ours if value == default else value
                for value, default, ours in zip(
                    hints[1:],
                    defaults[1:],
                    ("triton", None, 2, None, False, False, return_residuals),
                    strict=True,
                )
            ]
            backward_pass_impl, num_warps, num_stages, grid, interpret, debug, return_residuals = (
                given
            )
    if backward_pass_impl not in ("triton", "xla"):
        raise ValueError(
            f'[mha] expected backward_pass_impl "triton" or "xla" but got {backward_pass_impl!r}'
        )
    sizes = _check_sizes(block_q, block_k, block_sizes, num_warps, num_stages)
    if grid is not None:
        raise ValueError(
            f"[mha] expected grid=None, since kernels choose their own grid, but got {grid!r}"
        )
    options = _kernel_options(sizes, interpret)
    if precision is not None:
        options["precision"] = precision
    if debug:
        print(f"mha: q {jnp.shape(q)}, k {jnp.shape(k)}, v {jnp.shape(v)}, {causal=}, {sm_scale=}")
    if backward_pass_impl == "xla" and not return_residuals:
        return _with_reference_backward(
            float(sm_scale), bool(causal), tuple(options.items()), q, k, v, segment_ids
        )
    out, lse = _forward(q, k, v, segment_ids, sm_scale, causal, options)
    return (out, lse * math.log2(math.e)) if return_residuals else out


@names_synonyms
def mha_reference(q, k, v, segment_ids, sm_scale=1.0, causal=False):
    """The same by its definition, dense, in XLA; computed in float32, returned in v's dtype."""
    logits = jnp.einsum("bqhc,bkhc->bhqk", q, k, preferred_element_type=jnp.float32)
    keep = jnp.ones(logits.shape[-2:], bool)
    if causal:
        keep = jnp.tril(keep)
    if segment_ids is not None:
        keep = keep & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
    weights = jax.nn.softmax(jnp.where(keep, logits * sm_scale, -jnp.inf))
    out = jnp.einsum("bhqk,bkhc->bqhc", weights, v, preferred_element_type=jnp.float32)
    return out.astype(v.dtype)


def _forward(q, k, v, segment_ids, sm_scale, causal, options):
    return flex_attention(
        *(q, k, v),
        scale=sm_scale,
        causal=causal,
        segment_ids=segment_ids,
        layout="bshd",
        return_lse=True,
        kernel_options=dict(options),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _with_reference_backward(sm_scale, causal, options, q, k, v, segment_ids):
    return _forward(q, k, v, segment_ids, sm_scale, causal, options)[0]


def _xla_forward(sm_scale, causal, options, q, k, v, segment_ids):
    out, _ = _forward(q, k, v, segment_ids, sm_scale, causal, options)
    return out, (q, k, v, segment_ids)


def _xla_backward(sm_scale, causal, options, saved, dout):
    *inputs, segment_ids = saved
    _, pullback = jax.vjp(
        lambda q, k, v: mha_reference(q, k, v, segment_ids, sm_scale, causal), *inputs
    )
    return (*pullback(dout), None)


_with_reference_backward.defvjp(_xla_forward, _xla_backward)


def _check_sizes(block_q, block_k, block_sizes, num_warps, num_stages):
    sizes = {
        "block_q": block_q,
        "block_k": block_k,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }
    if block_sizes is not None:
        if not hasattr(block_sizes, "block_q"):
            raise TypeError(
                f"[mha] expected block_sizes to be a BlockSizes but got {block_sizes!r}"
            )
        is_dataclass = dataclasses.is_dataclass(block_sizes)  # JAX's class has slots
        sizes.update(dataclasses.asdict(block_sizes) if is_dataclass else vars(block_sizes))
    for name, size in sizes.items():
        if size is None:
            continue
        try:
            size = operator.index(size)
        except TypeError:
            raise TypeError(f"[mha] expected {name} to be an integer but got {size!r}") from None
        if size < 1:
            raise ValueError(f"[mha] expected {name} of at least 1 but got {size}")
    return sizes


_HINTS = {
    "block_q": "fwd_BLOCK_M",
    "block_k": "fwd_BLOCK_N",
    "block_q_dkv": "bwd_BLOCK_M1",
    "block_kv_dkv": "bwd_BLOCK_N1",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
#: The defaults of JAX's signatures, older and current.
_DEFAULTS: dict[str, tuple] = {
    "block_q": (128,),
    "block_k": (128,),
    "num_warps": (None,),
    "num_stages": (2,),
}
_DEFAULTS |= {"block_q_dkv": (None, 32, 128), "block_kv_dkv": (None, 32, 128)}


def _kernel_options(sizes, interpret):
    """flex_attention's options for non-default sizes; the defaults leave the choice to it."""
    options = {
        _HINTS[name]: int(size)
        for name, size in sizes.items()
        if name in _HINTS and size not in _DEFAULTS[name]
    }
    return options | ({"checked": True} if interpret else {})
