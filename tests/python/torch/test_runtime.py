"""install(), nested tensors, other entry points, threads, leaks, memory, import time."""

import gc
import os
import resource
import subprocess
import sys
import threading
import warnings

import dense_torch as dense
import pytest
import torch
from test_attention import causal
from torch.nn.attention import flex_attention as flex

import tilewright.torch as twt

compiled_early = torch.compile(flex.flex_attention, backend="aot_eager", fullgraph=True)
imported_early = flex.flex_attention


@pytest.mark.parametrize("way", ["module", "imported", "compiled"])
def test_install(way):
    query, key, value = (dense.normal(2, 4, 32, 8, dtype=torch.float32) for _ in range(3))
    slopes = dense.normal(4, dtype=torch.float32)

    def mod(s, b, h, q, kv):
        return s + slopes[h] * (kv - q)

    original = flex.flex_attention
    with twt.install():
        mask = flex.create_block_mask(causal, None, None, 32, 32, device="cpu")
        function = {
            "module": flex.flex_attention,
            "imported": imported_early,
            "compiled": compiled_early,
        }[way]
        out = function(query, key, value, mod, mask)
        inputs = [query, key, value, slopes]
        have = dense.gradients([out], inputs)
    want = dense.attention(query, key, value, mod, causal)[0]
    dense.close(out, want, 1e-5)
    for x, y in zip(have, dense.gradients([want], inputs), strict=True):
        dense.close(x, y, 1e-5)
    assert flex.flex_attention is original
    assert out.grad_fn is not None


def test_install_gives_statistics_to_compiled_functions():
    """PyTorch itself refuses max_scores on the CPU, and expects natural logarithms from "FLASH"."""
    query = torch.randn(1, 2, 16, 8)
    want = twt.flex_attention(query, query, query, return_aux=twt.AuxRequest(True, True))[1]
    for options in (None, {"BACKEND": "FLASH"}, {"FORCE_USE_FLEX_ATTENTION": True}):
        with twt.install():
            _, aux = compiled_early(
                query, query, query, kernel_options=options, return_aux=flex.AuxRequest(True, True)
            )
        dense.close(aux.lse, want.lse, 1e-6)
        dense.close(aux.max_scores, want.max_scores, 1e-6)
    wrong = {"BACKEND": "FLASH", "FORCE_USE_FLEX_ATTENTION": True}
    with twt.install(), pytest.raises(RuntimeError, match="BACKEND cannot be combined"):
        compiled_early(query, query, query, kernel_options=wrong)


def test_backends_are_checked_as_torch_checks_them():
    query = torch.randn(1, 2, 16, 8)
    options = {"BACKEND": "TRITON", "FORCE_USE_FLEX_ATTENTION": False}
    have = twt.flex_attention(query, query, query, kernel_options=options)
    assert torch.equal(have, twt.flex_attention(query, query, query))
    with twt.install():
        assert flex._apply_kernel_options(query, query, query, True, {})["BACKEND"] == "AUTO"
        compiled_early(query, query, query, kernel_options=options)
        with pytest.raises(ValueError, match="Invalid BACKEND value 'FAST'"):
            flex._apply_kernel_options(query, query, query, True, {"BACKEND": "FAST"})
        with pytest.raises(RuntimeError, match="Invalid BACKEND value 'FAST'"):
            compiled_early(query, query, query, kernel_options={"BACKEND": "FAST"})


