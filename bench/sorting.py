#!/usr/bin/env python3
"""Rows sorted by tile programs, beside PyTorch and, on CPUs, NumPy.

usage: bench/sorting.py [--device cpu|cuda] [--rounds N] [--dtype f32|i32]

A program sorts one row. Results are compared exactly first. On CPUs times are the best of
interleaved rounds, one thread each (set OMP_NUM_THREADS=1); on GPUs medians of interleaved bursts
of 10 launches. Ratios above 1: the tile program is faster.
"""

import argparse
import statistics
import time

import numpy as np
import torch

import tilewright as tw

DTYPES = {"f32": (np.float32, torch.float32), "i32": (np.int32, torch.int32)}
SHAPES = {
    "cpu": [(1024, 64), (1024, 1024), (64, 16384), (4, 262144)],
    "cuda": [(4096, 1024), (512, 4096), (64, 16384)],
}
TOP = 8


@tw.kernel
def sort_rows(x, o):
    o[...] = tw.sort(x[...])


@tw.kernel
def argsort_rows(x, o):
    o[...] = tw.argsort(x[...])


@tw.kernel
def top_of_rows(x, values, places):
    values[...], places[...] = tw.top_k(x[...], TOP)


def calls(rows, columns, dtype):
    def block(n):
        return tw.BlockSpec((1, n), lambda i: (i, 0))

    def call(kernel, *results):
        shapes = [tw.ShapeDtype((rows, n), of) for n, of in results]
        specs = [block(n) for n, _ in results]
        one = len(results) == 1
        return tw.call(
            kernel,
            grid=(rows,),
            in_specs=[block(columns)],
            out_specs=specs[0] if one else specs,
            out_shape=shapes[0] if one else shapes,
        )

    return {
        "sort": call(sort_rows, (columns, dtype)),
        "argsort": call(argsort_rows, (columns, np.int32)),
        "top_k": call(top_of_rows, (TOP, dtype), (TOP, np.int32)),
    }


def peers(x, device):
    result = {
        "sort": {"torch.sort": lambda: torch.sort(x)},
        "argsort": {"torch.argsort stable": lambda: torch.argsort(x, stable=True)},
        "top_k": {"torch.topk": lambda: torch.topk(x, TOP)},
    }
    if device == "cpu":
        array = x.numpy()
        result["sort"]["np.sort"] = lambda: np.sort(array)
        result["argsort"]["np.argsort stable"] = lambda: np.argsort(array, kind="stable")
    return result


def seconds(run, device):
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e4


def check(ours, x):
    want = torch.argsort(x, stable=True)
    assert torch.equal(torch.as_tensor(ours["argsort"](x)).long(), want)
    assert torch.equal(torch.as_tensor(ours["sort"](x)), torch.gather(x, 1, want))
    values, places = map(torch.as_tensor, ours["top_k"](x))
    assert torch.equal(values, torch.topk(x, TOP).values)
    assert torch.equal(torch.gather(x, 1, places.long()), values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    arguments = parser.parse_args()
    device, (dtype, torch_dtype) = arguments.device, DTYPES[arguments.dtype]
    if device == "cpu":
        torch.set_num_threads(1)
        tw.set_num_threads(1)
    best = min if device == "cpu" else statistics.median
    generator = torch.Generator().manual_seed(0)
    for rows, columns in SHAPES[device]:
        x = torch.randn(rows, columns, generator=generator)
        x = (x if arguments.dtype == "f32" else x * 2**28).to(device, torch_dtype)
        ours, others = calls(rows, columns, dtype), peers(x, device)
        check(ours, x)
        for what, call in ours.items():
            runs = {"tilewright": lambda call=call, x=x: call(x), **others[what]}
            times = {name: [] for name in runs}
            for round_ in range(arguments.rounds + 1):
                for name, run in runs.items():
                    taken = seconds(run, device)
                    if round_ > 0:
                        times[name].append(taken)
            own = best(times["tilewright"])
            ratios = ", ".join(
                f"{best(taken) / own:.2f} of {name}"
                for name, taken in times.items()
                if name != "tilewright"
            )
            each = own / (rows * columns) * 1e9
            print(f"{what} {rows} x {columns} {arguments.dtype}: {own * 1e6:.0f} us, "
                  f"{each:.2f} ns an element; {ratios}")  # fmt: skip


if __name__ == "__main__":
    main()
