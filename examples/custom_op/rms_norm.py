"""RMSNorm in CUDA C++ as an operation: dtypes, an attribute, its derivative, the CPU.

    c++ -std=c++17 -O2 -shared -fPIC rms_norm_cpu.cpp -o librms_norm_cpu.so -I PREFIX/include
    python rms_norm.py librms_norm_cpu.so

`rms_norm_jax.py` and `rms_norm_torch.py` use the operation made here.
"""

import pathlib
import sys

import numpy as np

import tilewright as tw

SOURCE = pathlib.Path(__file__).with_name("rms_norm.cu")
PARTS = 64  # blocks that share the rows of the backward pass


def sum_dtype(x):
    return "f64" if x.dtype == "f64" else "f32"


def check(x, weight):
    if len(x.shape) != 2 or tuple(x.shape[1:]) != tuple(weight.shape):
        raise ValueError(
            f"[rms_norm] expected x (rows, columns) and weight (columns,) but got {x} and {weight}"
        )


# ---- The backward pass: two launches with a shared workspace.


def backward_types(dy, x, weight, rstd):
    check(x, weight)
    return tw.ShapeDtype(x.shape, x.dtype), tw.ShapeDtype(weight.shape, weight.dtype)


def backward_on_cpu(dy, x, weight, rstd):
    """A tile program whose grid axis over rows runs in order and adds to one dweight."""
    size = 8
    rows = tw.BlockSpec((size, x.shape[1]), lambda i: (i, 0))
    wide = sum_dtype(x)

    def kernel(dy, x, weight, rstd, dx, dweight, sums):
        xs, r = x[...].to(wide), rstd[...].to(wide)[:, None]
        dys = dy[...].to(wide)
        g = dys * weight[...].to(wide)
        mean = (xs * g).sum(1, keepdims=True) / x.shape[1]
        dx[...] = (r * (g - xs * r * r * mean)).to(dx.dtype)

        @tw.when(tw.program_id(0) == 0)
        def _():
            sums[...] = tw.zeros(sums.shape, wide)

        sums[...] = sums[...] + (dys * xs * r).sum(0)
        dweight[...] = sums[...].to(dweight.dtype)

    return tw.call(
        kernel,
        grid=tw.cdiv(x.shape[0], size),
        sequential=0,
        in_specs=[rows, rows, None, tw.BlockSpec(size, lambda i: i)],
        out_specs=[rows, None],
        out_shape=backward_types(dy, x, weight, rstd),
        scratch=tw.ShapeDtype(weight.shape, wide),
    )


rms_norm_backward = tw.cuda_kernel(
    SOURCE,
    "rms_norm_backward",
    inputs=("dy", "x", "weight", "rstd"),
    outputs=("dx", "dweight"),
    out_shape=backward_types,
    launches=[
        tw.Launch("rms_norm_backward", grid=PARTS, template=("x", "weight", "rstd")),
        tw.Launch(
            "rms_norm_weight",
            grid=lambda dy, x, weight, rstd: tw.cdiv(weight.shape[0], 256),
            template=("x", "weight", "rstd", "parts"),
        ),
    ],
    attributes={
        "parts": tw.Attribute("i32", lambda *_: PARTS),  # a template argument, not a parameter
        "rows": tw.Attribute("i64", lambda dy, x, weight, rstd: x.shape[0]),
        "columns": tw.Attribute("i64", lambda dy, x, weight, rstd: x.shape[1]),
    },
    workspace=lambda dy, x, weight, rstd: 8 * PARTS * x.shape[1],
    clear_workspace=True,
    cpu=backward_on_cpu,
    # The weight's gradient is a sum over rows: each device sums its own, then devices are summed.
    sharding_rule=("b n, b n, n, b -> b n, n", {"reduction_factors": ("b",)}),
)


# ---- The forward pass.


def forward_types(x, weight):
    check(x, weight)
    return tw.ShapeDtype(x.shape, weight.dtype), tw.ShapeDtype(x.shape[:1], sum_dtype(x))


def make_rms_norm(library):
    """rms_norm(x, weight, eps=1e-5) -> y, rstd; `library` is built from rms_norm_cpu.cpp."""
    return tw.cuda_kernel(
        SOURCE,
        "rms_norm",
        inputs=("x", "weight"),
        outputs=("y", "rstd"),
        out_shape=forward_types,
        grid=lambda x, weight: x.shape[0],
        block=256,
        template=("x", "weight", "rstd"),  # dtypes: T, W, A
        attributes={
            "columns": tw.Attribute("i64", lambda x, weight: x.shape[1]),
            "eps": tw.Attribute("f64", 1e-5),
        },
        cpu=tw.CpuFunction(library, "rms_norm"),
        vjp=rms_norm_backward,  # matched by names: takes dy, x, weight, rstd, returns dx, dweight
        sharding_rule="b n, n -> b n, b",
    )


def reference(x, weight, eps=1e-5):
    """y and rstd in float64."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    rstd = 1 / np.sqrt((x * x).mean(-1) + eps)
    return x * rstd[:, None] * weight, rstd


def reference_gradients(dy, x, weight, eps=1e-5):
    """dx and dweight in float64."""
    dy, x, weight = (np.asarray(a, np.float64) for a in (dy, x, weight))
    r = reference(x, weight, eps)[1][:, None]
    g = dy * weight
    return r * (g - x * r * r * (x * g).mean(-1, keepdims=True)), (dy * x * r).sum(0)


def main(library):
    rms_norm = make_rms_norm(library)
    random = np.random.default_rng(0)
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5), ("float16", 3e-3)):
        x, dy = random.standard_normal((2, 37, 100)).astype(dtype)
        weight = (1 + 0.1 * random.standard_normal(100)).astype(dtype)
        y, rstd = rms_norm(x, weight, eps=1e-3)
        gradients = rms_norm_backward(dy, x, weight, rstd)
        want = reference(x, weight, 1e-3)[0], *reference_gradients(dy, x, weight, 1e-3)
        error = max(
            np.abs(have - exact).max() / np.abs(exact).max()
            for have, exact in zip((y, *gradients), want, strict=True)
        )
        print(f"{dtype}: relative error {error:.1e}")
        assert error < bound


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./librms_norm_cpu.so")
