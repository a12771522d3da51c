"""`tw.warmup`: calls on zeros in place of shapes."""

import os
import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright import _core


def test_shapes_become_zeros_wherever_they_stand():
    seen = []
    heads = tw.ShapeDtype((1, 2, 8, 16), np.float32)
    given = np.ones(3)
    tw.warmup([(lambda *args: seen.append(args), heads, {"a": [heads, 3]}, given)])
    ((array, nested, same),) = seen
    assert array.shape == (1, 2, 8, 16) and array.dtype == np.float32 and not array.any()
    assert nested["a"][0].shape == (1, 2, 8, 16) and nested["a"][1] == 3
    assert same is given


def test_runs_attention_with_a_mod():
    heads = tw.ShapeDtype((1, 2, 64, 16), np.float32)

    def attend(query, key, value):
        return tw.flex_attention(query, key, value, lambda s, b, h, q, kv: s + (kv - q) * 0.5)

    counts = []
    calls = [(attend, heads, heads, heads), lambda: None]
    tw.warmup(calls, progress=lambda *count: counts.append(count))
    assert counts == [(1, 2), (2, 2)]


def test_calls_run_side_by_side_up_to_the_number_of_threads():
    both = threading.Barrier(2, timeout=20)
    tw.warmup([both.wait, both.wait], threads=2)
    order = []
    tw.warmup([lambda n=n: order.append(n) for n in range(5)], threads=1)
    assert order == list(range(5))


def test_no_compact_kernels_meanwhile(monkeypatch):
    """The environment, which other threads may read, stays as it is."""
    before, events = dict(os.environ), []

    class Recorded(_core.NoCompactKernels):
        def __enter__(self):
            events.append("enter")
            return super().__enter__()

        def __exit__(self, *error):
            events.append("exit")
            return super().__exit__(*error)

    monkeypatch.setattr(_core, "NoCompactKernels", Recorded)
    tw.warmup([lambda: events.append(dict(os.environ) == before)])
    with pytest.raises(ZeroDivisionError):
        tw.warmup([lambda: 1 / 0])
    assert events == ["enter", True, "exit", "enter", "exit"]
    assert dict(os.environ) == before


def test_errors():
    with pytest.raises(TypeError, match=r"\[warmup\] expected calls that are functions"):
        tw.warmup([3])
    with pytest.raises(TypeError, match=r"\[warmup\] expected calls that are functions"):
        tw.warmup([()])
    with pytest.raises(ValueError, match=r"\[warmup\] expected threads of at least 1"):
        tw.warmup([], threads=0)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        tw.warmup([lambda: 1 / 0])
    tw.warmup([])


def test_jax_shapes():
    jax = pytest.importorskip("jax")
    seen = []
    struct = jax.ShapeDtypeStruct((2, 3), jax.numpy.bfloat16)
    tw.warmup([(jax.jit(lambda x: seen.append(x.shape) or x + 1), struct)])
    assert seen == [(2, 3)]


def test_meta_tensors_of_torch():
    torch = pytest.importorskip("torch")
    meta = torch.empty(2, 3, device="meta")
    if torch.cuda.is_available():
        seen = []
        tw.warmup([(seen.append, meta)])
        assert seen[0].is_cuda and seen[0].shape == (2, 3)
    else:  # without a GPU, torch's own error about it
        with pytest.raises((RuntimeError, AssertionError), match="NVIDIA|CUDA"):
            tw.warmup([(lambda x: None, meta)])
