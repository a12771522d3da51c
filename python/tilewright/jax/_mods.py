"""Mods: functions of scalars in jnp, and objects of the mask and score libraries."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from .._errors import UnsupportedError
from .._functions import NONE, TracedMod, check, combined, variables_of
from .._numbers import Number
from . import _derivative
from ._core_mods import from_core
from ._jaxpr.mods.translate import result, run
from ._values import captured, number

_ANYWHERE = (-(1 << 31), (1 << 31) - 1)


def trace(op, argument, function, is_mask, sizes, score_dtype=jnp.float32, checked=False):
    """Traces a mod; TypeError, ValueError, IndexError or NotImplementedError if it cannot be one.
    For the checked mode, its text names the lines of its operations."""
    if isinstance(function, _core.Mod):
        function = from_core(function)
    check(op, argument, function, is_mask)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    inputs = [position] * 4
    if not is_mask:
        inputs.insert(0, jax.ShapeDtypeStruct((), score_dtype))
    try:
        # Traced anew each time: a cached trace of the function may hold arrays of another call.
        closed = jax.make_jaxpr(lambda *scalars: function(*scalars))(*inputs)
    except jax.errors.TracerBoolConversionError as error:
        raise TypeError(
            f"[{op}] expected {argument} to choose by jnp.where(condition, a, b) but it branches "
            "on a traced value; in place of `and`, `or` and `not` use &, | and ~, of `a < b < c` "
            "(a < b) & (b < c), of `a in (1, 2)` (a == 1) | (a == 2), of min and max jnp.minimum and "
            "jnp.maximum"
        ) from error
    except (
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise TypeError(
            f"[{op}] expected {argument} to read JAX arrays but it uses a traced value in NumPy or "
            "Python: wrap its arrays in jnp.asarray"
        ) from error
    _check_result(op, argument, closed.out_avals, is_mask)
    names = _names_of(function, closed.consts)
    stands = [stand_in(name, x) for name, x in zip(names, closed.consts, strict=True)]

    own_rules = not is_mask and _derivative.has_own_rules(closed.jaxpr)

    def numbers_of(arguments):
        numbers = [
            number(core, jnp.int32, _bounds(size))
            for core, size in zip(arguments[-4:], sizes, strict=True)
        ]
        return numbers if is_mask else [Number(arguments[0]), *numbers]

    def body(*arguments):
        if own_rules:  # a rule may read arrays that the mod itself does not
            for stand in stands:
                stand.element([np.int32(0)] * len(stand.shape))
        results = run(closed.jaxpr, *stands, *numbers_of(arguments), captured=stands, locate=locate)
        return result(results[0])

    core = (_core.Mod.mask if is_mask else _core.Mod.score)(body)
    derivative = "", ""
    locate = _core.exchange_source_line if checked else None
    try:
        text = core.ir("f64" if score_dtype == jnp.float64 else "f32", checked)
        if own_rules:
            derivative = _derivative.translate(closed, core, stands, numbers_of, score_dtype)
    except UnsupportedError as error:
        raise error.public(f"[{op}] {argument}:") from None
    finally:
        _core.exchange_source_line("", 0)
    by_name = dict(zip(names, closed.consts, strict=True))
    read = tuple(c.name for c in core.captures())
    arrays = tuple(jnp.asarray(by_name[name]) for name in read)
    return TracedMod(text, arrays, *derivative, names=read)


def _bounds(size):
    """The bounds of a position; None for any integer. A symbolic size bounds nothing."""
    if size is None:
        return _ANYWHERE
    return 0, max(size - 1, 0) if isinstance(size, int) else _ANYWHERE[1] - 1


def _names_of(function, arrays):
    """The names of the function's variables that hold the arrays, else numbers."""
    known = variables_of(function)
    names = []
    for i, array in enumerate(arrays):
        name = known.get(id(array), f"array{i}")
        names.append(name if name.isascii() and name not in names else f"array{i}")
    return names


def core_mod(traced, arrays):
    """The core's mod for a traced one, on captures of the core."""
    return _core.Mod.from_ir(traced.text, arrays)


def stand_in_mod(traced):
    """A traced mod on stand-ins for its arrays, to find out what it reads."""
    stands = [stand_in(f"array{i}", x).core for i, x in enumerate(traced.arrays)]
    return core_mod(traced, stands)


def intersection(masks, checked=False):
    """One traced mask for several."""
    if len(masks) <= 1:
        return masks[0] if masks else NONE
    arrays = [x for mask in masks for x in mask.arrays]
    stands = iter([stand_in(f"array{i}", x).core for i, x in enumerate(arrays)])
    mods = [core_mod(mask, [next(stands) for _ in mask.arrays]) for mask in masks]
    both = functools.reduce(operator.and_, mods)
    order = [int(c.name.removeprefix("array")) for c in both.captures()]
    names = [name for mask in masks for name in mask.names or [""] * len(mask.arrays)]
    return TracedMod(
        both.ir(with_lines=checked),
        tuple(arrays[i] for i in order),
        names=tuple(names[i] for i in order),
    )


def _check_result(op, argument, avals, is_mask):
    wanted = "a bool scalar" if is_mask else "a number"
    got = ", ".join(str(a) for a in avals) or "nothing"
    fits = len(avals) == 1 and avals[0].shape == ()
    if fits and (avals[0].dtype == np.bool_) == is_mask:
        return
    raise ValueError(f"[{op}] expected {argument} to return {wanted} but it returns {got}")


def stand_in(name, constant):
    """The stand-in that mods are traced on in place of an array."""
    return captured(name, jnp.shape(constant), np.dtype(jnp.result_type(constant)))


def and_masks(*masks):
    """True where all of the mask mods are true."""
    return _folded("and_masks", operator.and_, masks)


def or_masks(*masks):
    """True where any of the mask mods is true."""
    return _folded("or_masks", operator.or_, masks)


def _folded(op, combine, masks):
    if not masks:
        raise ValueError(f"[{op}] expected at least one mask but got none")
    return combined(op, combine, *masks)
