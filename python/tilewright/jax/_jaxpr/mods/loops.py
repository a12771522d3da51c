"""Loops and branches of mods: loops are unrolled, branches become selections."""

import numpy as np

from ...._errors import UnsupportedError
from ...._numbers import Number
from ...._values import Captured, Scattered, simplified
from ..._values import apply_all, dtype_of, element, objects, part_of
from ..._versions import scan_sizes
from .walker import rule

_MOST_STEPS = 1024  # of a loop that is unrolled


@rule("cond")
def _cond(w, equation, which, *operands):
    branches = equation.params["branches"]
    which = element(which)
    if not isinstance(which, Number):
        return w.evaluate(branches[min(max(int(which), 0), len(branches) - 1)], *operands)
    results = [w.evaluate(branch, *operands) for branch in branches]
    return [
        choice(which, cases, v.aval.dtype)
        for *cases, v in zip(*results, equation.outvars, strict=True)
    ]


def choice(which, cases, dtype):
    """cases[which], where `which` is a bool, or an integer that is clamped."""
    if any(isinstance(case, Scattered) for case in cases):
        return _chosen_gradient(which, cases)
    chosen = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        if isinstance(which, Number) and which.core.dtype == "bool":
            return apply_all("where", [which, cases[1], cases[0]], dtype)
        chosen = apply_all(
            "where", [apply_all("le", [which, np.int32(i)], np.bool_), cases[i], chosen], dtype
        )
    return chosen


def _chosen_gradient(which, cases):
    """The elements of every case, zero where the case was not selected."""
    entries = []
    for i, case in enumerate(cases):
        case = case if isinstance(case, Scattered) else Scattered(cases[0].shape, cases[0].dtype)
        for index, value in case.entries:
            dtype = dtype_of(objects(value))
            none = np.zeros((), dtype)[()]
            values = [value if place == i else none for place in range(len(cases))]
            entries.append((index, element(choice(which, values, dtype))))
    return Scattered(cases[0].shape, cases[0].dtype, entries)


@rule("while")
def _while(w, equation, *operands):
    params = equation.params
    tested, stepped = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    carry = operands[stepped:]
    for _step in range(_MOST_STEPS):
        goes_on = element(w.evaluate(params["cond_jaxpr"], *operands[:tested], *carry)[0])
        if isinstance(goes_on, Number):
            raise UnsupportedError(
                "expected a loop of a constant number of steps but it depends on traced values"
            )
        if not goes_on:
            return carry
        carry = w.evaluate(params["body_jaxpr"], *operands[tested:stepped], *carry)
    raise UnsupportedError(f"expected a loop of at most {_MOST_STEPS} steps")


@rule("scan")
def _scan(w, equation, *operands):
    length, reverse = equation.params["length"], equation.params["reverse"]
    num_consts, num_carry = scan_sizes(equation.params)
    if length > _MOST_STEPS:
        raise UnsupportedError(f"expected a loop of at most {_MOST_STEPS} steps but got {length}")
    constants, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]
    scanned = operands[num_consts + num_carry :]
    stacked = []
    for step in reversed(range(length)) if reverse else range(length):
        slices = [_at(x, step) for x in scanned]
        results = w.evaluate(equation.params["jaxpr"], *constants, *carry, *slices)
        carry = results[:num_carry]
        stacked.append(results[num_carry:])
    if reverse:
        stacked.reverse()
    outputs = [np.stack([objects(x) for x in column]) for column in zip(*stacked, strict=True)]
    return [*carry, *outputs]


def _at(value, i):
    if isinstance(value, Captured):
        sizes = [1, *value.shape[1:]]
        part = part_of(value, [np.int32(i)] + [0] * (len(sizes) - 1), sizes)[0]
        return simplified(np.asarray(part, object))
    return simplified(np.asarray(value[i], value.dtype))
