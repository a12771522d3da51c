#!/usr/bin/env python3
"""Measures CUDA attention's backward beside PyTorch's on one GPU, interleaved, checking results.

usage: attention_cuda_backward.py LIBRARY [--cases NAME ...] [--peers NAME ...] [--configs M,S ...]
                                  [--rounds N] [--sustained SECONDS] [--json FILE]

LIBRARY is libtw_bench_cuda.so. Protocol and columns are those of attention_cuda.py, except that
TFLOP/s count 6 D + 4 Dv per unmasked element (five matrix products), that a time covers all
launches of one backward pass, and that `util` is the main kernel's. "ordered" is the deterministic
mode. Errors are ‖gradient - f64‖ / ‖f64‖ of dQ, dK and dV.
"""

import argparse
import ctypes
import statistics

import torch
import torch.nn.functional as functional
from attention_cuda import CASES, Library, burst, run_cases, timed, utilisation
from torch.nn.attention import SDPBackend, sdpa_kernel

CONFIG = ("block_m", "stages")
TENSORS = ("query", "key", "value", "out", "grad_out", "grad_query", "grad_key", "grad_value")


class Backward(ctypes.Structure):
    """struct TwBenchBackward."""

    _fields_ = [
        ("is_f16", ctypes.c_int64),
        *[(name, ctypes.c_uint64) for name in TENSORS],
        *[(name, ctypes.c_uint64) for name in ("lse", "grad_lse", "workspace", "profile")],
        ("shapes", ctypes.c_int64 * 4 * 8),
        ("strides", ctypes.c_int64 * 4 * 8),
        ("scale", ctypes.c_double),
        *[(name, ctypes.c_int64) for name in ("causal", "window", "deterministic", *CONFIG)],
    ]


def ours(library, q, k, v, grad_out, causal, window, deterministic=False, config=None):
    """A function that launches the backward pass, with its gradients and profile."""
    forward = library.forward(q, k, v, causal, window)
    forward()
    grads = [torch.full_like(tensor, float("nan")) for tensor in (q, k, v)]
    profile = torch.zeros(1024, 3, dtype=torch.int64, device="cuda")
    call = Backward(
        is_f16=q.dtype == torch.float16,
        lse=forward.lse.data_ptr(),
        profile=profile.data_ptr(),
        scale=q.shape[3] ** -0.5,
        causal=causal,
        window=window,
        deterministic=deterministic,
    )
    for i, tensor in enumerate((q, k, v, forward.out, grad_out, *grads)):
        setattr(call, TENSORS[i], tensor.data_ptr())
        call.shapes[i][:] = tensor.shape
        call.strides[i][:] = tensor.stride()
    if config:
        call.block_m, call.stages = config
    run = library.handle.tw_bench_backward
    run.restype = ctypes.c_int64
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def checked(stream):
        result = run(ctypes.byref(call), stream)
        if result < 0:
            raise RuntimeError(library.handle.tw_bench_error().decode())
        return result

    workspace = torch.full((checked(None),), 0xFF, dtype=torch.uint8, device="cuda")
    call.workspace = workspace.data_ptr()

    def launch():
        checked(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    launch.grads, launch.profile = grads, profile
    launch.keep = (q, k, v, grad_out, forward, workspace, call)
    return launch


def sdpa(backend, q, k, v, grad_out, causal):
    q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
    with sdpa_kernel(backend):
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )

    def launch():
        launch.grads = torch.autograd.grad(out, (q, k, v), grad_out, retain_graph=True)

    return launch


def truth(q, k, v, grad_out, causal, window, b, kv_head):
    """dQ of one kv head's query heads, dK and dV, in f64, computed for blocks of queries."""
    group = q.shape[1] // k.shape[1]
    key, value = k[b, kv_head].double(), v[b, kv_head].double()
    scale = q.shape[3] ** -0.5
    grad_key, grad_value, grad_query = torch.zeros_like(key), torch.zeros_like(value), []
    column = torch.arange(k.shape[2], device="cuda")
    for head in range(kv_head * group, (kv_head + 1) * group):
        for first in range(0, q.shape[2], 4096):
            rows = slice(first, min(first + 4096, q.shape[2]))
            query, grad = q[b, head, rows].double(), grad_out[b, head, rows].double()
            scores = query @ key.T * scale
            if causal:
                row = torch.arange(rows.start, rows.stop, device="cuda")[:, None]
                masked = column > row
                if window:
                    masked |= column < row - window
                scores.masked_fill_(masked, float("-inf"))
            p = torch.softmax(scores, -1)
            delta = (grad * (p @ value)).sum(-1, keepdim=True)
            grad_value += p.T @ grad
            ds = p * (grad @ value.T - delta) * scale
            grad_query.append(ds @ key)
            grad_key += ds.T @ query
    return torch.cat(grad_query), grad_key, grad_value


