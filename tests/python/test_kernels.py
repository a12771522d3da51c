"""Kernels written in Python: blocks, masks, loops, functions, arrays in and out, errors."""

import dataclasses
import threading

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

F32 = np.float32


def rand(*shape, seed=0, dtype=F32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(kernel, out, *inputs, **options):
    """Runs with outputs of these (shape, dtype)s; returns one result if `out` is not a list."""
    single = not isinstance(out, list)
    shapes = [tw.ShapeDtype(*o) for o in ([out] if single else out)]
    return tw.call(kernel, out_shape=shapes[0] if single else tuple(shapes), **options)(*inputs)


# ---- The form of API.md.


@tw.kernel
def scaled_add(x, y, o, *, alpha):
    i = tw.program_id(0)
    o[...] = x[...] * alpha + tw.where(i % 2 == 0, y[...], 0)


def scaled_add_call(**options):
    rows = tw.BlockSpec((4, 64), lambda i: (i, 0))
    return tw.call(
        scaled_add,
        grid=(8,),
        in_specs=[rows] * 2,
        out_specs=rows,
        out_shape=tw.ShapeDtype((32, 64), F32),
        alpha=2.0,
        **options,
    )


def scaled_add_expected(x, y):
    return x * 2 + np.where((np.arange(32) // 4 % 2 == 0)[:, None], y, 0)


@pytest.mark.parametrize("interpret", [False, True])
def test_blocks_statics_and_where(interpret):
    f = scaled_add_call(interpret=interpret)
    x, y = rand(32, 64), rand(32, 64, seed=1)
    z = f(x, y)
    assert type(z) is np.ndarray and z.dtype == F32
    np.testing.assert_array_equal(z, scaled_add_expected(x, y))


def test_a_signature_is_traced_once():
    traces = []

    def double(x, o):
        traces.append(x.shape)
        o[...] = x[...] * 2

    f = tw.call(double, out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype))
    for n in (5, 7, 5, 7):
        np.testing.assert_array_equal(f(np.arange(n)), np.arange(n) * 2)
    assert traces == [(5,), (7,)]
    assert f.num_traces == 2
    assert f(np.arange(5, dtype=F32)).dtype == F32
    assert f.num_traces == 3


def test_the_number_of_kept_traces_is_bounded():
    f = tw.call(
        lambda x, o: o.at[...].store(x[...] + 1),
        out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype),
    )
    for n in range(1, 300):
        f(np.zeros(n, F32))
    assert f.num_traces == 256


def test_strided_inputs_and_out():
    f = scaled_add_call()
    x, y = rand(64, 32).T, rand(32, 128, seed=1)[:, ::2]
    expected = scaled_add_expected(x[:, :64], y)
    np.testing.assert_array_equal(f(x, y), expected)
    wide = np.zeros((32, 128), F32)
    out = wide[:, ::2]
    assert f(x, y, out=out) is out
    np.testing.assert_array_equal(wide[:, ::2], expected)
    assert not wide[:, 1::2].any()


def test_several_outputs_are_a_tuple():
    def both(x, a, b):
        a[...] = x[...] + 1
        b[...] = (x[...] * 2).to(np.float64)

    a, b = run(both, [((6,), F32), ((6,), np.float64)], np.arange(6, dtype=F32))
    np.testing.assert_array_equal(a, np.arange(6) + 1)
    np.testing.assert_array_equal(b, np.arange(6) * 2.0)
    assert b.dtype == np.float64


@pytest.mark.parametrize(
    "dtype",
    [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
     np.float16, F32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
)  # fmt: skip
def test_dtypes_in_and_out(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)

    def copy(x, o):
        assert x.dtype == dtype and x[...].dtype == dtype
        o[...] = x[...]

    z = run(copy, ((3, 4), dtype), x)
    assert z.dtype == x.dtype
    np.testing.assert_array_equal(z, x)


def test_kernels_of_any_number_of_refs():
    @tw.kernel(name="sum_of_all")
    def add(*refs):
        *inputs, o = refs
        o[...] = sum((x[...] for x in inputs[1:]), inputs[0][...])

    f = tw.call(add, out_shape=tw.ShapeDtype((4,), F32))
    x = rand(4)
    np.testing.assert_array_equal(f(x), x)
    np.testing.assert_allclose(f(x, x, x), 3 * x, rtol=1e-6)
    assert "func @sum_of_all" in f.ir()


def test_ir_and_other_forms():
    f = scaled_add_call()
    with pytest.raises(ValueError, match=r"\[ir\] expected inputs"):
        f.ir()
    shape = tw.ShapeDtype((32, 64), F32)
    text = f.ir(shape, shape)
    assert text.startswith("func @scaled_add(%x: ref<f32[32, 64]>")
    f(rand(32, 64), rand(32, 64))
    assert f.ir() == text
    assert "program scaled_add" in f.bytecode()
    assert "kernel_scaled_add" in f.cuda("sm_90a")
    with pytest.raises(ValueError, match="sm_12"):
        f.cuda("sm_12")


def test_errors_name_the_line():
    def narrow(x, o):
        value = x[...].to(np.float64)
        o[...] = value

    def through_the_package(x, o):
        tw.when(
            x[0] > 0,
            lambda: tw.store(o, ..., tw.sum(x[...], axis=3)),
        )

    for kernel, text, offset in [
        (narrow, r"convert it with .to\(f32\)", 2),
        (through_the_package, "axis", 3),
    ]:
        line = kernel.__code__.co_firstlineno + offset
        with pytest.raises(ValueError, match=rf"{text}.*\(at .*test_kernels.py:{line}\)"):
            run(kernel, ((4,), F32), np.zeros(4, F32))


# ---- Memory: slices, gathers, masks, atomics, blocks.


def test_slices_of_refs_follow_numpy():
    x = rand(6, 8)

    def kernel(x, a, b, c, d):
        a[...] = x[1:5:2, -3:]
        b[...] = x[-1]
        c[...] = x[2, tw.ds(1, 3, 2)]
        d[...] = x[..., 3]

    a, b, c, d = run(kernel, [((2, 3), F32), ((8,), F32), ((3,), F32), ((6,), F32)], x)
    np.testing.assert_array_equal(a, x[1:5:2, -3:])
    np.testing.assert_array_equal(b, x[-1])
    np.testing.assert_array_equal(c, x[2, 1:6:2])
    np.testing.assert_array_equal(d, x[..., 3])


def test_masks_with_other():
    x = rand(10)

    def kernel(x, length, o):
        position = tw.arange(16)
        o[...] = tw.load(x, mask=position < length[()], other=-1)
        tw.store(o, tw.ds(0, 4), 7, mask=tw.arange(4) == 2)

    whole = tw.BlockSpec(16)
    z = run(kernel, ((16,), F32), x, np.int32(6), in_specs=[whole])
    expected = np.where(np.arange(16) < 6, np.pad(x, (0, 6)), -1)
    expected[2] = 7
    np.testing.assert_array_equal(z, expected)


def test_gather_and_scatter():
    table, rows = rand(20, 5), np.array([3, 19, 0, 3, 25], np.int32)

    def gather(table, rows, o):
        o[...] = table[rows[...], :]

    z = run(gather, ((5, 5), F32), table, rows)
    np.testing.assert_array_equal(z[:4], table[rows[:4]])
    assert not z[4].any()  # out of bounds

    def scatter(x, places, o):
        o[...] = tw.zeros(8)
        o[places[...]] = x[...]

    places = np.array([6, 1, 9], np.int64)
    z = run(scatter, ((8,), F32), np.array([1, 2, 3], F32), places)
    np.testing.assert_array_equal(z, [0, 2, 0, 0, 0, 0, 1, 0])


def test_atomics():
    values = np.random.default_rng(0).integers(0, 8, 200).astype(np.int32)

    def kernel(x, zeros, low, counts, lowest):
        i = tw.program_id(0)
        part = x[tw.ds(i * 50, 50)]
        tw.atomic_add(counts, part, 1)
        lowest.at[0].atomic_min(tw.min(part))

    counts, lowest = run(
        kernel,
        [((8,), np.int32), ((1,), np.int32)],
        values,
        np.zeros(8, np.int32),
        np.full(1, 99, np.int32),
        grid=4,
        aliases={1: 0, 2: 1},
    )
    np.testing.assert_array_equal(counts, np.bincount(values, minlength=8))
    assert lowest[0] == values.min()


def test_atomic_exchanges_return_old_values():
    def kernel(x, old, o):
        first = tw.atomic_xchg(o, 0, x[1])
        second = tw.atomic_cas(o, 0, x[1], 40)
        third = tw.atomic_max(o, 0, 50)
        old[0] = first
        old[1] = second
        old[2] = third

    x = np.array([1, 2], np.int32)
    f = tw.call(
        lambda x, o_in, old, o: kernel(x, old, o),
        out_shape=(tw.ShapeDtype((3,), np.int32), tw.ShapeDtype((1,), np.int32)),
        aliases={1: 1},
    )
    old, last = f(x, np.array([7], np.int32))
    np.testing.assert_array_equal(old, [7, 2, 40])
    assert last[0] == 50


def test_squeezed_element_and_whole_dimensions():
    x = rand(4, 10, 6)

    def kernel(x, o):
        assert x.shape == (3, 6) and o.shape == (3, 6)
        o[...] = x[...] * 2

    z = run(
        kernel,
        ((4, 3, 6), F32),
        x,
        grid=4,
        in_specs=tw.BlockSpec((None, tw.Element(3), tw.all), lambda i: (i, 2 * i, 0)),
        out_specs=tw.BlockSpec((None, 3, tw.all), lambda i: (i, 0, 0)),
    )
    expected = np.stack([np.pad(x[i], ((0, 6), (0, 0)))[2 * i : 2 * i + 3] for i in range(4)]) * 2
    np.testing.assert_array_equal(z, expected)


def test_absent_inputs_are_none():
    def kernel(x, bias, o):
        o[...] = x[...] if bias is None else x[...] + bias[...]

    f = tw.call(kernel, out_shape=tw.ShapeDtype((4,), F32))
    x = rand(4)
    np.testing.assert_array_equal(f(x, None), x)
    np.testing.assert_array_equal(f(x, x), x + x)


def test_dynamic_dimensions_are_not_traced_again():
    traces = []

    def kernel(x, o):
        traces.append(x.shape)

        def step(i, total):
            return total + tw.sum(x[tw.ds(i * 16, 16)])

        o[...] = tw.for_loop(0, tw.cdiv(x.extent(0), 16), step, 0.0)

    f = tw.call(kernel, out_shape=tw.ShapeDtype((), F32), dynamic={0: (0,)})
    for n in (5, 16, 100):
        np.testing.assert_allclose(f(np.arange(n, dtype=F32)), np.arange(n).sum())
    assert traces in ([(-1,)], [(-1,)] * 2)  # loops with literal carries may be traced twice
    assert f.num_traces == 1


def test_aliases_update_in_place():
    x = rand(8)
    before = x.copy()

    def kernel(x, o):
        o[...] = x[...] + 1

    z = run(kernel, ((8,), F32), x, aliases={0: 0})
    assert np.shares_memory(z, x)
    np.testing.assert_array_equal(x, before + 1)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="expected x, which is written, to be writable"):
        run(kernel, ((8,), F32), x, aliases={0: 0})


def test_options_of_none_are_left_out():
    def kernel(o):
        o[...] = tw.arange(4)

    f = tw.call(
        kernel,
        out_shape=tw.ShapeDtype((4,), np.int32),
        grid=None,
        in_specs=None,
        out_specs=None,
        scratch=None,
        num_warps=None,
    )
    np.testing.assert_array_equal(f(), np.arange(4))


def test_grid_and_output_as_functions_of_the_inputs():
    def kernel(x, o):
        o[...] = x[...] * 2

    block = tw.BlockSpec(8, lambda i: i)
    f = tw.call(
        kernel,
        grid=lambda x: tw.cdiv(x.shape[0], 8),
        in_specs=block,
        out_specs=block,
        out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype),
    )
    for n in (3, 8, 21):
        np.testing.assert_array_equal(f(np.arange(n)), np.arange(n) * 2)


