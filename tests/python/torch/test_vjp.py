"""Kernels whose derivatives are kernels with `tw.vjp`, under PyTorch's autograd."""

import numpy as np
import torch

import tilewright as tw


def then(f, g):
    return f[0] * g[0], f[1] * g[0] + g[1]


def recurrence(a, b):
    return tw.associative_scan(then, (a, b), axis=1)[1]


@tw.kernel
def forward(a, b, h):
    h[...] = recurrence(a[...], b[...])


@tw.kernel
def backward(a, b, dh, da, db):
    _, pullback = tw.vjp(recurrence, a[...], b[...])
    da[...], db[...] = pullback(dh[...])


def call(kernel, count, dtype):
    def types(a, *_):
        return (
            (tw.ShapeDtype(a.shape, dtype),) * count if count > 1 else tw.ShapeDtype(a.shape, dtype)
        )

    return tw.call(kernel, out_shape=types)


def function_of(dtype):
    value, gradient = call(forward, 1, dtype), call(backward, 2, dtype)

    class Recurrence(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return value(a, b)

        @staticmethod
        def backward(ctx, dh):
            return gradient(*ctx.saved_tensors, dh)

    return Recurrence.apply


def test_gradients_agree_with_differences():
    torch.manual_seed(0)
    a, b = torch.rand(2, 3, 11, dtype=torch.float64).unbind()
    apply = function_of(np.float64)
    assert torch.autograd.gradcheck(apply, (a.requires_grad_(), b.requires_grad_()))


def test_gradients_agree_with_a_loop():
    torch.manual_seed(0)
    a, b = (x.requires_grad_() for x in torch.rand(2, 5, 77).unbind())
    (function_of(np.float32)(a, b).sin()).sum().backward()
    ours = a.grad, b.grad
    a.grad = b.grad = None
    state, loss = 0, 0
    for t in range(a.shape[1]):
        state = a[:, t] * state + b[:, t]
        loss = loss + state.sin().sum()
    loss.backward()
    # The loop's first factor meets a state of 0.
    for x, y in zip(ours, (a.grad, b.grad), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
