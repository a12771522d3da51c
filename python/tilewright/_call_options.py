"""Options of `tw.call` in the form that the extension takes."""

from . import _language
from ._arrays import dtype_name
from ._programs import ShapeDtype


def integers_of(option, values):
    values = values if isinstance(values, tuple | list) else (values,)
    return [_language._integer("call", option, v) for v in values]


def grid_of(grid):
    if grid is None:
        return []
    if callable(grid):
        return lambda *inputs: integers_of("grid", grid(*map(_seen, inputs)))
    return integers_of("grid", grid)


def _seen(tensor):
    """An input as user functions of the inputs see it."""
    return ShapeDtype(tensor.shape, tensor.dtype) if tensor.defined else None


def types_of(option, types):
    if types is None:
        return []
    types = types if isinstance(types, tuple | list) else [types]
    result = []
    for i, type_ in enumerate(types):
        if not hasattr(type_, "shape") or not hasattr(type_, "dtype"):
            raise TypeError(
                f"[call] expected {option}[{i}] to be a tw.ShapeDtype but got {type_!r}"
            )
        shape = _language._shape("call", list(type_.shape))
        result.append((dtype_name("call", "dtype", type_.dtype), shape))
    return result


def out_shape_of(out_shape):
    if out_shape is None:
        raise TypeError("[call] expected out_shape to be a tw.ShapeDtype or several but got None")
    if callable(out_shape):
        return lambda *inputs: types_of("out_shape", out_shape(*map(_seen, inputs)))
    return types_of("out_shape", out_shape)


def aliases_of(aliases):
    if not isinstance(aliases, tuple | list):
        aliases = _dict("aliases", "{input: output}", aliases).items()
    pairs = [tuple(integers_of("aliases", pair)) for pair in aliases]
    if not all(len(pair) == 2 for pair in pairs):
        raise TypeError(
            f"[call] expected aliases of the form {{input: output}} but got {aliases!r}"
        )
    return pairs


def _dict(option, form, value):
    if value is not None and not isinstance(value, dict):
        raise TypeError(
            f"[call] expected {option} of the form {form} but got {type(value).__name__}"
        )
    return value or {}


def dynamic_of(dynamic):
    pairs = _dict("dynamic", "{argument: dimensions}", dynamic).items()
    return {_language._integer("call", "dynamic", k): integers_of("dynamic", v) for k, v in pairs}