def test_install_does_not_tell_to_compile():
    flex._WARNINGS_SHOWN.discard("flex_attention_performance")
    query = torch.randn(1, 2, 16, 8)
    with twt.install(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        imported_early(query, query, query)
    assert "flex_attention_performance" not in flex._WARNINGS_SHOWN


def test_a_device_may_confirm_where_tensors_are():
    query = torch.randn(1, 2, 16, 8)
    want = twt.flex_attention(query, query, query)
    assert torch.equal(twt.flex_attention(query, query, query, device="cpu"), want)
    compiled = torch.compile(twt.flex_attention, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(query, query, query, device=torch.device("cpu")), want)


def test_install_nests_and_uninstall_alone_is_nothing():
    twt.uninstall()
    original = flex.flex_attention
    twt.install()
    twt.install()
    twt.uninstall()
    assert flex.flex_attention is twt.flex_attention
    twt.uninstall()
    assert flex.flex_attention is original


@pytest.mark.parametrize("causal_too", [False, True])
@pytest.mark.parametrize("lengths", [(5, 3, 9), (4, 0, 7)])
def test_nested_tensors(lengths, causal_too):
    parts = [[dense.normal(n, 2, 8) for n in lengths] for _ in range(3)]
    query, key, value = (
        torch.nested.as_nested_tensor(p, layout=torch.jagged).transpose(1, 2) for p in parts
    )
    key, value = (
        torch.nested.nested_tensor_from_jagged(x.values(), offsets=query.offsets(), jagged_dim=2)
        for x in (key, value)
    )
    out = twt.scaled_dot_product_attention(query, key, value, is_causal=causal_too)
    assert out.is_nested
    assert out.shape == query.shape  # the ragged size is the same object
    flat = [x for p in parts for x in p]
    want = [
        dense.attention(
            *(x.transpose(0, 1)[None] for x in sequence), mask=causal if causal_too else None
        )[0][0].transpose(0, 1)
        for sequence in zip(*parts, strict=True)
    ]
    packed = out.transpose(1, 2).values()
    dense.close(packed, torch.cat(want))
    for x, y in zip(
        dense.gradients([packed], flat), dense.gradients([torch.cat(want)], flat), strict=True
    ):
        dense.close(x, y)


def test_nested_with_dense_is_refused():
    nested = torch.nested.as_nested_tensor(
        [torch.randn(3, 2, 8), torch.randn(2, 2, 8)], layout=torch.jagged
    ).transpose(1, 2)
    with pytest.raises(ValueError, match="to be nested tensors"):
        twt.flex_attention(nested, torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sdpa_of_strided_nested_tensors_is_torchs():
    def nested(*lengths):
        return torch.nested.nested_tensor([torch.randn(2, n, 8) for n in lengths])

    query, key, value = nested(3, 1), nested(2, 4), nested(2, 4)
    out = twt.scaled_dot_product_attention(query, key, value)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    for x, y in zip(out.unbind(), want.unbind(), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8)])
@pytest.mark.parametrize("mask", [None, "causal", "bool", "float", "bias"])
def test_scaled_dot_product_attention(shape, mask):
    query, key, value = (dense.normal(*shape) for _ in range(3))
    options = {}
    inputs = [query, key, value]
    if mask == "causal":
        options["is_causal"] = True
    elif mask == "bool":
        keep = torch.rand(5, 5) < 0.7
        keep[:, 0] = True
        options["attn_mask"] = keep
    elif mask == "float":
        bias = dense.normal(*shape[:-2][-1:], 1, 5) if len(shape) > 2 else dense.normal(5, 5)
        inputs.append(bias)
        options["attn_mask"] = bias
    elif mask == "bias":
        from torch.nn.attention.bias import causal_lower_right

        if len(shape) != 4:
            pytest.skip("torch takes four dimensions")
        key, value = (dense.normal(*shape[:-2], 7, 8) for _ in range(2))
        inputs = [query, key, value]
        options["attn_mask"] = causal_lower_right(5, 7)
    have = twt.scaled_dot_product_attention(query, key, value, **options)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    dense.close(have, want)
    for x, y in zip(dense.gradients([have], inputs), dense.gradients([want], inputs), strict=True):
        dense.close(x, y)


@pytest.mark.parametrize("shape", [(0, 4, 10, 64), (2, 4, 0, 64), (2, 4, 10, 0), (0, 0, 0, 0)])
def test_scaled_dot_product_attention_of_nothing(shape):
    query, key = (torch.zeros(shape, requires_grad=True) for _ in "qk")
    value = torch.ones(*shape[:3], 32, requires_grad=True)
    out = twt.scaled_dot_product_attention(query, key, value)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert out.shape == want.shape == (*shape[:3], 32)
    torch.testing.assert_close(out, torch.ones_like(out))  # the average of equal values
    out.sum().backward()
    assert query.grad.shape == query.shape
    empty = torch.zeros(2, 4, 10, 0)
    assert twt.scaled_dot_product_attention(empty, empty, empty).shape == empty.shape


def test_dropout_repeats_with_the_seed():
    query, key, value = (dense.normal(1, 2, 40, 8) for _ in range(3))

    def run():
        torch.manual_seed(3)
        return [
            twt.scaled_dot_product_attention(query, key, value, dropout_p=0.3) for _ in range(2)
        ]

    first, second = run(), run()
    assert all(map(torch.equal, first, second))
    assert not torch.equal(*first)
    nothing = twt.scaled_dot_product_attention(query, key, value, dropout_p=1.0)
    assert torch.equal(nothing, torch.zeros_like(query))
    assert not any(x.any() for x in torch.autograd.grad(nothing.sum(), (query, key, value)))


