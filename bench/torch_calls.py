#!/usr/bin/env python3
"""Overhead of calls through tilewright.torch besides the kernels: front end, first calls,
recordings, masks, import, on the CPU and on a GPU.

usage: bench/torch_calls.py [--device cpu|cuda] [--rounds N]

Every result is the minimum of many rounds, so that other work on the machine hardly matters; rows
of the same measurement alternate. Calls on the CPU have one query and one key: their times include
what little the kernels take. On a GPU the times end when the last launch is queued.
"""

import argparse
import subprocess
import sys
import time

import torch

import tilewright.torch as twt


def best(functions, rounds):
    """Microseconds of each function, the minimum over rounds in which the functions alternate. A
    sample is short, so that other processes rarely interrupt it."""
    times, repeats = {}, {}
    for name, function in functions.items():
        for _ in range(5):
            function()
        start = time.perf_counter()
        function()
        times[name] = time.perf_counter() - start
        repeats[name] = max(1, min(20, int(3e-4 / times[name])))
    for _ in range(rounds):
        for name, function in functions.items():
            wait()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                function()
            times[name] = min(times[name], (time.perf_counter() - start) / repeats[name])
    wait()
    return {name: seconds * 1e6 for name, seconds in times.items()}


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def show(name, value, unit, aim=""):
    print(f"{name:<66} {value:>9.1f} {unit:<3} {aim}", flush=True)


def scores(slopes):
    def score(s, b, h, q_idx, kv_idx):
        return s + slopes[h] * (kv_idx - q_idx)

    return score


class _Nothing(torch.autograd.Function):
    """The cost of autograd itself with three operands."""

    @staticmethod
    def forward(ctx, *operands):
        ctx.save_for_backward(*operands)
        return torch.empty_like(operands[0])

    @staticmethod
    def backward(ctx, _):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def calls(device, rounds):
    """Warm calls, eager."""
    shape = (1, 1, 1, 16) if device == "cpu" else (1, 2, 128, 64)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    query, key, value = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    slopes = torch.randn(shape[1], device=device)
    score = scores(slopes)
    length = shape[2]
    mask = twt.create_block_mask(
        lambda b, h, q, kv: q >= kv, None, None, length, length, device=device
    )
    gradient = torch.ones_like(query)

    def backward(out):
        torch.autograd.grad(out, leaves, gradient)

    sdpa = torch.nn.functional.scaled_dot_product_attention
    functions = {
        "no mods": lambda: twt.flex_attention(query, key, value),
        "a score_mod around a tensor": lambda: twt.flex_attention(query, key, value, score),
        "the same, made anew for every call": lambda: twt.flex_attention(
            query, key, value, scores(slopes)
        ),
        "a block mask": lambda: twt.flex_attention(query, key, value, None, mask),
        "a score_mod, forward with gradient": lambda: twt.flex_attention(*leaves, score),
        "a score_mod, forward and backward": lambda: backward(twt.flex_attention(*leaves, score)),
        "torch's scaled_dot_product_attention": lambda: sdpa(query, key, value),
        "the same, forward and backward": lambda: backward(sdpa(*leaves)),
        "a Function that does nothing, forward and backward": lambda: backward(
            _Nothing.apply(*leaves)
        ),
        "x * x, forward and backward": lambda: torch.autograd.grad(
            leaves[0] * leaves[0], leaves[:1], gradient
        ),
    }
    aims = (
        (8, 12, "", "", "", "", "", "", "", "")
        if device == "cpu"
        else (15, 15, "", 15, 25, 50, "", "", "", "")
    )  # fmt: skip
    times = best(functions, rounds)
    for (name, microseconds), aim in zip(times.items(), aims, strict=True):
        show(f"eager call, {name}", microseconds, "us", aim and f"(aim {aim})")


def compiled(device, rounds):
    """The overhead of the operator in a compiled region."""
    shape = (1, 1, 1, 16) if device == "cpu" else (1, 2, 128, 64)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    query, key, value = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    library = torch.library.Library("tilewright_bench", "DEF")
    library.define("nothing(Tensor q, Tensor k, Tensor v) -> Tensor")
    for dispatch in ("CPU", "CUDA"):
        library.impl("nothing", lambda q, k, v: torch.empty_like(q), dispatch)
    torch.library.register_fake(
        "tilewright_bench::nothing", lambda q, k, v: torch.empty_like(q), lib=library
    )
    for dynamic in (False, True):
        options = {"dynamic": dynamic, "fullgraph": True, "backend": "aot_eager"}
        empty = torch.compile(
            lambda q, k, v: torch.ops.tilewright_bench.nothing(q, k, v), **options
        )
        ours = torch.compile(lambda q, k, v: twt.flex_attention(q, k, v), **options)
        with torch.no_grad():
            times = best(
                {
                    "empty": lambda f=empty: f(query, key, value),
                    "ours": lambda f=ours: f(query, key, value),
                },
                rounds,
            )
        kind = "dynamic" if dynamic else "static"
        show(
            f"compiled region, {kind}, beside an operator that does nothing",
            *(times["ours"] - times["empty"], "us", "(aim 5)"),
        )


