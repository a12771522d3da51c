"""Loops and branches of the kernel language over traced values, as in Pallas.

A carry is a traced value, a number, or a tuple, list, dict or dataclass of such. It is flattened
and rebuilt here; the core sees flat lists.
"""

import dataclasses
import inspect

from . import _core
from ._language import _integer

_lang = _core.lang

_LEAF = "*"


def _flatten(value, leaves):
    """Appends the values of a carry to `leaves`; returns its structure, which can be compared."""
    if value is None:
        return None
    if isinstance(value, tuple | list):
        return (type(value), tuple(_flatten(v, leaves) for v in value))
    if isinstance(value, dict):
        return (dict, tuple((k, _flatten(value[k], leaves)) for k in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value)]
        return (
            type(value),
            tuple((n, _flatten(getattr(value, n), leaves)) for n in fields),
        )
    leaves.append(value)
    return _LEAF


def _flat(value):
    leaves = []
    return leaves, _flatten(value, leaves)


def _rebuild(form, leaves):
    """The value with this structure from an iterator of leaves."""
    if form is None:
        return None
    if form == _LEAF:
        return next(leaves)
    kind, parts = form
    if dataclasses.is_dataclass(kind):
        return kind(**{name: _rebuild(part, leaves) for name, part in parts})
    if kind is dict:
        return {name: _rebuild(part, leaves) for name, part in parts}
    values = [_rebuild(part, leaves) for part in parts]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def _form_text(form):
    if form is None or form == _LEAF:
        return str(form)
    kind, parts = form
    named = kind is dict or dataclasses.is_dataclass(kind)
    inner = ", ".join(f"{p[0]}: {_form_text(p[1])}" if named else _form_text(p) for p in parts)
    return f"{kind.__name__}({inner})"


def _flat_like(op, what, value, form):
    leaves, got = _flat(value)
    if got != form:
        raise TypeError(
            f"[{op}] expected {what} of the form {_form_text(form)} but got {_form_text(got)}"
        )
    return leaves


def for_loop(lo, hi, body, carry=None, *, step=1):
    """`carry = body(i, carry)` for i = lo, lo + step, ... < hi; returns the last carry.

    The bounds may be traced; i is an i64 scalar. Without a carry the body takes i alone and acts
    through its stores. A carry is a tile, a number, or a tuple, list, dict or dataclass of such,
    whose shapes and dtypes must not change; a number takes the dtype that the body returns.
    """
    if carry is None:
        with_carry = _takes("for_loop", body, 2)

        def run(i, _):
            result = body(i, None) if with_carry else body(i)
            if result is not None:
                raise TypeError(
                    "[for_loop] expected the body of a loop without a carry to return None but "
                    f"got {_kind(result)}; give the loop an initial carry"
                )
            return []

        _lang.for_loop(lo, hi, step, [], run)
        return None
    leaves, form = _flat(carry)

    def run(i, now):
        result = body(i, _rebuild(form, iter(now)))
        return _flat_like("for_loop", "the body to return a carry", result, form)

    return _rebuild(form, iter(_lang.for_loop(lo, hi, step, leaves, run)))


def _takes(op, function, count):
    """Whether a function takes this many arguments; TypeError if it is not callable."""
    if not callable(function):
        raise TypeError(f"[{op}] expected a function but got {_kind(function)}")
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature available
        return False
    return True


def while_loop(condition, body, carry):
    """`carry = body(carry)` while `condition(carry)` (a bool scalar); returns the last carry."""
    leaves, form = _flat(carry)

    def run(now):
        result = body(_rebuild(form, iter(now)))
        return _flat_like("while_loop", "the body to return a carry", result, form)

    result = _lang.while_loop(leaves, lambda now: condition(_rebuild(form, iter(now))), run)
    return _rebuild(form, iter(result))


def cond(condition, then_branch, else_branch, *operands):
    """`then_branch(*operands)` if a bool scalar is true, else `else_branch(*operands)`.

    Only one of them runs. Both must return values of the same structure, shapes and dtypes.
    """
    forms = []

    def run(branch):
        leaves, form = _flat(branch(*operands))
        forms.append(form)
        if form != forms[0]:
            raise TypeError(
                "[cond] expected both branches to return values of one form but got "
                f"{_form_text(forms[0])} and {_form_text(form)}"
            )
        return leaves

    leaves = _lang.if_else("cond", condition, lambda: run(then_branch), lambda: run(else_branch))
    return _rebuild(forms[0], iter(leaves))


def when(condition, body=None):
    """Runs a function, for its stores, only if a bool scalar is true. Also a decorator:

    ``@tw.when(i == 0)`` above ``def _(): ref[...] = 0``.
    """
    if body is None:
        return lambda body: when(condition, body)

    def run():
        result = body()
        if result is not None:
            raise TypeError(
                f"[when] expected the body to return None but got {_kind(result)}; tw.cond "
                "returns values"
            )
        return []

    _lang.if_else("when", condition, run, list)
    return None


