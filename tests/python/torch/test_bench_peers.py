"""bench/torch_baseline.py: what it times for `bench flex` agrees with PyTorch's flex_attention."""

import importlib
import math
import pathlib
import sys
import types

import pytest
import torch
from torch.nn.attention import flex_attention as flex

BENCH = pathlib.Path(__file__).parents[3] / "bench"
CASES = [
    "noop",
    "causal",
    "sliding_window",
    "soft_cap",
    "document",
    "alibi_table",
    "alibi_computed",
]


class Lanes:
    """A stand-in for CuTe's vectors, of one element."""

    def __init__(self, value):
        self.value = value

    def __getitem__(self, lane):
        return self.value

    def to(self, dtype):
        return Lanes(dtype(self.value))


def lanes(operation):
    def of(a, b):
        return Lanes(operation(*(x.value if isinstance(x, Lanes) else x for x in (a, b))))

    return of


for name, operation in {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "rmul": lambda a, b: b * a,
    "and": lambda a, b: a and b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
}.items():
    setattr(Lanes, f"__{name}__", lanes(operation))


def flash_attn_func(q, k, v, causal, window_size=(None, None), softcap=0.0, **mods):
    """Attention of (B, L, H, D) by its definition, pair by pair."""
    score_mod, mask_mod = mods.get("score_mod"), mods.get("mask_mod")
    arrays = mods.get("aux_tensors")
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        place = [Lanes(x) for x in (b, h, i, j)]
        if score_mod:
            scores[b, h, i, j] = score_mod(
                Lanes(scores[b, h, i, j].item()), *place, None, arrays
            ).value
        if (
            (causal and j > i)
            or (window_size[0] is not None and j < i - window_size[0])
            or (mask_mod and not mask_mod(*place, None, arrays).value)
        ):
            scores[b, h, i, j] = -math.inf
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v), None


@pytest.fixture
def baseline(monkeypatch):
    """The script, with stand-ins for FlashAttention and CuTe."""
    cute = types.ModuleType("cutlass.cute")
    cute.jit = lambda function: function
    cute.full_like = lambda like, value: Lanes(value.value if isinstance(value, Lanes) else value)
    cute.math = types.SimpleNamespace(exp2=lambda x: Lanes(2.0**x.value))
    cutlass = types.ModuleType("cutlass")
    cutlass.Float32, cutlass.cute = float, cute
    modules = {"cutlass": cutlass, "cutlass.cute": cute}
    for name in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        modules[name] = types.ModuleType(name)
        modules[name].flash_attn_func = flash_attn_func
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("torch_baseline")


def job_of(case, **more):
    return {
        "operation": "flex",
        "case": case,
        "device": "cpu",
        "batch": 1,
        "heads": 2,
        "kv_heads": 2,
        "q_len": 10,
        "kv_len": 10,
    } | more


def expected(baseline, job, q, k, v):
    score_mod, mask_mod = baseline.flex_mods(job)
    mask = mask_mod and flex.create_block_mask(mask_mod, None, None, 10, 10, "cpu", BLOCK_SIZE=8)
    return flex.flex_attention(q, k, v, score_mod=score_mod, block_mask=mask)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", ["fa3", "fa4"])
@pytest.mark.parametrize("case", CASES)
def test_flash_attention(baseline, case, version):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 10, 8)
    job = job_of(case, backend=version)
    if version == "fa3" and CASES.index(case) > CASES.index("soft_cap"):
        with pytest.raises(ValueError, match=f"fa3 has no case '{case}'"):
            baseline.flash_flex(job)
        return
    out = baseline.flash_flex(job)(q, k, v)
    torch.testing.assert_close(out, expected(baseline, job, q, k, v), rtol=1e-4, atol=1e-5)


def test_windows_are_those_of_the_case(baseline):
    q, k, v = torch.randn(3, 1, 1, 10, 8)
    call = baseline.flash_attention.flash_attention("fa3", True, window=3)

    def near(b, h, i, j):
        return (j <= i) & (j >= i - 3)

    mask = flex.create_block_mask(near, None, None, 10, 10, "cpu", BLOCK_SIZE=8)
    torch.testing.assert_close(call(q, k, v), flex.flex_attention(q, k, v, block_mask=mask))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["causal", "document", "alibi_computed", "causal_score"])
def test_dense_masks(baseline, case):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 10, 8)
    job = job_of(case, heads=1, kv_heads=1, backend="sdpa-mask")
    score_mod, mask_mod = baseline.flex_mods(job)
    out = baseline.scaled_dot_product(job, q, k, v, score_mod, mask_mod)()
    if case == "alibi_computed":
        score_mod = None  # the row's mask is the case's, without the scores
    mask = mask_mod and flex.create_block_mask(mask_mod, None, None, 10, 10, "cpu", BLOCK_SIZE=8)
    want = flex.flex_attention(q, k, v, score_mod=score_mod, block_mask=mask)
    torch.testing.assert_close(out, want)
