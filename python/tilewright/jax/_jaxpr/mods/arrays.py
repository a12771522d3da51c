"""Small arrays in mods: shapes, reductions, products, selections, composite functions."""

import functools

import jax.numpy as jnp
import numpy as np

from ...._errors import UnsupportedError
from ...._numbers import ELEMENTWISE, Number
from ...._values import Captured, Scattered, simplified
from ..._values import apply_all, array_of, convert, dtype_of, element, elementwise, objects
from ..composites import COMPOSITE
from .loops import choice
from .walker import dtype_out, is_zero, rule


@rule("broadcast_in_dim")
def _broadcast_in_dim(w, equation, x):
    x, shape = array_of(x), equation.params["shape"]
    expanded = [1] * len(shape)
    for axis, extent in zip(equation.params["broadcast_dimensions"], x.shape, strict=True):
        expanded[axis] = extent
    return simplified(np.broadcast_to(x.reshape(expanded), shape))


def _folded(array, axes, function):
    """The array reduced over these axes, in order."""
    array = objects(array)
    for axis in sorted(axes, reverse=True):
        parts = [array.take(i, axis) for i in range(array.shape[axis])]
        if not parts:
            raise UnsupportedError("expected reductions over at least one element")
        array = np.asarray(functools.reduce(function, map(simplified, map(objects, parts))), object)
    return simplified(array)


_FOLDS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


@rule(*(f"reduce_{name}" for name in _FOLDS))
def _reduce(w, equation, x):
    name, dtype = _FOLDS[equation.primitive.name.removeprefix("reduce_")], dtype_out(equation)
    return _folded(x, equation.params["axes"], lambda a, b: apply_all(name, [a, b], dtype))


@rule("cumsum", "cumprod", "cummax", "cummin")
def _running(w, equation, x):
    name, dtype = _FOLDS[equation.primitive.name.removeprefix("cum")], dtype_out(equation)
    axis, reverse = equation.params["axis"], equation.params["reverse"]
    array = np.moveaxis(objects(x), axis, 0)
    parts = [simplified(np.asarray(part, object)) for part in array]
    parts = parts[::-1] if reverse else parts
    results = []
    for part in parts:
        results.append(apply_all(name, [results[-1], part], dtype) if results else part)
    results = results[::-1] if reverse else results
    return np.moveaxis(np.stack([objects(r) for r in results]), 0, axis)


@rule("argmax", "argmin")
def _arg_extreme(w, equation, x):
    name, dtype = equation.primitive.name, dtype_out(equation)
    array = np.moveaxis(objects(x), equation.params["axes"][0], 0)
    best, place = simplified(np.asarray(array[0], object)), np.asarray(0, dtype)[()]
    place = np.broadcast_to(place, array.shape[1:])
    for i in range(1, len(array)):
        part = simplified(np.asarray(array[i], object))
        kind = dtype_of(objects(best))
        if jnp.issubdtype(kind, jnp.floating):
            raise UnsupportedError(f"expected {name} of integers; compare floats one by one")
        better = apply_all("gt" if name == "argmax" else "lt", [part, best], np.bool_)
        place = apply_all("where", [better, np.asarray(i, dtype)[()], place], dtype)
        best = apply_all("where", [better, part, best], kind)
    return place


@rule("dot_general")
def _dot_general(w, equation, x, y):
    dtype = dtype_out(equation)
    (x_axes, y_axes), (x_batch, _y_batch) = equation.params["dimension_numbers"]
    if x_batch or len(x_axes) != 1:
        raise UnsupportedError(
            "expected dots of rows of captured arrays but got a larger dot_general"
        )
    x, y = np.moveaxis(objects(x), x_axes[0], 0), np.moveaxis(objects(y), y_axes[0], 0)
    rows = x.reshape(x.shape + (1,) * (y.ndim - 1))
    terms = [apply_all("mul", [_inner(a), _inner(b)], dtype) for a, b in zip(rows, y, strict=True)]
    return functools.reduce(lambda a, b: apply_all("add", [a, b], dtype), terms)


