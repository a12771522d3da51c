"""A thousand random kernels agree with NumPy on both CPU machines.

A program is a list of steps, each a Python function of earlier values. The same functions run on
tiles and on NumPy arrays: NumPy's functions dispatch to tiles. Values stay in [-4, 4] and no step
amplifies a difference by more than a factor of 4, so that after at most DEPTH steps results that
are rounded differently differ by at most 4**DEPTH * 4 * epsilon.
"""

import os
import random

import numpy as np
import pytest

import tilewright as tw

DEPTH = 7
KERNELS = 1000
GROUPS = 20


class OnTiles:
    """Functions that NumPy lacks, in a kernel."""

    for_loop = staticmethod(lambda n, body, carry: tw.for_loop(0, n, body, carry))
    while_loop = staticmethod(tw.while_loop)
    cond = staticmethod(tw.cond)
    cast = staticmethod(tw.cast)
    load = staticmethod(lambda ref, index, **options: tw.load(ref, index, **options))
    ds = staticmethod(tw.ds)
    arange = staticmethod(tw.arange)


class OnArrays:
    """The same on NumPy arrays."""

    @staticmethod
    def for_loop(n, body, carry):
        for i in range(n):
            carry = body(i, carry)
        return carry

    @staticmethod
    def while_loop(condition, body, carry):
        while condition(carry):
            carry = body(carry)
        return carry

    @staticmethod
    def cond(condition, then_branch, else_branch):
        return then_branch() if condition else else_branch()

    @staticmethod
    def cast(x, dtype):
        return np.asarray(x).astype(dtype)

    @staticmethod
    def ds(start, size, stride=1):
        return int(start) + stride * np.arange(size)

    arange = staticmethod(lambda *bounds: np.arange(*bounds, dtype=np.int32))

    @staticmethod
    def load(block, index, mask=True, other=0):
        """Elements of an array at indices that may be out of bounds."""
        places = np.ix_(*(np.atleast_1d(i) for i in index))
        inside = np.ones(np.broadcast_shapes(*(p.shape for p in places)), bool)
        for place, extent in zip(places, block.shape, strict=True):
            inside = inside & (place >= 0) & (place < extent)
        clipped = tuple(
            np.clip(p, 0, extent - 1) for p, extent in zip(places, block.shape, strict=True)
        )
        return np.where(inside & mask, block[clipped], np.asarray(other, block.dtype))


def bounded(x):
    return np.clip(x, -4.0, 4.0)


UNARY = [
    lambda x: -x,
    lambda x: np.exp(-np.abs(x)),
    lambda x: np.tanh(x),
    lambda x: np.sin(x),
    lambda x: np.sqrt(np.abs(x) + 1.0),
    lambda x: np.log1p(np.abs(x)),
    lambda x: np.square(x) * 0.25,
    lambda x: np.exp2(x * 0.25),
    lambda x: x / (np.abs(x) + 1),
    lambda x: np.minimum(x, 1.5),
    lambda x: tw.relu(x) if isinstance(x, tw.Tile) else np.maximum(x, 0),
]
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y * 0.25,
    lambda x, y: x / (np.abs(y) + 1.0),
    lambda x, y: np.maximum(x, y),
    lambda x, y: np.minimum(x, -y),
    lambda x, y: np.sqrt(x * x + y * y + 1.0),
]
INTEGER = [
    lambda a, b: a + b,
    lambda a, b: a * b - 3,
    lambda a, b: a // (abs(b) % 7 + 1),
    lambda a, b: a % (abs(b) % 5 + 1),
    lambda a, b: (a & b) | (a ^ 12),
    lambda a, b: (a << 2) - (b >> 1),
    lambda a, b: np.maximum(a, ~b),
]
REDUCTIONS = [np.sum, np.max, np.min, np.mean]


