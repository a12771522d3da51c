#!/usr/bin/env python3
"""Measures the CUDA attention kernels beside PyTorch's on one GPU, interleaved, checking results.

usage: attention_cuda.py LIBRARY [--cases NAME ...] [--peers NAME ...] [--configs [W,N,S,Q ...]]
                         [--rounds N] [--sustained SECONDS] [--json FILE]

LIBRARY is libtw_bench_cuda.so. A burst is 0.4 s of rest, 3 warm-up launches and 25 timed ones; a
round runs every implementation of a case once; the result is the median over rounds. TFLOP/s count
unmasked elements, 2 (D + Dv) each. `util` is the fraction of the multiprocessors' cycles during the
kernel that the tensor cores would need at peak; unlike TFLOP/s it does not depend on the clock.
"""

import argparse
import ctypes
import json
import statistics
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

TENSOR_FLOP_PER_CYCLE = 4096  # dense 16-bit, per multiprocessor


class Forward(ctypes.Structure):
    """struct TwBenchForward."""

    _fields_ = [
        ("is_f16", ctypes.c_int64),
        *[
            (name, ctypes.c_uint64)
            for name in ("query", "key", "value", "out", "lse", "workspace", "profile")
        ],
        ("shapes", ctypes.c_int64 * 4 * 4),
        ("strides", ctypes.c_int64 * 4 * 4),
        ("scale", ctypes.c_double),
        *[
            (name, ctypes.c_int64)
            for name in ("causal", "window", "warpgroups", "block_n", "stages", "query_buffers")
        ],
    ]


class Library:
    """libtw_bench_cuda.so."""

    def __init__(self, path):
        self.handle = ctypes.CDLL(path)
        self.handle.tw_bench_error.restype = ctypes.c_char_p
        self.handle.tw_bench_probe.restype = ctypes.c_char_p
        self.handle.tw_bench_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.handle.tw_bench_forward.restype = ctypes.c_int64

    def probe(self):
        return self.handle.tw_bench_probe().decode()

    def forward(self, q, k, v, causal, window=0, config=None):
        """A function that launches, with its out, lse and profile tensors."""
        out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=q.dtype, device="cuda")
        lse = torch.full(q.shape[:3], float("nan"), device="cuda")
        profile = torch.zeros(1024, 3, dtype=torch.int64, device="cuda")
        call = Forward(
            is_f16=q.dtype == torch.float16,
            lse=lse.data_ptr(),
            profile=profile.data_ptr(),
            scale=q.shape[3] ** -0.5,
            causal=causal,
            window=window,
        )
        for i, (name, tensor) in enumerate((("query", q), ("key", k), ("value", v), ("out", out))):
            setattr(call, name, tensor.data_ptr())
            call.shapes[i][:] = tensor.shape
            call.strides[i][:] = tensor.stride()
        if config:
            call.warpgroups, call.block_n, call.stages, call.query_buffers = config

        def checked(stream):
            result = self.handle.tw_bench_forward(ctypes.byref(call), stream)
            if result < 0:
                raise RuntimeError(self.handle.tw_bench_error().decode())
            return result

        workspace = torch.full((checked(None),), 0xFF, dtype=torch.uint8, device="cuda")
        call.workspace = workspace.data_ptr()

        def launch():
            checked(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

        launch.out, launch.lse, launch.profile = out, lse, profile
        launch.keep = (q, k, v, workspace, call)
        return launch


def sdpa(backend, q, k, v, causal):
    grouped = q.shape[1] != k.shape[1]

    def launch():
        with sdpa_kernel(backend):
            launch.out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=grouped
            )

    return launch


