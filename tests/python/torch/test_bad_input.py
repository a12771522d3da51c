"""Bad input is refused by name; never a crash, a wrong answer or a silent slow path."""

import re

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.bias import causal_upper_left

import tilewright as tw
import tilewright.torch as twt


def call(**options):
    given = {name: torch.randn(2, 2, 8, 4) for name in ("query", "key", "value")}
    return twt.flex_attention(**{**given, **options})


def meta(*shape):
    return torch.empty(*shape, device="meta")


ids = torch.zeros(2, 8, dtype=torch.int32)
CASES = {
    "no tensor": ({"query": 3}, TypeError, "expected query to be a tensor but got int"),
    "a list": ({"key": [1.0]}, TypeError, "expected key to be a tensor but got list"),
    "rank": ({"query": torch.ones(2, 8, 4)}, NotImplementedError, "4D tensors"),
    "rank of value": ({"value": torch.ones(2, 8, 4)}, NotImplementedError, "4D tensors"),
    "dtypes": (
        {"key": torch.ones(2, 2, 8, 4, dtype=torch.int32)},
        ValueError,
        "expected key of float32, float64, float16 or bfloat16 but got int32",
    ),
    "integers": (
        {n: torch.ones(2, 2, 8, 4, dtype=torch.int32) for n in ("query", "key", "value")},
        ValueError,
        "expected query of float32, float64, float16 or bfloat16 but got int32",
    ),
    "complex": (
        {n: torch.ones(2, 2, 8, 4, dtype=torch.complex64) for n in ("query", "key", "value")},
        ValueError,
        "but got complex64",
    ),
    "devices": ({"key": meta(2, 2, 8, 4)}, ValueError, "same device type"),
    "sparse": (
        {"query": torch.ones(2, 2, 8, 4).to_sparse()},
        ValueError,
        "dense memory",
    ),
    "head dimension": ({"key": torch.ones(2, 2, 8, 5)}, ValueError, "same embedding dimension"),
    "no columns": (
        {n: torch.ones(2, 2, 8, 0) for n in ("query", "key", "value")},
        ValueError,
        "at least 1",
    ),
    "heads": ({"query": torch.ones(2, 4, 8, 4)}, ValueError, "Try setting enable_gqa=True"),
    "groups": (
        {"query": torch.ones(2, 3, 8, 4), "enable_gqa": True},
        ValueError,
        "multiple of kv heads",
    ),
    "batch": ({"query": torch.ones(3, 2, 8, 4)}, RuntimeError, "same batch size"),
    "value": (
        {"value": torch.ones(2, 2, 7, 4)},
        ValueError,
        "expected value with the batch, heads",
    ),
    "scale": ({"scale": "big"}, TypeError, "scale to be a number but got 'big'"),
    "scale nan": ({"scale": float("nan")}, ValueError, "finite scale but got nan"),
    "score": ({"score_mod": 3}, TypeError, "score_mod"),
    "score arity": ({"score_mod": lambda s, b: s}, TypeError, "score_mod"),
    "mask arity": ({"mask_mod": lambda b: b}, TypeError, "mask_mod"),
    "branch": (
        {"score_mod": lambda s, b, h, q, kv: s if q > kv else -s},
        TypeError,
        "torch.where",
    ),
    "and": (
        {"score_mod": lambda s, b, h, q, kv: s if q >= kv and q < 3 else -s},
        TypeError,
        r"of `and`, `or` and `not` use &, \| and ~, .* of min and max torch.minimum",
    ),
    "in": (
        {"mask_mod": lambda b, h, q, kv: q in (1, 2)},
        TypeError,
        r"of `a in \(1, 2\)` \(a == 1\) \| \(a == 2\)",
    ),
    "an array of NumPy": (
        {"score_mod": lambda s, b, h, q, kv: s + np.ones(2)[h]},
        TypeError,
        "has to be a tensor, as by torch.as_tensor",
    ),
    "a list of numbers": (
        {"score_mod": lambda s, b, h, q, kv: s + [0.0, 1.0][h]},
        TypeError,
        "has to be a tensor, as by torch.as_tensor",
    ),
    "int of a position": ({"mask_mod": lambda b, h, q, kv: int(q) > 1}, TypeError, "mask_mod"),
    "mask of numbers": ({"mask_mod": lambda b, h, q, kv: q}, ValueError, "mask_mod"),
    "score of bools": ({"score_mod": lambda s, b, h, q, kv: q > kv}, ValueError, "score_mod"),
    "nothing": ({"score_mod": lambda s, b, h, q, kv: None}, (TypeError, ValueError), "score_mod"),
    "random": (
        {"score_mod": lambda s, b, h, q, kv: s + torch.rand(())},
        NotImplementedError,
        "dropout",
    ),
    "block mask": ({"block_mask": torch.ones(8, 8)}, TypeError, "block_mask"),
    "both lse": (
        {"return_lse": True, "return_aux": twt.AuxRequest()},
        ValueError,
        "Cannot specify both return_lse and return_aux",
    ),
    "aux": ({"return_aux": True}, TypeError, "return_aux to be an AuxRequest"),
    "window": ({"window": 3}, TypeError, "window to be"),
    "window bounds": ({"window": (-2, 0)}, ValueError, "at least -1"),
    "causal": ({"causal": "yes"}, TypeError, "causal to be True or False"),
    "layout": ({"layout": "sbhd"}, ValueError, "layout"),
    "device": ({"device": "meta"}, ValueError, "the device of query"),
    "no device": ({"device": "nowhere"}, ValueError, "the device of query"),
    "dropout": ({"dropout": 1.0}, ValueError, r"dropout in \[0, 1\)"),
    "seed": ({"dropout": 0.5, "seed": 1.5}, TypeError, "seed to be an integer"),
    "options": ({"kernel_options": 3}, TypeError, "kernel_options to be a dict"),
    "unknown option": ({"kernel_options": {"BLOCK": 3}}, ValueError, "but got 'BLOCK'"),
    "backend": ({"kernel_options": {"BACKEND": "FAST"}}, ValueError, "Invalid BACKEND value"),
    "precision": ({"kernel_options": {"precision": "fast"}}, ValueError, "but got .fast"),
    "precision of f64": (
        {
            "kernel_options": {"precision": "tf32"},
            **dict.fromkeys(("query", "key", "value"), torch.ones(2, 2, 8, 4).double()),
        },
        ValueError,
        "with query of f64 but got `tf32`",
    ),
    "backend and flag": (
        {"kernel_options": {"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}},
        RuntimeError,
        "cannot be combined",
    ),
    "segments": ({"segment_ids": [1, 2]}, TypeError, "segment_ids to be a tensor"),
    "segments' shape": ({"segment_ids": ids[:1]}, ValueError, r"shape \(2, 8\)"),
    "segments' dtype": ({"segment_ids": ids.float()}, ValueError, "segment_ids of integers"),
    "segments of keys": ({"kv_segment_ids": ids}, ValueError, "expected segment_ids with"),
    "sinks": ({"sinks": torch.ones(3)}, ValueError, r"sinks of shape \(2,\)"),
    "sinks' device": ({"sinks": meta(2)}, ValueError, "sinks on cpu"),
    "lengths": ({"kv_lengths": torch.ones(3, dtype=torch.int32)}, ValueError, "kv_lengths"),
    "starts": (
        {"cu_seqlens": torch.tensor([0, 8], dtype=torch.int32)},
        ValueError,
        "batch of 1 with cu_seqlens",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [False, True])
def test_flex_attention(name, grad):
    options, error, text = CASES[name]
    with torch.set_grad_enabled(grad), pytest.raises(error, match=text):
        call(**options)


def test_errors_are_both_of_torchs_classes():
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="same batch size, but got Bq=3 and Bkv=2"):
            call(query=torch.ones(3, 2, 8, 4))


def test_the_flag_is_checked_again_after_it_was_right():
    call(causal=True)
    with pytest.raises(TypeError, match="causal"):
        call(causal="yes")
    with pytest.raises(ValueError, match="same embedding"):
        call(causal=True, key=torch.ones(2, 2, 8, 5))


def test_starts_that_do_not_fit():
    tensors = [torch.randn(1, 2, 8, 4) for _ in range(3)]
    for starts in ([0, 9], [1, 8], [0, 5, 3, 8]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            twt.flex_attention(*tensors, cu_seqlens=torch.tensor(starts, dtype=torch.int32))


def test_block_masks_of_other_lengths():
    def causal(b, h, q, kv):
        return q >= kv

    for create in (twt.create_block_mask, flex.create_block_mask):
        mask = create(causal, None, None, 9, 8, device="cpu")
        for error in (ValueError, RuntimeError):
            with pytest.raises(error, match="block_mask was created for"):
                call(block_mask=mask)
    mask = twt.create_block_mask(lambda b, h, q, kv: q >= kv + b, 3, None, 8, 8, device="cpu")
    with pytest.raises(ValueError, match="batches and heads of query, 2 and "):
        call(block_mask=mask)


def test_arguments_of_masks_and_scores():
    text = r"^\[sliding_window\] expected sliding_window\(w: int\) but got sliding_window\('a'\)$"
    with pytest.raises(TypeError, match=text):
        twt.masks.sliding_window("a")
    with pytest.raises(TypeError, match=r"^\[softcap\] .* but got softcap\(cap='x'\)$"):
        twt.scores.softcap(cap="x")


def test_views_that_are_no_plain_memory():
    z = torch.randn(2, 2, 8, 4, dtype=torch.complex64)
    negative = z.conj().imag
    assert negative.is_neg()
    other = torch.randn(2, 2, 8, 4)
    have = twt.flex_attention(negative, other, other)
    assert torch.equal(have, twt.flex_attention(negative.clone().resolve_neg(), other, other))
    with pytest.raises(ValueError, match="complex64"):
        call(query=z.conj(), key=z.conj(), value=z.conj())


def test_captured_views_that_are_no_plain_memory():
    negative = torch.randn(4, 8, 3, dtype=torch.complex64).conj().imag[..., 0]
    plain = negative.resolve_neg()
    assert negative.is_neg() and not plain.is_neg()
    mods = [lambda b, h, q, kv, x=x: x[h, q] > x[h, kv] for x in (negative, plain)]
    for create in (twt.create_block_mask, twt.create_mask):
        have, want = (create(mod, None, 4, 8, 8, device="cpu") for mod in mods)
        if create is twt.create_block_mask:
            have, want = have.elements(), want.elements()
        assert torch.equal(have, want)
    query = torch.randn(1, 4, 8, 4)
    have, want = (
        twt.flex_attention(query, query, query, twt.scores.alibi(x[:, 0]))
        for x in (negative, plain)
    )
    assert torch.equal(have, want)
    with pytest.raises(ValueError, match="parse_mod.*use resolve_neg"):
        tw.parse_mod("score + t[h]", t=negative[:, 0])
    with pytest.raises(ValueError, match="cannot read query: use resolve_neg"):
        tw.flex_attention(negative[None, ..., None], query, query)


def test_fake_tensors_that_the_host_would_read():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        ids = torch.arange(8)
    nowhere = meta(8)
    with pytest.raises(ValueError, match="create_block_mask.*captured tensors: a FakeTensor has"):
        twt.create_block_mask(lambda b, h, q, kv: ids[q] == ids[kv], 1, 1, 8, 8, device="cpu")
    with pytest.raises(ValueError, match="create_block_mask.*captured tensors: .* meta"):
        twt.create_block_mask(lambda b, h, q, kv: nowhere[q] > 0, 1, 1, 8, 8, device="cpu")
    with pytest.raises(ValueError, match="rms_norm.*cannot read x: a FakeTensor has no memory"):
        tw.rms_norm(ids)


def test_subclasses_of_tensor():
    class Named(torch.Tensor):
        pass

    x = torch.randn(1, 1, 4, 4)
    named = x.as_subclass(Named)
    assert torch.equal(torch.Tensor(twt.flex_attention(named, x, x)), twt.flex_attention(x, x, x))
    parameter = torch.nn.Parameter(x)
    assert twt.flex_attention(parameter, x, x).requires_grad
    table = torch.rand(4)
    named = table.as_subclass(Named)
    have = twt.flex_attention(x, x, x, lambda s, b, h, q, kv: s * named[q])
    want = twt.flex_attention(x, x, x, lambda s, b, h, q, kv: s * table[q])
    assert torch.equal(torch.Tensor(have), want)


def test_captures_elsewhere():
    table = meta(2)
    with pytest.raises(ValueError, match="score_mod captures on cpu"):
        call(score_mod=lambda s, b, h, q, kv: s + table[h])


def test_captures_of_masks_have_no_gradients():
    limit = torch.ones(2, requires_grad=True)
    with pytest.raises(AssertionError, match="mask_mod"):
        call(mask_mod=lambda b, h, q, kv: q * limit[h] > kv)
    with torch.no_grad():
        call(mask_mod=lambda b, h, q, kv: q * limit[h] > kv)


def test_captures_of_masks_are_checked_every_time():
    query = torch.randn(2, 2, 8, 4, requires_grad=True)
    for needs in (False, True):
        limit = torch.ones(2, requires_grad=needs)
        options = {"query": query, "mask_mod": lambda b, h, q, kv, x=limit: q * x[h] > kv}
        if needs:
            with pytest.raises(AssertionError, match="mask_mod"):
                call(**options)
        else:
            call(**options)


def test_numbers_in_tensors_are_read_every_time():
    scale = torch.tensor(0.5)
    given = [torch.randn(1, 1, 4, 4) for _ in range(3)]
    for value in (0.5, 2.0):
        scale.fill_(value)
        want = twt.flex_attention(*given, scale=value)
        assert torch.equal(twt.flex_attention(*given, scale=scale), want)


def test_modified_after_the_forward():
    query = torch.randn(1, 1, 4, 4, requires_grad=True)
    key = torch.randn(1, 1, 4, 4)
    out = twt.flex_attention(query, key, key)
    key.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"attn_mask": torch.ones(8, 8), "is_causal": True}, RuntimeError, "Explicit attn_mask"),
        (
            {"attn_mask": causal_upper_left(8, 8), "is_causal": True},
            ValueError,
            "CausalBias should not",
        ),
        ({"attn_mask": torch.ones(8, 8).int()}, RuntimeError, "bool or float"),
        ({"attn_mask": torch.ones(7, 8)}, RuntimeError, "broadcasts to"),
        ({"query": torch.ones(4)}, RuntimeError, "at least 2 dimensional"),
        (
            {"value": torch.ones(8, 4), "enable_gqa": True},
            RuntimeError,
            r"at least 3 dimensional with enable_gqa=True, but got .*\(8, 4\)",
        ),
        ({"query": torch.ones(2, 4, 8, 4)}, RuntimeError, "broadcast.*Try setting enable_gqa"),
        ({"query": None}, TypeError, "expected query to be a tensor but got NoneType"),
        ({"dropout_p": 2}, ValueError, "dropout_p in"),
        ({"dropout_p": -0.5}, ValueError, "dropout_p in"),
    ],
)
def test_scaled_dot_product_attention(options, error, text):
    given = {name: torch.randn(2, 2, 8, 4) for name in ("query", "key", "value")}
    with pytest.raises(error, match=text):
        twt.scaled_dot_product_attention(**{**given, **options})