class Program:
    """A random kernel over a block of x (floats) and n (integers)."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        choose = self.random.choice
        self.dtype = choose([np.float32, np.float64])
        self.block = (choose([1, 3, 4, 8]), choose([1, 5, 8, 16, 17]))
        self.shape = (choose([1, 4, 7, 13]), choose([1, 6, 16, 33]))
        self.steps = [self.step() for _ in range(self.random.randint(2, DEPTH))]

    def step(self):
        kind = self.random.choice(
            ["unary", "binary", "binary", "integer", "where", "reduce", "scan", "transpose",
             "slice", "concatenate", "loop", "while_loop", "cond", "dot", "load", "masked"]
        )  # fmt: skip
        return getattr(self, kind)(self.random.randrange(1 << 30))

    # Each returns a function (space, floats so far, integers so far, refs) -> value of the block.

    def unary(self, pick):
        f = UNARY[pick % len(UNARY)]
        return lambda s, v, n, refs: f(v[pick % len(v)])

    def binary(self, pick):
        f = BINARY[pick % len(BINARY)]
        return lambda s, v, n, refs: f(v[pick % len(v)], v[pick // 7 % len(v)])

    def integer(self, pick):
        f = INTEGER[pick % len(INTEGER)]

        def step(s, v, n, refs):
            n.append(f(n[pick % len(n)], n[pick // 5 % len(n)]))
            return s.cast(n[-1] & 3, self.dtype)

        return step

    def where(self, pick):
        def step(s, v, n, refs):
            a, b = n[pick % len(n)], n[pick // 3 % len(n)]
            condition = np.logical_or(a < b, np.logical_and(a % 2 == 0, b != 3))
            return np.where(condition, v[pick % len(v)], v[0] * 0.5)

        return step

    def reduce(self, pick):
        f, axis = REDUCTIONS[pick % len(REDUCTIONS)], [0, 1, (0, 1)][pick // 4 % 3]
        count = np.prod([self.block[a] for a in np.atleast_1d(axis)])

        def step(s, v, n, refs):
            x = v[pick % len(v)]
            return x * 0.5 + f(x * float(1 / count), axis=axis, keepdims=True)

        return step

    def scan(self, pick):
        axis = pick % 2
        scale = float(1 / self.block[axis])
        return lambda s, v, n, refs: np.cumsum(v[pick % len(v)] * scale, axis=axis)

    def transpose(self, pick):
        def step(s, v, n, refs):
            x = np.transpose(v[pick % len(v)])
            return np.transpose(x * 0.5) + x.reshape(self.block) * 0.5

        return step

    def slice(self, pick):
        rows, columns = self.block
        i, j = pick % rows, pick // 8 % columns

        def step(s, v, n, refs):
            x = v[pick % len(v)]
            return x[i : i + 1, :] * 0.5 + x[:, j : j + 1] * 0.5 - x[i, j] * 0.25

        return step

    def concatenate(self, pick):
        axis = pick % 2
        cut = pick // 2 % self.block[axis]

        def step(s, v, n, refs):
            x, y = v[pick % len(v)], v[pick // 11 % len(v)]
            if cut == 0:
                return x
            low = (slice(None),) * axis + (slice(0, cut),)
            high = (slice(None),) * axis + (slice(cut, None),)
            return np.concatenate([x[low], y[high]], axis)

        return step

    def loop(self, pick):
        count = pick % 4

        def step(s, v, n, refs):
            x, y = v[pick % len(v)], v[pick // 3 % len(v)]
            return s.for_loop(count, lambda i, c: c * 0.5 + y * 0.25, x)

        return step

    def while_loop(self, pick):
        def step(s, v, n, refs):
            x = v[pick % len(v)]
            last, _ = s.while_loop(
                lambda c: c[1] < pick % 5,
                lambda c: (c[0] * 0.5 + x * 0.25, c[1] + 1),
                (x, s.cast(s.arange(1, 2)[0], np.int32)),
            )
            return last

        return step

    def cond(self, pick):
        def step(s, v, n, refs):
            x, y = v[pick % len(v)], v[pick // 3 % len(v)]
            return s.cond(n[0][0, 0] % 2 == pick % 2, lambda: x * 0.5, lambda: y + 1.0)

        return step

    def dot(self, pick):
        scale = float(1 / self.block[1])

        def step(s, v, n, refs):
            x, y = v[pick % len(v)], v[pick // 3 % len(v)]
            square = (x * scale) @ np.transpose(y)
            return (square * float(1 / self.block[0])) @ x * 0.25

        return step

    def load(self, pick):
        rows, columns = self.block
        start, stride = pick % 9 - 3, pick // 9 % 3 + 1

        def step(s, v, n, refs):
            low = s.cast(n[0][0, 0] % 4 + start, np.int64)
            part = s.load(refs[2], (s.ds(low, columns, stride),), other=0.5)
            return v[pick % len(v)] * 0.5 + part

        return step

    def masked(self, pick):
        columns = self.block[1]

        def step(s, v, n, refs):
            places = (s.arange(columns) * (pick % 5 + 1)) % 11 - 1
            mask = s.arange(columns) % 3 != pick % 3
            return v[pick % len(v)] * 0.5 + s.load(refs[2], (places,), mask=mask, other=-1)

        return step

    def evaluate(self, space, x, n, refs):
        values, integers = [bounded(x)], [n]
        for step in self.steps:
            values.append(bounded(step(space, values, integers, refs)))
        total = values[0] * 0.25
        for value in values[1:]:
            total = total * 0.25 + value * 0.5
        return total + np.zeros(self.block) if space is OnArrays else total

    # ---- Running on each machine.

    def inputs(self):
        generator = np.random.default_rng(self.random.randrange(1 << 30))
        x = generator.uniform(-4, 4, self.shape).astype(self.dtype)
        n = generator.integers(-50, 50, self.shape).astype(np.int32)
        return x, n, generator.uniform(-4, 4, 9).astype(self.dtype)

    def call(self, interpret):
        def kernel(x, n, table, o):
            result = self.evaluate(OnTiles, tw.load(x, other=0), tw.load(n, other=0), (x, n, table))
            o[...] = tw.broadcast_to(result, self.block)

        spec = tw.BlockSpec(self.block, lambda i, j: (i, j))
        grid = [tw.cdiv(n, b) for n, b in zip(self.shape, self.block, strict=True)]
        return tw.call(
            kernel,
            grid=tuple(grid),
            in_specs=[spec, spec],
            out_specs=spec,
            out_shape=tw.ShapeDtype(self.shape, self.dtype),
            interpret=interpret,
        )

    def expected(self, x, n, table):
        rows, columns = (tw.cdiv(s, b) for s, b in zip(self.shape, self.block, strict=True))
        whole = (rows * self.block[0], columns * self.block[1])
        pad = [(0, w - s) for w, s in zip(whole, self.shape, strict=True)]
        wide_x, wide_n = np.pad(x, pad), np.pad(n, pad)
        result = np.zeros(whole, self.dtype)
        for i in range(rows):
            for j in range(columns):
                part = np.s_[
                    i * self.block[0] : (i + 1) * self.block[0],
                    j * self.block[1] : (j + 1) * self.block[1],
                ]
                refs = (None, None, table)
                result[part] = self.evaluate(OnArrays, wide_x[part], wide_n[part], refs)
        return result[: self.shape[0], : self.shape[1]]


def check(seed, *machines):
    """Compares the kernel of a seed with NumPy on each machine (interpret or not)."""
    program = Program(seed)
    inputs = program.inputs()
    with np.errstate(over="ignore"):
        expected = program.expected(*inputs)
    tolerance = 4**DEPTH * 4 * np.finfo(program.dtype).eps
    for interpret in machines:
        result = program.call(interpret)(*inputs)
        np.testing.assert_allclose(
            result, expected, rtol=0, atol=tolerance, err_msg=f"seed {seed} {interpret=}"
        )


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_kernels_agree_with_numpy(group):
    for seed in range(group * KERNELS // GROUPS, (group + 1) * KERNELS // GROUPS):
        check(seed, False, True)


@pytest.mark.skipif(len(tw.devices()) == 1, reason="NOT RUN: no GPU on this machine")
@pytest.mark.parametrize("seed", range(int(os.environ.get("TILEWRIGHT_TEST_PROGRAMS", "8"))))
def test_random_kernels_agree_with_numpy_on_a_gpu(seed, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "cuda")  # CPU arrays, copied to the GPU
    check(seed, False)
