"""FlashAttention-4 and FlashAttention-3, where they are installed, for the benchmarks.

fa4 is `flash_attn.cute` (pip install flash-attn-4), fa3 `flash_attn_interface` (built from the
sources of FlashAttention).
"""

import importlib

MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}


def rows_first(function, **options):
    """Wraps a function of (B, L, H, D) tensors as one of (B, H, L, D) tensors, without copies."""

    def forward(q, k, v):
        result = function(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return forward


def flash_attention(
    version, causal=False, *, window=None, softcap=None, slopes=None, ids=None, sign=1
):
    """A function of q, k, v (B, H, L, D), or None where the version has no such call.

    window: keys back, with causal. slopes: ALiBi, sign * slope * (kv - q), computed from this
    number of heads or read from a tensor of one slope a head. ids: documents, an int32 tensor with
    an id for each position. Slopes and ids need fa4.
    """
    function = importlib.import_module(MODULES[version]).flash_attn_func
    options = {"causal": causal}
    if window is not None:
        options["window_size"] = (window, 0)
    if softcap is not None:
        options["softcap"] = softcap
    if slopes is not None or ids is not None:
        if version == "fa3":
            return None
        if slopes is not None:
            options.update(score_mod_of(slopes, sign))
        if ids is not None:
            options.update(documents_of(ids, causal))
    return rows_first(function, **options)


def score_mod_of(slopes, sign):
    """ALiBi in CuTe DSL."""
    import cutlass
    import cutlass.cute as cute

    if isinstance(slopes, int):
        unit = -8.0 / slopes

        @cute.jit
        def score_mod(score, b, h, q, kv, seqlen_info, aux_tensors):
            step = cute.full_like(score, unit)
            slope = cute.math.exp2((h + cute.full_like(h, 1)).to(cutlass.Float32) * step)
            return score + slope * (sign * (kv - q)).to(cutlass.Float32)

        return {"score_mod": score_mod}

    @cute.jit
    def score_mod(score, b, h, q, kv, seqlen_info, aux_tensors):
        slope = cute.full_like(score, aux_tensors[0][h[0]])
        return score + slope * (kv - q).to(cutlass.Float32)

    return {"score_mod": score_mod, "aux_tensors": [sign * slopes]}


def documents_of(ids, causal):
    """Documents in CuTe DSL, causal ones or not."""
    import cutlass.cute as cute

    @cute.jit
    def same(b, h, q, kv, seqlen_info, aux_tensors):
        ids = aux_tensors[0]
        return cute.full_like(q, ids[q[0]]) == cute.full_like(kv, ids[kv[0]])

    @cute.jit
    def same_before(b, h, q, kv, seqlen_info, aux_tensors):
        ids = aux_tensors[0]
        own, other = cute.full_like(q, ids[q[0]]), cute.full_like(kv, ids[kv[0]])
        return (own == other) & (kv <= q)

    mask_mod = same_before if causal else same  # causal is then part of it
    return {"mask_mod": mask_mod, "aux_tensors": [ids], "causal": False}