def _inner(part):
    return part if isinstance(part, np.ndarray) and part.ndim else simplified(objects(part))


@rule("select_n")
def _select_n(w, equation, which, *cases):
    dtype = dtype_out(equation)
    if len(cases) == 2 and not isinstance(which, np.ndarray | Number):
        return cases[int(which)]
    if len(cases) == 2 and _holds_bools(which):
        return apply_all("where", [which, cases[1], cases[0]], dtype)
    return choice(which, cases, dtype)


def _holds_bools(which):
    first = objects(which).flat[0]
    return first.core.dtype == "bool" if isinstance(first, Number) else first.dtype == np.bool_


@rule("integer_pow")
def _integer_pow(w, equation, x):
    dtype, y = dtype_out(equation), equation.params["y"]

    def power(value, n):
        if n == 1:
            return value
        half = power(value, n // 2)
        square = apply_all("mul", [half, half], dtype)
        return apply_all("mul", [square, value], dtype) if n % 2 else square

    if y == 0:
        return np.ones(getattr(x, "shape", ()), dtype)[()]
    positive = power(array_of(x) if isinstance(x, Captured) else x, abs(y))
    return positive if y > 0 else apply_all("div", [np.ones((), dtype)[()], positive], dtype)


@rule("round")
def _round(w, equation, x):
    if int(equation.params["rounding_method"]) != 1:
        raise UnsupportedError("expected round to even, jnp.round, but got round away from zero")
    return apply_all("round", [x], dtype_out(equation))


@rule("convert_element_type")
def _convert(w, equation, x):
    dtype = dtype_out(equation)
    return elementwise(lambda e: convert(e, dtype), [x])


_BITS = {"population_count", "clz"}  # of bits, which mods cannot access
_COMPOSITE = {name: COMPOSITE[name] for name in set(COMPOSITE) - set(ELEMENTWISE) - _BITS}
_COMPOSITE["is_finite"] = lambda x: jnp.abs(x) < jnp.inf


@rule(*_COMPOSITE)
def _composite(w, equation, *operands):
    function = _COMPOSITE[equation.primitive.name]
    return elementwise(lambda *scalars: element(w.inline(function, *scalars)), operands)


# ---- Shapes.


def _of_shape(function):
    """Makes a rule from a function of the array and the primitive's parameters."""
    return lambda w, equation, x: simplified(np.asarray(function(array_of(x), equation.params)))


for _name, _function in {
    "reshape": lambda x, params: x.reshape(params["new_sizes"]),
    "squeeze": lambda x, params: x.squeeze(tuple(params["dimensions"])),
    "expand_dims": lambda x, params: np.expand_dims(x, tuple(params["dimensions"])),
    "transpose": lambda x, params: x.transpose(params["permutation"]),
    "rev": lambda x, params: np.flip(x, tuple(params["dimensions"])),
}.items():
    rule(_name)(_of_shape(_function))


@rule("stack")
def _stack(w, equation, *parts):
    return np.stack(list(map(objects, parts)), equation.params.get("axis", 0))


@rule("concatenate")
def _concatenate(w, equation, *parts):
    return np.concatenate(list(map(objects, parts)), equation.params["dimension"])


@rule("pad")
def _pad(w, equation, part, filling):
    """The transpose of a static slice, or a small array with padding, which may be negative."""
    padding_config, dtype = equation.params["padding_config"], dtype_out(equation)
    part = objects(part)
    extents = [
        low + high + size + max(size - 1, 0) * step
        for size, (low, high, step) in zip(part.shape, padding_config, strict=True)
    ]
    entries = []
    for at in np.ndindex(*part.shape):
        index = [
            int(low + i * (step + 1)) for i, (low, _, step) in zip(at, padding_config, strict=True)
        ]
        if all(0 <= i < extent for i, extent in zip(index, extents, strict=True)):
            entries.append(([np.int32(i) for i in index], part[at]))
    if is_zero(np.asarray(element(filling))):
        return Scattered(extents, dtype, entries)
    array = objects(np.full(extents, element(filling), dtype))
    for index, value in entries:
        array[tuple(index)] = value
    return array
