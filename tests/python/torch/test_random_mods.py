"""Random mods, masks and lists of blocks against the definition in float64, with all gradients."""

import random

import dense_torch as dense
import pytest
import torch
from torch.nn.attention import flex_attention as flex

import tilewright.torch as twt

BATCH, HEADS, QUERIES, KEYS = 2, 2, 19, 23


class Captures:
    """The tensors that a random mod reads, some of which need gradients."""

    def __init__(self, dice):
        self.floats = [
            torch.randn(dice.choice([(3,), (2, 5), (2, 2, 7)]), dtype=torch.float64)
            for _ in range(3)
        ]
        self.floats[0] = self.floats[0].bfloat16()  # read as bfloat16, used in a wider dtype
        for tensor in self.floats:
            tensor.requires_grad_()
        self.integers = [torch.randint(-9, 9, (dice.randint(1, 9),)) for _ in range(2)]
        self.integers[1] = self.integers[1].int()
        self.flags = torch.rand(dice.randint(1, 9)) < 0.5
        self.number = dice.randint(-4, 4)


def integer(dice, captures, depth):
    """Text of an integer expression. Divisors are not zero, shifts are not negative, and indices
    depend on a position, since constants out of bounds are errors."""
    if depth == 0:
        return dice.choice(["b", "h", "q", "kv", str(dice.randint(-5, 5)), "n"])
    a, b = (integer(dice, captures, depth - 1) for _ in range(2))
    return dice.choice(
        [
            f"({a} + {b})", f"({a} - {b})", f"({a} * {dice.randint(-3, 3)})",
            f"({a} // {dice.choice([-3, -2, 2, 3, 7])})", f"({a} % {dice.choice([-3, -2, 2, 3, 7])})",
            f"(({a}) >> {dice.randint(0, 3)})", f"abs({a})", f"ints{dice.randint(0, 1)}[{a} + q - q]",
            f"torch.where({condition(dice, captures, depth - 1)}, t({a}), t({b}))",
            f"(t({a}) & 7)",
        ]
    )  # fmt: skip


def condition(dice, captures, depth):
    a, b = (integer(dice, captures, max(depth - 1, 0)) for _ in range(2))
    texts = [f"(t({a}) {op} {b})" for op in ("<", "<=", "==", "!=", ">", ">=")]
    texts.append(f"flags[{a} + q - q]")
    if depth > 0:
        c, d = (condition(dice, captures, depth - 1) for _ in range(2))
        texts += [f"({c} & {d})", f"({c} | {d})", f"(~{c})"]
    return dice.choice(texts)


def real(dice, captures, depth):
    if depth == 0:
        which = dice.randint(0, 2)
        rank = captures.floats[which].dim()
        index = ", ".join(f"{integer(dice, captures, 1)} + q - q" for _ in range(rank))
        return dice.choice(
            ["s", "s", f"floats{which}[{index}].double()", f"{dice.uniform(-2, 2):.3f}"]
        )
    a, b = (real(dice, captures, depth - 1) for _ in range(2))
    return dice.choice(
        [
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"torch.tanh(f({a}))",
            f"torch.sigmoid(f({a}))", f"({a} / (2 + abs({b})))", f"torch.exp(-abs(f({a})))",
            f"torch.where({condition(dice, captures, depth)}, f({a}), f({b}))",
            f"({a} + t({integer(dice, captures, depth)}).double() * 0.125)", f"torch.sin(f({a}))",
        ]
    )  # fmt: skip


