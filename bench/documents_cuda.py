#!/usr/bin/env python3
"""Measures small causal documents, packed one after another, on one GPU beside PyTorch's varlen_attn.

usage: documents_cuda.py LIBRARY [--means N ...] [--dims D ...] [--configs W,N,S,Q,C ...] [--backward]
                         [--heads-first] [--flex] [--rounds N] [--json FILE]

LIBRARY is libtw_bench_cuda.so. Lengths are uniform from 1 to twice the mean, 32,768 tokens in all,
16 heads, bf16, stored by tokens or, with --heads-first, by heads. "lists" takes the documents as a
mask, "packed" as offsets on the GPU. Protocol of attention_cuda.py. `GB/s` counts every array
once: small documents are bound by memory.
"""

import argparse
import statistics

import torch
from attention_cuda import burst, run_cases, utilisation
from flex_cuda import Flex, flex_library, prepare
from flex_cuda_backward import FlexBackward

TOKENS, HEADS = 32768, 16
KINDS = ("lists", "packed")


def document_lengths(mean):
    generator = torch.Generator().manual_seed(mean)
    lengths = []
    while sum(lengths) < TOKENS:
        length = int(torch.randint(1, 2 * mean + 1, (1,), generator=generator))
        lengths.append(min(length, TOKENS - sum(lengths)))
    return lengths


