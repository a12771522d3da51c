"""Mods written in jnp as tile IR: an interpreter of jaxprs over the values of `_values.py`."""

import contextvars
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util

from .. import _core
from .._arrays import _NAMES
from .._numbers import ELEMENTWISE, Number, RefusedError, limits, operand
from .._values import MOST_ELEMENTS, Captured, Scattered, is_constant, simplified
from ._jaxpr.elementwise import COMPOSITE
from ._values import (
    apply_all,
    array_of,
    clamped,
    convert,
    element,
    elementwise,
    literal,
    number,
    objects,
    part_of,
    shifted,
)
from ._versions import expanded, scan_sizes

_MOST_STEPS = 1024  # of a loop that is written out
#: The arrays that the mod reads.
captured_arrays = contextvars.ContextVar("captured_arrays", default=())
#: Whether the operations are to say where they were written.
naming_lines = contextvars.ContextVar("naming_lines", default=False)


class OutsideError(IndexError):
    """A static index that is outside of its array; `placed` once the text names the user's line."""

    placed = False


def run(jaxpr, constants, inputs):
    """The results of a jaxpr on values. Refusals name the user's line."""
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom):
        return literal(atom.val) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        if naming_lines.get():
            _name_line(equation)
        try:
            results = _equation(equation, [read(atom) for atom in equation.invars])
        except (RefusedError, OutsideError) as error:
            line = source_info_util.summarize(equation.source_info)
            if error.placed or not line:  # inside functions of JAX there is no line of the user
                raise
            raised = type(error)(f"{error} at {line}")
            raised.placed = True
            raise raised from None
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _name_line(equation):
    """What follows counts as written where the equation was."""
    line = re.match(r"(.+?):(\d+)", source_info_util.summarize(equation.source_info) or "")
    if line:
        _core.exchange_source_line(line[1], int(line[2]))


def result(value):
    """The scalar that a mod returns, as the core takes it."""
    return operand(element(value))


def _equation(equation, inputs):
    primitive, params = equation.primitive, equation.params
    name, aval = primitive.name, equation.outvars[0].aval if equation.outvars else None
    if name in _CALLS:
        return _call(equation, inputs)
    if name == "call_hi_primitive":
        return _closed(expanded(equation), inputs)
    if name in _LOOPS:
        return _LOOPS[name](inputs, equation.outvars, **params)
    if name == "dim_as_value":
        return [_extent(aval.dtype, **params)]
    if name in ("empty", "empty2"):
        return [np.zeros(aval.shape, aval.dtype)]
    if name == "broadcast_in_dim" and _is_zero(inputs[0]) and aval.shape:
        return [Scattered(aval.shape, aval.dtype)]
    if name in _OF_GRADIENTS and isinstance(inputs[0], Scattered):
        return [_OF_GRADIENTS[name](*inputs, **params)]
    if name == "tilewright_mod":
        return [_library_mod(inputs, aval.dtype, **params)]
    if (inputs or name == "iota") and not equation.effects and all(map(is_constant, inputs)):
        with jax.ensure_compile_time_eval():
            results = primitive.bind(*inputs, **params)
        return [literal(x) for x in (results if primitive.multiple_results else [results])]
    if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in equation.outvars):
        raise RefusedError(f"expected a mod of real numbers but got {aval.dtype} from {name}")
    if name in _RULES:
        return [_RULES[name](*inputs, dtype=aval.dtype, **params)]
    if name in ELEMENTWISE:
        return [apply_all(name, inputs, aval.dtype)]
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
        low, high = limits(objects(inputs[1]).flat[0]) if integer else (0, 0)
        if len(dtypes) == 1 and (low > 0 or high < 0) and not all(map(is_constant, inputs)):
            return [apply_all(params["name"], inputs, dtypes.pop())]
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
        constants.append(literal(constant))
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
            return apply_all("where", [which, cases[1], cases[0]], dtype)
        chosen = apply_all(
            "where", [apply_all("le", [which, np.int32(i)], np.bool_), cases[i], chosen], dtype
        )
    return chosen


def _chosen_gradient(which, cases):
    """Every case's elements, zero where the case was not chosen."""
    entries = []
    for i, case in enumerate(cases):
        case = case if isinstance(case, Scattered) else Scattered(cases[0].shape, cases[0].dtype)
        for index, value in case.entries:
            dtype = _dtype_of(objects(value))
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