def made(text, captures, is_mask, inside):
    """The function of a text. `inside` clamps indices first, which torch does not do."""

    def t(x):  # numbers that do not depend on positions are tensors, too
        return x if isinstance(x, torch.Tensor) else torch.tensor(x)

    def f(x):
        return x.double() if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64)

    class Clamped:
        def __init__(self, array):
            self.array = array

        def __getitem__(self, index):
            index = index if isinstance(index, tuple) else (index,)
            places = []
            for i, extent in zip(index, self.array.shape, strict=True):
                i = torch.as_tensor(i)
                places.append(torch.clamp(torch.where(i < 0, i + extent, i), 0, extent - 1))
            return self.array[tuple(places)]

    wrap = Clamped if inside else (lambda array: array)
    scope = {
        "torch": torch, "t": t, "f": f, "n": captures.number, "abs": abs,
        "flags": wrap(captures.flags), "ints0": wrap(captures.integers[0]),
        "ints1": wrap(captures.integers[1]), "floats0": wrap(captures.floats[0]),
        "floats1": wrap(captures.floats[1]), "floats2": wrap(captures.floats[2]),
    }  # fmt: skip
    arguments = "b, h, q, kv" if is_mask else "s, b, h, q, kv"
    result = "" if is_mask else "f"
    return eval(f"lambda {arguments}: {result}({text})", scope)


def lists(dice, mask_mod):
    """PyTorch's lists with randomly chosen blocks, in random order."""
    size = (dice.choice([8, 16]), dice.choice([8, 16]))
    rows, columns = -(-QUERIES // size[0]), -(-KEYS // size[1])
    shape = (dice.choice([1, BATCH]), dice.choice([1, HEADS]), rows)
    counts = torch.zeros(shape, dtype=torch.int32)
    indices = torch.full((*shape, columns), -1, dtype=torch.int32)
    for place in torch.cartesian_prod(*[torch.arange(n) for n in shape]).tolist():
        chosen = dice.sample(range(columns), dice.randint(0, columns))
        counts[tuple(place)] = len(chosen)
        indices[tuple(place)][: len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    mask = flex.BlockMask.from_kv_blocks(
        counts, indices, BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=(QUERIES, KEYS),
        compute_q_blocks=False,
    )  # fmt: skip
    pairs = torch.zeros(shape[0], shape[1], rows * size[0], columns * size[1], dtype=torch.bool)
    for b, h, row in torch.cartesian_prod(*[torch.arange(n) for n in shape]).tolist():
        for column in indices[b, h, row][: counts[b, h, row]].tolist():
            pairs[
                b, h, row * size[0] : (row + 1) * size[0], column * size[1] : (column + 1) * size[1]
            ] = True
    return mask, pairs[:, :, :QUERIES, :KEYS]


@pytest.mark.parametrize("seed", range(60))
def test_random_mods(seed):
    dice = random.Random(seed)
    torch.manual_seed(seed)
    captures = Captures(dice)
    score = real(dice, captures, 3)
    mask = condition(dice, captures, 2)
    query, key, value = (dense.normal(BATCH, HEADS, n, 4) for n in (QUERIES, KEYS, KEYS))
    options, keep = {}, None
    kind = seed % 4
    if kind:
        mask_mod = made(f"t({mask})", captures, True, False)
        keep = dense.over_pairs(
            made(f"t({mask})", captures, True, True), BATCH, HEADS, QUERIES, KEYS
        )
        if kind == 1:
            options["mask_mod"] = mask_mod
        elif kind == 2:
            options["block_mask"] = twt.create_block_mask(
                mask_mod, BATCH, HEADS, QUERIES, KEYS, device="cpu", BLOCK_SIZE=16
            )
        else:
            options["block_mask"], pairs = lists(dice, mask_mod)
            keep = keep & pairs
    out, lse = twt.flex_attention(
        query, key, value, made(score, captures, False, False), return_lse=True, **options
    )
    want, want_lse, _ = dense.attention(
        query, key, value, made(score, captures, False, True), mask=keep
    )
    # Functions of positions alone are float32 in torch.
    dense.close(out, want, 1e-6)
    dense.close(lse, want_lse, 1e-6)
    inputs = [query, key, value, *captures.floats]
    for x, y, given in zip(
        dense.gradients([out, lse], inputs), dense.gradients([want, want_lse], inputs), inputs,
        strict=True,
    ):  # fmt: skip
        x, y = (torch.zeros_like(given) if g is None else g for g in (x, y))
        dense.close(x, y, 2**-7 if given.dtype == torch.bfloat16 else 1e-6)
