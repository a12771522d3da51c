#!/usr/bin/env python3
"""What first calls through PyTorch wait for on one GPU: kernels without a mod, a new score mod and
a new mask mod, each forward alone and with a gradient, beside torch.compile(flex_attention).

usage: bench/torch_first_calls.py [--rounds N] [--peer] [--json FILE]

Every line is a process of its own, forked from one that has imported torch, with a CUDA context
and tensors of (1, 16, 4096, 128) in bf16. "empty" has an empty cache of kernels, "disk" that of the
process before it. Times are in ms, end when the GPU is done, and are medians over rounds: of
making the mod and the block mask (for torch with the import of its modules), of the first call, the
second, and the longest of twenty more; with a gradient, of the first forward pass, the first
backward pass, and then of both together. --peer adds FlexAttention, compiled with an empty cache.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time

import torch

SHAPE = (1, 16, 4096, 128)
CASES = ("causal", "score mod", "mask mod")


def attention_of(library, case):
    """A function of q, k and v. Mods are new functions; what they capture lies on the GPU."""
    batch, heads, length, _ = SHAPE
    slopes = torch.rand(heads, device="cuda")
    document = torch.arange(length, device="cuda") // 600
    if library == "torch":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        flex = torch.compile(flex_attention)
    else:
        from tilewright.torch import create_block_mask
        from tilewright.torch import flex_attention as flex

    def causal(b, h, i, j):
        return i >= j

    def same_document(b, h, i, j):
        return (i >= j) & (document[i] == document[j])

    def alibi(score, b, h, i, j):
        return score + slopes[h] * (j - i)

    options = {}
    if case == "mask mod" or library == "torch":
        mask = same_document if case == "mask mod" else causal
        options["block_mask"] = create_block_mask(mask, None, None, length, length, device="cuda")
    else:
        options["causal"] = True
    if case == "score mod":
        options["score_mod"] = alibi
    return lambda q, k, v: flex(q, k, v, **options)


def measure(library, case, gradient, folder, results):
    """Puts the times of one process into `results`."""
    for name in ("TILEWRIGHT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = os.path.join(folder, name.lower())
    q, k, v, out_grad = (torch.randn(SHAPE, device="cuda").bfloat16() for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_(gradient)
    if library == "tilewright":
        import tilewright.torch  # noqa: F401  its import is not part of a call
    # A first gradient of any operation starts autograd's thread, and one whose cotangent is given
    # imports SymPy, which torch.compile has imported already.
    one = torch.ones(1, device="cuda", requires_grad=True)
    torch.autograd.grad(one * 2, one, torch.ones(1, device="cuda"))
    torch.cuda.synchronize()

    def timed(function):
        start = time.perf_counter()
        value = function()
        torch.cuda.synchronize()
        return value, (time.perf_counter() - start) * 1e3

    # making a mask is timed apart: it is no part of the call
    attend, making = timed(lambda: attention_of(library, case))
    out, forward = timed(lambda: attend(q, k, v))
    times = [making, forward]
    if gradient:
        times.append(timed(lambda: torch.autograd.grad(out, (q, k, v), out_grad))[1])

    def again():
        out = attend(q, k, v)
        return torch.autograd.grad(out, (q, k, v), out_grad) if gradient else out

    rest = []
    for _ in range(21):
        rest.append(timed(again)[1])
        time.sleep(0.1)  # kernels that are compiled meanwhile may become ready between any two
    results.put([*times, rest[0], max(rest[1:])])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="also torch.compile(flex_attention)")
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("fork")  # torch is imported once, without a context
    rows = []
    kinds = [("tilewright", "empty"), ("tilewright", "disk")]
    if arguments.peer:
        kinds.append(("torch", "empty"))
    for case in CASES:
        for gradient in (False, True):
            times = {kind: [] for kind in kinds}
            for _ in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    for library, cache in kinds:
                        results = context.SimpleQueue()
                        process = context.Process(
                            target=measure, args=(library, case, gradient, folder, results)
                        )
                        process.start()
                        process.join()
                        if process.exitcode:
                            raise SystemExit(f"{library}, {case}: exit code {process.exitcode}")
                        times[library, cache].append(results.get())
            for (library, cache), of_rounds in times.items():
                median = [statistics.median(column) for column in zip(*of_rounds, strict=True)]
                names = ["mods and masks", "forward", *(["backward"] if gradient else [])]
                names += ["second", "longest of 20"]
                row = dict(zip(names, median, strict=True))
                rows.append({"case": case, "impl": library, "cache": cache, **row})
                text = "  ".join(f"{name} {value:.1f}" for name, value in row.items())
                what = "with gradient" if gradient else "forward"
                print(f"{case:<10} {what:<13} {library:<10} {cache:<6} {text}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