def error_against_f64(q, k, v, causal, window, launch, heads=3):
    """The relative error of out and the largest error of lse over a few heads."""
    worst, worst_lse = 0.0, 0.0
    q_len, kv_len = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    for index in torch.linspace(0, q.shape[0] * q.shape[1] - 1, heads).long().tolist():
        b, h = divmod(index, q.shape[1])
        rows = slice(max(0, q_len - 4096), q_len)
        scores = q[b, h, rows].double() @ k[b, h // group].double().T * q.shape[3] ** -0.5
        if causal:
            row = torch.arange(q_len, device="cuda")[rows, None]
            column = torch.arange(kv_len, device="cuda")
            masked = column > row
            if window:
                masked |= column < row - window
            scores.masked_fill_(masked, float("-inf"))
        truth = torch.softmax(scores, -1) @ v[b, h // group].double()
        difference = launch.out[b, h, rows].double() - truth
        error = (difference.norm() / truth.norm()).item()
        worst = max(worst, error if error == error else float("inf"))
        if hasattr(launch, "lse"):
            off = (launch.lse[b, h, rows].double() - torch.logsumexp(scores, -1)).abs().max().item()
            worst_lse = max(worst_lse, off if off == off else float("inf"))
    return worst, worst_lse


def timed(launch, count):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        launch()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count


def burst(launch):
    torch.cuda.synchronize()
    time.sleep(0.4)
    for _ in range(3):
        launch()
    return timed(launch, 25)


def utilisation(launch, flop):
    """Fraction of the tensor peak per cycle, clock in GHz, mean fraction of time a CTA is busy."""
    rows = launch.profile[launch.profile[:, 2] > 0].double().cpu()
    if len(rows) == 0:
        return 0.0, 0.0, 0.0
    span = (rows[:, 2].max() - rows[:, 1].min()).item()
    own = rows[:, 2] - rows[:, 1]
    clock = (rows[:, 0] / own).mean().item()
    peak = torch.cuda.get_device_properties(0).multi_processor_count * TENSOR_FLOP_PER_CYCLE
    return flop / (span * clock * peak), clock, own.mean().item() / span


# name: batch, heads, kv heads, q length, kv length, dim, value dim, causal, dtype[, window]
CASES = {
    "full": (4, 16, 16, 8192, 8192, 128, 128, False, "bf16"),
    "causal": (4, 16, 16, 8192, 8192, 128, 128, True, "bf16"),
    "d64": (2, 16, 16, 16384, 16384, 64, 64, False, "bf16"),
    "d64-causal": (2, 16, 16, 16384, 16384, 64, 64, True, "bf16"),
    "d96-causal": (4, 16, 16, 8192, 8192, 96, 96, True, "bf16"),
    "d192x128-causal": (4, 16, 16, 8192, 8192, 192, 128, True, "bf16"),
    "d192": (4, 8, 8, 8192, 8192, 192, 192, False, "bf16"),
    "d256": (2, 8, 8, 8192, 8192, 256, 256, False, "bf16"),
    "d256-causal": (2, 8, 8, 8192, 8192, 256, 256, True, "bf16"),
    "gqa-causal": (1, 64, 8, 8192, 8192, 128, 128, True, "bf16"),
    "f16-d64-full": (16, 16, 16, 8192, 8192, 64, 64, False, "f16"),
    "s1k-causal": (32, 16, 16, 1024, 1024, 128, 128, True, "bf16"),
    "s2k-causal": (16, 16, 16, 2048, 2048, 128, 128, True, "bf16"),
    "s4k-causal": (8, 16, 16, 4096, 4096, 128, 128, True, "bf16"),
    "d64-s2k-causal": (16, 16, 16, 2048, 2048, 64, 64, True, "bf16"),
    "s1k-full": (32, 16, 16, 1024, 1024, 128, 128, False, "bf16"),
    "window-1024": (4, 16, 16, 8192, 8192, 128, 128, True, "bf16", 1024),
    "s32k-causal": (1, 16, 16, 32768, 32768, 128, 128, True, "bf16"),
    "decode-b64": (64, 32, 8, 1, 8192, 128, 128, False, "bf16"),
    "decode-b1": (1, 32, 8, 1, 131072, 128, 128, False, "bf16"),
    "decode-h16": (1, 16, 16, 1, 32768, 128, 128, False, "bf16"),
}

# (consumer warpgroups, keys of a block, stages, query buffers)
CONFIGS = {
    "full": [(2, 128, 2, 2), (3, 80, 2, 2), (2, 176, 2, 1), (3, 80, 3, 1)],
    "causal": [(2, 128, 2, 2), (3, 80, 2, 2), (3, 64, 2, 2), (2, 112, 2, 2)],
    "d64": [(2, 128, 2, 2), (3, 128, 2, 2), (3, 96, 3, 2), (2, 192, 2, 2), (2, 128, 4, 2)],
    "d64-causal": [(2, 128, 2, 2), (3, 128, 2, 2), (3, 96, 3, 2), (2, 192, 2, 2), (2, 128, 4, 2)],
    "d256": [(2, 80, 2, 1), (2, 64, 2, 1)],
    "d256-causal": [(2, 80, 2, 1), (2, 64, 2, 1)],
    "d192": [(2, 112, 2, 1), (2, 80, 2, 2), (2, 96, 2, 1)],
    "d192x128-causal": [(2, 128, 2, 1), (2, 96, 2, 2), (2, 112, 2, 1)],
    "d96-causal": [(2, 128, 2, 2), (3, 80, 2, 2), (3, 96, 2, 2), (3, 112, 2, 2)],
}


def implementations(library, name, q, k, v, causal, window, peers, configs):
    rows = (
        []
        if window
        else [
            ("cudnn", sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal)),
            ("fa2", sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal)),
        ]
    )
    rows = [row for row in rows if row[0] in peers]
    if configs is not None:
        given = [tuple(int(number) for number in config.split(",")) for config in configs]
        for config in given or CONFIGS.get(name, []):
            label = f"{64 * config[0]}x{config[1]} s{config[2]} q{config[3]}"
            rows.append((label, library.forward(q, k, v, causal, window, config)))
    else:
        rows.append(("tilewright", library.forward(q, k, v, causal, window)))
    usable = []
    for label, launch in rows:
        try:
            start = time.time()
            launch()
            torch.cuda.synchronize()
            launch.first_ms = (time.time() - start) * 1e3
            usable.append((label, launch))
        except RuntimeError as error:
            print(f"{name}: {label} is not available: {str(error).splitlines()[0][:150]}")
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
    pairs = q_len * (q_len + 1) // 2 if causal else q_len * kv_len
    if window:
        pairs = sum(min(row, window) + 1 for row in range(q_len))
    flop = 2 * (dim + value_dim) * batch * heads * pairs
    launches = implementations(
        library, name, q, k, v, causal, window, arguments.peers, arguments.configs
    )
    errors = {}
    for label, launch in launches:
        errors[label] = error_against_f64(q, k, v, causal, window, launch)
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
            "gbs": batch * kv_heads * kv_len * (dim + value_dim) * 2 / milliseconds / 1e6,
            "error": errors[label][0],
            "first_ms": launch.first_ms,
        }
        if hasattr(launch, "profile"):
            row["lse_error"] = errors[label][1]
            row["util"], row["ghz"], row["busy"] = utilisation(launch, flop)
        if arguments.sustained:
            count = max(25, int(arguments.sustained * 1e3 / milliseconds))
            timed(launch, count // 3)
            row["sustained"] = flop / timed(launch, count) / 1e9
        rows.append(row)
    plain = max((row["error"] for row in rows if row["impl"] in ("cudnn", "fa2")), default=0.0)
    for row in rows:
        row["ratio"] = (rows[0]["ms"] / row["ms"]) if rows[0]["impl"] == "cudnn" else None
        row["ok"] = row["error"] <= max(2 * plain, 4e-3) and row.get("lse_error", 0.0) <= 1e-3
    return rows


def line(row):
    text = (
        f"{row['case']:16s} {row['impl']:14s} {row['ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s "
        f"x{row['ratio'] or float('nan'):.3f} error {row['error']:.1e} {'ok' if row['ok'] else 'WRONG'}"
    )
    if row["case"].startswith("decode"):
        text += f" {row['gbs']:.0f} GB/s of K and V"
    if "util" in row:
        text += f" util {row['util']:.3f} {row['ghz']:.2f} GHz busy {row['busy']:.3f}"
    if "sustained" in row:
        text += f" sustained {row['sustained']:.1f}"
    return text


def run_cases(measure_case, text_of, library, arguments):
    """Prints every case's rows, writes them as JSON if requested, and fails on a wrong result."""
    rows = []
    for name in arguments.cases:
        for row in measure_case(library, name, arguments):
            rows.append(row)
            print(text_of(row), flush=True)
        torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(0), "rows": rows}, file, indent=1)
    if not all(row["ok"] for row in rows):
        raise SystemExit("a result is wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument(
        "--configs",
        nargs="*",
        metavar="W,N,S,Q",
        help="compare configurations: consumer warpgroups, keys of "
        "a block, stages, query buffers; none: a list of good ones",
    )
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
