"""Mods written in jnp as tile IR: an interpreter of jaxprs over traced scalars.

A value is one of
- a NumPy array of numbers: a constant;
- a `Number`: a traced scalar;
- an object array of numbers and constants: a small array, such as a row of a captured one;
- a `Captured` array: whole until something reads elements of it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util

from .. import _core
from .._arrays import _NAMES, dtype_name
from ._numbers import ELEMENTWISE, Number, RefusedError, apply, convert, limits, number, operand

_MOST_ELEMENTS = 4096  # of a small array
_MOST_STEPS = 1024  # of a loop that is written out
_LOADED = 1 << 29  # int32 elements of arrays are taken to be below this, so that sums of two fit


class Captured:
    """An array that the mod reads."""

    def __init__(self, name, shape, dtype):
        """Stands for any array of this dtype and shape: a mod depends on nothing else."""
        self.name, self.shape, self.dtype = name, tuple(shape), np.dtype(dtype)
        element = np.zeros(1, self.dtype)
        tensor = _core.Tensor.from_memory(
            element.__array_interface__["data"][0],
            dtype_name("mod", "captured arrays", self.dtype),
            list(shape),
            [0] * len(shape),
            element,
        )
        self.core = _core.capture(tensor, name, jnp.issubdtype(self.dtype, jnp.floating))

    def element(self, index):
        """The element at traced or constant indices, clamped."""
        core = self.core.element(tuple(map(operand, index))) if index else self.core.value()
        return number(core, self.dtype, (-_LOADED, _LOADED))

    def inside(self, index):
        """Indices of the array, clamped, as the core takes them."""
        pairs = zip(index, self.shape, strict=True)
        return [operand(element(_clamped(i, extent - 1))) for i, extent in pairs]


class Scattered:
    """The gradient of a captured array: zero but for `entries`, (index, value) each, which add up."""

    def __init__(self, shape, dtype, entries=()):
        self.shape, self.dtype, self.entries = tuple(shape), np.dtype(dtype), list(entries)

    def small(self):
        """As a small array, for what was no gradient of a captured one after all."""
        if np.prod(self.shape) > _MOST_ELEMENTS or any(
            isinstance(i, Number) for index, _ in self.entries for i in index
        ):
            raise RefusedError("expected gradients of captured arrays to be added up alone")
        array = _objects(np.zeros(self.shape, self.dtype))
        for index, value in self.entries:
            place = tuple(int(i) for i in index)
            array[place] = element(_map("add", [array[place], value], self.dtype))
        return array


def run(jaxpr, constants, inputs):
    """The results of a jaxpr on values. Refusals name the user's line."""
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom):
        return _literal(atom.val) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        try:
            results = _equation(equation, [read(atom) for atom in equation.invars])
        except RefusedError as error:
            line = source_info_util.summarize(equation.source_info)
            if error.placed or not line:  # inside functions of JAX there is no line of the user
                raise
            raise RefusedError(f"{error} at {line}", placed=True) from None
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _literal(value):
    """A constant; a random key, which is no array of NumPy, is left to what refuses it."""
    is_key = jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended)
    return value if is_key else np.asarray(value)


def result(value):
    """The scalar that a mod returns, as the core takes it."""
    return operand(element(value))


def _equation(equation, inputs):
    primitive, params = equation.primitive, equation.params
    name, aval = primitive.name, equation.outvars[0].aval if equation.outvars else None
    if name in _CALLS:
        return _call(equation, inputs)
    if name in _LOOPS:
        return _LOOPS[name](inputs, equation.outvars, **params)
    if name in ("empty", "empty2"):
        return [np.zeros(aval.shape, aval.dtype)]
    if name == "broadcast_in_dim" and _is_zero(inputs[0]) and aval.shape:
        return [Scattered(aval.shape, aval.dtype)]
    if name in _OF_GRADIENTS and isinstance(inputs[0], Scattered):
        return [_OF_GRADIENTS[name](*inputs, **params)]
    if name == "tilewright_mod":
        return [_library_mod(inputs, aval.dtype, **params)]
    if inputs and not equation.effects and all(map(_is_constant, inputs)):
        with jax.ensure_compile_time_eval():
            results = primitive.bind(*inputs, **params)
        return [_literal(x) for x in (results if primitive.multiple_results else [results])]
    if name in _RULES:
        return [_RULES[name](*inputs, dtype=aval.dtype, **params)]
    if name in ELEMENTWISE:
        return [_map(name, inputs, aval.dtype)]
    raise RefusedError(
        f"expected a mod of scalar operations but got the primitive {name}"
        + next((hint for part, hint in _HINTS.items() if part in name), "")
    )


