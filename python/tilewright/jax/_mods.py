"""Mods: functions of scalars in jnp, and objects of the mask and score libraries."""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from .._functions import check, combined
from .._numbers import Number, RefusedError
from . import _derivative
from ._translate import result, run
from ._values import captured, number


class Sizes(NamedTuple):
    """What the positions that a mod sees are below; None: any integer, negative ones too."""

    batch: int | None
    heads: int | None
    queries: int | None
    keys: int | None


class TracedMod(NamedTuple):
    """A mod as text that works in any process, and the arrays that it reads."""

    text: str
    arrays: tuple  #: in the order of the text's Refs; may be traced
    derivative: str = ""  #: of a score mod with rules of its own, as text
    gathers: str = ""  #: numbers of the arrays whose gradients the derivative gives, in order


_ANYWHERE = (-(1 << 31), (1 << 31) - 1)
NONE = TracedMod("", ())


def trace(op, argument, function, is_mask, sizes, score_dtype=jnp.float32):
    """Traces a mod; TypeError, ValueError or NotImplementedError for what cannot be one."""
    if isinstance(function, _core.Mod):
        from ._library import from_core  # which stands on this module

        function = from_core(function)
    check(op, argument, function, is_mask)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    inputs = [position] * 4
    if not is_mask:
        inputs.insert(0, jax.ShapeDtypeStruct((), score_dtype))
    try:
        # Anew each time: a trace kept for the function may hold arrays of another call.
        closed = jax.make_jaxpr(lambda *scalars: function(*scalars))(*inputs)
    except jax.errors.TracerBoolConversionError as error:
        raise TypeError(
            f"[{op}] expected {argument} to choose by jnp.where(condition, a, b) but it branches "
            "on a traced value"
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
    names = [f"array{i}" for i in range(len(closed.consts))]
    stands = [stand_in(name, x) for name, x in zip(names, closed.consts, strict=True)]

    own_rules = not is_mask and _derivative.has_own_rules(closed.jaxpr)

    def numbers_of(arguments):
        numbers = [
            number(core, jnp.int32, _ANYWHERE if size is None else (0, max(size - 1, 0)))
            for core, size in zip(arguments[-4:], sizes, strict=True)
        ]
        return numbers if is_mask else [Number(arguments[0]), *numbers]

    def body(*arguments):
        if own_rules:  # a rule may read arrays that the mod itself does not
            for stand in stands:
                stand.element([np.int32(0)] * len(stand.shape))
        return result(run(closed.jaxpr, stands, numbers_of(arguments))[0])

    core = (_core.Mod.mask if is_mask else _core.Mod.score)(body)
    derivative = "", ""
    try:
        text = core.ir("f64" if score_dtype == jnp.float64 else "f32")
        if own_rules:
            derivative = _derivative.translate(closed, core, stands, numbers_of, score_dtype)
    except RefusedError as error:
        raise NotImplementedError(f"[{op}] {argument}: {error}") from None
    by_name = dict(zip(names, closed.consts, strict=True))
    arrays = tuple(jnp.asarray(by_name[c.name]) for c in core.captures())
    return TracedMod(text, arrays, *derivative)


def core_mod(traced, arrays):
    """The core's mod of a traced one, on captures of the core."""
    return _core.Mod.from_ir(traced.text, arrays)


def shifted(text, arrays, is_mask, wide):
    """The text of a mod that counts batches and heads from an origin, an int32 (2) that it reads
    before the other arrays."""
    origin = stand_in("origin", jax.ShapeDtypeStruct((2,), jnp.int32)).core
    stands = [stand_in(f"array{i}", x).core for i, x in enumerate(arrays)]
    mod = _core.Mod.from_ir(text, stands)

    def body(*arguments):
        *score, b, h, q, kv = arguments
        return mod(*score, b + origin.element((0,)), h + origin.element((1,)), q, kv)

    made = (_core.Mod.mask if is_mask else _core.Mod.score)(body)
    return made.ir("f64" if wide else "f32")


def intersection(masks):
    """One traced mask for several."""
    if len(masks) <= 1:
        return masks[0] if masks else NONE
    arrays = [x for mask in masks for x in mask.arrays]
    stands = iter([stand_in(f"array{i}", x).core for i, x in enumerate(arrays)])
    mods = [core_mod(mask, [next(stands) for _ in mask.arrays]) for mask in masks]
    both = functools.reduce(operator.and_, mods)
    order = [int(c.name.removeprefix("array")) for c in both.captures()]
    return TracedMod(both.ir(), tuple(arrays[i] for i in order))


def _check_result(op, argument, avals, is_mask):
    wanted = "a bool scalar" if is_mask else "a number"
    got = ", ".join(str(a) for a in avals) or "nothing"
    fits = len(avals) == 1 and avals[0].shape == ()
    if fits and (avals[0].dtype == np.bool_) == is_mask:
        return
    raise ValueError(f"[{op}] expected {argument} to return {wanted} but it returns {got}")


def stand_in(name, constant):
    """What mods are traced on in place of an array."""
    return captured(name, jnp.shape(constant), np.dtype(jnp.result_type(constant)))


def and_masks(*masks):
    """Where all of the mask mods are true."""
    return _folded("and_masks", operator.and_, masks)


def or_masks(*masks):
    """Where any of the mask mods is true."""
    return _folded("or_masks", operator.or_, masks)


def _folded(op, combine, masks):
    if not masks:
        raise ValueError(f"[{op}] expected at least one mask but got none")
    return combined(op, combine, *masks)
