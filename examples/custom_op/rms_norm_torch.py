"""The operation of rms_norm.py in PyTorch: autograd, torch.compile, vmap, DTensors.

python rms_norm_torch.py librms_norm_cpu.so
torchrun --nproc-per-node 2 rms_norm_torch.py librms_norm_cpu.so     # and sharded
"""

import os
import sys

import torch

import tilewright.torch  # noqa: F401, before compiling code that calls the kernel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rms_norm import make_rms_norm, reference, reference_gradients

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def error(have, want):
    """The largest error of all tensors, relative to the exact ones."""
    off = 0
    for a, b in zip(have, want, strict=True):
        b = torch.as_tensor(b)
        off = max(off, ((a.detach().cpu().double() - b).abs().max() / b.abs().max()).item())
    return off


def exact(x, weight, dy):
    x, weight, dy = (a.detach().cpu().double().numpy() for a in (x, weight, dy))
    return reference(x, weight, 1e-3)[0], *reference_gradients(dy, x, weight, 1e-3)


def main(library):
    op = make_rms_norm(library)

    def norm(x, weight):
        return op(x, weight, eps=1e-3)[0]  # without rstd, which only the backward pass needs

    def step(norm, x, weight, dy):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = norm(x, weight)
        return y, *torch.autograd.grad(y, (x, weight), dy)

    torch.manual_seed(0)
    x, dy = torch.randn(2, 64, 256, dtype=torch.float64, device=DEVICE)
    weight = 1 + 0.1 * torch.randn(256, dtype=torch.float64, device=DEVICE)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for dtype, bound in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 2e-2),
        (torch.float16, 3e-3),
    ):
        given = [a.to(dtype) for a in (x, weight, dy)]
        for how, function in (("eager", norm), ("compiled", compiled)):
            off = error(step(function, *given), exact(*given))
            print(f"{dtype}, {how}: relative error {off:.1e}")
            assert off < bound

    xs = torch.stack([x, 2 * x, -x])
    mapped = torch.func.vmap(norm, in_dims=(0, None))(xs, weight)
    assert all(error([mapped[i]], exact(xs[i], weight, dy)[:1]) < 1e-12 for i in range(3))
    print("vmap: agrees")
    if "RANK" in os.environ:
        sharded(norm, x, weight, dy)


def sharded(norm, x, weight, dy):
    """Rows split over ranks: nothing is gathered; one all-reduce gives the weight's gradient."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    rows = [distribute_tensor(a, mesh, [Shard(0)]) for a in (x, dy)]
    x_rows, w = rows[0].requires_grad_(), distribute_tensor(weight, mesh, [Replicate()])
    w.requires_grad_()
    with CommDebugMode() as communication:
        y = norm(x_rows, w)
        dx, dweight = torch.autograd.grad(y, (x_rows, w), rows[1])
    assert communication.get_total_counts() == 0, communication.get_comm_counts()
    assert y.placements == (Shard(0),) and dweight.placements[0].is_partial()
    have = [a.full_tensor() for a in (y, dx, dweight)]
    assert error(have, exact(x, weight, dy)) < 1e-12
    print(f"{dist.get_world_size()} ranks: agree, and the forward and backward pass gather nothing")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./librms_norm_cpu.so")