_HINTS = {
    "random": "; attention has a dropout of its own",
    "threefry": "; attention has a dropout of its own",
    "callback": "; mods run for every pair of positions, not in Python",
    "debug": "; mods run for every pair of positions, not in Python",
}


def _library_mod(inputs, dtype, *, mod, arrays):
    if not all(isinstance(x, Captured) for x in inputs[:arrays]):
        raise RefusedError(f"expected arrays of {mod.name} that are made outside of the mod")
    captures = [x.core for x in inputs[:arrays]]
    return number(mod.apply(captures, [operand(element(x)) for x in inputs[arrays:]]), dtype)


# ---- Values.


def _is_constant(value):
    return isinstance(value, np.ndarray | np.generic) and value.dtype != object


def element(value):
    """A value of rank 0: a Number or a NumPy scalar."""
    if isinstance(value, Scattered):
        return value.small()[()]
    if isinstance(value, Captured):
        if value.shape:
            raise RefusedError(
                f"expected a mod of scalar operations but got all of a captured array of shape "
                f"{value.shape}; index it"
            )
        return value.element(())
    return value[()] if isinstance(value, np.ndarray) else value


def _array(value):
    """The value as an array, constant or small."""
    if isinstance(value, Scattered):
        return value.small()
    if isinstance(value, Captured):
        return _part(value, [0] * len(value.shape), value.shape)
    if isinstance(value, Number):
        wrapped = np.empty((), object)
        wrapped[()] = value
        return wrapped
    return np.asarray(value)


def _objects(value):
    """The value as an array of numbers and NumPy scalars."""
    array = _array(value)
    if array.dtype == object:
        return array
    objects = np.empty(array.shape, object)
    for index in np.ndindex(*array.shape):
        objects[index] = array[index]
    return objects


def _simplified(array):
    """A scalar for an object array of rank 0."""
    return array[()] if array.ndim == 0 else array


def _elementwise(function, inputs):
    """`function` on scalars, element by element where inputs are arrays."""
    if all(getattr(x, "ndim", 0) == 0 and not getattr(x, "shape", ()) for x in inputs):
        return function(*map(element, inputs))
    arrays = [_objects(x) for x in inputs]
    results = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), object)
    arrays = [np.broadcast_to(a, results.shape) for a in arrays]
    for index in np.ndindex(*results.shape):
        results[index] = function(*(a[index] for a in arrays))
    return results


def _map(name, inputs, dtype):
    def function(*elements):
        if any(isinstance(x, Number) for x in elements):
            return apply(name, elements, dtype)
        return _constant_element(name, elements, dtype)

    return _elementwise(function, inputs)


def _constant_element(name, elements, dtype):
    """The same on constants that stand among traced elements of an array."""
    if name == "where":
        return np.asarray(elements[1] if elements[0] else elements[2], dtype)[()]
    with jax.ensure_compile_time_eval():
        return np.asarray(getattr(jax.lax, _LAX.get(name, name))(*elements)).astype(dtype)[()]


_LAX = {
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"},
    "add_any": "add",
}


# ---- Calls and loops.

_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call"),
    *("custom_vjp_call", "custom_vjp_call_jaxpr", "remat", "remat2", "checkpoint"),
}


def _call(equation, inputs):
    params = equation.params
    if params.get("name") in ("floor_divide", "remainder") and len(inputs) == 2:
        dtypes = {atom.aval.dtype for atom in [*equation.invars, *equation.outvars]}
        integer = all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes)
        # By zero jnp's functions give what theirs, and not the library's, give.
        low, high = limits(_objects(inputs[1]).flat[0]) if integer else (0, 0)
        if len(dtypes) == 1 and (low > 0 or high < 0) and not all(map(_is_constant, inputs)):
            return [_map(params["name"], inputs, dtypes.pop())]
    return _closed(
        next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), inputs
    )


