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
    """The results of a function of gradients batched by is_grads_batched, batched likewise."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    # The 0 passed as the batch size is not used for tensors that are batched.
    moved = [torch._remove_batch_dim(x, level, 0, 0) if is_legacy(x) else x for x in gradients]
    size = next(len(m) for m, x in zip(moved, gradients, strict=True) if is_legacy(x))
    rows = [
        function(*(m[i] if is_legacy(x) else x for m, x in zip(moved, gradients, strict=True)))
        for i in range(size)
    ]
    columns = (
        None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)
    )
    return tuple(x if x is None else torch._add_batch_dim(x, 0, level) for x in columns)