# function -> its arguments, changed ones, and what its error says: its own names, not those of the
# flex_attention that it calls.
BSHD = torch.ones(2, 8, 2, 4)
PACKED = (*[torch.ones(8, 2, 4)] * 3, *[torch.tensor([0, 8])] * 2)
CALLERS = {
    "attention": [
        ({0: torch.ones(2, 8, 4)}, "q, k, and v must be 4D tensors but got q float32"),
        ({1: torch.ones(2, 2, 8, 5)}, "q and k/v to have the same embedding dimension"),
        (
            {1: torch.ones(2, 1, 8, 4), 2: torch.ones(2, 1, 8, 4)},
            r"q and k/v to have the same number of heads .* and Hkv=1\.$",
        ),
        ({2: None}, "expected v to be a tensor but got NoneType"),
        ({2: torch.ones(2, 2, 7, 4)}, "expected v with the batch, heads and length of k but got"),
        ({3: "yes"}, "expected causal to be True or False but got 'yes'"),
        ({4: float("nan")}, "expected a finite sm_scale but got nan"),
    ],
    "scaled_dot_product_attention": [
        (
            {3: torch.ones(8, 8, device="meta")},
            "expected attn_mask on cpu, the device of query, but",
        ),
        ({4: "a"}, "expected dropout_p to be a number but got 'a'"),
        ({5: "a"}, "expected is_causal to be True or False but got 'a'"),
        (
            {0: torch.ones(3, 2, 8, 4)},
            "of query, key and value before the last 2 that broadcast but",
        ),
    ],
    "flash_attn_func": [
        ({1: BSHD[..., :3]}, "q and k/v to have the same embedding dimension"),
        ({"softmax_scale": "a"}, "expected softmax_scale to be a number but got 'a'"),
        ({"softcap": "a"}, "expected softcap to be a number but got 'a'"),
        ({"causal": "a"}, "expected causal to be True or False but got 'a'"),
        ({"window_size": 3}, r"expected window_size=\(left, right\) but got 3"),
        ({"learnable_sink": torch.ones(5)}, r"expected learnable_sink of shape \(2,\) but got"),
        ({"score_mod": lambda s, *_: s if s else s}, "score_mod: a traced value has no number"),
    ],
    "flash_attn_varlen_func": [
        (
            {3: torch.tensor([0, 9])},
            "expected cu_seqlens_q from 0 to the total length 8 but got 0 to",
        ),
        ({"window_size": 3}, r"expected window_size=\(left, right\) but got 3"),
    ],
    "flash_attn_with_kvcache": [
        ({1: BSHD[..., :3]}, "q and k_cache/v_cache to have the same embedding dimension"),
        (
            {"cache_seqlens": torch.tensor([9, 1])},
            "expected cache_seqlens from 0 to the keys' length",
        ),
        ({"window_size": 3}, r"expected window_size=\(left, right\) but got 3"),
    ],
}
ARGUMENTS = {
    "attention": (*[torch.ones(2, 2, 8, 4)] * 3, True, 0.5),
    "scaled_dot_product_attention": (*[torch.ones(2, 2, 8, 4)] * 3, None, 0.0, False),
    "flash_attn_func": (BSHD,) * 3,
    "flash_attn_varlen_func": PACKED,
    "flash_attn_with_kvcache": (BSHD,) * 3,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "name, changed, text", [(name, *case) for name, cases in CALLERS.items() for case in cases]
)
def test_errors_have_the_names_of_the_function_that_was_called(name, changed, text, grad):
    given = [
        x.detach().requires_grad_(grad) if torch.is_tensor(x) and x.is_floating_point() else x
        for x in ARGUMENTS[name]
    ]
    getattr(twt, name)(*given)
    options = {key: x for key, x in changed.items() if isinstance(key, str)}
    for place, x in changed.items():
        if place not in options:
            given[place] = x
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as error:
        getattr(twt, name)(*given, **options)
    assert re.search(rf"^\[{name}\] .*{text}", str(error.value)), error.value