def _closed(closed, inputs):
    constants = []
    for constant in getattr(closed, "consts", ()):
        if isinstance(constant, jax.core.Tracer):
            raise RefusedError(
                "expected inner functions of a mod to take traced arrays as arguments"
            )
        constants.append(_literal(constant))
    return run(getattr(closed, "jaxpr", closed), constants, inputs)


def _cond(inputs, variables, *, branches, **_):
    which, *operands = inputs
    which = element(which)
    if not isinstance(which, Number):
        return _closed(branches[min(max(int(which), 0), len(branches) - 1)], operands)
    results = [_closed(branch, operands) for branch in branches]
    return [
        _choice(which, cases, v.aval.dtype) for *cases, v in zip(*results, variables, strict=True)
    ]


def _choice(which, cases, dtype):
    """cases[which], which is a bool or clamped to the cases."""
    if any(isinstance(case, Scattered) for case in cases):
        return _chosen_gradient(which, cases)
    chosen = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        if isinstance(which, Number) and which.core.dtype == "bool":
            return _map("where", [which, cases[1], cases[0]], dtype)
        chosen = _map(
            "where", [_map("le", [which, np.int32(i)], np.bool_), cases[i], chosen], dtype
        )
    return chosen


def _chosen_gradient(which, cases):
    """Every case's elements, zero where the case was not chosen."""
    entries = []
    for i, case in enumerate(cases):
        case = case if isinstance(case, Scattered) else Scattered(cases[0].shape, cases[0].dtype)
        for index, value in case.entries:
            dtype = _dtype_of(_objects(value))
            none = np.zeros((), dtype)[()]
            values = [value if place == i else none for place in range(len(cases))]
            entries.append((index, element(_choice(which, values, dtype))))
    return Scattered(cases[0].shape, cases[0].dtype, entries)


def _while(inputs, variables, *, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts, **_):
    cond_constants = inputs[:cond_nconsts]
    body_constants = inputs[cond_nconsts : cond_nconsts + body_nconsts]
    carry = inputs[cond_nconsts + body_nconsts :]
    for _step in range(_MOST_STEPS):
        goes_on = element(_closed(cond_jaxpr, [*cond_constants, *carry])[0])
        if isinstance(goes_on, Number):
            raise RefusedError(
                "expected a loop of a constant number of steps but it depends on traced values"
            )
        if not goes_on:
            return carry
        carry = _closed(body_jaxpr, [*body_constants, *carry])
    raise RefusedError(f"expected a loop of at most {_MOST_STEPS} steps")


def _scan(inputs, variables, *, jaxpr, length, num_consts, num_carry, reverse, **_):
    if length > _MOST_STEPS:
        raise RefusedError(f"expected a loop of at most {_MOST_STEPS} steps but got {length}")
    constants, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
    scanned = inputs[num_consts + num_carry :]
    stacked = []
    for step in reversed(range(length)) if reverse else range(length):
        slices = [_at(x, step) for x in scanned]
        results = _closed(jaxpr, [*constants, *carry, *slices])
        carry = results[:num_carry]
        stacked.append(results[num_carry:])
    if reverse:
        stacked.reverse()
    outputs = [np.stack([_objects(x) for x in column]) for column in zip(*stacked, strict=True)]
    return [*carry, *outputs]


def _at(value, i):
    if isinstance(value, Captured):
        sizes = [1, *value.shape[1:]]
        return _simplified(_part(value, [np.int32(i)] + [0] * (len(sizes) - 1), sizes)[0])
    return _simplified(np.asarray(value[i], value.dtype))


_LOOPS = {"cond": _cond, "while": _while, "scan": _scan}


# ---- Gradients of captured arrays.


def _is_zero(value):
    return _is_constant(value) and np.ndim(value) == 0 and value.dtype.kind == "f" and not value


def _add_gradients(a, b):
    if not isinstance(b, Scattered):
        raise RefusedError("expected gradients of captured arrays to be added up alone")
    return Scattered(a.shape, a.dtype, a.entries + b.entries)