def _scan(inputs, variables, *, jaxpr, length, reverse, **params):
    num_consts, num_carry = scan_sizes(params)
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
    outputs = [np.stack([objects(x) for x in column]) for column in zip(*stacked, strict=True)]
    return [*carry, *outputs]


def _at(value, i):
    if isinstance(value, Captured):
        sizes = [1, *value.shape[1:]]
        part = part_of(value, [np.int32(i)] + [0] * (len(sizes) - 1), sizes)[0]
        return simplified(np.asarray(part, object))
    return simplified(np.asarray(value[i], value.dtype))


_LOOPS = {"cond": _cond, "while": _while, "scan": _scan}


# ---- Gradients of captured arrays.


def _is_zero(value):
    return is_constant(value) and np.ndim(value) == 0 and value.dtype.kind == "f" and not value


def _add_gradients(a, b):
    if not isinstance(b, Scattered):
        raise RefusedError("expected gradients of captured arrays to be added up alone")
    return Scattered(a.shape, a.dtype, a.entries + b.entries)


def _scatter(array, start, part):
    """`part`, a small array, put into a gradient that is still zero."""
    part = objects(part)
    if array.entries:
        raise RefusedError("expected gradients of captured arrays to be added up alone")
    first = [
        element(s) if size == 1 else clamped(s, extent - size)
        for s, size, extent in zip(start, part.shape, array.shape, strict=True)
    ]
    entries = [
        ([element(shifted(s, step)) for s, step in zip(first, offset, strict=True)], part[offset])
        for offset in np.ndindex(*part.shape)
    ]
    return Scattered(array.shape, array.dtype, entries)


def _dynamic_update_slice(array, part, *start, **_):
    return _scatter(array, start, part)


def _scatter_add(array, indices, part, *, dimension_numbers, mode, **_):
    numbers = dimension_numbers
    indices = objects(indices)
    if indices.ndim != 1 or numbers.operand_batching_dims:
        raise RefusedError("expected captured arrays to be indexed by scalars but got a scatter")
    start = [np.int32(0)] * len(array.shape)
    part = np.expand_dims(objects(part), tuple(numbers.inserted_window_dims))
    inside = None
    for axis, index in zip(numbers.scatter_dims_to_operand_dims, indices, strict=True):
        start[axis] = index
        last = np.asarray(array.shape[axis] - part.shape[axis], np.int32)[()]
        for test in (
            apply_all("ge", [index, np.int32(0)], np.bool_),
            apply_all("le", [index, last], np.bool_),
        ):
            inside = test if inside is None else apply_all("and", [inside, test], np.bool_)
    if inside is not None and "fill" in str(mode).lower():
        part = objects(
            apply_all("where", [inside, part, np.zeros((), array.dtype)[()]], array.dtype)
        )
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
    if _is_zero(np.asarray(element(filling))):
        return Scattered(extents, dtype, entries)
    array = objects(np.full(extents, element(filling), dtype))
    for index, value in entries:
        array[tuple(index)] = value
    return array


# ---- Parts of captured arrays.


def _extent(dtype, dim):
    """A symbolic extent: that of an array which the mod reads."""
    for array in captured_arrays.get():
        if dim in array.shape:
            core = array.core.extent(array.shape.index(dim))
            return number(core, dtype, (0, int(jnp.iinfo(np.int32).max)))
    raise RefusedError(f"expected symbolic extents of arrays that the mod reads but got {dim}")


def _indexed(array, *starts, slice_sizes, **_):
    """dynamic_slice, which is what an index becomes: static ones are inside of their arrays."""
    for dim, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        start, extent = element(start), array.shape[dim]
        if not isinstance(size, int):
            raise RefusedError(f"expected parts of static shapes but got {size} elements")
        if isinstance(start, Number) or not isinstance(extent, int):
            continue
        if not 0 <= start <= extent - size:
            # jnp has added the extent to a negative one.
            given = int(start) - extent if start < 0 else int(start)
            raise OutsideError(
                f"expected an index of {-extent} to {extent - 1} in dimension {dim} of an array of "
                f"shape {tuple(array.shape)} but got {given}"
            )
    return _dynamic_slice(array, *starts, slice_sizes=slice_sizes)


