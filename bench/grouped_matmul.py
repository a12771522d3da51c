#!/usr/bin/env python3
"""Grouped products of experts in bf16 on a GPU, beside torch._grouped_mm and a dense product.

usage: bench/grouped_matmul.py [--rounds N] [--rows N] [--inner N] [--columns N]

The kernel is that of examples/python/18_grouped_matmul.py. Results are compared with an f32 product
of each group; times are medians of interleaved bursts of 10 launches after 0.2 s of rest. FLOPs
count the rows of the groups, not those that are masked off.
"""

import argparse
import statistics
import time

import torch

import tilewright as tw

BLOCK_M, BLOCK_N = 128, 256


@tw.kernel
def grouped_matmul(x, weights, expert, first, end, z):
    tile, column = tw.program_id(0), tw.program_id(1) * BLOCK_N
    row = first[tile]
    block = x[tw.ds(row, BLOCK_M), :] @ weights[expert[tile], :, tw.ds(column, BLOCK_N)]
    inside = tw.expand_dims(row + tw.arange(BLOCK_M) < end[tile], 1)
    tw.store(z, (tw.ds(row, BLOCK_M), tw.ds(column, BLOCK_N)), block.astype(z.dtype), mask=inside)


def group_sizes(experts, rows, even):
    if even:
        return [rows // experts] * experts
    generator = torch.Generator().manual_seed(1)
    cuts = torch.randint(0, rows + 1, (experts - 1,), generator=generator).sort().values.tolist()
    return [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]


def tile_table(sizes):
    rows, begin = [], 0
    for expert, size in enumerate(sizes):
        rows += [(expert, row, begin + size) for row in range(begin, begin + size, BLOCK_M)]
        begin += size
    return torch.tensor(rows, dtype=torch.int32, device="cuda").T.contiguous()


def measure(experts, even, arguments):
    rows, inner, columns = arguments.rows, arguments.inner, arguments.columns
    sizes = group_sizes(experts, rows, even)
    x = torch.randn(rows, inner, device="cuda").bfloat16()
    weights = torch.randn(experts, inner, columns, device="cuda").bfloat16()
    table = tile_table(sizes)
    call = tw.call(
        grouped_matmul,
        grid=(table.shape[1], tw.cdiv(columns, BLOCK_N)),
        out_shape=tw.ShapeDtype((rows, columns), torch.bfloat16),
    )
    ends = torch.tensor(sizes).cumsum(0).to("cuda", torch.int32)
    transposed = weights.transpose(1, 2).contiguous().transpose(1, 2)
    launches = {
        "tile program": lambda: call(x, weights, *table),
        "torch._grouped_mm": lambda: torch._grouped_mm(x, weights, offs=ends),
        "the same, w stored transposed": lambda: torch._grouped_mm(x, transposed, offs=ends),
    }
    want = torch.cat(
        [part.float() @ w.float() for part, w in zip(x.split(sizes), weights, strict=True)]
    )
    print(f"{experts} experts of {'equal' if even else 'random'} sizes, {max(sizes)} rows at most")
    times = {}
    for name, launch in list(launches.items()):
        try:
            error = (launch().float() - want).abs().max() / want.abs().max()
        except RuntimeError as refused:
            print(f"  {name}: {str(refused).splitlines()[0]}")
            del launches[name]
            continue
        print(f"  {name}: largest error {error:.1e} of the largest element")
        times[name] = []
    # As many FLOPs, with one expert for all rows.
    dense = "one dense product by cuBLAS"
    launches[dense], times[dense] = lambda: torch.mm(x, weights[0]), []
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(arguments.rounds):
        for name, launch in launches.items():
            time.sleep(0.2)
            launch()
            begin.record()
            for _ in range(10):
                launch()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 10)
    ours = statistics.median(times["tile program"])
    for name, values in times.items():
        own = statistics.median(values)
        rate = 2e-9 * rows * inner * columns / own
        print(f"  {name}: {own:.3f} ms, {rate:.0f} TFLOP/s, tile program {own / ours:.3f} x")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--inner", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), f"PyTorch {torch.__version__}")
    print(f"{arguments.rows} x {arguments.columns} x {arguments.inner}, bf16")
    for experts in (8, 64):
        for even in (True, False):
            measure(experts, even, arguments)


main()
