"""Recordings are kept for as long as what functions read stays the same, and no longer."""

import functools
import gc
import math
import types

import dense_torch as dense
import numpy as np
import pytest
import torch

import tilewright.torch as twt
from tilewright.torch import _environment

WINDOW = 5
SETTINGS = types.SimpleNamespace(window=3)


def traced(function, is_mask=False):
    return _environment.traced("test", "mod", function, is_mask, None)


@pytest.fixture
def recorded():
    """How many recordings a test made since the last call."""
    _environment.clear()
    before = [_environment.counts["recorded"]]

    def since():
        now = _environment.counts["recorded"]
        made, before[0] = now - before[0], now
        return made

    return since


def alibi(slopes, offset=0):
    def mod(s, b, h, q, kv):
        return s + slopes[h] * (kv - q + offset)

    return mod


def test_new_captures_of_any_length_record_nothing(recorded):
    first = traced(alibi(torch.rand(4)))
    assert recorded() == 1
    for n in (4, 5, 64):
        slopes = torch.rand(n)
        again = traced(alibi(slopes))
        assert again.text is first.text
        assert again.arrays[0] is slopes
    assert recorded() == 0


@pytest.mark.parametrize("change", ["dtype", "rank", "gradient", "sharing", "function"])
def test_what_matters_of_captures_records_again(recorded, change):
    a, b = torch.rand(4), torch.rand(4)

    def make(a, b, f=torch.add):
        return lambda s, bb, h, q, kv: f(s, a.view(-1)[h] * b.reshape(-1)[h])

    traced(make(a, b))
    assert recorded() == 1
    traced(make(torch.rand(4), torch.rand(4)))
    assert recorded() == 0
    other = {
        "dtype": lambda: make(a.double(), b),
        "rank": lambda: make(a.view(2, 2), b),
        "gradient": lambda: make(a.clone().requires_grad_(), b),
        "sharing": lambda: make(a, a),
        "function": lambda: make(a, b, torch.sub),
    }[change]
    traced(other())
    assert recorded() == 1


def test_shapes_matter_where_the_function_reads_them(recorded):
    def make(table):
        return lambda s, b, h, q, kv: s + table[kv % table.shape[0]]

    for n in (3, 4, 3, 4):
        table = torch.arange(float(n))
        text = traced(make(table)).text
        assert f"constant {n}" in text or n == 4  # a remainder by 4 is a bitwise and
    assert recorded() == 2


@pytest.mark.parametrize("kind", ["any", "sum", "gather", "rows", "all"])
def test_lengths_of_rows_matter(recorded, kind):
    def make(table):
        def mod(s, b, h, q, kv):
            if kind == "any":
                return torch.where((table[h] == kv).any(), s, -1.0)
            if kind == "sum":
                return s + table[h].sum()
            if kind == "gather":
                return s + table[h].gather(0, torch.arange(2)).sum()
            if kind == "rows":
                return s + table[torch.arange(2), :].sum()
            return s + table.sum()

        return mod

    query = dense.normal(1, 2, 9, 8)
    for n in (2, 5, 3, 2):
        table = torch.arange(2.0 * n, dtype=torch.float64).view(2, n)
        out = twt.flex_attention(query, query, query, make(table))
        dense.close(out, dense.attention(query, query, query, make(table))[0])


def test_numbers_become_operands(recorded):
    texts = set()
    for offset in (1, 7, 9, -4, 1 << 40):
        mod = traced(alibi(torch.rand(4), offset))
        texts.add(mod.text)
        if offset != 1:
            assert offset in [int(x) for x in mod.arrays if x.dim() == 0]
    assert len(texts) == 2
    assert recorded() == 2


@pytest.mark.parametrize("kind", ["loop", "shape", "branch", "slice", "isinstance", "math"])
def test_numbers_that_functions_need_are_recorded_each(recorded, kind):
    table = torch.arange(8.0)

    def make(n):
        def mod(s, b, h, q, kv):
            if kind == "loop":
                return sum((s * i for i in range(n)), s)
            if kind == "shape":
                return s + torch.arange(n).sum()
            if kind == "branch":
                return s * 2 if n > 2 else s * 3
            if kind == "slice":
                return s + table[:n].sum()
            if kind == "isinstance":
                return s * (2 if isinstance(n, int) else 3) + n
            return s * math.exp(-n)

        return mod

    query = dense.normal(1, 1, 4, 8)
    for n in (1, 2, 3, 4):
        out = twt.flex_attention(query, query, query, make(n))
        dense.close(out, dense.attention(query, query, query, make(n))[0], 1e-6)


