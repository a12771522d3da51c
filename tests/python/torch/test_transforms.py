"""torch.func, autocast, anomaly mode, second derivatives, deterministic algorithms."""

import threading

import dense_torch as dense
import pytest
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import tilewright.torch as twt
from tilewright.torch import _batching, _environment


def total(attention):
    return lambda *x: attention(*x).sin().sum()


@pytest.mark.parametrize("batch", [(4, 2), (3,)])
def test_vmap_and_grad(batch):
    query, key, value = (
        torch.randn(*batch, 2, 3, 9, 8, dtype=torch.float64)[..., :, :, :, :] for _ in range(3)
    )
    ours = total(lambda q, k, v: twt.flex_attention(q, k, v, causal=True))
    theirs = total(lambda q, k, v: dense.attention(q, k, v, mask=dense_causal)[0])

    def mapped(function):
        for _ in batch:
            function = vmap(function)
        return function(query, key, value)

    dense.close(mapped(ours), mapped(theirs))
    for have, want in zip(
        mapped(grad(ours, argnums=(0, 1, 2))), mapped(grad(theirs, argnums=(0, 1, 2))), strict=True
    ):
        dense.close(have, want)


dense_causal = torch.ones(9, 9, dtype=torch.bool).tril()


def test_second_derivatives_and_forward_mode_are_refused():
    query, key, value = (dense.normal(1, 1, 4, 4) for _ in range(3))
    (gradient,) = torch.autograd.grad(
        twt.flex_attention(query, key, value).sum(), query, create_graph=True
    )
    assert gradient.requires_grad
    with pytest.raises(NotImplementedError, match="second"):
        gradient.pow(2).sum().backward()
    causal = twt.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 4, 4, device="cpu")
    table = dense.normal(4)
    out = twt.flex_attention(
        query, key, value, lambda s, b, h, q, kv: s + table[kv], block_mask=causal
    )
    inputs = query, value, table
    wants = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    gradients = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    for gradient, want in zip(gradients, wants, strict=True):
        assert torch.equal(gradient, want)
        with pytest.raises(NotImplementedError, match="second"):
            gradient.sum().backward(retain_graph=True)
    (gradient,) = torch.autograd.grad(
        twt.flex_attention(query, key, value, return_aux=twt.AuxRequest(lse=True))[1].lse.sum(),
        *(query,),
        create_graph=True,
    )
    with pytest.raises(NotImplementedError, match="second"):
        gradient.pow(2).sum().backward()
    from torch.autograd import forward_ad

    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
        twt.flex_attention(forward_ad.make_dual(query, query), key, value)
    plain = [x.detach() for x in (query, key, value)]
    for _ in range(2):  # a call like an earlier one
        twt.flex_attention(*plain)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(plain[0], plain[0])
        with torch.no_grad(), pytest.raises(NotImplementedError, match="forward"):
            twt.flex_attention(dual, *plain[1:])
        with pytest.raises(NotImplementedError, match="forward"):
            twt.flex_attention(*plain, lambda s, b, h, q, kv: s + dual[b, h, q, 0])
        assert torch.equal(twt.flex_attention(*plain), twt.flex_attention(*plain, causal=False))
    with pytest.raises(NotImplementedError, match="forward"):
        torch.func.jvp(
            lambda q: twt.flex_attention(q, key.detach(), value.detach()),
            (query.detach(),),
            (query.detach(),),
        )


def test_autocast():
    query, key, value = (dense.normal(1, 2, 16, 8, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = twt.flex_attention(query, key, value)
        compiled = torch.compile(twt.flex_attention, backend="aot_eager", fullgraph=True)
        again = compiled(query, key, value)
    assert out.dtype == again.dtype == torch.bfloat16
    assert torch.equal(out, again)
    out.sum().backward()
    assert query.grad.dtype == torch.float32
    wide = query.detach().double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert twt.flex_attention(wide, wide, wide).dtype == torch.float64


def check_scaled_steps(given):
    """Training with autocast to float16 and a GradScaler on a device against dense float32 on the
    CPU; a step with an infinite gradient is left out."""

    def causal(b, h, q, kv):
        return q >= kv

    def train(half):
        device = given if half else "cpu"
        torch.manual_seed(0)
        project = torch.nn.Linear(16, 48).to(device)
        slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25], device=device))
        scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=half)
        optimizer = torch.optim.SGD([*project.parameters(), slopes], lr=0.1)
        scales = []

        def score(s, b, h, q, kv):
            return s + slopes[h] * (kv - q)

        for step in range(3):
            x = torch.randn(2, 24, 16).to(device)
            with torch.autocast(device, torch.float16, enabled=half):
                query, key, value = project(x).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
                if half:
                    out = twt.flex_attention(query, key, value, score, causal=True)
                    assert out.dtype == torch.float16
                else:
                    out = dense.attention(query, key, value, score, mask=causal)[0]
            loss = out.float().square().mean() * (float("inf") if half and step == 1 else 1)
            if half or step != 1:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return [x.detach() for x in (*project.parameters(), slopes)], scales

    have, scales = train(True)
    want, _ = train(False)
    assert scales == [256.0, 128.0, 128.0]
    for ours, exact in zip(have, want, strict=True):
        torch.testing.assert_close(ours.cpu(), exact, rtol=0, atol=1e-3)


