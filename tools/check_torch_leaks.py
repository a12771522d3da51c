#!/usr/bin/env python3
"""Calls tilewright.torch.flex_attention with new closures each time, and checks that nothing leaks.

usage: tools/check_torch_leaks.py [--calls N] [--device cpu|cuda]

Most calls run backward, and one in ten has its own block mask. Exits with status 1 if memory, the
objects that Python tracks or the tables of calls have grown since the first tenth.
"""

import argparse
import gc
import sys

import torch

import tilewright.torch as twt
from tilewright.torch import _attention, _sites

MIB = 16  # what the allocators of C and Python may take in between


def resident():
    """Memory of this process in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def call(n, device):
    query = torch.full((1, 2, 16, 8), n % 7 - 3.0, device=device, requires_grad=True)
    table = torch.full((2,), n / 1000, device=device, requires_grad=True)

    def score(s, b, h, q, kv):
        return s + table[h] * (q - kv) + step

    mask, step = None, n / 8
    if n % 10 == 0:
        limit = torch.tensor(n % 16, device=device)
        mask = twt.create_block_mask(
            lambda b, h, q, kv: (q >= kv) | (kv < limit), None, None, 16, 16, device=device
        )
    out = twt.flex_attention(query, query, query, score, mask)
    if n % 10 != 2:
        out.sum().backward()


def state():
    gc.collect()
    return {
        "KiB of memory": resident(),
        "objects": len(gc.get_objects()),
        "sites": len(_sites._by_spec),
        "choices": len(_attention._choices),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    first = None
    for n in range(given.calls):
        call(n, given.device)
        if n + 1 == given.calls // 10:
            first = state()
            print(f"after {n + 1} calls:", first, flush=True)
    last = state()
    print(f"after {given.calls}:", last)
    allowed = {"KiB of memory": MIB * 1024, "objects": 1000}
    grown = [k for k in last if last[k] > first[k] + allowed.get(k, 0)]
    for name in grown:
        print(f"check_torch_leaks.py: {name} grew from {first[name]} to {last[name]}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