def errors_against_f64(q, k, v, grad_out, causal, window, launches, heads=2):
    """The largest relative errors of dQ, dK and dV over a few kv heads, for each launch."""
    worst = {label: [0.0] * 3 for label, _ in launches}
    group = q.shape[1] // k.shape[1]
    for index in sorted({0, k.shape[0] * k.shape[1] - 1})[:heads]:
        b, kv_head = divmod(index, k.shape[1])
        expected = truth(q, k, v, grad_out, causal, window, b, kv_head)
        for label, launch in launches:
            grad_query, grad_key, grad_value = launch.grads
            dim = grad_query.shape[3]
            query_heads = grad_query[b, kv_head * group : (kv_head + 1) * group]
            got = (query_heads.reshape(-1, dim), grad_key[b, kv_head], grad_value[b, kv_head])
            for i in range(3):
                error = ((got[i].double() - expected[i]).norm() / expected[i].norm()).item()
                worst[label][i] = max(worst[label][i], error if error == error else float("inf"))
    return worst


def implementations(library, name, tensors, causal, window, peers, configs):
    makers = []
    if not window and "cudnn" in peers:
        makers.append(("cudnn", lambda: sdpa(SDPBackend.CUDNN_ATTENTION, *tensors, causal)))
    if not window and "fa2" in peers:
        makers.append(("fa2", lambda: sdpa(SDPBackend.FLASH_ATTENTION, *tensors, causal)))

    def add(label, *options):
        makers.append((label, lambda: ours(library, *tensors, causal, window, *options)))

    for config in configs or []:
        add(config, False, tuple(int(number) for number in config.split(",")))
    if not configs:
        add("tilewright", False)
        add("ordered", True)
    usable = []
    for label, make in makers:
        try:
            launch = make()
            launch()
            torch.cuda.synchronize()
            usable.append((label, launch))
        except RuntimeError as error:
            print(f"{name}: {label} is not available: {str(error)[:600]}")
    return usable


def measure(library, name, arguments):
    batch, heads, kv_heads, q_len, kv_len, dim, value_dim, causal, dtype, *rest = CASES[name]
    window = rest[0] if rest else 0
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]

    def random(head_count, rows, columns):
        return torch.randn(batch, head_count, rows, columns, device="cuda").to(dtype)

    q = random(heads, q_len, dim)
    k = random(kv_heads, kv_len, dim)
    v = random(kv_heads, kv_len, value_dim)
    tensors = (q, k, v, random(heads, q_len, value_dim))
    pairs = q_len * (q_len + 1) // 2 if causal else q_len * kv_len
    if window:
        pairs = sum(min(row, window) + 1 for row in range(q_len))
    flop = (6 * dim + 4 * value_dim) * batch * heads * pairs
    launches = implementations(
        library, name, tensors, causal, window, arguments.peers, arguments.configs
    )
    errors = errors_against_f64(*tensors, causal, window, launches)
    times = {label: [] for label, _ in launches}
    for _ in range(arguments.rounds):
        for label, launch in launches:
            times[label].append(burst(launch))
    rows = []
    for label, launch in launches:
        milliseconds = statistics.median(times[label])
        row = {
            "case": name,
            "impl": label,
            "ms": milliseconds,
            "tflops": flop / milliseconds / 1e9,
            "errors": errors[label],
        }
        if hasattr(launch, "profile"):
            # For head_dim > 128 the main kernel computes S, dP, dV and dK, but not dQ.
            wide = max(dim, value_dim) > 128
            share = (4 * dim + 4 * value_dim) / (6 * dim + 4 * value_dim) if wide else 1
            row["util"], row["ghz"], row["busy"] = utilisation(launch, share * flop)
        if arguments.sustained:
            count = max(25, int(arguments.sustained * 1e3 / milliseconds))
            timed(launch, count // 3)
            row["sustained"] = flop / timed(launch, count) / 1e9
        rows.append(row)
    plain = max((max(row["errors"]) for row in rows if row["impl"] in ("cudnn", "fa2")), default=0)
    for row in rows:
        row["ratio"] = (rows[0]["ms"] / row["ms"]) if rows[0]["impl"] == "cudnn" else None
        row["ok"] = max(row["errors"]) <= max(2 * plain, 6e-3)
    return rows


def line(row):
    errors = " ".join(f"{error:.1e}" for error in row["errors"])
    text = (
        f"{row['case']:16s} {row['impl']:12s} {row['ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s "
        f"x{row['ratio'] or float('nan'):.3f} errors {errors} {'ok' if row['ok'] else 'WRONG'}"
    )
    if "util" in row:
        text += f" util {row['util']:.3f} {row['ghz']:.2f} GHz busy {row['busy']:.3f}"
    if "sustained" in row:
        text += f" sustained {row['sustained']:.1f}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--configs", nargs="*", metavar="M,S", help="rows of a block, stages")
    parser.add_argument("--peers", nargs="*", default=["cudnn", "fa2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sustained", type=float, default=0.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    library = Library(arguments.library)
    print(library.probe(), end="")
    run_cases(measure, line, library, arguments)


if __name__ == "__main__":
    main()
