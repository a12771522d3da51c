"""Every operation that a mod may contain, against torch on every pair, with gradients."""

import random

import dense_torch as dense
import numpy as np
import pytest
import torch

import tilewright.torch as twt
from tilewright.torch import _rules

F = torch.nn.functional
TABLE = torch.linspace(-2, 2, 4 * 6).reshape(4, 6).double()
IDS = torch.tensor([3, -1, 0, 2, -4, 1, 1, 5, -6, 2, 0, 7])
FLAGS = torch.tensor([True, False, False, True, True, False])
LAYER = torch.nn.Linear(6, 2, dtype=torch.float64).requires_grad_(False)
CONJUGATE = torch.polar(torch.ones(13).double(), torch.linspace(0, 3, 13).double()).conj()
NEGATIVE = CONJUGATE.imag

# What a mod adds to its score; finite for scores of any size.
SCORES = {
    "arithmetic": lambda s, b, h, q, kv: s * 2 + 3 - s / 4 + (1 - s) * -0.5 + 2 / (s * s + 1),
    "promotion": lambda s, b, h, q, kv: q / 3 + (q > kv) * 2 + s * (kv == 1) + 7 // (kv + 1),
    "division": lambda s, b, h, q, kv: (
        (q - kv) // 3 + (q - kv) % 3 + (kv - q) // -4 + (q - kv) % -5 + torch.fmod(q - kv, 3)
    ),
    "float division": lambda s, b, h, q, kv: (
        torch.div(q - kv, 4, rounding_mode="floor")
        + torch.div(q - kv, 4, rounding_mode="trunc")
        + torch.div(s, 0.7, rounding_mode="floor").detach()
        + torch.remainder(q - kv + 0.5, 2.25)
        + torch.fmod(q - kv + 0.5, 2.25)
    ),
    "functions": lambda s, b, h, q, kv: (
        torch.exp(s / 9) + torch.exp2(s / 9) + torch.log(s * s + 1) + torch.sqrt(s * s + 1)
        + torch.tanh(s) + torch.sin(s) + torch.cos(s) + torch.sigmoid(s) + torch.erf(s)
        + torch.expm1(s / 9) + torch.log1p(s * s) + torch.log2(s * s + 2) + torch.rsqrt(s * s + 1)
        + torch.log10(s * s + 2) + torch.erfc(s) + torch.special.erfc(s / 2)
        + torch.nextafter(s.detach(), torch.ones_like(s))
    ),
    "more functions": lambda s, b, h, q, kv: (
        torch.tan(s / 20) + torch.cosh(s / 9) + torch.sinh(s / 9) + s**3 / 99 + s.square()
        + (s * s + 1) ** 0.5 + 2.0 ** (s / 9) + torch.reciprocal(s * s + 1) + (-s).neg()
    ),
    "activations": lambda s, b, h, q, kv: (
        F.silu(s) + F.gelu(s) + F.gelu(s, approximate="tanh") + F.relu(s) + F.softplus(s)
        + F.leaky_relu(s) + F.elu(s) + F.hardtanh(s) + F.logsigmoid(s)
    ),
    "rounding": lambda s, b, h, q, kv: (
        torch.floor(q / 3 + 0.25) + torch.ceil(q / 3 + 0.25) + torch.round(kv / 2)
        + torch.trunc((q - kv) / 3 + 0.1) + torch.frac((q - kv) / 3 + 0.1) + torch.sign(q - kv)
        + torch.floor(q)
    ),
    "extremes": lambda s, b, h, q, kv: (
        torch.maximum(s, s * 0.5 + 1) + torch.minimum(s, -s) + s.clamp(-1, 1) + s.clamp(min=0.25)
        + torch.clamp(q - kv, max=3) + (q - kv).abs() + abs(s) + torch.clamp_min(s, 0.5)
    ),
    "bits": lambda s, b, h, q, kv: (
        (q & 3) + (q | 4) + (kv ^ q) + (q >> 1) + (kv << 2) + ((kv - q) >> 1) + ~kv
        + torch.bitwise_right_shift(q, 1) + torch.bitwise_left_shift(kv, 1)
    ),
    "choice": lambda s, b, h, q, kv: torch.where(
        (q >= kv) & ~(kv == 2) | (h == 1) ^ (b == 1), s, s.masked_fill(q < 4, -3.0) * 2
    ),
    "logic": lambda s, b, h, q, kv: torch.where(
        torch.logical_and(q, kv) | torch.logical_not(q == kv) & torch.logical_or(h, b)
        ^ torch.logical_xor(q, kv),
        s,
        1.0,
    ),
    "comparisons": lambda s, b, h, q, kv: (
        s * (kv <= q) + s * torch.isfinite(s) * torch.isposinf(s) + s * (q < 3) + s * (kv >= 3) + s * (q != kv) + s * (q > 1.5) + s * torch.ge(q, kv) + (kv == h)
    ),
    "constants": lambda s, b, h, q, kv: (
        s + s.new_ones(()) + q.new_zeros((), dtype=torch.float64) + torch.tensor(3) + torch.pi
        + torch.full((), 0.5) + torch.ones_like(s) + torch.zeros_like(s) + torch.scalar_tensor(2.0) + s.new_full((), 4)
        + torch.arange(4).sum() + torch.tensor([1.0, 2.0, 4.0])[1] + torch.zeros(3).sum()
    ),
    "casts": lambda s, b, h, q, kv: (
        q.to(s.dtype) * s + kv.float() + s.to(torch.float64) + q.bool().int() + (kv > 1).long()
        + s.type_as(s) + q.clone() + s.double()
    ),
    "in place": lambda s, b, h, q, kv: s.clone().add_(1).mul_(2).sub_(q).clamp_(max=50),
    "infinities": lambda s, b, h, q, kv: torch.where(
        torch.isinf(s) | torch.isneginf(s) | torch.isnan(s) | ~torch.isfinite(s), 0.0, s
    ),
    "captures": lambda s, b, h, q, kv: (
        TABLE[h, q % 6] + TABLE[h][kv % 6] * s + TABLE[-1, kv % 6] + TABLE[:, q % 6][h]
        + TABLE[h, ...][2] + TABLE[None, h, 1][0]
    ),
    "negative indices": lambda s, b, h, q, kv: (
        s * TABLE[h, (q - kv) % 6 - 6] + TABLE[-1 - h, -1] + TABLE[IDS[q % 6] % 4 - 4, 0]
    ),
    "whole arrays": lambda s, b, h, q, kv: (
        torch.sigmoid(TABLE)[h, 1] + TABLE.permute(1, 0)[q % 6, h] + TABLE.unbind(1)[2][h]
        + TABLE.unsqueeze(0)[0, h, 3] + TABLE.sum(1)[h] + (TABLE @ TABLE.T)[h, kv % 4]
        + TABLE.view(-1)[q % 24] + TABLE.cumsum(0)[h, 2] + TABLE.mean() + TABLE.T[kv % 6, h]
    ),
    "rows": lambda s, b, h, q, kv: (
        (TABLE[h] * TABLE[kv % 4]).sum() + torch.dot(TABLE[h], TABLE[q % 4]) + TABLE[h].amax()
        + TABLE[h].mean() + TABLE[h, 1:4].prod() + TABLE[h].amin(-1) + TABLE[h].cumsum(0)[3]
        + torch.cat([TABLE[h], TABLE[b]]).sum() + torch.stack([s, s * 2]).sum() + TABLE[h][::2].sum()
        + TABLE[h].flip(0)[0] + TABLE[h].unsqueeze(1).squeeze(-1)[2] + TABLE[h].split(3)[1][0]
    ),
    "shapes of rows": lambda s, b, h, q, kv: (
        TABLE[h].unbind(0)[1] + TABLE[torch.arange(4), kv % 6].view(2, 2).permute(1, 0)[0, 1]
        + TABLE[h].view(2, 3).transpose(0, 1)[1].sum() + TABLE[h].expand(2, 6)[1, 0]
        + TABLE[h].view(2, 3).select(0, 1).t().sum() + (TABLE[h] + s).amax()
    ),
    "rows of conditions": lambda s, b, h, q, kv: torch.where(
        (TABLE[h] > TABLE[b]).any() | (TABLE[h] >= -9).all(-1), s, -s
    ),
    "rows of indices": lambda s, b, h, q, kv: (
        TABLE[h, torch.arange(3)].sum() + TABLE[h].gather(0, (kv % 6).reshape(1))[0]
        + TABLE[torch.arange(4), q % 6].sum() + TABLE.index_select(0, h.reshape(1))[0, 2]
        + F.embedding(h, TABLE)[1]
    ),
    "products of rows": lambda s, b, h, q, kv: (
        torch.einsum("d,d->", TABLE[h], TABLE[q % 4]) + (TABLE[h][:4] @ TABLE)[kv % 6]
        + (TABLE @ TABLE[h])[1] + torch.linalg.vector_norm(TABLE[h] - TABLE[q % 4] + 9)
        + LAYER(torch.stack([q, kv, q - kv, kv * 0, h, b]).to(s.dtype)).tanh().sum()
        + torch.addmv(TABLE[:, 0], TABLE, TABLE[h], beta=2, alpha=0.5)[b]
        + torch.baddbmm(TABLE[None, h, :4, None], TABLE[None], TABLE[None, h, :, None])[0, 1, 0]
    ),
    "sorted captures": lambda s, b, h, q, kv: (
        s + TABLE.flatten().sort(descending=True)[0][q] + TABLE.topk(2, 1)[0][h, 1]
    ),
    "writes to copies": lambda s, b, h, q, kv: (
        s + TABLE.clone().add_(1)[h, 0] + TABLE[h].mul_(2)[kv % 6] + TABLE.float().neg_()[0, q % 6]
    ),
    "views of complex captures": lambda s, b, h, q, kv: (
        s + CONJUGATE.imag[q] + CONJUGATE.conj().real[kv] + NEGATIVE[kv]
    ),
    "bool tables": lambda s, b, h, q, kv: torch.where(FLAGS[q % 6] | FLAGS[-1 - kv % 6], s, -1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SCORES)
def test_operations(name):
    mod = SCORES[name]
    query, key, value = (dense.normal(2, 4, n, 8) for n in (13, 11, 11))
    out = twt.flex_attention(query, key, value, mod)
    want, _, _ = dense.attention(query, key, value, mod)
    # Positions divided by numbers are float32 in torch, but have the score's dtype here.
    dense.close(out, want, 3e-6)
    have, want = (dense.gradients([x], [query, key, value]) for x in (out, want))
    for x, y in zip(have, want, strict=True):
        dense.close(x, torch.zeros_like(x) if y is None else y, 3e-5)


def test_every_rule_is_met(monkeypatch):
    """The cases above include every rule of the table."""
    met = set()

    class Watched(dict):
        def get(self, name, default=None):
            met.add(name)
            return super().get(name, default)

    monkeypatch.setattr(_rules, "RULES", Watched(_rules.RULES))
    from tilewright.torch import _mods

    for mod in [*SCORES.values(), *OWN_RULES.values()]:
        _mods.record("test", "mod", mod, False, None, torch.float64)
    same = {"__and__", "__or__", "__xor__", "__lshift__", "_reshape_alias", "_unsafe_view", "copy"}
    same |= {"true_divide", "fix", "shift_left", "shift_right_arithmetic", "_unsafe_index", "clip"}
    same |= {"fmax", "fmin", "sgn", "vdot", "clamp_max", "positive", "_conj", "resolve_conj"}
    same |= {"resolve_neg", "view_of", "contiguous", "to", "flatten", "reshape", "take_along_dim"}
    same |= {"_index_put_impl", "_unsafe_index_put", "chunk", "new_empty", "empty_like", "zero"}
    same |= {"new_empty_strided", "full_like", "fill", "alias", "is_nonzero", "item", "lift_fresh"}
    same |= {
        "isfinite",
        "square",
        "split_with_sizes",
        "broadcast_to",
        "_local_scalar_dense",
        "mv",
        "mm",
        "rsub",
        "copy_",
    }
    missed = {
        name
        for name in _rules.RULES
        if name.startswith("aten::") and name not in met and name.removeprefix("aten::") not in same
    }
    assert missed <= UNUSED, " ".join(sorted(missed - UNUSED))


# Rules that need no case: aliases that this version of torch does not dispatch to.
UNUSED = {"aten::t", "aten::max", "aten::min", "aten::isposinf", "aten::bitwise_left_shift"}
UNUSED |= {"aten::cbrt"}  # only in prims


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


SLOPES = torch.linspace(0.5, 1.5, 4).double().requires_grad_()
WIDE = torch.linspace(-1, 1, 24).reshape(4, 6).double().requires_grad_()
PERCEPTRON = torch.nn.Sequential(
    torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
).double()


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


@pytest.mark.parametrize("rule", [lambda x: x * 0.5, Halved.apply])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_narrow_captures_are_rounded_once(rule, dtype):
    q, k, v, dout = (dense.normal(1, 1, 200, 8).float() for _ in range(4))
    given = torch.linspace(0.5, 1.5, 4).to(dtype)
    for at in (lambda q, kv: (q + kv) % 4, lambda q, kv: q // 50):

        def gradient(table, at=at):
            table = table.clone().requires_grad_()
            out = twt.flex_attention(
                *(q, k, v),
                lambda s, b, h, q, kv: s * rule(table[at(q, kv)].float()),
            )
            (out * dout).sum().backward()
            return table.grad

        assert torch.equal(gradient(given), gradient(given.float()).to(dtype))


OWN_RULES = {
    "function": lambda s, b, h, q, kv: Tripled.apply(s) + q,
    "of a capture": lambda s, b, h, q, kv: Tripled.apply(s * SLOPES[h]) + WIDE[h, kv % 6],
    "detach": lambda s, b, h, q, kv: s * s.detach() + SLOPES[h].detach() * s + SLOPES[-1 - h],
    "rows": lambda s, b, h, q, kv: Tripled.apply((WIDE[h] * SLOPES[h]).sum())
    + s * WIDE[h, 2:4].sum(),
    "views": lambda s, b, h, q, kv: (
        Tripled.apply(WIDE[h])[1]
        + WIDE[h][2:5].sum() * s
        + WIDE[h][0]
        + WIDE[h].view(2, 3)[1].amax()
    ),
    "layers": lambda s, b, h, q, kv: (
        Tripled.apply(s) + PERCEPTRON(torch.stack([s, (q - kv).to(s.dtype)])).squeeze(-1)
    ),
    "of an operation": lambda s, b, h, q, kv: Tripled.apply(torch.sigmoid(WIDE)[h, q % 6]) * s,
}


@pytest.mark.parametrize("name", OWN_RULES)
def test_custom_derivatives(name):
    mod = OWN_RULES[name]
    query, key, value = (dense.normal(2, 4, n, 8) for n in (13, 11, 11))
    inputs = [query, key, value, SLOPES, WIDE, *PERCEPTRON.parameters()]
    out = twt.flex_attention(query, key, value, mod)
    want = _dense_with_own_rules(query, key, value, mod)
    dense.close(out, want)
    have = dense.gradients([out], inputs)
    wanted = dense.gradients([want], inputs)
    for x, y in zip(have, wanted, strict=True):
        assert (x is None or not x.any()) if y is None or not y.any() else True
        if y is not None and x is not None:
            dense.close(x, y)


def _dense_with_own_rules(query, key, value, mod):
    """The definition, pair by pair: custom functions do not support vmap."""
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    index = [torch.tensor(i) for i in range(20)]
    modified = torch.stack(
        [
            mod(scores[b, h, q, kv], index[b], index[h], index[q], index[kv])
            for b in range(scores.shape[0])
            for h in range(scores.shape[1])
            for q in range(scores.shape[2])
            for kv in range(scores.shape[3])
        ]
    ).reshape(scores.shape)
    return torch.softmax(modified, -1) @ value


class _Nothing:
    pass


DRAWS = random.Random(3)

REFUSED = {
    "a branch": (lambda s, b, h, q, kv: s if q > kv else -s, TypeError, "torch.where"),
    "an integer": (lambda s, b, h, q, kv: s + int(q), TypeError, "torch.where"),
    "a loop": (lambda s, b, h, q, kv: s + sum(1 for _ in range(q)), TypeError, "torch.where"),
    "iteration": (lambda s, b, h, q, kv: sum(s), TypeError, "elements"),
    "a number": (lambda s, b, h, q, kv: s + q.item(), TypeError, "torch.where"),
    "random": (lambda s, b, h, q, kv: s + torch.rand(()), NotImplementedError, "dropout="),
    "dropout": (lambda s, b, h, q, kv: F.dropout(s), NotImplementedError, "dropout="),
    "sort": (lambda s, b, h, q, kv: s + TABLE[h].sort()[0][0], NotImplementedError, "sort"),
    "a value of a capture": (lambda s, b, h, q, kv: s + TABLE[0, 0].item(), TypeError, "number"),
    "a value of all": (lambda s, b, h, q, kv: s + WIDE.sum().item(), TypeError, "number"),
    "values of a capture": (lambda s, b, h, q, kv: s + SLOPES.tolist()[0], TypeError, "number"),
    "writes": (lambda s, b, h, q, kv: TABLE.add_(1)[h, 0] + s, NotImplementedError, "captured"),
    "sets": (lambda s, b, h, q, kv: TABLE.__setitem__(0, 1.0), NotImplementedError, "torch.where"),
    "outside": (lambda s, b, h, q, kv: s + TABLE[h, 6], IndexError, "out of bounds"),
    "too many": (lambda s, b, h, q, kv: s + TABLE[h, q, kv], IndexError, "at most 2"),
    "writes to views": (
        lambda s, b, h, q, kv: TABLE[0].add_(1)[0] + s,
        NotImplementedError,
        "captured",
    ),
    "writes to data": (
        lambda s, b, h, q, kv: TABLE.data.mul_(2)[0, 0] + s,
        NotImplementedError,
        "captured",
    ),
    "writes to out": (
        lambda s, b, h, q, kv: torch.add(TABLE, 1, out=TABLE)[0, 0] + s,
        NotImplementedError,
        "captured",
    ),
    "shapes in place": (
        lambda s, b, h, q, kv: TABLE[h].unsqueeze_(0)[0, 0] + s,
        NotImplementedError,
        "shapes",
    ),
    "draws": (
        lambda s, b, h, q, kv: s + TABLE.exp().multinomial(1)[h, 0],
        NotImplementedError,
        "dropout=",
    ),
    "Python's random": (lambda s, b, h, q, kv: s + random.random(), NotImplementedError, "random"),
    "NumPy's random": (lambda s, b, h, q, kv: s + np.random.rand(), NotImplementedError, "random"),
    "a generator": (lambda s, b, h, q, kv: s + DRAWS.random(), NotImplementedError, "random"),
    "where": (lambda s, b, h, q, kv: s + TABLE[TABLE > 0][0], NotImplementedError, "score_mod"),
    "narrow neighbours": (
        lambda s, b, h, q, kv: s + torch.nextafter(s.bfloat16(), s.bfloat16() + 1),
        NotImplementedError,
        "nextafter of float32 or float64",
    ),
    "complex": (lambda s, b, h, q, kv: s * 1j, NotImplementedError, "complex"),
    "a bool": (lambda s, b, h, q, kv: q > kv, ValueError, "a number"),
    "a row": (lambda s, b, h, q, kv: s + TABLE[h], ValueError, "shape"),
    "nothing": (lambda s, b, h, q, kv: None, ValueError, "NoneType"),
    "text": (lambda s, b, h, q, kv: "s", ValueError, "str"),
    "two arguments": (lambda s, b: s, TypeError, "score, b, h, q_idx, kv_idx"),
    "no function": (3, TypeError, "int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    mod, error, text = REFUSED[name]
    query = dense.normal(1, 4, 5, 8)
    with pytest.raises(error, match=text) as caught:
        twt.flex_attention(query, query, query, mod)
    assert "score_mod" in str(caught.value)


def test_the_line_of_an_operation_is_named():
    def mod(s, b, h, q, kv):
        return s + torch.rand(())

    query = dense.normal(1, 1, 5, 8)
    with pytest.raises(NotImplementedError, match=r"test_rules.py:\d+"):
        twt.flex_attention(query, query, query, mod)


def test_a_mask_returns_bools():
    query = dense.normal(1, 1, 5, 8)
    with pytest.raises(ValueError, match="a bool scalar"):
        twt.flex_attention(query, query, query, mask_mod=lambda b, h, q, kv: q - kv)
    with pytest.raises(ValueError, match="a bool scalar"):
        twt.create_block_mask(lambda b, h, q, kv: q - kv, 1, 1, 5, 5, device="cpu")


def test_long_rows_are_refused():
    table = torch.zeros(4, 5000)
    query = dense.normal(1, 4, 5, 8)
    with pytest.raises(NotImplementedError, match="4096"):
        twt.flex_attention(query, query, query, lambda s, b, h, q, kv: s + table[h].sum())
    out = twt.flex_attention(query, query, query, lambda s, b, h, q, kv: s + table[h][kv])
    dense.close(out, dense.attention(query, query, query)[0])


def test_narrow_captures_are_read_as_they_are():
    table = torch.linspace(-3, 3, 40).bfloat16()
    query, key, value = (dense.normal(1, 2, n, 8, dtype=torch.float32) for n in (9, 12, 12))

    def mod(s, b, h, q, kv):
        return s + table[q - kv].to(s.dtype) * torch.exp2(-(h + 1.0))

    want, _, _ = dense.attention(query, key, value, mod)
    dense.close(twt.flex_attention(query, key, value, mod), want, 1e-5)


def test_indices_outside_are_clamped():
    table = torch.arange(5.0, dtype=torch.float64)
    query, key, value = (dense.normal(1, 1, n, 8) for n in (6, 9, 9))

    def mod(s, b, h, q, kv):
        return s + table[kv - 2 * q]

    def inside(s, b, h, q, kv):
        i = kv - 2 * q
        return s + table[torch.clamp(torch.where(i < 0, i + 5, i), 0, 4)]

    want, _, _ = dense.attention(query, key, value, inside)
    dense.close(twt.flex_attention(query, key, value, mod), want)


def test_largest_integers_stay_what_they_are():
    """Padding is often the largest integer."""
    most = torch.iinfo(torch.int32).max
    ids = torch.tensor([0, 1, most, most], dtype=torch.int32)
    query = dense.normal(1, 1, 4, 8)

    def mask(b, h, q, kv):
        return (ids[kv] != most) & (ids[kv] < 2**30)

    want, _, _ = dense.attention(query, query, query, mask=mask)
    dense.close(twt.flex_attention(query, query, query, mask_mod=mask), want)