def _scatter(array, start, part):
    """`part`, a small array, put into a gradient that is still zero."""
    part = _objects(part)
    if array.entries:
        raise RefusedError("expected gradients of captured arrays to be added up alone")
    first = [
        element(s) if size == 1 else _clamped(s, extent - size)
        for s, size, extent in zip(start, part.shape, array.shape, strict=True)
    ]
    entries = [
        ([element(_sum(s, step)) for s, step in zip(first, offset, strict=True)], part[offset])
        for offset in np.ndindex(*part.shape)
    ]
    return Scattered(array.shape, array.dtype, entries)


def _dynamic_update_slice(array, part, *start, **_):
    return _scatter(array, start, part)


def _scatter_add(array, indices, part, *, dimension_numbers, mode, **_):
    numbers = dimension_numbers
    indices = _objects(indices)
    if indices.ndim != 1 or numbers.operand_batching_dims:
        raise RefusedError("expected captured arrays to be indexed by scalars but got a scatter")
    start = [np.int32(0)] * len(array.shape)
    part = np.expand_dims(_objects(part), tuple(numbers.inserted_window_dims))
    inside = None
    for axis, index in zip(numbers.scatter_dims_to_operand_dims, indices, strict=True):
        start[axis] = index
        last = np.asarray(array.shape[axis] - part.shape[axis], np.int32)[()]
        for test in (
            _map("ge", [index, np.int32(0)], np.bool_),
            _map("le", [index, last], np.bool_),
        ):
            inside = test if inside is None else _map("and", [inside, test], np.bool_)
    if inside is not None and "fill" in str(mode).lower():
        part = _objects(_map("where", [inside, part, np.zeros((), array.dtype)[()]], array.dtype))
    return _scatter(array, start, part)


_OF_GRADIENTS = {
    "add_any": _add_gradients,
    "add": _add_gradients,
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter-add": _scatter_add,
    "convert_element_type": lambda x, new_dtype, **_: Scattered(x.shape, new_dtype, x.entries),
}


def _pad(part, filling, *, padding_config, dtype, **_):
    """The transpose of a static slice, or a small array with a border, which may be negative."""
    part = _objects(part)
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
    if _is_zero(np.asarray(element(filling))):
        return Scattered(extents, dtype, entries)
    array = _objects(np.full(extents, element(filling), dtype))
    for index, value in entries:
        array[tuple(index)] = value
    return array


# ---- Parts of captured arrays.


def _part(array, starts, sizes):
    """A small array: elements from traced starts on. XLA moves starts so that the part fits."""
    result = np.empty(tuple(sizes), object)
    if result.size > _MOST_ELEMENTS:
        raise RefusedError(
            f"expected parts of captured arrays of at most {_MOST_ELEMENTS} elements"
        )
    first = [
        element(start) if size == 1 else _clamped(start, extent - size)
        for start, size, extent in zip(starts, sizes, array.shape, strict=True)
    ]
    for offset in np.ndindex(*result.shape):
        result[offset] = array.element(
            [element(_sum(start, step)) for start, step in zip(first, offset, strict=True)]
        )
    return result


def _clamped(start, most):
    return _map("clamp", [np.int32(0), start, np.int32(most)], np.int32)


def _sum(start, step):
    return _map("add", [start, np.int32(step)], np.int32) if step else start


def _dynamic_slice(array, *starts, slice_sizes, **_):
    starts = [element(s) for s in starts]
    if isinstance(array, Captured):
        return _simplified(_part(array, starts, slice_sizes))
    if any(isinstance(s, Number) for s in starts):
        return _chosen_slice(_objects(array), starts, slice_sizes)
    first = [
        min(max(int(s), 0), extent - size)
        for s, size, extent in zip(starts, slice_sizes, array.shape, strict=True)
    ]
    return array[tuple(slice(s, s + size) for s, size in zip(first, slice_sizes, strict=True))]