class Problem:
    """One case: tensors as (tokens, heads, dim), launches, errors."""

    def __init__(self, mean, dim, heads_first):
        self.lengths = document_lengths(mean)
        self.dim = dim
        self.host_starts = torch.tensor([0, *self.lengths]).cumsum(0).contiguous()
        self.starts = self.host_starts.int().cuda()
        self.heads_first = heads_first
        self.q, self.k, self.v, self.grad_out = (
            self.like(torch.randn(TOKENS, HEADS, dim, device="cuda")) for _ in range(4)
        )
        self.pairs = sum(n * (n + 1) // 2 for n in self.lengths)

    def like(self, values):
        """These values as bf16 in the layout of the case."""
        values = values.to(torch.bfloat16)
        if self.heads_first:
            return values.transpose(0, 1).contiguous().transpose(0, 1)
        return values.contiguous()

    def empty(self):
        return self.like(torch.full((TOKENS, HEADS, self.dim), float("nan"), device="cuda"))

    def flop(self, backward):
        return (10 if backward else 4) * self.dim * HEADS * self.pairs

    def bytes(self, backward):
        return (8 if backward else 4) * self.q.numel() * 2

    def call(self, kind, config):
        """struct TwBenchFlex, and the arrays that it points to."""
        out, lse = self.empty(), torch.full((1, HEADS, TOKENS), float("nan"), device="cuda")
        profile = torch.zeros(1024, 3, dtype=torch.int64, device="cuda")
        call = Flex(
            lse=lse.data_ptr(), workspace=256, profile=profile.data_ptr(), scale=self.dim**-0.5
        )
        for i, (field, tensor) in enumerate(
            (("query", self.q), ("key", self.k), ("value", self.v), ("out", out))
        ):
            view = tensor.transpose(0, 1)[None]
            setattr(call, field, tensor.data_ptr())
            call.shapes[i][:] = view.shape
            call.strides[i][:] = view.stride()
        if kind == "packed":
            call.causal = 1
            call.starts, call.sequences = self.starts.data_ptr(), len(self.lengths)
        else:
            call.documents, call.num_documents = self.host_starts.data_ptr(), len(self.lengths)
        if config:
            call.warpgroups, call.block_n, call.stages, call.query_buffers, call.ctas = config
        return call, out, lse, profile

    def ours(self, library, kind, config=None):
        call, out, lse, profile = self.call(kind, config)
        launch = prepare(library.handle, call)
        launch.out, launch.lse, launch.profile = out, lse, profile
        launch.call, launch.keep = call, self
        return launch

    def ours_backward(self, library, kind, deterministic):
        forward = self.ours(library, kind)
        forward()
        grads = [self.empty() for _ in range(3)]
        call = FlexBackward(
            forward=forward.call,
            grad_out=self.grad_out.data_ptr(),
            grad_query=grads[0].data_ptr(),
            grad_key=grads[1].data_ptr(),
            grad_value=grads[2].data_ptr(),
            deterministic=deterministic,
        )
        launch = prepare(library.handle, call, "_backward")
        launch.grads, launch.profile, launch.keep = grads, forward.profile, (forward, call)
        return launch

    def varlen(self, backward):
        from torch.nn.attention.varlen import varlen_attn

        longest = max(self.lengths)
        inputs = [t.detach().requires_grad_(backward) for t in (self.q, self.k, self.v)]

        def attend(**causal):
            return varlen_attn(*inputs, self.starts, self.starts, longest, longest, **causal)

        causal = {"window_size": (-1, 0)}
        try:
            attend(**causal)
        except TypeError:  # PyTorch before 2.11
            causal = {"is_causal": True}
        return self.peer(lambda: attend(**causal), inputs, backward)

    def flex(self, backward):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        ids = torch.repeat_interleave(
            torch.arange(len(self.lengths)), torch.tensor(self.lengths)
        ).cuda()
        mask = torch.compile(create_block_mask)(
            lambda b, h, q, kv: (q >= kv) & (ids[q] == ids[kv]), None, None, TOKENS, TOKENS
        )
        inputs = [t.detach().requires_grad_(backward) for t in (self.q, self.k, self.v)]
        compiled = torch.compile(flex_attention, dynamic=False)

        def attend():
            views = [t.transpose(0, 1)[None] for t in inputs]
            return compiled(*views, block_mask=mask)[0].transpose(0, 1)

        return self.peer(attend, inputs, backward)

    def peer(self, attend, inputs, backward):
        out = attend() if backward else None

        def launch():
            if backward:
                launch.grads = torch.autograd.grad(out, inputs, self.grad_out, retain_graph=True)
            else:
                launch.out = attend()

        return launch

    def errors(self, launch, head=13):
        """Relative errors of one head against f64: out, or dQ, dK and dV; largest error of lse."""
        results = launch.grads if hasattr(launch, "grads") else [launch.out]
        off = [0.0] * len(results)
        total = [0.0] * len(results)
        worst_lse = torch.zeros((), device="cuda", dtype=torch.double)
        start = 0
        for length in self.lengths:
            rows = slice(start, start + length)
            start += length
            q, k, v = (
                t[rows, head].double().requires_grad_(len(results) > 1)
                for t in (self.q, self.k, self.v)
            )
            hidden = torch.ones(length, length, dtype=torch.bool, device="cuda").triu_(1)
            scores = (q @ k.T * self.dim**-0.5).masked_fill(hidden, float("-inf"))
            truth = [torch.softmax(scores, -1) @ v]
            if len(results) > 1:
                grad = self.grad_out[rows, head].double()
                truth = torch.autograd.grad(truth[0], (q, k, v), grad)
            elif hasattr(launch, "lse"):
                lse = launch.lse[0, head, rows].double() - torch.logsumexp(scores, -1)
                worst_lse = torch.maximum(worst_lse, lse.abs().max().nan_to_num(float("inf")))
            for i, exact in enumerate(truth):
                off[i] += (results[i][rows, head].double() - exact).square().sum()
                total[i] += exact.square().sum()
        errors = [(float(a / b) ** 0.5) for a, b in zip(off, total, strict=True)]
        return [e if e == e else float("inf") for e in errors], worst_lse.item()


def implementations(problem, library, arguments):
    backward = arguments.backward
    yield "varlen", lambda: problem.varlen(backward)
    if arguments.flex:
        yield "flex", lambda: problem.flex(backward)
    for kind in KINDS:
        if backward:
            for label, ordered in ((kind, False), (f"{kind} ordered", True)):
                yield label, lambda kind=kind, o=ordered: problem.ours_backward(library, kind, o)
            continue
        yield kind, lambda kind=kind: problem.ours(library, kind)
        for text in arguments.configs:
            config = tuple(int(number) for number in text.split(","))
            w, n, s, q, c = config
            label = f"{kind} {64 * w}x{n} s{s} q{q} c{c}"
            yield label, lambda kind=kind, c=config: problem.ours(library, kind, c)


def measure(library, name, arguments):
    mean, dim = name
    problem = Problem(mean, dim, arguments.heads_first)
    launches, rows = [], []
    for label, make in implementations(problem, library, arguments):
        try:
            launch = make()
            launch()
            torch.cuda.synchronize()
        except (RuntimeError, ImportError) as error:
            print(f"{mean} D{dim}: {label} is not available: {str(error)[:300]}", flush=True)
            continue
        errors, lse_error = problem.errors(launch)
        launches.append(launch)
        rows.append({"case": f"{mean} D{dim}", "impl": label, "times": []})
        rows[-1].update(errors=errors, lse_error=lse_error)
    for _ in range(arguments.rounds):
        for row, launch in zip(rows, launches, strict=True):
            row["times"].append(burst(launch))
    for row, launch in zip(rows, launches, strict=True):
        row["ms"] = statistics.median(row.pop("times"))
        row["tflops"] = problem.flop(arguments.backward) / row["ms"] / 1e9
        row["gbs"] = problem.bytes(arguments.backward) / row["ms"] / 1e6
        row["ratio"] = rows[0]["ms"] / row["ms"]
        if hasattr(launch, "profile"):
            row["util"], row["ghz"], row["busy"] = utilisation(
                launch, problem.flop(arguments.backward)
            )
        row["ok"] = max(row["errors"]) <= 6e-3 and row["lse_error"] <= 1e-3
    return rows


def line(row):
    errors = " ".join(f"{error:.1e}" for error in row["errors"])
    text = (
        f"{row['case']:10s} {row['impl']:24s} {row['ms']:8.4f} ms {row['tflops']:6.1f} TFLOP/s "
        f"{row['gbs']:5.0f} GB/s x{row['ratio']:.3f} error {errors} {'ok' if row['ok'] else 'WRONG'}"
    )
    if "util" in row:
        text += f" util {row['util']:.3f} {row['ghz']:.2f} GHz busy {row['busy']:.3f}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--means", nargs="*", type=int, default=[128, 256, 512])
    parser.add_argument("--dims", nargs="*", type=int, default=[128, 64])
    parser.add_argument("--configs", nargs="*", default=[], metavar="W,N,S,Q,C")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--heads-first", action="store_true")
    parser.add_argument("--flex", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.cases = [(mean, dim) for dim in arguments.dims for mean in arguments.means]
    run_cases(measure, line, flex_library(arguments.library), arguments)


if __name__ == "__main__":
    main()
