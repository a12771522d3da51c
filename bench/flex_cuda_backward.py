#!/usr/bin/env python3
"""Measures the backward of masks as data and score mods on one GPU beside cuDNN's causal backward.

usage: flex_cuda_backward.py LIBRARY [--cases NAME ...] [--flex [NAME ...]] [--shape B H S D] [--f16] [--rounds N]
                             [--json FILE]

LIBRARY is libtw_bench_cuda.so. Cases and protocol are those of flex_cuda.py; TFLOP/s count 10 D per
unmasked element. "ordered" is the deterministic mode; `floor` is for the other one. The case with a
table of slopes computes its gradient, as FlexAttention does. Errors are ‖gradient - f64‖ / ‖f64‖ of
dQ, dK, dV and the slopes, if any.
"""

import argparse
import ctypes
import math
import statistics

import torch
from attention_cuda import SDPBackend, burst, run_cases, utilisation
from attention_cuda_backward import sdpa
from flex_cuda import CASES, Flex, Problem, flex_library, prepare

# Fractions of cuDNN's causal backward: factor x best peer / cuDNN causal, all measured on one H200
# in one process.
FLOORS = {
    "alibi": 0.95 * 575 / 495,
    "alibi-table": 0.95 * 502 / 495,
    "softcap": 0.95 * 504 / 495,
    "causal-data": 1.0 * 543 / 495,
    "window-data": 0.95 * 457 / 495,
    "documents-data": 1.3 * 240 / 495,
}


class FlexBackward(ctypes.Structure):
    """struct TwBenchFlexBackward."""

    _fields_ = [
        ("forward", Flex),
        *[
            (name, ctypes.c_uint64)
            for name in ("grad_out", "grad_query", "grad_key", "grad_value", "grad_slopes")
        ],
        ("deterministic", ctypes.c_int64),
    ]


def ours(problem, grad_out, deterministic):
    forward = problem.ours()
    forward()
    grads = [torch.full_like(t, math.nan) for t in (problem.q, problem.k, problem.v)]
    call = FlexBackward(
        forward=forward.call,
        grad_out=grad_out.data_ptr(),
        grad_query=grads[0].data_ptr(),
        grad_key=grads[1].data_ptr(),
        grad_value=grads[2].data_ptr(),
        deterministic=deterministic,
    )
    if problem.score and "slopes" in problem.score:
        grads.append(torch.full_like(problem.slopes, math.nan))
        call.grad_slopes = grads[3].data_ptr()
    launch = prepare(problem.library.handle, call, "_backward")
    launch.grads, launch.profile = grads, forward.profile
    launch.keep = (forward, grad_out, call)
    return launch


def flex(problem, grad_out):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask_of = problem.mask_of or (lambda q, kv: q >= kv)
    length = problem.q.shape[2]
    mask = create_block_mask(lambda b, h, q, kv: mask_of(q, kv), None, None, length, length)
    inputs = [t.detach().requires_grad_() for t in (problem.q, problem.k, problem.v)]
    out = torch.compile(flex_attention, dynamic=False)(
        *inputs, score_mod=problem.score_of, block_mask=mask
    )

    def launch():
        launch.grads = torch.autograd.grad(out, inputs, grad_out, retain_graph=True)

    return launch