def _chosen_slice(array, starts, sizes):
    """A slice of a small array at traced starts: along each axis one of the slices there are."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        slices = [
            array.take(range(first, first + size), axis)
            for first in range(array.shape[axis] - size + 1)
        ]
        dtype = _dtype_of(array)
        start = _clamped(start, len(slices) - 1) if isinstance(start, Number) else start
        array = (
            _objects(_choice(element(start), slices, dtype))
            if isinstance(start, Number)
            else slices[min(max(int(start), 0), len(slices) - 1)]
        )
    return array


def _dtype_of(array):
    first = array.flat[0]
    if not isinstance(first, Number):
        return first.dtype
    return np.dtype(np.int32) if first.core.dtype == "i64" else _DTYPES[first.core.dtype]


def _slice(array, *, start_indices, limit_indices, strides, **_):
    strides = strides or [1] * len(start_indices)
    if isinstance(array, Captured):
        sizes = [stop - start for start, stop in zip(start_indices, limit_indices, strict=True)]
        array = _part(array, [np.int32(s) for s in start_indices], sizes)
        start_indices, limit_indices = [0] * array.ndim, array.shape
    array = _array(array)
    return array[tuple(map(slice, start_indices, limit_indices, strides))]


def _gather(array, indices, *, dtype, dimension_numbers, slice_sizes, mode, fill_value=None, **_):
    numbers = dimension_numbers
    indices = _array(indices)
    if indices.ndim != 1 or numbers.operand_batching_dims:
        raise RefusedError(
            "expected captured arrays to be indexed by scalars but got a gather of several"
        )
    starts = [np.int32(0)] * len(array.shape)
    inside = None
    for axis, index in zip(numbers.start_index_map, indices, strict=True):
        starts[axis] = index
        last = np.asarray(array.shape[axis] - slice_sizes[axis], np.int32)[()]
        for test in (
            _map("ge", [index, np.int32(0)], np.bool_),
            _map("le", [index, last], np.bool_),
        ):
            inside = test if inside is None else _map("and", [inside, test], np.bool_)
    part = _objects(_dynamic_slice(array, *starts, slice_sizes=slice_sizes))
    collapsed = numbers.collapsed_slice_dims
    part = part[tuple(0 if axis in collapsed else slice(None) for axis in range(part.ndim))]
    if "fill" not in str(mode).lower():
        return _simplified(np.asarray(part, object))
    if fill_value is None:
        floating = jnp.issubdtype(dtype, jnp.floating)
        fill_value = np.nan if floating else jnp.iinfo(dtype).min
        fill_value = jnp.iinfo(dtype).max if dtype.kind == "u" else fill_value
    fill = np.asarray(fill_value, dtype)[()]
    return _map("where", [inside, _simplified(np.asarray(part, object)), fill], dtype)


# ---- Shapes and reductions of small arrays.


def _broadcast_in_dim(x, *, shape, broadcast_dimensions, **_):
    x = _array(x)
    wide = [1] * len(shape)
    for axis, extent in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = extent
    return _simplified(np.broadcast_to(x.reshape(wide), shape))


def _folded(array, axes, function):
    """The array with these axes folded, in order."""
    array = _objects(array)
    for axis in sorted(axes, reverse=True):
        parts = [array.take(i, axis) for i in range(array.shape[axis])]
        if not parts:
            raise RefusedError("expected reductions over at least one element")
        array = np.asarray(
            functools.reduce(function, map(_simplified, map(_objects, parts))), object
        )
    return _simplified(array)


def _reduce(name):
    def rule(x, *, dtype, axes, **_):
        return _folded(x, axes, lambda a, b: _map(name, [a, b], dtype))

    return rule


def _running(name):
    def rule(x, *, dtype, axis, reverse, **_):
        array = np.moveaxis(_objects(x), axis, 0)
        parts = [_simplified(np.asarray(part, object)) for part in array]
        parts = parts[::-1] if reverse else parts
        results = []
        for part in parts:
            results.append(_map(name, [results[-1], part], dtype) if results else part)
        results = results[::-1] if reverse else results
        return np.moveaxis(np.stack([_objects(r) for r in results]), 0, axis)

    return rule


def _arg_extreme(name):
    def rule(x, *, dtype, axes, **_):
        array = np.moveaxis(_objects(x), axes[0], 0)
        best, place = _simplified(np.asarray(array[0], object)), np.asarray(0, dtype)[()]
        place = np.broadcast_to(place, array.shape[1:])
        for i in range(1, len(array)):
            part = _simplified(np.asarray(array[i], object))
            kind = _dtype_of(_objects(best))
            if jnp.issubdtype(kind, jnp.floating):
                raise RefusedError(f"expected {name} of integers; compare floats one by one")
            better = _map("gt" if name == "argmax" else "lt", [part, best], np.bool_)
            place = _map("where", [better, np.asarray(i, dtype)[()], place], dtype)
            best = _map("where", [better, part, best], kind)
        return place

    return rule


def _dot_general(x, y, *, dtype, dimension_numbers, **_):
    (x_axes, y_axes), (x_batch, _y_batch) = dimension_numbers
    if x_batch or len(x_axes) != 1:
        raise RefusedError("expected dots of rows of captured arrays but got a larger dot_general")
    x, y = np.moveaxis(_objects(x), x_axes[0], 0), np.moveaxis(_objects(y), y_axes[0], 0)
    rows = x.reshape(x.shape + (1,) * (y.ndim - 1))
    terms = [_map("mul", [_inner(a), _inner(b)], dtype) for a, b in zip(rows, y, strict=True)]
    return functools.reduce(lambda a, b: _map("add", [a, b], dtype), terms)


def _inner(part):
    return part if isinstance(part, np.ndarray) and part.ndim else _simplified(_objects(part))


def _select_n(which, *cases, dtype):
    if len(cases) == 2 and not isinstance(which, np.ndarray | Number):
        return cases[int(which)]
    if len(cases) == 2 and _holds_bools(which):
        return _map("where", [which, cases[1], cases[0]], dtype)
    return _choice(which, cases, dtype)


def _holds_bools(which):
    first = _objects(which).flat[0]
    return first.core.dtype == "bool" if isinstance(first, Number) else first.dtype == np.bool_


def _integer_pow(x, *, dtype, y):
    def power(value, n):
        if n == 1:
            return value
        half = power(value, n // 2)
        square = _map("mul", [half, half], dtype)
        return _map("mul", [square, value], dtype) if n % 2 else square

    if y == 0:
        return np.ones(getattr(x, "shape", ()), dtype)[()]
    positive = power(_array(x) if isinstance(x, Captured) else x, abs(y))
    return positive if y > 0 else _map("div", [np.ones((), dtype)[()], positive], dtype)


def _round(x, *, dtype, rounding_method):
    if int(rounding_method) != 1:
        raise RefusedError("expected round to even, jnp.round, but got round away from zero")
    return _map("round", [x], dtype)


def _rules_of_shape(function):
    return lambda x, dtype=None, **params: _simplified(np.asarray(function(_array(x), **params)))


def _plain(name):
    """exp and its like have parameters that change nothing here."""
    return lambda *inputs, dtype, **_: _map(name, inputs, dtype)


def _identity(x, **_):
    return x


_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_RULES = {
    **{name: _plain(name) for name in ELEMENTWISE},
    "convert_element_type": lambda x, *, dtype, **_: _elementwise(lambda e: convert(e, dtype), [x]),
    "select_n": _select_n,
    "integer_pow": _integer_pow,
    "round": _round,
    "dynamic_slice": _dynamic_slice,
    "slice": _slice,
    "gather": _gather,
    "broadcast_in_dim": _broadcast_in_dim,
    "pad": _pad,
    "reshape": _rules_of_shape(lambda x, new_sizes, **_: x.reshape(new_sizes)),
    "squeeze": _rules_of_shape(lambda x, dimensions: x.squeeze(tuple(dimensions))),
    "expand_dims": _rules_of_shape(lambda x, dimensions: np.expand_dims(x, tuple(dimensions))),
    "transpose": _rules_of_shape(lambda x, permutation: x.transpose(permutation)),
    "rev": _rules_of_shape(lambda x, dimensions: np.flip(x, tuple(dimensions))),
    "stack": lambda *parts, axis=0, **_: np.stack(list(map(_objects, parts)), axis),
    "concatenate": lambda *parts, dimension, **_: np.concatenate(
        list(map(_objects, parts)), dimension
    ),
    "reduce_sum": _reduce("add"),
    "reduce_prod": _reduce("mul"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "reduce_and": _reduce("and"),
    "reduce_or": _reduce("or"),
    "cumsum": _running("add"),
    "cumprod": _running("mul"),
    "cummax": _running("max"),
    "cummin": _running("min"),
    "argmax": _arg_extreme("argmax"),
    "argmin": _arg_extreme("argmin"),
    "dot_general": _dot_general,
    **{
        name: _identity
        for name in ("copy", "copy_p", "optimization_barrier", "stop_gradient", "pvary")
    },
}