# ---- Loops and branches.


@dataclasses.dataclass
class Pair:
    total: object
    count: object


def test_for_loop_carries_any_form():
    x = rand(40)

    def kernel(x, o):
        def step(i, carry):
            part = x[tw.ds(i * 8, 8)]
            inner, (low,) = carry["pair"], carry["low"]
            return {
                "pair": Pair(inner.total + tw.sum(part), inner.count + 1),
                "low": (tw.minimum(low, tw.min(part)),),
            }

        first = {"pair": Pair(0.0, 0), "low": (np.inf,)}
        last = tw.for_loop(0, 5, step, first)
        o[0] = last["pair"].total
        o[1] = last["pair"].count.to(F32)
        o[2] = last["low"][0]

    z = run(kernel, ((3,), F32), x)
    np.testing.assert_allclose(z, [x.sum(), 5, x.min()], rtol=1e-5)


def test_for_loop_without_carry_and_with_step():
    def kernel(o):
        o[...] = tw.zeros(10, np.int32)
        tw.for_loop(1, 10, lambda i: o.at[i].store(i.to(np.int32)), step=3)
        tw.for_loop(8, 10, lambda i, _: o.at[i].store(-1), None)

    np.testing.assert_array_equal(run(kernel, ((10,), np.int32)), [0, 1, 0, 0, 4, 0, 0, 7, -1, -1])


