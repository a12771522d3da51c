"""Makes the functions of the mask and score libraries take arrays and Python functions."""

import ast
import contextlib
import functools
import inspect

import numpy as np

from . import _core
from ._arrays import Array, to_tensor
from ._captures import user_line
from ._mods import Capture, Mod, as_mod, capture


def _argument(name, value):
    if isinstance(value, Capture):
        return value._core
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        return capture(value, name)._core
    if callable(value) and not isinstance(value, Mod):
        return as_mod(name, "mask", value, True)
    return value.item() if isinstance(value, np.generic) else value


def export(library):
    """{name: function} for every function of a submodule of the extension."""
    return {
        name: _wrapped(name, function)
        for name, function in vars(library).items()
        if callable(function) and not name.startswith("_")
    }


def _wrapped(name, core):
    @functools.wraps(core, updated=())
    def function(*arguments, **options):
        passed = [_argument(name, value) for value in arguments]
        named = {key: _argument(key, value) for key, value in options.items()}
        with refusing(name, core, arguments, options):
            return core(*passed, **named).renamed(name).written_at(*user_line())

    function.__signature__ = signature_of(name, core)
    return function


@contextlib.contextmanager
def refusing(name, core, arguments, options):
    """An error of an extension's function with other arguments than it takes says which those are,
    and which were given, in the terms of users."""
    try:
        yield
    except TypeError as error:
        if "incompatible function arguments" not in str(error):
            raise
        forms = [line for line in core.__doc__.splitlines() if line.startswith(name + "(")]
        given = [_shown(value) for value in arguments]
        given += [f"{key}={_shown(value)}" for key, value in options.items()]
        raise TypeError(
            f"[{name}] expected {' or '.join(map(_readable, forms))} but got "
            f"{name}({', '.join(given)})"
        ) from None


def signature_of(name, core):
    """The signature of an extension's function, whose docstring begins with a line per overload."""
    lines = [line for line in core.__doc__.splitlines() if line.startswith(name + "(")]
    forms = [_split(line[len(name) + 1 : line.rindex(") ->")]) for line in lines]
    names = [[text.partition(":")[0] for text in form] for form in forms]
    # The others repeat it under another argument name, such as `heads` for `slopes_or_heads`.
    forms = [form for form, own in zip(forms, names, strict=True) if own[:1] == names[0][:1]]
    shortest, longest = (choose(forms, key=len) for choose in (min, max))
    made = []
    for place, text in enumerate(longest):
        argument, _, default = text.partition(" = ")
        kinds = [form[place].partition(" = ")[0] for form in forms if place < len(form)]
        kinds = dict.fromkeys(_readable(kind.partition(": ")[2]) for kind in kinds)
        if place >= len(shortest):
            default = "None"
        made.append(
            inspect.Parameter(
                argument.partition(":")[0],
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=ast.literal_eval(default) if default else inspect.Parameter.empty,
                annotation=" | ".join(kinds),
            )
        )
    return inspect.Signature(made, return_annotation="Mod")


def _split(arguments):
    """The arguments of an overload, none of which contains a comma."""
    return arguments.split(", ") if arguments else []


def _readable(form):
    """A signature of the extension in the terms of users."""
    form = form.partition(" -> ")[0].replace("tilewright._core.", "")
    return form.replace("Capture", "array").replace("Mod", "mask")


def _shown(value):
    return repr(value) if isinstance(value, int | float | str) else type(value).__name__


def parse_mod(text: str, kind: str | None = None, **arrays: Array) -> Mod:
    """A mod from text: an expression in b, h, q, kv and, for scores, score.

    ``parse_mod("causal & sliding_window(1024)")``, ``parse_mod("score + slopes[h] * (kv - q)",
    slopes=array)``. Python's operators and precedence; exp exp2 log tanh sigmoid abs min max clamp
    sqrt floor where; the names of `masks` and `scores`. kind: "mask", "score" or None, which lets
    the text decide. A ValueError names the column.
    """
    if kind not in (None, "mask", "score"):
        raise ValueError(
            f'[parse_mod] expected kind to be "mask", "score" or None but got {kind!r}'
        )
    if not isinstance(text, str):
        raise TypeError(f"[parse_mod] expected text to be a str but got {type(text).__name__}")
    tensors = {name: to_tensor("parse_mod", name, array) for name, array in arrays.items()}
    return _core.parse_mod(text, tensors, kind or "")


def compose(outer, inner):
    """outer(inner(score)), as in ``compose(softcap(20), alibi(slopes))``, for front ends."""

    def composed(score, b, h, q_idx, kv_idx):
        return outer(inner(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    return composed
