"""Functions of scalars as mods: their signatures, and those of the mask and score libraries."""

import contextlib
import functools
import inspect
import operator
from typing import NamedTuple


class Sizes(NamedTuple):
    """Upper bounds of the positions that a mod sees; None: any integer, even a negative one."""

    batch: int | None
    heads: int | None
    queries: int | None
    keys: int | None


class TracedMod(NamedTuple):
    """A mod as text that works in any process, and the arrays of the framework that it reads."""

    text: str
    arrays: tuple  #: in the order of the text's Refs; may be traced
    derivative: str = ""  #: of a score mod with rules of its own, as text
    gathers: str = ""  #: numbers of the arrays whose gradients the derivative gives, in order
    names: tuple = ()  #: of the arrays, for messages


NONE = TracedMod("", ())


def check(op, argument, function, is_mask):
    """TypeError unless the function takes the arguments of a mask (or score) mod."""
    form = "(b, h, q_idx, kv_idx)" if is_mask else "(score, b, h, q_idx, kv_idx)"
    if not callable(function):
        raise TypeError(
            f"[{op}] expected {argument} to be a function {form} but got {type(function).__name__}"
        )
    if isinstance(function, Mod) and function.is_mask != is_mask:
        other = "mask" if function.is_mask else "score"
        raise TypeError(f"[{op}] expected {argument} to be a function {form} but got a {other}")
    expect_arguments(op, argument, function, form)


def expect_arguments(op, argument, function, form):
    """TypeError unless the function can be called with the arguments of the form."""
    try:
        inspect.signature(function).bind(*form.split(","))
    except ValueError:
        pass  # no signature available: tracing will tell
    except TypeError:
        raise TypeError(
            f"[{op}] expected {argument} to be a function {form} but got one of "
            f"{inspect.signature(function)}"
        ) from None


class Mod:
    """A mask or score of the library: it may be called in mods; masks combine with & | ^ ~."""

    def __init__(self, function, is_mask, name, made_by=None, arrays=None):
        self._function, self.is_mask, self.name = function, is_mask, name
        self._made_by = made_by  #: (function, its arguments), which is pickled instead
        self._arrays = arrays or {}  #: that it reads, by their names
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for p in ([] if is_mask else ["score"]) + ["b", "h", "q_idx", "kv_idx"]
            ]
        )

    @property
    def front_end(self):
        """The package that made it."""
        made, parts = self._made_by or (self._function, ())
        parts = [part for part in parts if isinstance(part, Mod)]
        return parts[0].front_end if parts else ".".join(made.__module__.split(".")[:2])

    def __call__(self, *arguments):
        return self._function(*arguments)

    def __tilewright_environment__(self):
        """What the mod depends on, for caches of recordings."""
        return (self._function,)

    def __reduce__(self):
        if self._made_by is None:
            raise TypeError(f"{self!r} cannot be pickled")
        return self._made_by

    def __repr__(self):
        return f"<{'mask' if self.is_mask else 'score'} mod {self.name}>"

    def __and__(self, other):
        return combined("&", operator.and_, self, other)

    def __rand__(self, other):
        return combined("&", operator.and_, other, self)

    def __or__(self, other):
        return combined("|", operator.or_, self, other)

    def __ror__(self, other):
        return combined("|", operator.or_, other, self)

    def __xor__(self, other):
        return combined("^", operator.xor, self, other)

    def __invert__(self):
        check("~", "the operand", self, True)
        made_by = operator.invert, (self,)
        return Mod(lambda *p: ~self(*p), True, f"~{self.name}", made_by, self._arrays)


def combined(name, combine, *masks):
    for i, mask in enumerate(masks):
        check(name, f"mask {i}", mask, True)
    names = f" {name} ".join(getattr(mask, "name", "mask") for mask in masks)
    arrays = {}
    for mask in masks:
        arrays |= mask._arrays if isinstance(mask, Mod) else {}
    return Mod(
        lambda *p: functools.reduce(combine, (m(*p) for m in masks)),
        True,
        f"({names})",
        (combined, (name, combine, *masks)),
        arrays,
    )


def variables_of(function, depth=2):
    """{id(value): name} of the variables of a function and of the functions that it calls."""
    known = {}
    if isinstance(function, Mod):
        known = {id(value): name for name, value in function._arrays.items()}
    while isinstance(function, functools.partial):
        known.update({id(value): name for name, value in function.keywords.items()})
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return known
    values = {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            values[name] = cell.cell_contents
    for value in values.values():
        if callable(value) and depth:
            known.update(variables_of(value, depth - 1))
    return known | {id(value): name for name, value in values.items()}
