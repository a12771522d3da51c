#!/usr/bin/env python3
"""Times attention on one NVIDIA GPU, interleaved with FlashAttention-4, FlashAttention-3 and cuDNN.

usage: compare_flash_attention.py [--cases NAME ...] [--peers NAME ...] [--rounds N] [--no-backward]
                                  [--json FILE] [--list]

Peers that are installed run: fa4 (`flash_attn.cute`, pip install flash-attn-4), fa3
(`flash_attn_interface`) and cudnn (PyTorch's). A case that a peer does not support is omitted from
its rows. A burst is 0.4 s of rest, 3 warm-up calls and 25 timed ones; a round runs every
implementation once, and the result is the median over rounds. TFLOP/s count pairs that attend, 4 D
each forward and 10 D backward. The errors are those of out, dQ, dK and dV of the first kv head
against f64, relative to the norm; "x" is the peer's time divided by ours. Calls go through the
public `tilewright.torch.flex_attention`, with its default, deterministic gradients, and with
`deterministic=False` as "unordered".
"""

import argparse
import dataclasses
import functools
import importlib
import json
import os
import statistics
import sys
import time

import flash_attention

os.environ.setdefault("TILEWRIGHT_COMPACT", "0")  # full kernels, not those of first calls


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem in bf16; queries and keys have the same length."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    causal: bool = True
    window: int | None = None  # keys back
    softcap: float | None = None
    alibi: str | None = None  # slopes "computed" or from a "table"
    documents: int | None = None


CASES = {
    "full": Case(4, 16, 16, 8192, 128, causal=False),
    "causal": Case(4, 16, 16, 8192, 128),
    "d64": Case(2, 16, 16, 16384, 64),
    "d256": Case(2, 8, 8, 8192, 256),
    "gqa": Case(1, 64, 8, 8192, 128),
    "s2048": Case(16, 16, 16, 2048, 128),
    "s1024": Case(32, 16, 16, 1024, 128),
    "window": Case(4, 16, 16, 8192, 128, window=1024),
    "softcap": Case(4, 16, 16, 8192, 128, softcap=20.0),
    "alibi": Case(4, 16, 16, 8192, 128, alibi="computed"),
    "alibi-table": Case(4, 16, 16, 8192, 128, alibi="table"),
    "documents": Case(4, 16, 16, 8192, 128, documents=12),
}


def document_ids(case, device):
    """(length,) ids of documents of random lengths, the same in every run."""
    import torch

    generator = torch.Generator().manual_seed(0)
    cuts = torch.randperm(case.length - 1, generator=generator)[: case.documents - 1] + 1
    starts = torch.zeros(case.length, dtype=torch.int32)
    starts[cuts] = 1
    return starts.cumsum(0).to(torch.int32).to(device)


def slopes_of(case, device):
    import torch

    return torch.exp2(-8.0 / case.heads * (torch.arange(case.heads, device=device) + 1))


def mask_of(case, device):
    """(length, length) booleans: which pairs attend."""
    import torch

    q = torch.arange(case.length, device=device)[:, None]
    kv = torch.arange(case.length, device=device)
    mask = torch.ones(case.length, case.length, dtype=torch.bool, device=device)
    if case.causal:
        mask &= kv <= q
    if case.window is not None:
        mask &= kv >= q - case.window
    if case.documents is not None:
        ids = document_ids(case, device)
        mask &= ids[:, None] == ids
    return mask


def reference(case, q, k, v, grad_out):
    """out (group, length, dim), dQ, dK and dV in f64 for the first kv head and its query heads."""
    import torch

    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    position = torch.arange(case.length, device=q.device)
    mask = mask_of(case, q.device)
    outs = []
    for head in range(q.shape[0]):
        scores = q[head] @ k.T * case.dim**-0.5
        if case.softcap is not None:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        if case.alibi is not None:
            scores = scores + slopes_of(case, q.device)[head].double() * (
                position - position[:, None]
            )
        outs.append(torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ v)
    out = torch.stack(outs)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad_out.double())]


def tilewright_of(case, deterministic, device="cuda"):
    import torch

    import tilewright.torch as twt

    score_mod = mask = None
    if case.softcap is not None:
        score_mod = twt.scores.softcap(case.softcap, approx=True)
    elif case.alibi == "computed":
        heads = case.heads

        def score_mod(score, b, h, q, kv):
            return score + torch.exp2(-8.0 / heads * (h + 1)) * (kv - q)
    elif case.alibi == "table":
        slopes = slopes_of(case, device)

        def score_mod(score, b, h, q, kv):
            return score + slopes[h] * (kv - q)

    if case.documents is not None:
        ids = document_ids(case, device)

        def same(b, h, q, kv):
            return ids[q] == ids[kv]

        mask = twt.create_block_mask(same, None, None, case.length, case.length, device=device)
    options = {"causal": case.causal, "deterministic": deterministic}
    if case.window is not None:
        options["window"] = (case.window, 0)

    def forward(q, k, v):
        return twt.flex_attention(
            q, k, v, score_mod, mask, enable_gqa=case.heads != case.kv_heads, **options
        )

    return forward


