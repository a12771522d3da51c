#!/usr/bin/env python3
"""Measures masks as data and score mods on a GPU beside cuDNN's causal attention and FlexAttention.

usage: flex_cuda.py LIBRARY [--cases NAME ...] [--flex [NAME ...]] [--configs [W,N,S,Q ...]] [--rounds N]
                    [--sustained SECONDS] [--json FILE]

LIBRARY is libtw_bench_cuda.so. Protocol and columns are those of attention_cuda.py: interleaved
bursts, TFLOP/s of unmasked elements, `util`. Every case is compared with cuDNN's causal attention
of the same shape, measured in the same rounds; `floor` is the fraction of its TFLOP/s that the case
should at least reach.
"""

import argparse
import ctypes
import math
import statistics
import time

import torch
from attention_cuda import Library, SDPBackend, burst, run_cases, sdpa, timed, utilisation


class Flex(ctypes.Structure):
    """struct TwBenchFlex."""

    _fields_ = [
        *[
            (name, ctypes.c_uint64)
            for name in ("query", "key", "value", "out", "lse", "workspace", "profile")
        ],
        ("shapes", ctypes.c_int64 * 4 * 4),
        ("strides", ctypes.c_int64 * 4 * 4),
        ("is_f16", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("causal", ctypes.c_int64),
        ("score", ctypes.c_char_p),
        ("slopes", ctypes.c_uint64),
        ("attends", ctypes.c_void_p),
        *[
            (name, ctypes.c_int64)
            for name in (
                "exact_maximum",
                "warpgroups",
                "block_n",
                "stages",
                "query_buffers",
                "ctas",
            )
        ],
        ("starts", ctypes.c_uint64),
        ("sequences", ctypes.c_int64),
        ("documents", ctypes.c_void_p),
        ("num_documents", ctypes.c_int64),
    ]


def prepare(handle, call, suffix=""):
    """The launch of a TwBenchFlex, or with the suffix `_backward` of a TwBenchFlexBackward."""
    prepared = getattr(handle, f"tw_bench_flex_prepare{suffix}")(ctypes.byref(call))
    if not prepared:
        raise RuntimeError(handle.tw_bench_flex_error().decode())

    def launch():
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if getattr(handle, f"tw_bench_flex_launch{suffix}")(ctypes.c_void_p(prepared), stream):
            raise RuntimeError(handle.tw_bench_flex_error().decode())

    return launch


DOCUMENT_LENGTHS = [1124, 212, 1510, 390, 688, 64, 901, 1337, 155, 480, 873, 458]  # 8192 in all


def document_ids(length):
    ids = torch.repeat_interleave(torch.arange(12), torch.tensor(DOCUMENT_LENGTHS))
    return ids.repeat_interleave(max(1, length // 8192))[:length].cuda()


SLOPES = [2 ** (-8 * (h + 1) / 16) for h in range(16)]


def alibi(score, b, h, q, kv):
    return score + torch.exp2(-0.5 * (h + 1).float()) * (kv - q)


def softcap(score, b, h, q, kv):
    return 20 * torch.tanh(score / 20)


# name: (mask as data, or None for causal by diagonal, score text, score function, floor)
# Floors are factor x best peer / cuDNN causal, all measured on one H200 in one process.
CASES = {
    "causal": (None, None, None, 1.03 * 742 / 623),
    "alibi": (None, "alibi(16)", alibi, 1.2 * 602 / 623),
    "alibi-table": (None, "alibi(slopes)", alibi, 1.5 * 423 / 623),
    "softcap": (None, "softcap(20, True)", softcap, 1.03 * 577 / 623),
    "softcap-exact": (None, "softcap(20)", softcap, None),
    "causal-data": (lambda q, kv: q >= kv, None, None, 1.08 * 676 / 623),
    "window-data": (lambda q, kv: (q >= kv) & (q - kv <= 1024), None, None, 1.05 * 569 / 623),
    "documents-data": ("documents", None, None, 1.4 * 338 / 623),
    "documents-alibi": ("documents", "alibi(16)", alibi, None),
}


class Problem:
    """One case: tensors, the dense mask, launches."""

    def __init__(self, library, name, shape, dtype):
        self.library, self.name = library, name
        self.mask_of, self.score, self.score_of, self.floor = CASES[name]
        batch, heads, length, dim = shape
        self.q, self.k, self.v = (
            torch.randn(batch, heads, length, dim, device="cuda").to(dtype) for _ in range(3)
        )
        self.slopes = torch.tensor(SLOPES, device="cuda")
        if self.mask_of == "documents":
            ids = document_ids(length)
            self.mask_of = lambda q, kv: (q >= kv) & (ids[q] == ids[kv])
        causal = self.mask_of or (lambda q, kv: q >= kv)
        index = torch.arange(length, device="cuda")
        self.attends = causal(index[:, None], index[None, :])
        self.host = self.attends.to(torch.uint8).cpu().contiguous() if self.mask_of else None
        pairs = self.attends.sum().item()
        self.flop = 4 * dim * batch * heads * pairs
        self.causal_flop = 2 * dim * batch * heads * length * (length + 1)

    def call(self, config=None, exact=False):
        """struct TwBenchFlex, and the arrays that it points to."""
        out = torch.full_like(self.q, float("nan"))
        lse = torch.full(self.q.shape[:3], float("nan"), device="cuda")
        workspace = torch.zeros(4, dtype=torch.int32, device="cuda")
        profile = torch.zeros(1024, 3, dtype=torch.int64, device="cuda")
        call = Flex(
            lse=lse.data_ptr(),
            workspace=workspace.data_ptr(),
            profile=profile.data_ptr(),
            is_f16=self.q.dtype == torch.float16,
            scale=self.q.shape[3] ** -0.5,
            causal=self.mask_of is None,
            score=self.score.encode() if self.score else None,
            slopes=self.slopes.data_ptr(),
            attends=self.host.data_ptr() if self.host is not None else None,
            exact_maximum=exact,
        )
        tensors = (("query", self.q), ("key", self.k), ("value", self.v), ("out", out))
        for i, (field, tensor) in enumerate(tensors):
            setattr(call, field, tensor.data_ptr())
            call.shapes[i][:] = tensor.shape
            call.strides[i][:] = tensor.stride()
        if config:
            call.warpgroups, call.block_n, call.stages, call.query_buffers = config[:4]
            call.ctas = config[4] if len(config) > 4 else 1
        return call, out, lse, profile, workspace

    def ours(self, config=None, exact=False):
        call, out, lse, profile, workspace = self.call(config, exact)
        launch = prepare(self.library.handle, call)
        launch.out, launch.lse, launch.profile, launch.call = out, lse, profile, call
        launch.keep = (self.q, self.k, self.v, workspace)
        return launch

    def flex(self):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask_of = self.mask_of or (lambda q, kv: q >= kv)
        length = self.q.shape[2]
        mask = create_block_mask(lambda b, h, q, kv: mask_of(q, kv), None, None, length, length)
        compiled = torch.compile(flex_attention, dynamic=False)

        def launch():
            launch.out = compiled(self.q, self.k, self.v, score_mod=self.score_of, block_mask=mask)

        return launch

    def error(self, launch, heads=2):
        """The relative error of out and the largest error of lse against f64, over a few heads."""
        worst = worst_lse = 0.0
        length = self.q.shape[2]
        rows = slice(max(0, length - 2048), length)
        q_index = torch.arange(length, device="cuda")[rows, None]
        kv_index = torch.arange(length, device="cuda")[None, :]
        for flat in torch.linspace(0, self.q.shape[0] * self.q.shape[1] - 1, heads).long().tolist():
            b, h = divmod(flat, self.q.shape[1])
            scores = self.q[b, h, rows].double() @ self.k[b, h].double().T * self.q.shape[3] ** -0.5
            if self.score_of:
                scores = self.score_of(scores, b, torch.tensor(h), q_index, kv_index)
            scores.masked_fill_(~self.attends[rows], -math.inf)
            truth = torch.softmax(scores, -1) @ self.v[b, h].double()
            error = ((launch.out[b, h, rows].double() - truth).norm() / truth.norm()).item()
            worst = max(worst, error if error == error else math.inf)
            if hasattr(launch, "lse"):
                off = launch.lse[b, h, rows].double() - torch.logsumexp(scores, -1)
                off = off.abs().max().item()
                worst_lse = max(worst_lse, off if off == off else math.inf)
        return worst, worst_lse


def flex_library(path):
    library = Library(path)
    library.handle.tw_bench_flex_error.restype = ctypes.c_char_p
    for name in ("tw_bench_flex_prepare", "tw_bench_flex_prepare_backward"):
        getattr(library.handle, name).restype = ctypes.c_void_p
        getattr(library.handle, name).argtypes = [ctypes.c_void_p]
    return library


def measure(library, name, arguments):
    dtype = torch.float16 if arguments.f16 else torch.bfloat16
    problem = Problem(library, name, arguments.shape, dtype)
    launches = [
        ("cudnn causal", sdpa(SDPBackend.CUDNN_ATTENTION, problem.q, problem.k, problem.v, True))
    ]
    if arguments.configs is None:
        launches.append(("tilewright", problem.ours()))
    else:
        for text in arguments.configs:
            config = tuple(int(number) for number in text.split(","))
            label = f"{64 * config[0]}x{config[1]} s{config[2]} q{config[3]}"
            try:
                launches.append((label, problem.ours(config)))
            except RuntimeError as error:
                print(f"{name}: {label} is not available: {str(error).splitlines()[0][:200]}")
    if arguments.flex is not None and (not arguments.flex or name in arguments.flex):
        launches.append(("flex", problem.flex()))
    rows = []
    for label, launch in launches:
        start = time.time()
        launch()
        torch.cuda.synchronize()
        first_ms = (time.time() - start) * 1e3
        row = {"case": name, "impl": label, "first_ms": first_ms, "times": []}
        if label != "cudnn causal":
            row["error"], row["lse_error"] = problem.error(launch)
        rows.append(row)
    for _ in range(arguments.rounds):
        for row, (_, launch) in zip(rows, launches, strict=False):
            row["times"].append(burst(launch))
    for row, (label, launch) in zip(rows, launches, strict=False):
        flop = problem.causal_flop if label == "cudnn causal" else problem.flop
        row["ms"] = statistics.median(row.pop("times"))
        row["tflops"] = flop / row["ms"] / 1e9
        row["ratio"] = row["tflops"] / rows[0]["tflops"]
        row["floor"] = problem.floor
        if hasattr(launch, "profile"):
            row["util"], row["ghz"], row["busy"] = utilisation(launch, flop)
        if arguments.sustained:
            count = max(25, int(arguments.sustained * 1e3 / row["ms"]))
            timed(launch, count // 3)
            row["sustained"] = flop / timed(launch, count) / 1e9
        limit = 2e-2 if "softcap" in name else 4e-3
        row["ok"] = row.get("error", 0.0) <= limit and row.get("lse_error", 0.0) <= limit
    return rows


def line(row):
    text = f"{row['case']:16s} {row['impl']:14s} {row['ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s x{row['ratio']:.3f}"
    if "error" in row:
        text += f" error {row['error']:.1e} {'ok' if row['ok'] else 'WRONG'}"
    if "util" in row:
        text += f" util {row['util']:.3f} {row['ghz']:.2f} GHz busy {row['busy']:.3f}"
        if row["floor"]:
            text += f" floor {row['floor']:.2f} {'reached' if row['ratio'] >= row['floor'] else 'MISSED'}"
    if "sustained" in row:
        text += f" sustained {row['sustained']:.1f}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--flex", nargs="*", metavar="CASE", help="FlexAttention beside all or these"
    )
    parser.add_argument("--configs", nargs="+", metavar="W,N,S,Q")
    parser.add_argument("--shape", nargs=4, type=int, default=[4, 16, 8192, 128], metavar="N")
    parser.add_argument("--f16", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sustained", type=float, default=0.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    library = flex_library(arguments.library)
    run_cases(measure, line, library, arguments)


if __name__ == "__main__":
    main()
