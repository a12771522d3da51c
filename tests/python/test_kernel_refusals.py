"""What Python kernels refuse: texts name arguments and lines, and no answer is wrong."""

import numpy as np
import pytest

import tilewright as tw

F32 = np.float32


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def run(kernel, out, *inputs, **options):
    return tw.call(kernel, out_shape=tw.ShapeDtype(*out), **options)(*inputs)


@tw.kernel
def scaled_add(x, y, o, *, alpha):
    o[...] = x[...] * alpha + y[...]


X4 = np.zeros(4, F32)
REFUSED = {
    "branch": (lambda x, o: o.at[...].store(1 if x[0] > 0 else 2), "no truth value.*tw.cond"),
    "python loop": (lambda x, o: [v for v in x[...]], "no elements"),
    "loop over a Ref": (lambda x, o: list(x), "cannot be iterated"),
    "dtype": (lambda x, o: o.at[...].store(x[...].to(np.float64)), r"convert it with .to\(f32\)"),
    "static index": (lambda x, o: o.at[...].store(x[4]), "expected elements inside dimension 0"),
    "too many": (lambda x, o: o.at[...].store(x[0, 0]), "at most 1 indices"),
    "traced slice": (lambda x, o: o.at[...].store(x[: tw.program_id(0)]), "write tw.ds"),
    "shape": (lambda x, o: o.at[...].store(tw.zeros(3)), "a shape that broadcasts to"),
    "returned": (lambda x, o: x[...], "to return None"),
    "store to input": (lambda x, o: x.at[...].store(0), "input"),
    "assign to tile": (lambda x, o: x[...].__setitem__(0, 1), "cannot be assigned"),
    "array": (lambda x, o: o.at[...].store(x[...] + np.zeros(4)), "arrays go in as inputs"),
    "object": (lambda x, o: o.at[...].store(x[...] + "4"), "unsupported operand"),
    "nothing": (lambda x, o: o.at[...].store(None), "a number but got NoneType"),
    "carry": (lambda x, o: tw.for_loop(0, 3, lambda i, c: (c, c), x[...]), "of the form"),
    "carry type": (lambda x, o: tw.for_loop(0, 3, lambda i, c: x[0], x[...]), "carry 0 to stay"),
    "branches": (lambda x, o: tw.cond(x[0] > 0, lambda: (1, 2), lambda: 1), "of one form"),
    "when": (lambda x, o: tw.when(x[0] > 0, lambda: x[0]), "tw.cond returns values"),
    "condition": (lambda x, o: tw.when(x[0], lambda: None), "bool scalar condition"),
    "axis": (lambda x, o: o.at[...].store(tw.sum(x[...], 1)), "axis"),
    "axis of no integer": (
        lambda x, o: tw.sum(x[...], axis=1.5),
        "axis to be an integer but got float",
    ),
    "same axis": (lambda x, o: o.at[...].store(tw.sum(x[...], (0, -1))), "each axis once"),
    "precision": (lambda x, o: tw.dot(x[...], x[...], precision="bf16"), "expected precision"),
    "numpy function": (lambda x, o: np.fft.fft(x[...]), "NumPy function that tilewright knows"),
    "ufunc method": (lambda x, o: np.add.reduce(x[...]), r"np\.add\.reduce"),
    "traced shape": (lambda x, o: tw.zeros(tw.program_id(0)), "static integer"),
    "load of a tile": (lambda x, o: tw.load(x[...]), "expected ref to be a Ref"),
    "scan": (lambda x, o: tw.scan(lambda c, r: c, 0.0, x[...]), r"return \(carry, y\)"),
    "new axis": (lambda x, o: o.at[...].store(x[None]), "load first"),
    "step of 0": (lambda x, o: tw.arange(8, step=0), r"\[arange\] .* other than 0 \(at .*refusals"),
    "traced tile index": (lambda x, o: x[...][tw.program_id(0)], "static indices of a tile"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_in_kernels(name):
    kernel, text = REFUSED[name]
    with pytest.raises((ValueError, TypeError, IndexError), match=text):
        run(kernel, ((4,), F32), X4, grid=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"grid": 2.5}, "expected grid to be an integer but got float"),
        ({"grid": -1}, "grid extents >= 0"),
        ({"in_specs": [3]}, r"in_specs\[0\] to be a tw.BlockSpec"),
        ({"in_specs": [None] * 5}, "at least 5 inputs"),
        ({"in_specs": tw.BlockSpec((2, 2), lambda: (0, 0))}, "block shape of rank 1 for `x`"),
        ({"in_specs": tw.BlockSpec(0, lambda: 0)}, "positive block size"),
        ({"in_specs": tw.BlockSpec(2, lambda: (0, 0))}, "to return 1 indices but got 2"),
        (
            {"grid": 2, "in_specs": tw.BlockSpec(2, lambda i, j: i)},
            r"take 1 index, one .* are \(i, j\)",
        ),
        ({"num_warps": -1}, "num_warps from 0"),
        ({"num_warps": 3}, "num_warps of kernel `.*` to be a power of two but got 3"),
        ({"interpret": "yes"}, "expected interpret to be True or False but got 'yes'"),
        ({"sequential": 1}, "sequential axes of the 0-dimensional grid"),
        ({"aliases": {5: 0}}, "alias"),
        ({"beta": 1}, "static parameters of `kernel`.*but got beta"),
        ({"scratch": 4}, "tw.ShapeDtype but got 4"),
    ],
)
def test_refused_options(options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        run(lambda x, o: o.at[...].store(x[...]), ((4,), F32), X4, **options)


def test_tuples_are_no_tiles():
    with pytest.raises(TypeError, match="got tuple: take its elements one by one"):
        run(lambda x, o: o.at[...].store((x[...], x[...])), ((4,), F32), X4)


def test_refs_print_their_types():
    texts = []

    def kernel(x, o):
        texts.append(str(x))
        o[...] = x[...]

    run(kernel, ((4,), F32), X4)
    assert texts == ["Ref(f32[4])"]


def test_errors_of_blocks_name_the_line_of_the_call():
    spec = tw.BlockSpec((2, 2), lambda: (0, 0))
    f = tw.call(lambda x, o: None, in_specs=spec, out_shape=tw.ShapeDtype((4,), F32))
    line = test_errors_of_blocks_name_the_line_of_the_call.__code__.co_firstlineno + 2
    text = rf"block shape of rank 1 for `x`.*call made at .*test_kernel_refusals.py:{line}\)"
    with pytest.raises(ValueError, match=text):
        f(X4)


def test_refused_arguments():
    with pytest.raises(TypeError, match="alpha is missing"):
        tw.call(scaled_add, out_shape=tw.ShapeDtype((4,), F32))
    with pytest.raises(TypeError, match="for the static parameters of `named` but got grid"):

        @tw.kernel
        def named(x, o, *, grid):
            pass

    with pytest.raises(TypeError, match="out_shape to be a tw.ShapeDtype or several but got None"):
        tw.call(lambda o: None, out_shape=None)
    with pytest.raises(TypeError, match="ShapeDtype but got 4"):
        tw.call(lambda o: None, out_shape=4)
    f = tw.call(lambda x, o: None, out_shape=tw.ShapeDtype((4,), F32))
    with pytest.raises(TypeError, match="expected x to be a NumPy array or to have __dlpack__"):
        f([1, 2, 3, 4])
    with pytest.raises(ValueError, match="expected 3 Refs|expected 2 Refs"):
        f(X4, X4)
    with pytest.raises(ValueError, match=r"output 0 .* to be f32\[4\]"):
        f(X4, out=np.zeros(5, F32))
    read_only = np.zeros(4, F32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="to be writable but it is read-only"):
        f(X4, out=read_only)
    with pytest.raises(TypeError, match="expected a function of Refs"):
        tw.kernel(3)
    with pytest.raises(TypeError, match="what tw.call made"):
        tw.vmap(scaled_add)
    with pytest.raises(ValueError, match="expected to be called inside a kernel"):
        tw.program_id(0)


def test_calls_inside_of_kernels_are_refused():
    f = tw.call(scaled_add, out_shape=tw.ShapeDtype((32, 64), F32), alpha=2)
    x = rand(32, 64)
    with pytest.raises(ValueError, match="outside of kernels"):
        run(lambda y, o: f(x, x), ((4,), F32), X4)


def test_values_do_not_leave_their_trace():
    kept = []

    def kernel(x, o):
        kept.append(x[...])
        o[...] = kept[0]

    f = tw.call(kernel, out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype))
    f(X4)
    with pytest.raises(ValueError, match="one of another trace"):
        f(np.zeros(5, F32))
    with pytest.raises(ValueError, match="is visible here"):
        run(_leaks, ((4,), F32), X4)


