"""Run on every rank by test_sharded.py and test_two_gpus.py: DTensors and data-parallel modules
against unsharded ones, forward and backward.

usage: sharded_calls.py [cuda]
"""

import dataclasses
import os
import sys

import dense_torch as dense
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import tilewright.torch as twt

ON_GPUS = sys.argv[1:] == ["cuda"]  # two, else four processes on the CPU
DEVICE = f"cuda:{os.environ['LOCAL_RANK']}" if ON_GPUS else "cpu"
WIDE, BOUND = (torch.float32, 1e-4) if ON_GPUS else (torch.float64, 1e-12)


def close(have, want):
    dense.close(have, want, BOUND)


def whole(inputs, options, captured):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    slopes, sinks = (x.detach().clone().requires_grad_() for x in captured)
    out, lse = twt.flex_attention(*inputs, **options(slopes, sinks))
    gradients = dense.gradients((out, lse), [*inputs, slopes, sinks])
    return out, lse, gradients


def main():
    if ON_GPUS:
        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl")
        mesh = dist.init_device_mesh("cuda", (2,))
        splits = [Shard(0)], [Shard(1)], [Replicate()], [Shard(2)]
    else:
        dist.init_process_group("gloo")
        mesh = dist.init_device_mesh("cpu", (2, 2))
        splits = (
            [Shard(0), Shard(1)],
            [Shard(1), Replicate()],
            [Replicate(), Shard(0)],
            [Shard(0), Shard(0)],
            [Shard(2), Shard(0)],
        )
    torch.manual_seed(0)
    inputs = [torch.randn(4, h, 24, 8, dtype=WIDE).to(DEVICE) for h in (8, 4, 4)]
    slopes, sinks = torch.randn(2, 8, dtype=WIDE).to(DEVICE)
    ids = torch.randint(3, (4, 24)).sort(1).values.to(DEVICE)

    def mask_mod(b, h, q, kv):
        return (q >= kv) & ((kv - q) % (h + 2) != 1) & (ids[b, q] == ids[b, kv])

    mask = twt.create_block_mask(mask_mod, 4, 8, 24, 24, device=DEVICE)
    cases = {
        "plain": lambda slopes, sinks: {"causal": True, "sinks": sinks},
        "mods": lambda slopes, sinks: {
            "score_mod": lambda s, b, h, q, kv: s + slopes[h] * (q - kv) * (b + 1),
            "mask_mod": mask_mod,
            "sinks": sinks,
        },
        "data": lambda slopes, sinks: {"block_mask": mask, "sinks": sinks},
        "data and mods": lambda slopes, sinks: {
            "score_mod": lambda s, b, h, q, kv: s + slopes[h] * (q - kv) * (b + 1),
            "block_mask": mask,
            "sinks": sinks,
        },
        "dropout": lambda slopes, sinks: {"dropout": 0.3, "seed": 5, "sinks": sinks},
    }
    for name, case in cases.items():
        options = lambda *c, case=case: {**case(*c), "return_lse": True, "enable_gqa": True}  # noqa: E731
        out, lse, gradients = whole(inputs, options, (slopes, sinks))
        for placements in splits:
            parts = [distribute_tensor(x, mesh, placements).requires_grad_() for x in inputs]
            table, sink = slopes.clone().requires_grad_(), sinks.clone().requires_grad_()
            with CommDebugMode() as communication:
                have, have_lse = twt.flex_attention(*parts, **options(table, sink))
            if Shard(2) not in placements:
                assert communication.get_total_counts() == 0, (name, placements)
            close(have.full_tensor(), out)
            close(have_lse.full_tensor(), lse)
            results = dense.gradients(
                (have.full_tensor(), have_lse.full_tensor()), [*parts, table, sink]
            )
            for x, y in zip(results, gradients, strict=True):
                if y is None:
                    assert x is None or not x.any()
                else:
                    close(x.full_tensor() if hasattr(x, "full_tensor") else x, y)
    compiled_regions(mesh, inputs, cases, (slopes, sinks))
    operators(mesh, inputs)
    refusals(mesh, inputs)
    norms(mesh)
    data_parallel()
    assert Partial
    dist.destroy_process_group()


def refusals(mesh, inputs):
    """Plain tensors among DTensors: a key of which each rank holds a part would be taken as whole."""
    whole = [distribute_tensor(x, mesh, [Replicate()] * mesh.ndim) for x in inputs]
    for place, name in enumerate(("query", "key", "value")):
        mixed = [*whole[:place], inputs[place], *whole[place + 1 :]]
        with pytest.raises(ValueError, match=rf"\[flex_attention\] .* but got a plain {name}"):
            twt.flex_attention(*mixed, enable_gqa=True)
    table = distribute_tensor(torch.ones(8, device=DEVICE), mesh, [Replicate()] * mesh.ndim)
    with pytest.raises(ValueError, match="but got a plain query"):
        twt.flex_attention(*inputs, lambda s, b, h, q, kv: s * table[h], enable_gqa=True)
    with pytest.raises(ValueError, match=r"\[attention\] .* but got a plain k:"):
        twt.attention(whole[1], inputs[1], whole[2], True, 1.0)