def test_while_loop_cond_and_when():
    def kernel(x, o):
        limit = x[0]
        value, steps = tw.while_loop(
            lambda c: c[0] < limit, lambda c: (c[0] * 2, c[1] + 1), (tw.full((), 1, F32), 0)
        )
        o[0] = value
        o[1] = steps.to(F32)
        o[2] = tw.cond(limit > 50, lambda v: v + 1, lambda v: v - 1, limit)

        @tw.when(limit > 50)
        def _():
            o[3] = 1

        @tw.when(limit <= 50)
        def _():
            o[3] = 0

    for limit in (100, 10):
        z = run(kernel, ((4,), F32), np.array([limit], F32))
        power = 2 ** int(np.ceil(np.log2(limit)))
        more = limit > 50
        np.testing.assert_array_equal(
            z, [power, np.log2(power), limit + 1 if more else limit - 1, more]
        )


def test_scan_stacks_results_of_any_form():
    a, b = rand(6, 3), rand(6, seed=1)

    def kernel(a, b, totals, pairs):
        def step(carry, row):
            carry = carry + row["a"] * row["b"]
            return carry, (carry, tw.sum(carry))

        _, (stacked, sums) = tw.scan(step, tw.zeros(3), {"a": a[...], "b": b[...]})
        totals[...] = stacked
        pairs[...] = sums

    totals, sums = run(kernel, [((6, 3), F32), ((6,), F32)], a, b)
    expected = np.cumsum(a * b[:, None], 0)
    np.testing.assert_allclose(totals, expected, rtol=1e-5)
    np.testing.assert_allclose(sums, expected.sum(1), rtol=1e-5, atol=1e-6)