def _dynamic_slice(array, *starts, slice_sizes, **_):
    starts = [element(s) for s in starts]
    if isinstance(array, Captured):
        return simplified(part_of(array, starts, slice_sizes))
    if any(isinstance(s, Number) for s in starts):
        return _chosen_slice(objects(array), starts, slice_sizes)
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
        start = clamped(start, len(slices) - 1) if isinstance(start, Number) else start
        array = (
            objects(_choice(element(start), slices, dtype))
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
        array = part_of(array, [np.int32(s) for s in start_indices], sizes)
        start_indices, limit_indices = [0] * array.ndim, array.shape
    array = array_of(array)
    return array[tuple(map(slice, start_indices, limit_indices, strides))]


def _gather(array, indices, *, dtype, dimension_numbers, slice_sizes, mode, fill_value=None, **_):
    numbers = dimension_numbers
    indices = array_of(indices)
    if numbers.operand_batching_dims:
        raise RefusedError("expected captured arrays to be indexed by scalars but got a vmap")
    if indices.ndim != 1:
        one = functools.partial(
            _gather, dtype=dtype, dimension_numbers=numbers, slice_sizes=slice_sizes, mode=mode
        )
        return _gathers(array, indices, lambda *x: one(*x, fill_value=fill_value), numbers)
    starts = [np.int32(0)] * len(array.shape)
    inside = None
    for axis, index in zip(numbers.start_index_map, indices, strict=True):
        starts[axis] = index
        last = np.asarray(array.shape[axis] - slice_sizes[axis], np.int32)[()]
        for test in (
            apply_all("ge", [index, np.int32(0)], np.bool_),
            apply_all("le", [index, last], np.bool_),
        ):
            inside = test if inside is None else apply_all("and", [inside, test], np.bool_)
    part = objects(_dynamic_slice(array, *starts, slice_sizes=slice_sizes))
    collapsed = numbers.collapsed_slice_dims
    part = part[tuple(0 if axis in collapsed else slice(None) for axis in range(part.ndim))]
    if "fill" not in str(mode).lower():
        return simplified(np.asarray(part, object))
    if fill_value is None:
        floating = jnp.issubdtype(dtype, jnp.floating)
        fill_value = np.nan if floating else jnp.iinfo(dtype).min
        fill_value = jnp.iinfo(dtype).max if dtype.kind == "u" else fill_value
    fill = np.asarray(fill_value, dtype)[()]
    return apply_all("where", [inside, simplified(np.asarray(part, object)), fill], dtype)


def _gathers(array, indices, gather, numbers):
    """A gather for every vector of indices, as a small array."""
    batch = indices.shape[:-1]
    if np.prod(batch) > MOST_ELEMENTS:
        raise RefusedError(f"expected at most {MOST_ELEMENTS} indices of a captured array")
    parts = [objects(gather(array, indices[place])) for place in np.ndindex(*batch)]
    if not parts:
        raise RefusedError("expected at least one element of a captured array")
    whole = np.stack(parts).reshape(*batch, *parts[0].shape)
    batch_axes = iter(range(len(batch)))
    order = [
        len(batch) + numbers.offset_dims.index(d) if d in numbers.offset_dims else next(batch_axes)
        for d in range(whole.ndim)
    ]
    return simplified(whole.transpose(order))


# ---- Shapes and reductions of small arrays.


def _broadcast_in_dim(x, *, shape, broadcast_dimensions, **_):
    x = array_of(x)
    wide = [1] * len(shape)
    for axis, extent in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = extent
    return simplified(np.broadcast_to(x.reshape(wide), shape))


def _folded(array, axes, function):
    """The array with these axes folded, in order."""
    array = objects(array)
    for axis in sorted(axes, reverse=True):
        parts = [array.take(i, axis) for i in range(array.shape[axis])]
        if not parts:
            raise RefusedError("expected reductions over at least one element")
        array = np.asarray(functools.reduce(function, map(simplified, map(objects, parts))), object)
    return simplified(array)


def _reduce(name):
    def rule(x, *, dtype, axes, **_):
        return _folded(x, axes, lambda a, b: apply_all(name, [a, b], dtype))

    return rule


def _running(name):
    def rule(x, *, dtype, axis, reverse, **_):
        array = np.moveaxis(objects(x), axis, 0)
        parts = [simplified(np.asarray(part, object)) for part in array]
        parts = parts[::-1] if reverse else parts
        results = []
        for part in parts:
            results.append(apply_all(name, [results[-1], part], dtype) if results else part)
        results = results[::-1] if reverse else results
        return np.moveaxis(np.stack([objects(r) for r in results]), 0, axis)

    return rule


def _arg_extreme(name):
    def rule(x, *, dtype, axes, **_):
        array = np.moveaxis(objects(x), axes[0], 0)
        best, place = simplified(np.asarray(array[0], object)), np.asarray(0, dtype)[()]
        place = np.broadcast_to(place, array.shape[1:])
        for i in range(1, len(array)):
            part = simplified(np.asarray(array[i], object))
            kind = _dtype_of(objects(best))
            if jnp.issubdtype(kind, jnp.floating):
                raise RefusedError(f"expected {name} of integers; compare floats one by one")
            better = apply_all("gt" if name == "argmax" else "lt", [part, best], np.bool_)
            place = apply_all("where", [better, np.asarray(i, dtype)[()], place], dtype)
            best = apply_all("where", [better, part, best], kind)
        return place

    return rule


def _dot_general(x, y, *, dtype, dimension_numbers, **_):
    (x_axes, y_axes), (x_batch, _y_batch) = dimension_numbers
    if x_batch or len(x_axes) != 1:
        raise RefusedError("expected dots of rows of captured arrays but got a larger dot_general")
    x, y = np.moveaxis(objects(x), x_axes[0], 0), np.moveaxis(objects(y), y_axes[0], 0)
    rows = x.reshape(x.shape + (1,) * (y.ndim - 1))
    terms = [apply_all("mul", [_inner(a), _inner(b)], dtype) for a, b in zip(rows, y, strict=True)]
    return functools.reduce(lambda a, b: apply_all("add", [a, b], dtype), terms)


def _inner(part):
    return part if isinstance(part, np.ndarray) and part.ndim else simplified(objects(part))


def _select_n(which, *cases, dtype):
    if len(cases) == 2 and not isinstance(which, np.ndarray | Number):
        return cases[int(which)]
    if len(cases) == 2 and _holds_bools(which):
        return apply_all("where", [which, cases[1], cases[0]], dtype)
    return _choice(which, cases, dtype)


def _holds_bools(which):
    first = objects(which).flat[0]
    return first.core.dtype == "bool" if isinstance(first, Number) else first.dtype == np.bool_


def _integer_pow(x, *, dtype, y):
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


def _round(x, *, dtype, rounding_method):
    if int(rounding_method) != 1:
        raise RefusedError("expected round to even, jnp.round, but got round away from zero")
    return apply_all("round", [x], dtype)


def _inlined(function):
    """A function of jnp in place of a primitive, on scalars."""

    def on_scalars(*elements):
        types = [jax.ShapeDtypeStruct((), _dtype_of(objects(x))) for x in elements]
        return element(_closed(jax.make_jaxpr(function)(*types), elements)[0])

    return lambda *inputs, **_: elementwise(on_scalars, inputs)


def _rules_of_shape(function):
    return lambda x, dtype=None, **params: simplified(np.asarray(function(array_of(x), **params)))


def _plain(name):
    """exp and its like have parameters that change nothing here."""
    return lambda *inputs, dtype, **_: apply_all(name, inputs, dtype)


def _identity(x, **_):
    return x


_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_BITS = {"population_count", "clz", "nextafter"}  # of bits that mods cannot look at
_RULES = {
    **{name: _plain(name) for name in ELEMENTWISE},
    "convert_element_type": lambda x, *, dtype, **_: elementwise(lambda e: convert(e, dtype), [x]),
    "is_finite": _inlined(lambda x: jnp.abs(x) < jnp.inf),
    **{name: _inlined(COMPOSITE[name]) for name in set(COMPOSITE) - set(ELEMENTWISE) - _BITS},
    "select_n": _select_n,
    "integer_pow": _integer_pow,
    "round": _round,
    "dynamic_slice": _indexed,
    "slice": _slice,
    "gather": _gather,
    "broadcast_in_dim": _broadcast_in_dim,
    "pad": _pad,
    "reshape": _rules_of_shape(lambda x, new_sizes, **_: x.reshape(new_sizes)),
    "squeeze": _rules_of_shape(lambda x, dimensions: x.squeeze(tuple(dimensions))),
    "expand_dims": _rules_of_shape(lambda x, dimensions: np.expand_dims(x, tuple(dimensions))),
    "transpose": _rules_of_shape(lambda x, permutation: x.transpose(permutation)),
    "rev": _rules_of_shape(lambda x, dimensions: np.flip(x, tuple(dimensions))),
    "stack": lambda *parts, axis=0, **_: np.stack(list(map(objects, parts)), axis),
    "concatenate": lambda *parts, dimension, **_: np.concatenate(
        list(map(objects, parts)), dimension
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