def scan(body, carry, xs):
    """`carry, y = body(carry, x)` for each x of xs along axis 0; returns (last carry, stacked y's).

    `xs` is a tile or a tuple, list or dict of tiles of one length; y is anything that a carry may
    be. The tiles and the stacks live in the program's scratch memory, so xs may be long.
    """
    leaves, form = _flat(carry)
    rows, rows_form = _flat(xs)
    if not rows:
        raise TypeError("[scan] expected xs to hold at least one tile but got none")
    y_forms = []

    def run(now, row):
        step = body(_rebuild(form, iter(now)), _rebuild(rows_form, iter(row)))
        if not isinstance(step, tuple) or len(step) != 2:
            raise TypeError(f"[scan] expected the body to return (carry, y) but got {_kind(step)}")
        following = _flat_like("scan", "the body to return a carry", step[0], form)
        ys, y_form = _flat(step[1])
        y_forms.append(y_form)
        return following, ys

    last, stacks = _lang.scan(leaves, rows, run)
    return _rebuild(form, iter(last)), _rebuild(y_forms[-1], iter(stacks))


def associative_scan(combine, elems, axis=0, reverse=False):
    """Combines all elements up to each one along an axis; with `reverse`, from the last one down.

    `elems` is a tile, or a tuple, list, dict or dataclass of tiles that are combined together.
    `combine(a, b)` takes two values of that structure and one shape and returns a third,
    elementwise; a comes before b. It has to be associative, but need not be commutative.
    """
    return _combined(_lang.associative_scan, "associative_scan", combine, elems, axis, reverse)


def reduce(combine, elems, axis=0, keepdims=False):
    """Combines all elements along an axis, in order, as a fixed tree of neighbours.

    `combine` and `elems` are as in `associative_scan`.
    """
    return _combined(_lang.reduce, "reduce", combine, elems, axis, keepdims)


def vjp(function, *primals):
    """`(function(*primals), pullback)`: a derivative inside a kernel, as `jax.vjp`.

    `pullback(cotangents)` takes what has the structure of the function's result (None, or 0, where
    a result has no cotangent; those of integers are ignored), and returns a tuple with the gradient
    of each primal, in its structure and shape. Gradients of f16, bf16 and f8 are f32. A primal is a
    float tile, or a tuple, list, dict or dataclass of such. Other tiles that the function uses are
    constants. A result that depends on the primals through a loop, a branch, memory or another
    operation without a derivative is an error that names it.
    """
    if not callable(function):
        raise TypeError(f"[vjp] expected a function but got {_kind(function)}")
    leaves, form = _flat(primals)
    forms = []

    def run(tiles):
        result, result_form = _flat(function(*_rebuild(form, iter(tiles))))
        forms.append(result_form)
        return result

    values = _lang.vjp(run, leaves)

    def pullback(cotangents):
        given = _cotangents(cotangents, forms[0])
        return _rebuild(form, iter(values.pull_back(given)))

    return _rebuild(forms[0], iter(values.results)), pullback


def _cotangents(value, form):
    """The leaves of cotangents, with 0 for None."""
    leaves = []

    def fill(value, form):
        """False where they do not have the form."""
        if form is None:
            return True
        if form == _LEAF:
            leaves.append(0 if value is None else value)
            return True
        kind, parts = form
        is_struct = dataclasses.is_dataclass(kind)
        inner = [part[1] for part in parts] if is_struct or kind is dict else parts
        if value is None:
            values = [None] * len(parts)
        elif is_struct:
            values = [getattr(value, name) for name, _ in parts if hasattr(value, name)]
        elif kind is dict:
            names = [name for name, _ in parts]
            same = isinstance(value, dict) and value.keys() == set(names)
            values = [value[name] for name in names] if same else []
        else:
            values = value if isinstance(value, tuple | list) else []
        return len(values) == len(parts) and all(map(fill, values, inner))

    if not fill(value, form):
        raise TypeError(
            f"[vjp] expected cotangents of the form {_form_text(form)} but got "
            f"{_form_text(_flat(value)[1])}"
        )
    return leaves


def _combined(core, op, combine, elems, axis, flag):
    if not _takes(op, combine, 2):
        raise TypeError(f"[{op}] expected combine to take two values")
    leaves, form = _flat(elems)

    def run(before, after):
        result = combine(_rebuild(form, iter(before)), _rebuild(form, iter(after)))
        return _flat_like(op, "combine to return a value", result, form)

    return _rebuild(form, iter(core(run, leaves, _integer(op, "axis", axis), bool(flag))))


def _kind(value):
    return type(value).__name__