# ---- Tools.


def test_debug_print(capfd):
    def kernel(o):
        i = tw.program_id(0)
        tw.debug_print("program {} of {}", i, tw.num_programs(0))
        o[i] = i.to(np.int32)

    run(kernel, ((2,), np.int32), grid=2)
    printed = capfd.readouterr()
    assert "program 1 of 2" in printed.out + printed.err


def test_vmap():
    def kernel(x, y, o):
        o[...] = x[...] + y[...] * tw.program_id(0).to(F32)

    block = tw.BlockSpec(2, lambda i: i)
    f = tw.call(
        kernel, grid=2, in_specs=[block] * 2, out_specs=block, out_shape=tw.ShapeDtype((4,), F32)
    )
    x, y = rand(3, 4), rand(4, seed=1)
    scale = np.array([0, 0, 1, 1])
    np.testing.assert_allclose(tw.vmap(f, in_axes=(0, None))(x, y), x + y * scale)
    both = tw.vmap(f, in_axes=(1, 1), out_axes=1)(x.T, x.T)
    np.testing.assert_allclose(both, (x + x * scale).T)
    nested = tw.vmap(tw.vmap(f, (0, None)), (0, None))(rand(2, 3, 4), y)
    np.testing.assert_allclose(nested, rand(2, 3, 4) + y * scale)


def test_checked_mode_names_the_line_of_the_kernel():
    def kernel(x, o):
        o[...] = x[tw.ds(tw.program_id(0) + 6, 4)]

    line = kernel.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"test_kernels.py:{line}"):
        run(kernel, ((4,), F32), rand(8), interpret=True)


def test_calls_from_many_threads():
    f = scaled_add_call()
    x, y = rand(32, 64), rand(32, 64, seed=1)
    expected = scaled_add_expected(x, y)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(f(x, y), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and f.num_traces == 1