def test_globals_defaults_partials_and_objects(recorded):
    global WINDOW

    def by_global(b, h, q, kv):
        return q - kv < WINDOW

    class Policy:
        def __init__(self, window, ids):
            self.window, self.ids, self.unused = window, ids, object()

        def limit(self):
            return self.window

        def mask(self, b, h, q, kv):
            return (q - kv < self.limit()) & (self.ids[q] == self.ids[kv])

    def by_default(b, h, q, kv, window=4):
        return q - kv < window

    def by_partial(window, b, h, q, kv):
        return q - kv < window

    def by_module(b, h, q, kv):
        return q - kv < SETTINGS.window

    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])

    def dense_mask(window, documents=False):
        i = torch.arange(8)
        pairs = i[:, None] - i < window
        return pairs & (ids[:, None] == ids) if documents else pairs

    def check(function, want):
        assert torch.equal(twt.create_mask(function, None, None, 8, 8, device="cpu")[0, 0], want)

    for window in (5, 2, 5, 3):
        WINDOW = window
        check(by_global, dense_mask(window))
        by_default.__defaults__ = (window,)
        check(by_default, dense_mask(window))
        check(functools.partial(by_partial, window), dense_mask(window))
        SETTINGS.window = window
        check(by_module, dense_mask(window))
        check(Policy(window, ids.clone()).mask, dense_mask(window, documents=True))
    WINDOW = 5


def test_state_that_cannot_be_seen_is_recorded_each_time(recorded):
    class Hidden:
        def __getattr__(self, name):
            return {"window": window[0]}[name]

    window, hidden = [3], Hidden()

    def mask(b, h, q, kv):
        return q - kv < getattr(hidden, "window")  # noqa: B009

    for n in (3, 6, 1):
        window[0] = n
        pairs = twt.create_mask(mask, None, None, 8, 8, device="cpu")[0, 0]
        i = torch.arange(8)
        assert torch.equal(pairs, i[:, None] - i < n)
    assert recorded() == 3


def test_zeros_of_both_signs_and_types_differ(recorded):
    def make(n):
        return lambda s, b, h, q, kv: torch.where(q == kv, s, s * 0 + 1 / (s * 0 + n))

    query = dense.normal(1, 1, 3, 8)
    for n in (0.0, -0.0, 1, 1.0, True):
        lse = twt.flex_attention(query, query, query, make(n), return_aux=twt.AuxRequest(lse=True))
        want = dense.attention(query, query, query, make(n))[1]
        assert torch.equal(lse[1].lse.isinf(), want.isinf())


def test_numpy_arrays_and_dtypes_are_values(recorded):
    def make(array, dtype):
        return lambda s, b, h, q, kv: s + float(array[1]) * q.to(dtype)

    texts = {
        traced(make(np.array(values), dtype)).text
        for values in ([0.0, 1.0], [0.0, 2.0])
        for dtype in (torch.float32, torch.bool)
    }
    assert len(texts) == 4


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_tensors_that_mods_make_are_constants(recorded):
    """torch.tensor of numbers, which are known; of a captured tensor it is a copy."""
    numbers = [0.5, 0.25, 2.0, 1.0]

    def score(s, b, h, q, kv):
        return s * torch.tensor(numbers, device=s.device)[h] + torch.tensor(0.5, device=s.device)

    first = traced(score)
    assert recorded() == 1
    assert traced(score).text is first.text
    assert recorded() == 0
    numbers[1] = 3.0
    assert traced(score).arrays[0].tolist() == numbers
    assert recorded() == 1

    def copies(table):
        return lambda s, b, h, q, kv: s * torch.tensor(table)[h]

    for n in range(3):
        table = torch.arange(4.0) + n
        assert torch.equal(traced(copies(table)).arrays[0], table)
    assert recorded() == 1


def test_constants_are_where_the_call_is(recorded):
    """The meta device stands for a GPU. Each device has its copy."""

    def score(s, b, h, q, kv):
        return s * torch.arange(4, device=s.device)[h]

    on = [
        _environment.traced("test", "mod", score, False, None, device=device).arrays[0]
        for device in ("meta", "cpu", "meta")
    ]
    assert [x.device.type for x in on] == ["meta", "cpu", "meta"]
    assert on[0] is on[2]
    assert recorded() == 1

    def without_values(s, b, h, q, kv):
        return s * torch.tensor([0.5, 0.25], device=s.device)[h]

    _environment.traced("test", "mod", without_values, False, None, device="meta")
    assert traced(without_values).arrays[0].tolist() == [0.5, 0.25]