def test_mixed_precision_training():
    check_scaled_steps("cpu")


def test_anomaly_mode_and_hooks():
    query, key, value = (dense.normal(1, 2, 6, 8) for _ in range(3))
    seen = []
    query.register_hook(lambda g: seen.append(g.shape))
    with torch.autograd.detect_anomaly(check_nan=True):
        twt.flex_attention(query, key, value, mask_mod=lambda b, h, q, kv: kv > q).sum().backward()
    assert seen == [query.shape]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_of_mods_that_are_not_recorded_yet(use_reentrant):
    """The second forward pass of a checkpoint saves what the first one did."""
    query, key, value = (dense.normal(1, 2, 6, 8) for _ in range(3))
    table = dense.normal(2)

    def score(s, b, h, q, kv):
        return s * torch.sigmoid(table)[h] + torch.tensor([0.5, 1.0])[h] * (q - kv)

    _environment.clear()
    out = checkpoint(
        lambda *x: twt.flex_attention(*x, score), query, key, value, use_reentrant=use_reentrant
    )
    out.sin().sum().backward()
    have = [x.grad for x in (query, key, value, table)]
    want = dense.attention(query, key, value, score)[0].sin().sum()
    for x, y in zip(have, torch.autograd.grad(want, (query, key, value, table)), strict=True):
        dense.close(x, y)


def test_deterministic_algorithms():
    query, key, value = (dense.normal(1, 2, 6, 8) for _ in range(3))
    options = {"kernel_options": {"deterministic": False}}

    def flag(**options):
        aux = twt.AuxRequest(lse=True)  # by the autograd Function, which shows its site
        out, _ = twt.flex_attention(query, key, value, return_aux=aux, **options)
        return out.grad_fn.call[0].spec.deterministic

    assert not flag(**options)
    torch.use_deterministic_algorithms(True)
    try:
        assert flag(**options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert flag()


def test_gradcheck():
    query, key, value = (dense.normal(1, 2, n, 4) for n in (5, 6, 6))
    table = dense.normal(2, 12)

    def function(q, k, v, t):
        return twt.flex_attention(
            q,
            k,
            v,
            lambda s, b, h, i, j: torch.tanh(s) + t[h, i - j + 6],
            causal=True,
            return_aux=twt.AuxRequest(lse=True),
        )

    assert torch.autograd.gradcheck(
        lambda *x: (function(*x)[0], function(*x)[1].lse), (query, key, value, table)
    )


@pytest.mark.parametrize("through_lse", [False, True])
def test_batched_gradients(through_lse):
    query, key, value = (x.requires_grad_() for x in torch.randn(3, 1, 2, 6, 4))
    table = torch.randn(2, requires_grad=True)

    def attention(*inputs):
        out, lse = twt.flex_attention(*inputs, lambda s, b, h, q, kv: s + table[h], return_lse=True)
        return (out.sum(-1) + lse * through_lse).flatten()

    whole = torch.autograd.functional.jacobian(attention, (query, key, value), vectorize=True)
    each = torch.autograd.functional.jacobian(attention, (query, key, value))
    for have, want in zip(whole, each, strict=True):
        torch.testing.assert_close(have, want)


def test_batched_gradients_of_another_thread():
    """The engine computes gradients of GPU tensors in threads where vmap's level is not known."""
    results = []

    def function(dout):
        thread = threading.Thread(
            target=lambda: results.append(_batching.legacy(lambda d: (d * 2, None), dout))
        )
        thread.start()
        thread.join()
        return results[0][0]

    rows = torch.randn(3, 4)
    torch.testing.assert_close(torch._vmap_internals._vmap(function, 0, 0)(rows), rows * 2)
    assert results[0][1] is None


def test_batched_gradients_of_nested_maps():
    nest = torch._vmap_internals._vmap
    rows = torch.randn(3, 2, 4)

    def again(dout, other):
        if _batching.is_legacy(dout) or _batching.is_legacy(other):
            return _batching.legacy(again, dout, other)
        assert dout.shape == (4,)
        return (dout * other,)

    function = nest(nest(lambda x, y: again(x, y)[0], (0, None), 0), (0, 0), 0)
    torch.testing.assert_close(function(rows, rows[:, 0]), rows * rows[:, :1])