def recordings(device, rounds):
    from tilewright.torch import _environment, _mods

    slopes = torch.randn(4, device=device)

    def five(s, b, h, q_idx, kv_idx):
        return 20 * torch.tanh(s / 20) + slopes[h] * (kv_idx - q_idx)

    def twenty(s, b, h, q_idx, kv_idx):
        d = (kv_idx - q_idx).abs() + 1
        x = torch.log2(d.float()) * slopes[h] + torch.sin(s / 7) * torch.exp(-s.abs())
        y = torch.where((d % 3 == 1) & (q_idx >= kv_idx), x * 0.5, x + torch.sigmoid(s))
        return s + torch.where(b + h > 1, y, y * torch.rsqrt(d.float())) - x.clamp(-1, 1)

    times = best(
        {
            name: lambda f=f: _mods.record("", "score_mod", f, False, None, device=device)
            for name, f in (("5", five), ("20", twenty))
        },
        rounds,
    )
    for (name, microseconds), aim in zip(times.items(), (1, 5), strict=True):
        show(
            f"recording a score_mod of {name} operations", microseconds / 1e3, "ms", f"(aim {aim})"
        )
    score = scores(slopes)
    times = best(
        {
            "same": lambda: _environment.traced("", "score_mod", score, False, None),
            "new": lambda: _environment.traced("", "score_mod", scores(slopes), False, None),
        },
        rounds,
    )
    show("finding the recording of a score_mod", times["same"], "us")
    show("finding it for a new closure around other tensors", times["new"], "us", "(aim 5)")


def masks(device, rounds):
    causal = {}
    for n in (128, 16384):
        causal[n] = lambda n=n: twt.create_block_mask(
            lambda b, h, q, kv: q >= kv, None, None, n, n, device=device
        )
    times = best(causal, rounds)
    show("create_block_mask, causal, 128 x 128", times[128], "us", "(aim 100)")
    show("create_block_mask, causal, 16384 x 16384", times[16384], "us")


FIRST = """
import time, torch, sys
device = sys.argv[1]
if device != "cpu":
    torch.zeros(1, device=device)
start = time.perf_counter()
import tilewright.torch as twt
print((time.perf_counter() - start) * 1e3)
start = time.perf_counter()
import torch.nn.attention.flex_attention  # whose BlockMask ours is a subclass of
print((time.perf_counter() - start) * 1e3)
start = time.perf_counter()
twt.flex_attention, twt.create_block_mask
print((time.perf_counter() - start) * 1e3)
import os
q = torch.randn(1, 2, 128, 64, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
start = time.perf_counter()
twt.create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=device)
print((time.perf_counter() - start) * 1e3)
twt.flex_attention(q, q, q, causal=True)
slopes = torch.randn(2, device=device)
start = time.perf_counter()
twt.flex_attention(q, q, q, lambda s, b, h, i, j: 20 * torch.tanh(s / 20) + slopes[h] * (j - i))
if device != "cpu":
    torch.cuda.synchronize()
print((time.perf_counter() - start) * 1e3)
"""


def first(device):
    """First calls, each in a process of its own."""
    rows = [[] for _ in range(5)]
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", FIRST, device], capture_output=True, text=True, check=True
        )
        for row, text in zip(rows, done.stdout.split(), strict=True):
            row.append(float(text))
    show("import tilewright.torch after torch", min(rows[0]), "ms", "(aim 100)")
    show("import torch.nn.attention.flex_attention, its first use", min(rows[1]), "ms")
    show("our flex_attention, its first use after that", min(rows[2]), "ms")
    show("the first create_block_mask of a process", min(rows[3]), "ms", "(aim 5)")
    cold = rows[4][0] if device != "cpu" else min(rows[4])
    show("first call of a new score_mod", cold, "ms", f"(aim {50 if device == 'cpu' else 700})")
    if device != "cpu":
        show("the same, compiled by an earlier process", min(rows[4][1:]), "ms", "(aim 10)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=500)
    given = parser.parse_args()
    if given.device == "cuda":
        print(torch.cuda.get_device_name())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    calls(given.device, given.rounds)
    compiled(given.device, given.rounds)
    recordings(given.device, given.rounds)
    masks(given.device, given.rounds)
    first(given.device)


if __name__ == "__main__":
    main()
