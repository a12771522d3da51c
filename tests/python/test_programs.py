"""Programs from IR text, and the costs of programs."""

import pathlib
import subprocess

import numpy as np
import pytest

import tilewright as tw
from tilewright import _core

F32 = np.float32
PROGRAM = pathlib.Path(__file__, "../../../build/tilewright").resolve()


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


@tw.kernel
def scaled_add(x, y, o, *, alpha):
    o[...] = x[...] * alpha + y[...]


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


def test_programs_from_text():
    f = scaled_add_call()
    x, y = rand(32, 64), rand(32, 64, seed=1)
    expected = f(x, y)
    program = tw.Program.from_text(f.ir())
    assert program.name == "scaled_add"
    assert [(n, w) for n, _, w in program.parameters] == [("x", False), ("y", False), ("o", True)]
    np.testing.assert_array_equal(program(x, y), expected)
    out = np.empty_like(expected)
    program.run(x, y, out)
    np.testing.assert_array_equal(out, expected)
    assert program.bytecode() == f.bytecode()
    assert program.cuda("sm_90a") == f.cuda("sm_90a")
    with pytest.raises(TypeError, match="expected 2 inputs"):
        program(x)
    with pytest.raises(ValueError, match="line 1"):
        tw.Program.from_text("func @nonsense(")


def test_programs_built_by_instructions():
    """As other front ends build them."""
    builder = _core.ProgramBuilder("double")
    x, o = builder.ref("x", "f32", [4, 8]), builder.ref("o", "f32", [4, 8])
    builder.add_grid_axis(4)
    builder.set_location("graph.py", 3)
    row = builder.apply("program_id", [], "i64", [], axis=0)
    place = [("scalar", row, 1, 1), ("slice", builder.constant_int("i64", [], 0), 8, 1)]
    tile = builder.load(x, place)

    def step(i, carries):
        return [builder.apply("add", [carries[0], tile], "f32", [8])]

    low, high = builder.constant_int("i64", [], 0), builder.constant_int("i64", [], 2)
    (total,) = builder.for_loop(low, high, builder.constant_int("i64", [], 1), [tile], step)
    builder.store(o, place, total)
    given = rand(4, 8)
    np.testing.assert_array_equal(tw.Program.from_text(builder.text())(given), given * 3)
    with pytest.raises(
        ValueError, match=r"\[add\] expected 2 operands but got 1 \(at graph.py:3\)"
    ):
        builder.apply("add", [tile], "f32", [8])
    with pytest.raises(ZeroDivisionError):  # the body's error, not the builder's
        builder.for_loop(low, high, low, [], lambda i, carries: 1 // 0)


def test_ranges_of_integers():
    assert _core.integer_range("mul", "i64", "i64", [(-3, 2), (-5, 4)]) == (-12, 15)
    assert _core.integer_range("lt", "i64", "bool", [(0, 4), (5, 9)]) == (1, 1)
    assert _core.integer_range("add", "i32", "i32", [(0, 2**31 - 1), (0, 1)]) is None
    with pytest.raises(ValueError, match="expected 2 integers"):
        _core.integer_range("add", "i64", "i64", [(0, 1)])


@pytest.mark.skipif(not PROGRAM.exists(), reason="the command line is not built")
def test_programs_that_the_command_line_dumps():
    done = subprocess.run(
        [PROGRAM, "dump", "softmax", "--to", "ir"], capture_output=True, text=True, check=True
    )
    program = tw.Program.from_text(done.stdout)
    (_, shape, _), *_ = program.parameters
    x = rand(*shape.shape)
    expected = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(
        program(x), expected / expected.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7
    )


def test_hints_are_in_the_ir():
    f = scaled_add_call(num_warps=8, num_stages=3)
    shape = tw.ShapeDtype((32, 64), F32)
    assert "num_warps 8 num_stages 3" in f.ir(shape, shape).splitlines()[0]


# ---- Costs.


def matmul_call(m, k, n, block):
    def kernel(x, y, z):
        def step(i, total):
            part = tw.ds(i * block, block)
            return tw.dot(x[:, part], y[part, :], acc=total)

        z[...] = tw.for_loop(0, tw.cdiv(k, block), step, tw.zeros(z.shape))

    return tw.call(
        kernel,
        grid=(tw.cdiv(m, block), tw.cdiv(n, block)),
        in_specs=[
            tw.BlockSpec((block, tw.all), lambda i, j: (i, 0)),
            tw.BlockSpec((tw.all, block), lambda i, j: (0, j)),
        ],
        out_specs=tw.BlockSpec((block, block), lambda i, j: (i, j)),
        out_shape=tw.ShapeDtype((m, n), F32),
    )


def test_cost_of_a_matrix_product():
    m, k, n, block = 64, 100, 32, 16
    cost = matmul_call(m, k, n, block).cost(tw.ShapeDtype((m, k), F32), tw.ShapeDtype((k, n), F32))
    assert cost.exact
    assert cost.flops == 2 * m * n * 112  # seven blocks of 16 for 100
    assert cost.bytes_read == 4 * (m * k * n // block + k * n * m // block)
    assert cost.bytes_written == 4 * m * n
    assert cost.array_bytes == 4 * (m * k + k * n + m * n)
    assert cost.intensity == cost.flops / cost.array_bytes
    assert cost.roof(1e12, 1e11) == ("compute" if cost.intensity > 10 else "memory")
    assert cost.seconds(1e12, 1e11) == max(cost.flops / 1e12, cost.array_bytes / 1e11)


def test_roofs_of_this_machine_are_measured():
    flops, bytes_per_second = tw.cpu_roofs()
    assert flops > 1e8 and bytes_per_second > 1e7
    assert tw.cpu_roofs() == (flops, bytes_per_second)
    large = matmul_call(2048, 2048, 2048, 64)
    square = tw.ShapeDtype((2048, 2048), F32)
    cost = large.cost(square, square)
    assert cost.roof() == "compute"
    assert cost.seconds() == cost.flops / flops
    tall = matmul_call(2048, 1, 16, 16).cost(
        tw.ShapeDtype((2048, 1), F32), tw.ShapeDtype((1, 16), F32)
    )
    assert tall.roof(1e12, 1e10) == "memory"


def test_cost_follows_bounds_that_depend_on_the_program():
    def kernel(x, o):
        i = tw.program_id(0)

        def step(j, total):
            return total + tw.sum(tw.exp(x[tw.ds(j * 8, 8)]))

        total = tw.for_loop(0, i + 1, step, 0.0)

        @tw.when(i == 3)
        def _():
            o[0] = total

    x = rand(32)
    f = tw.call(kernel, grid=4, out_shape=tw.ShapeDtype((1,), F32))
    np.testing.assert_allclose(f(x), np.exp(x).sum(), rtol=1e-5)
    cost = f.cost()
    assert cost.exact
    assert cost.transcendentals == 8 * (1 + 2 + 3 + 4)
    assert cost.bytes_written == 4
    assert cost == tw.Program.from_text(f.ir()).cost()


def test_cost_of_data_dependent_work_is_not_exact():
    def kernel(x, o):
        @tw.when(x[0] > 0)
        def _():
            o[...] = x[...] * 2

    cost = tw.call(kernel, out_shape=tw.ShapeDtype((4,), F32)).cost(tw.ShapeDtype((4,), F32))
    assert not cost.exact and cost.flops == 4 and cost.bytes_written == 16
