"""Triton's fused-attention tutorial, with its test: `attention(q, k, v, causal, sm_scale)`.

Runs on the CPU, or on a GPU with `--device cuda`; `--bench` prints forward and backward times
beside those of torch.nn.functional.scaled_dot_product_attention.
"""

import argparse

import torch
from torch.utils import benchmark

import tilewright.torch as twt


def reference(q, k, v, causal, sm_scale):
    """The definition in torch operations."""
    p = torch.matmul(q, k.transpose(2, 3)) * sm_scale
    if causal:
        p = p.masked_fill(~torch.ones_like(p, dtype=torch.bool).tril(), float("-inf"))
    return torch.matmul(torch.softmax(p.float(), dim=-1).to(v.dtype), v)


def test_op(batch, heads, length, head_dim, causal, dtype, device):
    torch.manual_seed(20)
    q, k, v = (
        torch.empty((batch, heads, length, head_dim), dtype=dtype, device=device)
        .normal_(mean=0.0, std=0.5)
        .requires_grad_()
        for _ in range(3)
    )
    dout = torch.randn_like(q)
    want = reference(q.double(), k.double(), v.double(), causal, 0.5)
    want_gradients = torch.autograd.grad(want, (q, k, v), dout.double())
    plain = reference(q, k, v, causal, 0.5)
    plain_gradients = torch.autograd.grad(plain, (q, k, v), dout)
    have = twt.attention(q, k, v, causal, 0.5)
    have_gradients = torch.autograd.grad(have, (q, k, v), dout)
    # At most twice as far from the exact result as torch's operations in the same type.
    for x, y, exact in zip(
        (have, *have_gradients), (plain, *plain_gradients), (want, *want_gradients), strict=True
    ):
        error, bound = ((z.double() - exact.double()).abs().max() for z in (x, y))
        least = torch.finfo(dtype).eps * exact.abs().max()
        assert error <= 2 * bound + least, (error, bound)


def bench(device, dtype):
    shape = (1, 8, 2048, 64) if device == "cpu" else (4, 32, 4096, 64)
    print(f"{shape} {dtype}, {device}: milliseconds, forward / backward")
    for causal in (False, True):
        tensors = [torch.randn(shape, dtype=dtype, device=device).requires_grad_() for _ in "qkv"]
        functions = {
            "tilewright": lambda q, k, v, c=causal: twt.attention(q, k, v, c, 0.125),
            "torch SDPA": lambda q, k, v, c=causal: (
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c, scale=0.125)
            ),
        }
        for name, function in functions.items():
            out = function(*tensors)
            dout = torch.randn_like(out)
            forward = benchmark.Timer("f(*x)", globals={"f": function, "x": tensors})
            backward = benchmark.Timer(
                "g(out, x, dout, retain_graph=True)",
                globals={"g": torch.autograd.grad, "out": out, "x": tensors, "dout": dout},
            )
            times = [
                t.blocked_autorange(min_run_time=0.5).median * 1e3 for t in (forward, backward)
            ]
            print(f"causal={causal!s:5} {name:10} {times[0]:8.2f} / {times[1]:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bench", action="store_true")
    arguments = parser.parse_args()
    half = torch.float16 if arguments.device == "cuda" else torch.float32
    for causal in (False, True):
        for length in (128, 1000):
            test_op(1, 2, length, 64, causal, half, arguments.device)
    print("attention agrees with its definition, forward and backward")
    if arguments.bench:
        bench(arguments.device, half)


if __name__ == "__main__":
    main()