@pytest.mark.parametrize(
    "name", ["causal", "enable_gqa", "return_lse", "deterministic", "window", "layout", "scale",
             "dropout", "return_aux", "kernel_options"]
)  # fmt: skip
@pytest.mark.parametrize("array", [torch.tensor, np.array])
def test_arrays_in_place_of_options(name, array):
    """Whose truth and equality are no bools."""
    given = array([[1, 0], [0, 1]])
    call()
    with pytest.raises((TypeError, ValueError), match=rf"\[flex_attention\] expected {name} "):
        call(**{name: given})
    with pytest.raises(TypeError, match=r"\[flex_attention\] expected return_lse to be True or"):
        call(return_lse="yes")


@pytest.mark.parametrize("convert", [torch.Tensor.float, lambda q: q / 2])
def test_indices_are_integers(convert):
    """As in torch, which does not round them either."""
    table = torch.zeros(8)
    with pytest.raises(
        IndexError, match=r"score_mod: expected integers as indices but got torch.f"
    ):
        call(score_mod=lambda s, b, h, q, kv: s + table[convert(q)])


@pytest.mark.parametrize("grad", [False, True])
def test_captures_without_memory(grad):
    query = torch.ones(2, 2, 8, 4, requires_grad=grad)
    table = meta(8)
    for options, what in (
        ({"score_mod": lambda s, b, h, q, kv: s + table[q]}, "the tensors that score_mod captures"),
        ({"mask_mod": lambda b, h, q, kv: table[q] > 0}, "the tensors that mask_mod captures"),
        ({"sinks": meta(2)}, "sinks"),
    ):
        with pytest.raises(ValueError, match=f"expected {what} on cpu, the device of query, but"):
            call(query=query, **options)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("known", [False, True])