def compiled_regions(mesh, inputs, cases, captured):
    """DTensors as inputs of compiled functions. (Dynamo cannot mix plain captures with them.)"""
    for name in ("plain", "data"):
        sinks = captured[1]
        options = {**cases[name](*captured), "enable_gqa": True}
        want = twt.flex_attention(*inputs, **options)

        def attend(q, k, v, options=options):
            return twt.flex_attention(q, k, v, **options)

        compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
        split = [Shard(0), Shard(1)][: mesh.ndim]
        parts = [distribute_tensor(x, mesh, split) for x in inputs]
        options["sinks"] = distribute_tensor(sinks, mesh, [Replicate()] * mesh.ndim)
        with torch.no_grad():
            close(compiled(*parts).full_tensor(), want)


class Block(torch.nn.Module):
    """Attention with learned slopes between two layers."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 48, dtype=WIDE, device=DEVICE)
        self.slopes = torch.nn.Parameter(torch.rand(2, dtype=WIDE, device=DEVICE))

    def forward(self, x):
        parts = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)

        def score(s, b, h, q, kv):
            return s + self.slopes[h] * (kv - q)

        return twt.flex_attention(*parts, score, causal=True).transpose(1, 2).flatten(2)


def data_parallel():
    """Every rank has a part of the batch; hooks average the gradients, including the slopes'."""
    torch.manual_seed(2)
    single = Block()
    x = torch.randn(8, 12, 16, dtype=WIDE).to(DEVICE)
    single(x).square().mean().backward()
    for compiled in (False, True):
        module = Block()
        module.load_state_dict(single.state_dict())
        parallel = torch.nn.parallel.DistributedDataParallel(module)
        run = torch.compile(parallel, backend="aot_eager") if compiled else parallel
        calls = []
        parallel.register_comm_hook(calls, counted_mean)
        run(x.chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
        assert calls
        for have, want in zip(module.parameters(), single.parameters(), strict=True):
            close(have.grad, want.grad)


def counted_mean(calls, bucket):
    calls.append(bucket.index())
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0] / dist.get_world_size())


def operators(mesh, inputs):
    """DTensors passed to the operator itself, as in exported graphs."""
    from tilewright.torch import _sharded, _sites

    _sharded.register()

    def score(s, b, h, q, kv):
        return s + (q - kv) * 0.1

    def by_head(s, b, h, q, kv):
        return s + h * (q - kv) * 0.1

    for mod in (None, score, by_head):
        want = twt.flex_attention(*inputs, mod, enable_gqa=True)
        site = next(s for s in reversed(_sites._by_spec.values()) if not s.spec.backward)
        forward = site if site.spec.lse else _sites.site(dataclasses.replace(site.spec, lse=True))
        for placements in ([Shard(0), Shard(1)][: mesh.ndim], [Shard(1), Replicate()][: mesh.ndim]):
            parts = [distribute_tensor(x, mesh, placements) for x in inputs]
            with CommDebugMode() as communication:
                out, lse, _ = torch.ops.tilewright.forward(*parts, [], 0, forward.text)
            if mod is not by_head:
                assert communication.get_total_counts() == 0
                assert list(out.placements) == placements
            close(out.full_tensor(), want)


def norms(mesh):
    """Whole rows stay where they are, also if there are more on some ranks."""
    torch.manual_seed(4)
    x, residual = torch.randn(2, 5, 6, 16, dtype=WIDE).to(DEVICE)
    weight, bias = torch.randn(2, 16, dtype=WIDE).to(DEVICE)
    single = [t.clone().requires_grad_() for t in (x, weight, bias, residual)]
    want = twt.layer_norm(*single[:3], residual=single[3], return_stats=True)
    gradients = dense.gradients(want[:2], single)
    for first, second in ((0, 1), (1, 1), (0, 2), (2, 0)):
        split = [Shard(first), Shard(second)][: mesh.ndim]
        for weights in (Replicate(), Shard(0)):
            places = [split, [weights] * mesh.ndim, [weights] * mesh.ndim, split]
            parts = [
                distribute_tensor(t, mesh, place).requires_grad_()
                for t, place in zip((x, weight, bias, residual), places, strict=True)
            ]
            with CommDebugMode() as communication:
                have = twt.layer_norm(*parts[:3], residual=parts[3], return_stats=True)
            if weights == Replicate() and Shard(2) not in split:
                assert communication.get_total_counts() == 0, split
                assert list(have[0].placements) == split
            have = [t.full_tensor() for t in have]
            for a, b in zip(have, want, strict=True):
                close(a, b)
            for a, b in zip(dense.gradients(have[:2], parts), gradients, strict=True):
                close(a.full_tensor(), b)
    compiled = torch.compile(lambda *t: twt.rms_norm(*t), backend="aot_eager", fullgraph=True)
    for weights in ([Replicate()] * mesh.ndim, None):  # a plain tensor is the same on all ranks
        part = distribute_tensor(x, mesh, [Shard(0)] + [Replicate()] * (mesh.ndim - 1))
        given = weight if weights is None else distribute_tensor(weight, mesh, weights)
        close(twt.rms_norm(part, given).full_tensor(), twt.rms_norm(x, weight))
        if weights is not None:
            close(compiled(part, given).full_tensor(), twt.rms_norm(x, weight))


if __name__ == "__main__":
    main()
    sys.stdout.write("done\n")
