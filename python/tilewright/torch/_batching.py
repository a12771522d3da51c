"""torch.func.vmap of attention: the mapped axis joins the batch, or calls run one by one."""

import dataclasses

import torch

from .. import _core
from . import _errors, _sites

_BATCHED = (
    *("query", "key", "value", "segment_ids", "kv_segment_ids", "kv_lengths"),
    *("out", "lse", "dout", "dlse"),
)
_CAPTURED = ("score", "dscore", "mask")


def batched(function, info, in_dims, site, mask, seed, operands):
    """(results, their mapped dimensions) of one of the autograd Functions."""
    size = info.batch_size
    dims = in_dims[3:]
    if site.spec.dropout and info.randomness == "error":
        raise _errors.BadInput(
            f'[{site.op}] expected vmap with randomness="same" or "different" for dropout but got '
            '"error"'
        )
    moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(operands, dims, strict=True)]
    mapped = [dim is not None for dim in dims]
    if _joins(site, mask, mapped, info.randomness):
        results = _join(function, size, site, mask, seed, moved, mapped)
    else:
        results = _one_by_one(function, size, site, mask, seed, moved, mapped)
    return results, (0,) * len(results)


def _joins(site, mask, mapped, randomness):
    """Whether the mapped axis can become part of the batch."""
    spec = site.spec
    if spec.derivative or (spec.backward and "sinks" in site.names):
        return False
    if mask is not None and mask.shape[0] > 1:
        return False
    if spec.dropout and randomness == "same":
        return False
    whole = {name for name, m in zip(site.names, mapped, strict=True) if m}
    return not (whole - {*_BATCHED, *_CAPTURED}) and "cu_seqlens" not in site.names


def _join(function, size, site, mask, seed, operands, mapped):
    joined, captured = [], {"score": [], "mask": []}
    for name, x, m in zip(site.names, operands, mapped, strict=True):
        if name in _BATCHED:
            wide = x if m else x.expand(size, *x.shape)
            joined.append(wide.flatten(0, 1))
            continue
        if name == "dscore" and site.spec.backward and not m:
            x, m = x.expand(size, *x.shape), True  # one gradient each
        if name in _CAPTURED:
            captured["mask" if name == "mask" else "score"].append(m)
        joined.append(x)
    batch = joined[0].shape[0] // size
    spec = dataclasses.replace(
        site.spec,
        score_mod=_batched_text(site.spec.score_mod, batch, captured["score"]),
        mask_mod=_batched_text(site.spec.mask_mod, batch, captured["mask"]),
    )
    results = function.apply(_sites.site(spec), mask, seed, *joined)
    if not site.spec.backward:
        return tuple(x.unflatten(0, (size, batch)) for x in results)
    return tuple(
        x.unflatten(0, (size, batch)) if name in _BATCHED else x
        for name, x in zip(site.gradients, results, strict=True)
    )


def _batched_text(text, batch, mapped):
    return text and _core.batched_mod_ir(text, batch, mapped)


def _one_by_one(function, size, site, mask, seed, operands, mapped):
    rows = [
        function.apply(
            *(site, mask, seed),
            *(x[i] if m else x for x, m in zip(operands, mapped, strict=True)),
        )
        for i in range(size)
    ]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


# ---- torch.autograd.grad(..., is_grads_batched=True), which has a vmap of its own.


def is_legacy(x):
    return x is not None and torch._C._functorch.is_legacy_batchedtensor(x)


def legacy(function, *gradients):
    """The results of a function of gradients batched by is_grads_batched, batched likewise.

    Of nested vmaps the innermost is done here; `function` meets the others.
    """
    level, size = _level(next(x for x in gradients if is_legacy(x)))
    batched = [is_legacy(x) and _rows(x, level) is not None for x in gradients]
    moved = [_rows(x, level) if b else x for x, b in zip(gradients, batched, strict=True)]
    rows = [
        function(*(m[i] if b else m for m, b in zip(moved, batched, strict=True)))
        for i in range(size)
    ]
    columns = (
        None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)
    )
    return tuple(x if x is None else torch._add_batch_dim(x, 0, level) for x in columns)


def _level(x):
    """(the innermost level at which x is batched, its size). vmap's own thread alone knows the
    current one, and gradients of GPU tensors are computed in another."""
    for level in range(63, 0, -1):  # torch has 64
        rows = _rows(x, level)
        if rows is not None:
            return level, len(rows)
    raise _errors.BadInput(
        "[flex_attention] expected is_grads_batched with at least one gradient but got none"
    )


def _rows(x, level):
    """x with the axis that is batched at this level as its first one, or None."""
    rows = torch._remove_batch_dim(x, level, 0, 0)  # an axis that is not there gets size 0
    return rows if len(rows) else None