def _leaks(x, o):
    kept = []
    tw.for_loop(0, 3, lambda i: kept.append(x[i]))
    o[...] = kept[0]


# ---- Indices out of bounds: the table of docs/reference/kernels-python.md.


def outside(body, checked, **options):
    @tw.kernel
    def kernel(x, o):
        o[...] = 0.0
        body(x, o, tw.program_id(0))

    x = np.arange(1, 9, dtype=F32)
    out = ((8,), F32)
    return list(run(kernel, out, x, grid=1, interpret=checked, **options))


LOADS = {
    "scalar": (lambda i: i + 100, [0] * 8),
    "negative": (lambda i: i - 1, [0] * 8),
    "slice": (lambda i: tw.ds(i + 4, 8), [5, 6, 7, 8, 0, 0, 0, 0]),
    "tile": (lambda i: tw.arange(8) + 4 + i, [5, 6, 7, 8, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", LOADS)
def test_loads_outside(name):
    index, want = LOADS[name]
    assert outside(lambda x, o, i: o.at[...].store(x[index(i)]), False) == want
    with pytest.raises(ValueError, match=r"one made from x\[-?\d+\] outside its extents \[8\]"):
        outside(lambda x, o, i: o.at[...].store(x[index(i)]), True)
    for checked in (False, True):
        with_other = outside(
            lambda x, o, i: o.at[...].store(tw.load(x, index(i), other=7)), checked
        )
        assert with_other == [n or 7 for n in want]


@pytest.mark.parametrize("checked", [False, True])
def test_stores_outside(checked):
    def some(x, o, i):
        o[tw.ds(i + 4, 8)] = x[...]

    def scatter(x, o, i):
        o[tw.arange(8) + 4] = x[...]

    for body in (some, scatter):
        assert outside(body, checked) == [0, 0, 0, 0, 1, 2, 3, 4]

    def add(x, o, i):
        tw.atomic_add(o, tw.arange(8) + 40, x[...])

    def scalar(x, o, i):
        o[i + 100] = 1.0

    for body in (lambda x, o, i: o.at[tw.ds(i + 40, 8)].store(x[...]), add, scalar):
        if checked:
            with pytest.raises(ValueError, match="but got only lanes outside, the first at o"):
                outside(body, checked)
        else:
            assert outside(body, checked) == [0] * 8


def test_static_and_block_indices_outside():
    for index in (9, tw.ds(4, 8)):
        with pytest.raises(ValueError, match=r"expected elements inside dimension 0 .*\(at "):
            outside(lambda x, o, i, index=index: x[index], False)
    specs = {
        "in_specs": tw.BlockSpec((2,), lambda i: i),
        "out_specs": tw.BlockSpec((8,), lambda i: 0),
    }

    def past_the_block(x, o, i):
        o[...] = x[i + 3]

    assert outside(past_the_block, False, **specs) == [4] * 8
    with pytest.raises(ValueError, match="index into `x` leaves its block of 2 elements"):
        outside(past_the_block, True, **specs)


def reversed_ref(x, o):
    o[...] = x[::-1]


def reversed_store(x, o):
    o[2::-2] = x[:2]


def reversed_tile(x, o):
    o[...] = x[...][::-1]


def step_of_zero(x, o):
    o[...] = x[::0]


def step_of_zero_in_a_tile(x, o):
    o[...] = x[...][::0]


STEPS = {
    reversed_ref: (ValueError, r"got -1; the index tw\.arange\(3, -1, -1\) reads"),
    reversed_store: (ValueError, r"got -2; the index tw\.arange\(2, -1, -2\) reads"),
    reversed_tile: (IndexError, r"a slice of a tile with a positive step but got -1; "),
    step_of_zero: (ValueError, "a slice with a positive step but got 0"),
    step_of_zero_in_a_tile: (IndexError, "a slice of a tile with a positive step but got 0"),
}


@pytest.mark.parametrize("body", STEPS)
def test_steps_of_slices_are_refused_with_the_line(body):
    kind, text = STEPS[body]
    line = body.__code__.co_firstlineno + 1
    with pytest.raises(kind, match=rf"^\[index\].*{text}.*\(at .*refusals\.py:{line}\)"):
        run(tw.kernel(body), ((4,), F32), X4)

    @tw.kernel
    def in_order(x, o):
        o[...] = x[tw.arange(3, -1, -1)]

    assert run(in_order, ((4,), F32), np.arange(4, dtype=F32)).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"aliases": [0]},
            r"\[call\] expected aliases of the form \{input: output\} but got \[0\]",
        ),
        ({"aliases": "01"}, "aliases of the form .* but got str"),
        ({"dynamic": "x"}, r"expected dynamic of the form \{argument: dimensions\} but got str"),
        ({"dynamic": [0]}, "expected dynamic of the form .* but got list"),
        (
            {"in_specs": tw.BlockSpec((4,), lambda i: None), "grid": 1},
            r"\[BlockSpec\] expected index_map to return integers, .* but got NoneType",
        ),
        (
            {"in_specs": tw.BlockSpec((4,), lambda i: ("a",)), "grid": 1},
            "expected index_map to return integers, .* but got str",
        ),
    ],
)
def test_options_of_calls_name_their_form(options, text):
    @tw.kernel
    def copy(x, o):
        o[...] = x[...]

    with pytest.raises(TypeError, match=text):
        run(copy, ((4,), F32), X4, **options)


def test_shapes_have_no_negative_extents():
    with pytest.raises(ValueError, match=r"\[ShapeDtype\] expected extents of at least 0 but got"):
        tw.ShapeDtype((-1, 4), F32)


def test_errors_that_a_kernel_raises_are_left_alone():
    @tw.kernel
    def raises(x, o):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        run(raises, ((4,), F32), X4)


def test_errors_of_types_name_the_line():
    @tw.kernel
    def branches(x, o):
        if x[0] > 0:
            o[...] = x[...]

    line = branches.function.__code__.co_firstlineno + 2
    with pytest.raises(
        TypeError, match=rf"no truth value.*\(at .*{__name__.split('.')[-1]}.py:{line}\)"
    ):
        run(branches, ((4,), F32), X4)

    @tw.kernel
    def applies_a_mod(x, o):
        o[...] = tw.where(tw.masks.causal()(0, 0, 1, "2"), x[...], 0)

    line = applies_a_mod.function.__code__.co_firstlineno + 2
    with pytest.raises(TypeError, match=rf"got str.*\(at .*:{line}\)$"):
        run(applies_a_mod, ((4,), F32), X4)
