"""Mods: score and mask functions written in Python, and those from the libraries."""

# The classes of the extension module get methods here.
# mypy: disable-error-code="attr-defined, index, method-assign, misc, operator"

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from . import _core
from ._arrays import Array, to_array
from ._captures import Capture, Row, Scalar, _View
from ._elementwise import _operand
from ._errors import name_line
from ._functions import Mod as OtherMod
from ._functions import expect_arguments

Mod = _core.Mod
#: A function of traced scalars, or a mod made by a library or `parse_mod`.
ModLike: TypeAlias = Callable[..., Any] | Mod


def capture(array: Array, name: str = "", differentiable: bool = True) -> "Capture":
    """An array that mods index with traced integers: ``slopes[h]``, ``bias[h, q - kv + 7]``.

    Any rank and any number of gathers, nested ones too. Indices mean what they mean in NumPy:
    negative ones count from the end, static slices and ``...`` keep dimensions, static indices out
    of bounds raise IndexError. Traced ones out of bounds are clamped; the checked mode reports
    them. What has one dimension left is a row, for ``tw.dot``, ``tw.sum``, ``tw.max``, ``tw.min``,
    ``+ - * /`` and iteration, unrolled up to 512 elements. The array is shared, not copied: the
    next call sees values written to it. Float arrays get gradients unless ``differentiable=False``.
    """
    if isinstance(array, Scalar | _View):
        raise TypeError(
            f"[capture] expected array to be an array but got {type(array).__name__}: "
            "use it as it is"
        )
    return Capture(array, name, differentiable)


def as_mod(op, argument, function, is_mask):
    """A Mod from a Python function or a Mod; TypeError for anything else, or for the wrong kind."""
    form = "(b, h, q_idx, kv_idx)" if is_mask else "(score, b, h, q_idx, kv_idx)"
    if isinstance(function, Mod):
        if function.is_mask != is_mask:
            other = "mask" if function.is_mask else "score"
            raise TypeError(f"[{op}] expected {argument} to be a function {form} but got a {other}")
        return function
    if not callable(function):
        raise TypeError(
            f"[{op}] expected {argument} to be a function {form} but got {type(function).__name__}"
        )
    if isinstance(function, OtherMod):
        raise TypeError(
            f"[{op}] expected {argument} of tilewright but got {function!r} of "
            f"{function.front_end}: use tilewright.masks and tilewright.scores"
        )
    expect_arguments(op, argument, function, form)
    body = _returning_scalar(op, argument, function)
    return Mod.mask(body) if is_mask else Mod.score(body)


def as_score_or_mask(op, function):
    """A Mod from a function with 5 (score) or 4 (mask) arguments without defaults."""
    if isinstance(function, Mod) or not callable(function):
        is_mask = not isinstance(function, Mod) or function.is_mask
        return as_mod(op, "mask_mod", function, is_mask)
    try:
        inspect.signature(function).bind(*range(5))
    except ValueError:
        pass
    except TypeError:
        return as_mod(op, "mask_mod", function, True)
    try:
        inspect.signature(function).bind(*range(4))
    except TypeError:
        return as_mod(op, "score_mod", function, False)
    return as_mod(op, "mask_mod", function, True)


_NO_SCALARS = (type(None), tuple, list, str, Row, _View)
_NO_SCALARS_TEXT = {type(None): "nothing", Row: "a row of an array", _View: "a row of an array"}


def _returning_scalar(op, argument, function):
    code = getattr(function, "__code__", None)

    @functools.wraps(function)
    def call(*arguments):
        line = (code.co_filename, code.co_firstlineno) if code else ("", 0)
        before = _core.exchange_source_line(*line)
        try:
            result = function(*arguments)
            if not isinstance(result, _NO_SCALARS):
                return _operand(result)
        except IndexError as error:
            if "only integers" not in str(error):  # NumPy's text for an index of an unknown type
                raise
            raise TypeError(
                f"[{op}] expected arrays that {argument} indexes by traced values to be captured: "
                "index tw.capture(array) instead of the array"
            ) from error
        except TypeError as error:
            if str(error).startswith("a traced value has no "):
                error.args = (f"[{op}] {argument}: {error}",)
                name_line(error)
            framework = _raised_in(error)
            if framework not in ("jax", "torch"):
                raise
            raise TypeError(
                f"[{op}] expected {argument} to use functions of tilewright or NumPy on traced "
                f"scalars but got one of {framework}: mods written in it go to tilewright.{framework}, "
                "others use tw.where, tw.exp and the like"
            ) from error
        finally:
            _core.exchange_source_line(*before)
        kind = _NO_SCALARS_TEXT.get(type(result), type(result).__name__)
        raise (ValueError if result is None else TypeError)(
            f"[{op}] expected {argument} to return a number or a bool but it returns {kind} (at "
            f"{line[0]}:{line[1]})"
        )

    return call


def _raised_in(error):
    """The package whose function raised an error; functions in C have no frame, so by its text."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    if "must be Tensor" in str(error):
        return "torch"
    return trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]


def _restored(name, is_mask, texts, captures):
    """A mod from its texts for f32 and f64 scores, and the arrays it reads."""
    captures = [capture._core for capture in captures]
    narrow, wide = (_core.Mod.from_ir(text, captures) for text in texts)
    if is_mask:
        return narrow.renamed(name)
    return _core.Mod.score(
        lambda score, *positions: (wide if score.dtype == "f64" else narrow)(score, *positions)
    ).renamed(name)


def _reduced(mod):
    """Pickles and copies store the program and copies of the arrays."""
    texts = (mod.ir(), mod.ir() if mod.is_mask else mod.ir("f64"))
    captures = [
        Capture(to_array(core.tensor.to(False, 0)), core.name, core.differentiable)
        for core in mod.captures()
    ]
    return _restored, (mod.name, mod.is_mask, texts, captures)


def _shown(mod):
    kind = "mask" if mod.is_mask else "score"
    return f"<{kind} mod {mod.name}>" if mod.name else f"<{kind} mod>"


Mod.__reduce__ = _reduced
Mod.__repr__ = _shown


def and_masks(*masks: ModLike) -> Mod:
    """True where all of the mask mods are true; everywhere if there are none."""
    return _folded("and_masks", operator.and_, masks, _core.masks.noop())


def or_masks(*masks: ModLike) -> Mod:
    """True where any of the mask mods is true; nowhere if there are none."""
    return _folded("or_masks", operator.or_, masks, ~_core.masks.noop())


def _combining(name, combine):
    """The operator for two mask mods, either of which may be a function."""

    def apply(self, other):
        if not self.is_mask:
            raise TypeError(f"[{name}] expected a mask but got a score")
        return (
            combine(self, as_mod(name, "the other", other, True))
            if callable(other)
            else (NotImplemented)
        )

    return apply


for _name, _method in (("&", "and"), ("|", "or"), ("^", "xor")):
    _apply = _combining(_name, getattr(Mod, f"__{_method}__"))
    setattr(Mod, f"__{_method}__", _apply)
    setattr(Mod, f"__r{_method}__", _apply)  # the operators commute


def _folded(op, combine, masks, none):
    mods = [as_mod(op, f"mask {i}", mask, True) for i, mask in enumerate(masks)]
    return functools.reduce(combine, mods) if mods else none
