"""Attention of DTensors: every rank attends for its own batches and heads.

No collective is added where query, key and value are split along batch and heads alike; other
placements are gathered first. Mods, dropout and block masks count batches and heads of the whole.
"""

import dataclasses
import sys

import torch

from . import _block_mask, _function, _sites


def is_sharded(tensors):
    """Whether a DTensor is among them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(x, module.DTensor) for x in tensors)


def run(site, mask, seed, operands):
    """The results of a site on DTensors; plain tensors among them are equal on all ranks."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    site.check(mask, operands)
    mesh = next(x.device_mesh for x in operands if isinstance(x, DTensor))
    everywhere = [Replicate()] * mesh.ndim
    operands = [
        x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, everywhere, run_check=False)
        for x in operands
    ]
    query, key = operands[:2]
    heads_dim = 2 if site.spec.bshd else 1
    counts = [query.shape[0], query.shape[heads_dim]]  # of one rank
    kv_heads, origin, dims = key.shape[heads_dim], [0, 0], []
    coordinate = mesh.get_coordinate()
    for i, placement in enumerate(query.placements):
        size = mesh.size(i)
        dim = None
        if placement == Shard(0) and counts[0] % size == 0 and "cu_seqlens" not in site.names:
            dim = 0
        elif placement == Shard(heads_dim) and kv_heads % size == 0:
            dim, kv_heads = 1, kv_heads // size
        if dim is not None:
            counts[dim] //= size
            origin[dim] += coordinate[i] * counts[dim]
        dims.append(dim)

    def split(batch, heads):
        """Placements of what has its batches and heads in these dimensions; None: it has none."""
        places = (batch, heads)
        return [
            Replicate() if dim is None or places[dim] is None else Shard(places[dim])
            for dim in dims
        ]

    def local(name, x):
        if name in ("query", "key", "value"):
            return x.redistribute(placements=split(0, heads_dim)).to_local()
        if name in ("segment_ids", "kv_segment_ids", "kv_lengths"):
            return x.redistribute(placements=split(0, None)).to_local()
        placements = split(None, 0) if name == "sinks" else everywhere
        # Each rank has a part of the gradient where it holds the whole.
        gradients = [
            Partial() if dim is not None and p == Replicate() else p
            for dim, p in zip(dims, placements, strict=True)
        ]
        return x.redistribute(placements=placements).to_local(grad_placements=gradients)

    spec = site.spec
    if spec.score_mod or spec.mask_mod or spec.dropout:
        site = _sites.site(dataclasses.replace(spec, origin=tuple(origin)))
    if mask is not None:
        mask = _part(mask, tuple(origin), tuple(counts))
    locals_ = [local(name, x) for name, x in zip(site.names, operands, strict=True)]
    out, *rows = _function.PlainAttention.apply(site, mask, seed, *locals_)
    return (
        DTensor.from_local(out, mesh, split(0, heads_dim), run_check=False),
        *(DTensor.from_local(x, mesh, split(0, 1), run_check=False) for x in rows),
    )


def _part(mask, origin, counts):
    """The block mask of some batches and heads; kept with the mask."""
    parts = mask.__dict__.setdefault("_parts", {})
    key = origin, counts
    if key not in parts:
        of = [
            [0] if n == 1 else range(first, first + count)
            for n, first, count in zip(mask.shape[:2], origin, counts, strict=True)
        ]
        core = mask._core.select(*map(list, of))
        parts[key] = _block_mask.BlockMask.from_core(core, None, torch.device("cpu"))
    return parts[key]