def test_library_objects_made_anew_record_nothing(recorded):
    for _ in range(3):
        ids = torch.randint(0, 3, (16,))
        mask = twt.masks.document(ids) & twt.masks.causal() & (lambda b, h, q, kv: q - kv < 7)
        assert traced(mask, True).arrays[0] is ids
    assert recorded() == 1


def test_nothing_of_the_caller_is_held(recorded):
    import weakref

    slopes = torch.rand(4)
    gone = weakref.ref(slopes)
    traced(alibi(slopes))
    del slopes
    gc.collect()
    assert gone() is None


def test_fresh_closures_do_not_grow_memory(recorded):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    ids = torch.arange(16) // 4
    query = torch.randn(1, 1, 16, 8)

    def call(i):
        table = torch.full((4,), float(i))

        def mod(s, b, h, q, kv):
            return s + table[ids[q]] * i

        def mask(b, h, q, kv):
            return (ids[q] == ids[kv]) & (q - kv < i)

        return twt.flex_attention(query, query, query, mod, mask_mod=mask)

    for i in range(3000):
        call(i)
    gc.collect()
    before = resident()
    for i in range(3000, 8000):
        call(i)
    gc.collect()
    assert resident() - before < 8 << 20
    assert recorded() <= 6


def test_gradients_of_what_operations_make_of_captures(recorded):
    weight = dense.normal(4, 6)

    def make():
        def mod(s, b, h, q, kv):
            return s * torch.sigmoid(weight)[h, kv % 6] + (weight @ weight.T)[h, q % 4]

        return mod

    for _ in range(2):
        query, key, value = (dense.normal(1, 4, n, 8) for n in (9, 7, 7))
        out = twt.flex_attention(query, key, value, make())
        want, _, _ = dense.attention(query, key, value, make())
        dense.close(out, want)
        inputs = [query, key, value, weight]
        for x, y in zip(
            dense.gradients([out], inputs), dense.gradients([want], inputs), strict=True
        ):
            dense.close(x, y)
    assert recorded() == 1


def test_threads_record_beside_each_other(recorded):
    import threading

    query = dense.normal(1, 4, 9, 8)
    want = dense.attention(query, query, query, alibi(torch.ones(4).double(), 2))[0]
    errors = []

    def work(n):
        try:
            for i in range(20):
                out = twt.flex_attention(
                    query, query, query, alibi(torch.ones(4 + n).double(), 2 + 0 * i)
                )
                dense.close(out, want)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_the_short_way_sees_what_a_snapshot_sees():
    """Warm calls compare what the function reads place by place; every change must be noticed."""
    q = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    v = torch.ones(1, 1, 1, 1, dtype=torch.float64)

    def lse(function):
        out = twt.flex_attention(q, q, v, function, return_aux=twt.AuxRequest(lse=True))
        return round(out[1].lse.item(), 5)

    a, b = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0))
    number, flag = 3.0, True

    def score(s, b_, h, q_, kv):
        return s + a[h] * 10 + b[h] + (number if flag else 0)

    for _ in range(4):
        assert lse(score) == 15
    a = torch.tensor([2.0], dtype=torch.float64)  # another tensor of the same type
    assert lse(score) == 25
    a = torch.tensor([3.0])  # another dtype
    assert lse(score) == 35
    a = b  # the same one twice
    assert lse(score) == 25
    number = 4.0
    assert lse(score) == 26
    flag = False
    assert lse(score) == 22
    a = torch.tensor([[5.0]], dtype=torch.float64)[0].requires_grad_()
    assert lse(score) == 52
    out = twt.flex_attention(q, q, v, score, return_aux=twt.AuxRequest(lse=True))[1].lse
    assert torch.autograd.grad(out.sum(), a)[0].item() == pytest.approx(10)


def test_the_short_way_sees_globals_and_builtins():
    scope = {"torch": torch, "table": torch.tensor([1.0])}
    exec("def score(s, b, h, q, kv):\n    return s + abs(table[h] - 3)", scope)
    q = torch.zeros(1, 1, 1, 1)

    def lse():
        out = twt.flex_attention(q, q, q, scope["score"], return_aux=twt.AuxRequest(lse=True))
        return round(out[1].lse.item(), 5)

    for _ in range(4):
        assert lse() == 2
    scope["abs"] = lambda x: x * 2
    assert lse() == -4
    scope["table"] = torch.tensor([2.0])
    assert lse() == -2