def cudnn_of(case):
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if case.window or case.softcap or case.alibi or case.documents:
        return None

    def forward(q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=case.causal, enable_gqa=case.heads != case.kv_heads
            )

    return forward


def flash_of(version, case):
    slopes = {None: None, "computed": case.heads}.get(case.alibi)
    if case.alibi == "table":
        slopes = slopes_of(case, "cuda")
    return flash_attention.flash_attention(
        version,
        case.causal,
        window=case.window,
        softcap=case.softcap,
        slopes=slopes,
        ids=document_ids(case, "cuda") if case.documents else None,
    )


PEERS = {
    "cudnn": cudnn_of,
    "fa3": functools.partial(flash_of, "fa3"),
    "fa4": functools.partial(flash_of, "fa4"),
}


def timed(call, count):
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count


def burst(call):
    import torch

    torch.cuda.synchronize()
    time.sleep(0.4)
    for _ in range(3):
        call()
    return timed(call, 25)


def relative(got, want):
    error = ((got.double() - want).norm() / want.norm()).item()
    return error if error == error else float("inf")


def measure(name, case, arguments):
    """Rows of a case: forward and backward of every implementation that supports it."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)

    def random(heads):
        shape = case.batch, heads, case.length, case.dim
        return torch.randn(*shape, device="cuda", generator=generator).to(torch.bfloat16)

    q, k, v = random(case.heads), random(case.kv_heads), random(case.kv_heads)
    grad_out = random(case.heads)
    group = case.heads // case.kv_heads
    want = reference(case, q[0, :group], k[0, 0], v[0, 0], grad_out[0, :group])
    pairs = mask_of(case, "cuda").sum().item() * case.batch * case.heads
    makers = {"tilewright": functools.partial(tilewright_of, case, True)}
    if not arguments.no_backward:
        makers["unordered"] = functools.partial(tilewright_of, case, False)
    makers |= {peer: functools.partial(PEERS[peer], case) for peer in arguments.peers}
    calls, errors = {}, {}
    for label, make in makers.items():
        try:
            forward = make()
            if forward is None:
                continue
            inputs = [x.detach().requires_grad_(not arguments.no_backward) for x in (q, k, v)]
            out = forward(*inputs)
            errors[label, "forward"] = relative(out[0, :group], want[0])
            plain = functools.partial(torch.no_grad()(forward), *inputs)
            calls[label, "forward"] = plain
            if arguments.no_backward:
                continue
            backward = functools.partial(
                torch.autograd.grad, out, inputs, grad_out, retain_graph=True
            )
            got = backward()
            found = got[0][0, :group], got[1][0, 0], got[2][0, 0]
            errors[label, "backward"] = max(map(relative, found, want[1:]))
            calls[label, "backward"] = backward
        except Exception as error:  # a peer that cannot run this case
            print(f"{name}: {label}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
    times = {key: [] for key in calls}
    for _ in range(arguments.rounds):
        for key, call in calls.items():
            times[key].append(burst(call))
    rows = []
    for (label, direction), samples in times.items():
        milliseconds = statistics.median(samples)
        ours = times.get(("tilewright", direction))
        flop = (4 if direction == "forward" else 10) * case.dim * pairs
        rows.append(
            {
                "case": name,
                "direction": direction,
                "impl": label,
                "ms": milliseconds,
                "tflops": flop / milliseconds / 1e9,
                "x": milliseconds / statistics.median(ours) if ours else None,
                "error": errors[label, direction],
            }
        )
    return rows


def installed(peers):
    """The peers that can be imported; prints the names of the others."""
    found = []
    for peer in peers:
        try:
            if peer in flash_attention.MODULES:
                importlib.import_module(flash_attention.MODULES[peer])
            found.append(peer)
        except ImportError as error:
            print(f"without {peer}: {error}", file=sys.stderr)
    return found


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    arguments = parser.parse_args(given)
    if arguments.list:
        for name, case in CASES.items():
            print(f"{name:12s} {case}")
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("compare_flash_attention.py: expected an NVIDIA GPU but PyTorch sees none")
    arguments.peers = installed(arguments.peers)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    rows = []
    for name in arguments.cases:
        for row in measure(name, CASES[name], arguments):
            rows.append(row)
            x = f"x {row['x']:.3f}" if row["x"] else ""
            print(
                f"{name:12s} {row['direction']:8s} {row['impl']:10s} {row['ms']:8.3f} ms "
                f"{row['tflops']:6.1f} TFLOP/s {x:8s} error {row['error']:.1e}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
