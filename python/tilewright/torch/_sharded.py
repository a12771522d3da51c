"""Attention and norms on DTensors: every rank computes its own batches, heads and rows.

No collective is added if query, key and value are split alike along batch and heads; other
placements are gathered first. Mods, dropout and block masks count global batches and heads.

`flex_attention` splits its own inputs, compiled or not. For operators called with DTensors, as in
exported graphs, `register` tells DTensor which placements fit.
"""

import dataclasses
import functools
import math
import sys

import torch

# _block_mask is imported where it is needed, since it imports PyTorch's flex_attention.
from . import _errors, _function, _ops, _sites


def is_sharded(tensors):
    """Whether a DTensor is among them."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not any(isinstance(x, module.DTensor) for x in tensors):
        return False
    register()
    return True


def check_inputs(op, query, key, value):
    """BadInput unless all three are DTensors of one mesh: a plain tensor may be a part of one."""
    from torch.distributed.tensor import DTensor

    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, DTensor):
            raise _errors.BadInput(
                f"[{op}] expected query, key and value to be DTensors where one tensor is, but got "
                f"a plain {name}: DTensor.from_local or distribute_tensor makes one of it"
            )
        if x.device_mesh != query.device_mesh:
            raise _errors.BadInput(
                f"[{op}] expected {name} on the mesh of query, {query.device_mesh}, but got one on "
                f"{x.device_mesh}"
            )


def run(site, mask, seed, operands):
    """The results of a site on DTensors; plain tensors among them are equal on all ranks."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    check_inputs(site.op, *operands[:3])
    site.check(mask, operands)
    mesh = operands[0].device_mesh
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
        """Placements of a tensor with batches and heads in these dimensions (None: without)."""
        places = (batch, heads)
        return [
            Replicate() if dim is None or places[dim] is None else Shard(places[dim])
            for dim in dims
        ]

    def local(name, x):
        if name in ("query", "key", "value"):
            return x.redistribute(placements=split(0, heads_dim)).to_local()
        if name in _OF_BATCHES:
            return x.redistribute(placements=split(0, None)).to_local()
        placements = split(None, 0) if name == "sinks" else everywhere
        # A rank that holds the whole tensor computes only its part of the gradient.
        gradients = [
            Partial() if dim is not None and p == Replicate() else p
            for dim, p in zip(dims, placements, strict=True)
        ]
        return x.redistribute(placements=placements).to_local(grad_placements=gradients)

    spec = site.spec
    whole_mask = any(name in _WHOLE_MASKS for name in site.names)
    if spec.score_mod or spec.mask_mod or spec.dropout or whole_mask:
        part = dataclasses.replace(spec, origin=tuple(origin), whole_masks=whole_mask)
        site = _sites.site(part)
    if mask is not None:
        mask = _part(mask, tuple(origin), tuple(counts))
    locals_ = [local(name, x) for name, x in zip(site.names, operands, strict=True)]
    if _ops.is_plain():
        out, *rows = _function.apply_plain((site, mask, seed, False), *locals_)
    else:
        out, *rows = _function.Attention.apply(site, mask, seed, *locals_)
    return (
        DTensor.from_local(out, mesh, split(0, heads_dim), run_check=False),
        *(DTensor.from_local(x, mesh, split(0, 1), run_check=False) for x in rows),
    )


def norm(function, x, weight, bias, residual):
    """A norm's function on DTensors: no collective where whole rows are on one rank."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    given = [t for t in (x, weight, bias, residual) if t is not None]
    mesh = next(t.device_mesh for t in given if isinstance(t, DTensor))
    everywhere = [Replicate()] * mesh.ndim
    rows = x.dim() - (1 if weight is None else weight.dim())
    split = [
        p if isinstance(p, Shard) and p.dim < rows else Replicate()
        for p in getattr(x, "placements", everywhere)
    ]
    # A rank computes only its rows' part of the gradients of weight and bias.
    parts = [Partial() if p != Replicate() else p for p in split]

    def local(t, placements, gradients):
        if t is None:
            return None
        if not isinstance(t, DTensor):
            t = DTensor.from_local(t, mesh, everywhere, run_check=False)
        return t.redistribute(placements=placements).to_local(grad_placements=gradients)

    results = function(
        local(x, split, split),
        local(weight, everywhere, parts),
        local(bias, everywhere, parts),
        local(residual, split, split),
    )
    shape = tuple(x.shape)
    return tuple(
        DTensor.from_local(
            y, mesh, split, run_check=False, shape=torch.Size(shape[: y.dim()]),
            stride=tuple(math.prod(shape[d + 1 : y.dim()]) for d in range(y.dim())),
        )
        for y in results
    )  # fmt: skip


_WHOLE_MASKS = ("block_mask", "kv_num_blocks")
_OF_BATCHES = ("segment_ids", "kv_segment_ids", "kv_lengths")


@functools.cache
def register():
    """Tells DTensor how the forward operator may be split: along the batch and along heads.

    The operator sees only its rank's batches and heads: if mods, dropout or block masks tell these
    apart, DTensor gathers the inputs. The backward operator returns a list of gradients, which
    DTensor's registration cannot express.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    from ._block_mask import reads

    def choices(query, key, value, others, seed, text):
        site = _sites.parsed(text)
        spec, names = site.spec, site.names
        found = [([Replicate()] * 3, [Replicate()] * len(names))]
        shared = not spec.dropout and not any(name in _WHOLE_MASKS for name in names)
        if not shared or "cu_seqlens" in names:
            return [_with_none(*pair) for pair in found]
        heads_dim, parts = (2 if spec.bshd else 1), query.mesh.size()
        for axis, variable in enumerate("bh"):
            dim = (0, heads_dim)[axis]
            if any(reads(text, variable) for text in (spec.score_mod, spec.mask_mod)):
                continue
            if query.tensor_meta.shape[dim] % parts or key.tensor_meta.shape[dim] % parts:
                continue

            def place(name, dim=dim, axis=axis):
                if name in ("query", "key", "value"):
                    return Shard(dim)
                of_batches = name in _OF_BATCHES and axis == 0
                of_heads = name == "sinks" and axis == 1
                return Shard(0) if of_batches or of_heads else Replicate()

            largest = Shard(axis) if spec.max_scores else Replicate()
            outputs = [Shard(dim), Shard(axis), largest]
            found.append((outputs, [place(name) for name in names]))
        return [_with_none(*pair) for pair in found]

    operator = torch.ops.tilewright.forward
    register_sharding([operator.default, operator.host])(choices)


def _with_none(outputs, inputs):
    """Adds None for the seed and the site, which are not tensors."""
    return outputs, [*inputs, None, None]


def _part(mask, origin, counts):
    """The block mask for some batches and heads; cached on the mask."""
    from ._block_mask import BlockMask

    parts = mask.__dict__.setdefault("_parts", {})
    key = origin, counts
    if key not in parts:
        of = [
            [0] if n == 1 else range(first, first + count)
            for n, first, count in zip(mask.shape[:2], origin, counts, strict=True)
        ]
        core = mask._core.select(*map(list, of))
        parts[key] = BlockMask.from_core(core, None, torch.device("cpu"))
    return parts[key]