def test_torch_jit_does_not_trace_uninitialised_memory(known):
    query = torch.ones(1, 1, 3, 4)
    options = {"causal": True, "window": (5, int(known))}
    if known:
        twt.flex_attention(query, query, query, **options)
    with pytest.raises(
        NotImplementedError, match=r"\[flex_attention\] expected no torch.jit.trace"
    ):
        torch.jit.trace(lambda x: twt.flex_attention(x, x, x, **options), (query,))


def test_errors_of_kernels_name_flex_attention():
    """The library below calls it attention, which is another function here."""
    with pytest.raises(ValueError, match=r"^\[flex_attention\] expected kv_lengths from 0 to"):
        call(kv_lengths=torch.tensor([3, 9]))


@pytest.mark.parametrize("version, refused", [("2.10.1", True), ("2.11.0+cu130", False)])
def test_versions(version, refused):
    from tilewright.torch import _versions

    if refused:
        with pytest.raises(ImportError, match="2.11 or newer"):
            _versions.check(version)
    else:
        _versions.check(version)
    with pytest.warns(UserWarning, match="tested with"):
        _versions.check("2.99.0")


def test_what_is_private_in_torch_is_there():
    from torch._dynamo.variables import higher_order_ops

    assert isinstance(higher_order_ops._hop_name_to_variable_class, dict)
    assert higher_order_ops.FlexAttentionHigherOrderVariable
    assert torch.Tensor.__dlpack_c_exchange_api__
    for name in ("flex_attention_hop", "_validate_device", "_identity", "_WARNINGS_SHOWN"):
        assert hasattr(flex, name)
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._is_any_autocast_enabled() is False


@pytest.mark.parametrize("place", [0, 1, 2])
def test_arrays_of_numpy_are_refused(place):
    tensors = [torch.zeros(1, 2, 8, 4) for _ in range(3)]
    tensors[place] = tensors[place].numpy()
    name = ("query", "key", "value")[place]
    for context in (torch.enable_grad(), torch.no_grad()):
        for options in ({}, {"scale": 2.0}, {"score_mod": lambda s, *_: s * 2}):
            with context, pytest.raises(TypeError, match=f"expected {name} to be a tensor"):
                twt.flex_attention(*tensors, **options)