def errors(problem, grad_out, launch):
    """Errors of the first head: over all batches for the slopes, over the first for the rest."""
    worst = [0.0] * len(launch.grads)
    length, batches = problem.q.shape[2], problem.q.shape[0]
    index = torch.arange(length, device="cuda")
    slope = problem.slopes[0].double().requires_grad_()
    slope_grad = torch.zeros((), dtype=torch.double, device="cuda")
    for b in range(batches if len(launch.grads) > 3 else 1):
        q, k, v = (t[b, 0].double().requires_grad_() for t in (problem.q, problem.k, problem.v))
        scores = q @ k.T * problem.q.shape[3] ** -0.5
        if len(launch.grads) > 3:
            scores = scores + slope * (index[None, :] - index[:, None])
        elif problem.score_of:
            scores = problem.score_of(scores, b, torch.tensor(0), index[:, None], index[None, :])
        scores = scores.masked_fill(~problem.attends, -math.inf)
        out = torch.softmax(scores, -1) @ v
        inputs = (q, k, v, slope) if len(launch.grads) > 3 else (q, k, v)
        truth = torch.autograd.grad(out, inputs, grad_out[b, 0].double())
        if len(launch.grads) > 3:
            slope_grad += truth[3]
        if b == 0:
            for i in range(3):
                off = launch.grads[i][0, 0].double() - truth[i]
                worst[i] = (off.norm() / truth[i].norm()).item()
        del scores, out, truth
    if len(launch.grads) > 3:
        worst[3] = ((launch.grads[3][0] - slope_grad) / slope_grad).abs().item()
    return [error if error == error else math.inf for error in worst]


def measure(library, name, arguments):
    dtype = torch.float16 if arguments.f16 else torch.bfloat16
    problem = Problem(library, name, arguments.shape, dtype)
    grad_out = torch.randn_like(problem.q)
    launches = [
        (
            "cudnn causal",
            sdpa(SDPBackend.CUDNN_ATTENTION, problem.q, problem.k, problem.v, grad_out, True),
        )
    ]
    for label, deterministic in (("tilewright", False), ("ordered", True)):
        try:
            launches.append((label, ours(problem, grad_out, deterministic)))
        except RuntimeError as error:
            print(f"{name}: {label} is not available: {str(error)[:300]}")
    if arguments.flex is not None and (not arguments.flex or name in arguments.flex):
        launches.append(("flex", flex(problem, grad_out)))
    rows = []
    for label, launch in launches:
        launch()
        torch.cuda.synchronize()
        row = {"case": name, "impl": label, "times": []}
        if label in ("tilewright", "ordered"):
            row["errors"] = errors(problem, grad_out, launch)
        rows.append(row)
    for _ in range(arguments.rounds):
        for row, (_, launch) in zip(rows, launches, strict=True):
            row["times"].append(burst(launch))
    for row, (label, launch) in zip(rows, launches, strict=True):
        flop = 2.5 * (problem.causal_flop if label == "cudnn causal" else problem.flop)
        row["ms"] = statistics.median(row.pop("times"))
        row["tflops"] = flop / row["ms"] / 1e9
        row["ratio"] = row["tflops"] / rows[0]["tflops"]
        row["floor"] = FLOORS.get(name) if label == "tilewright" else None
        if hasattr(launch, "profile"):
            row["util"], row["ghz"], row["busy"] = utilisation(launch, flop)
        limit = 3e-2 if "softcap" in name else 6e-3
        row["ok"] = max(row.get("errors", [0.0])[:3]) <= limit
        # Looser, since this sums terms of both signs over all pairs of a head.
        row["ok"] &= max(row.get("errors", [0.0])[3:], default=0.0) <= 3e-2
    return rows


def line(row):
    text = f"{row['case']:16s} {row['impl']:14s} {row['ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s x{row['ratio']:.3f}"
    if "errors" in row:
        errors = " ".join(f"{error:.1e}" for error in row["errors"])
        text += f" errors {errors} {'ok' if row['ok'] else 'WRONG'}"
    if "util" in row:
        text += f" util {row['util']:.3f} {row['ghz']:.2f} GHz busy {row['busy']:.3f}"
    if row["floor"]:
        text += (
            f" floor {row['floor']:.2f} {'reached' if row['ratio'] >= row['floor'] else 'MISSED'}"
        )
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--flex", nargs="*", metavar="CASE", help="FlexAttention beside all or these"
    )
    parser.add_argument("--shape", nargs=4, type=int, default=[4, 16, 8192, 128], metavar="N")
    parser.add_argument("--f16", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    run_cases(measure, line, flex_library(arguments.library), arguments)


if __name__ == "__main__":
    main()