def test_attention_of_the_tutorial():
    query, key, value = (
        torch.randn(2, 7, 3, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
        for _ in range(3)
    )
    out = twt.attention(query, key, value, True, 0.3)
    want = dense.attention(query, key, value, mask=causal, scale=0.3)[0]
    dense.close(out, want)
    inputs = [query, key, value]
    for x, y in zip(dense.gradients([out], inputs), dense.gradients([want], inputs), strict=True):
        dense.close(x, y)


def test_threads():
    query, key, value = (dense.normal(1, 2, 64, 8) for _ in range(3))
    want = dense.attention(query, key, value, mask=causal)[0]
    want_gradients = dense.gradients([want], [query, key, value])
    failures = []

    def work(n):
        try:
            for i in range(8):
                out = twt.flex_attention(
                    query, key, value, lambda s, b, h, q, kv, n=n, i=i: s + 0 * (n + i), causal=True
                )
                dense.close(out, want)
                for x, y in zip(
                    dense.gradients([out], [query, key, value]), want_gradients, strict=True
                ):
                    dense.close(x, y)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_forked_processes():
    # In a process of its own: once autograd has started threads, torch refuses it to children.
    script = """
import os, signal, torch, tilewright.torch as twt
query = torch.randn(1, 4, 300, 16, requires_grad=True)
want = twt.flex_attention(query, query, query, causal=True)
child = os.fork()
if child == 0:
    signal.alarm(60)
    out = twt.flex_attention(query, query, query, causal=True)
    out.sum().backward()
    os._exit(0 if torch.equal(out, want) else 2)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n", done.stderr


def test_number_of_threads():
    script = """
import sys, torch, tilewright, tilewright.torch as twt
from tilewright import _core
q = torch.randn(1, 1, 4, 4)
def now():
    twt.flex_attention(q, q, q)
    return _core.num_threads()
if sys.argv[1] == "ours":
    tilewright.set_num_threads(1)
    print(now())
torch.set_num_threads(1)
print(now())
torch.set_num_threads(2)
print(now())
tilewright.set_num_threads(1)
print(now())
"""
    cores = min(2, os.cpu_count())
    for first, want in (("torch", []), ("ours", [1])):
        done = subprocess.run(
            [sys.executable, "-c", script, first], capture_output=True, text=True, check=True
        )
        assert [int(n) for n in done.stdout.split()] == [*want, 1, cores, 1]


def test_fresh_closures_leak_nothing():
    from tilewright.torch import _sites

    query, key, value = (dense.normal(1, 1, 8, 8, dtype=torch.float32) for _ in range(3))

    def step(n):
        table = torch.full((1,), n / 1000)
        out = twt.flex_attention(query, key, value, lambda s, b, h, q, kv: s + table[h] * q)
        out.sum().backward()
        query.grad = key.grad = value.grad = None

    for n in range(300):
        step(n)
    gc.collect()
    objects, sites = len(gc.get_objects()), len(_sites._by_spec)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(3000):
        step(n)
    gc.collect()
    assert len(gc.get_objects()) < objects + 500
    assert len(_sites._by_spec) == sites
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 8 * 1024  # KiB


def test_changing_scales_keep_a_bounded_table():
    from tilewright.torch import _attention, _sites

    query = torch.randn(1, 1, 2, 2)
    for n in range(_sites._CAPACITY + 50):
        twt.flex_attention(query, query, query, scale=1 + n * 1e-4)
    assert len(_sites._by_spec) <= _sites._CAPACITY
    assert len(_sites._by_text) <= _sites._CAPACITY
    assert len(_attention._choices) <= 4096


def test_memory_grows_with_the_length_not_its_square():
    script = """
import resource, torch, tilewright.torch as twt
q = torch.randn(1, 1, 16384, 8, requires_grad=True)
twt.flex_attention(q[:, :, :64], q[:, :, :64], q[:, :, :64]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
twt.flex_attention(q, q, q, lambda s, b, h, i, j: s + (j - i) * 0.1, causal=True).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200 * 1024  # KiB; the scores alone are 1 GiB


def test_import_is_light():
    """PyTorch's flex_attention module, and what it imports, are imported when first needed."""
    script = """
import sys, torch
before = set(sys.modules)
import tilewright.torch as twt
heavy = 'torch._dynamo', 'torch._inductor', 'torch.nn.attention.flex_attention', 'sympy'
print(*sorted(m for m in set(sys.modules) - before if m.startswith(heavy)))
assert set(twt.__all__) <= set(dir(twt))
x = torch.compile(lambda x: twt.flex_attention(x, x, x), backend='eager', fullgraph=True)
assert x(torch.ones(1, 1, 2, 2)).sum() == 4
from tilewright.torch import *
assert AuxRequest().lse is False and BlockMask.__module__ == 'tilewright.torch._block_mask'
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_recording_a_mod_imports_nothing_slow():
    """NumPy imports its generators when their module is first named."""
    script = """
import sys, torch
from torch import relu
import tilewright.torch as twt
x = torch.ones(1, 1, 2, 2)
assert 'numpy.random' not in sys.modules
twt.flex_attention(x, x, x, lambda s, b, h, i, j: relu(torch.tanh(s / 20) * 20))
print('numpy.random' in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
