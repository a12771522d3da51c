"""The kernel language: the functions and methods that kernels are traced with.

Functions on tiles record instructions of the tile IR; the elementwise ones are those of mods
(`_elementwise.FUNCTIONS`). Python only flattens carries and reads subscripts here.
"""

# The classes of the extension module get methods here.
# mypy: disable-error-code="attr-defined, index, method-assign, misc, operator"

import operator

import numpy as np

from . import _core, _elementwise
from ._arrays import dtype_name

_lang = _core.lang
Tile = _core.Tile
Ref = _lang.Ref


# ---- Where a program is.


def program_id(axis: int) -> Tile:
    """The index of this program along one axis of the grid: an i64 scalar."""
    return _lang.program_id(_integer("program_id", "axis", axis))


def num_programs(axis: int) -> Tile:
    """The extent of one axis of the grid: an i64 scalar."""
    return _lang.num_programs(_integer("num_programs", "axis", axis))


# ---- Memory.


def ds(start, size, stride=1):
    """A slice of one dimension: `start`, `start + stride`, ..., as in `ref[tw.ds(i * 64, 64)]`.

    The start may be traced; `size`, the number of elements, and `stride` are static.
    """
    return _lang.ds(start, _integer("ds", "size", size), _integer("ds", "stride", stride))


def load(ref: Ref, index=..., *, mask=None, other=None) -> Tile:
    """`ref[index]` where `mask` (bool, broadcast) is true; other lanes read `other`, 0 by default.

    Lanes outside of the array read `other` too.
    """
    return _view("load", ref, index).load(mask, other)


def store(ref: Ref, index, value, *, mask=None) -> None:
    """`ref[index] = value` where `mask` (bool, broadcast) is true."""
    _view("store", ref, index).store(value, mask)


def _view(op, ref, index):
    if not isinstance(ref, Ref):
        raise TypeError(f"[{op}] expected ref to be a Ref of the kernel but got {_kind(ref)}")
    return ref.view(index)


def _atomic(name, document):
    def function(ref, index, value, *, mask=None):
        return getattr(_view(name, ref, index), name)(value, mask)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = document + " Returns the old elements; the order of programs is not defined."
    return function


atomic_add = _atomic("atomic_add", "Adds `value` to `ref[index]`.")
atomic_max = _atomic("atomic_max", "`ref[index]` becomes the larger of itself and `value`.")
atomic_min = _atomic("atomic_min", "`ref[index]` becomes the smaller of itself and `value`.")
atomic_xchg = _atomic("atomic_xchg", "`ref[index]` becomes `value`.")


def atomic_cas(ref: Ref, index, expected, desired, *, mask=None) -> Tile:
    """Replaces elements that equal `expected` by `desired`. Returns the old elements."""
    return _view("atomic_cas", ref, index).atomic_cas(expected, desired, mask)


class _At:
    """`ref.at[index]`: a narrower Ref; no memory is touched."""

    def __init__(self, ref):
        self._ref = ref

    def __getitem__(self, index):
        return self._ref.view(index)


Ref.at = property(_At, doc="`ref.at[index]`: the Ref of a part, for load, store and atomics.")


# ---- Sources.


def iota(shape, axis=0, dtype=np.int32) -> Tile:
    """A tile of this shape (or length) with elements 0, 1, ... along `axis`."""
    axis = _integer("iota", "axis", axis)
    return _lang.iota(_shape("iota", shape), axis, dtype_name("iota", "dtype", dtype))


def arange(start, stop=None, step=1, dtype=np.int32) -> Tile:
    """`numpy.arange` of static integers, as a rank-1 tile."""
    start, stop = (0, start) if stop is None else (start, stop)
    start, stop, step = (
        _integer("arange", n, v)
        for n, v in zip(("start", "stop", "step"), (start, stop, step), strict=True)
    )
    if step == 0:
        raise ValueError("[arange] expected a step other than 0")
    tile = iota(len(range(start, stop, step)), 0, dtype)
    if step != 1:
        tile = tile * step
    return tile if start == 0 else tile + start


def full(shape, value, dtype=None) -> Tile:
    """A tile filled with a number or a traced scalar; its dtype is that of `value` by default."""
    if dtype is None:
        dtype = value.dtype if isinstance(value, Tile) else _literal_dtype(value)
    return _lang.full(_shape("full", shape), value, dtype_name("full", "dtype", dtype))


def _literal_dtype(value):
    if isinstance(value, bool | np.bool_):
        return "bool"
    return "i32" if isinstance(value, int | np.integer) else "f32"


def zeros(shape, dtype=np.float32) -> Tile:
    """A tile of zeros."""
    return full(shape, 0, dtype)


def ones(shape, dtype=np.float32) -> Tile:
    """A tile of ones."""
    return full(shape, 1, dtype)


# ---- Dtypes and shapes.


def cast(x, dtype) -> Tile:
    """Converts elements, rounding to nearest even; float to integer truncates and saturates."""
    return _tile("cast", x).cast(dtype_name("cast", "dtype", dtype))


def bitcast(x, dtype) -> Tile:
    """Reinterprets the bits as another dtype of equal width."""
    return _lang.bitcast(x, dtype_name("bitcast", "dtype", dtype))


def reshape(x, *shape) -> Tile:
    """The elements in row-major order under another shape; one extent may be -1."""
    shape = _shape("reshape", shape[0] if len(shape) == 1 else shape)
    if -1 in shape:
        rest = int(np.prod([n for n in shape if n != -1]))
        known = _tile("reshape", x).size
        if shape.count(-1) > 1 or rest == 0 or known % rest:
            raise ValueError(f"[reshape] expected a shape of {known} elements but got {shape}")
        shape = tuple(known // rest if n == -1 else n for n in shape)
    return _lang.reshape(x, shape)


def transpose(x, axes=None) -> Tile:
    """Result axis i is axis `axes[i]` of x; without `axes` the axes are reversed."""
    axes = [] if axes is None else [_integer("transpose", "axes", a) for a in axes]
    return _lang.transpose(x, axes)


def expand_dims(x, axis) -> Tile:
    """A new axis of extent 1."""
    return _lang.expand_dims(x, _integer("expand_dims", "axis", axis))


def squeeze(x, axis=None) -> Tile:
    """Drops an axis of extent 1, or all such axes."""
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else _axes(x, axis)
    for a in sorted(axes, reverse=True):
        x = _lang.squeeze(x, a)
    return x


def _axes(x, axis):
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [_integer("squeeze", "axis", a) for a in axes]
    return [a + x.ndim if a < 0 else a for a in axes]


def broadcast_to(x, shape) -> Tile:
    """Repeats axes of extent 1, and adds leading ones, as NumPy does."""
    return _lang.broadcast_to(x, _shape("broadcast_to", shape))


def concatenate(parts, axis=0) -> Tile:
    """Tiles one after another along an axis."""
    axis = _integer("concatenate", "axis", axis)
    return _lang.concatenate([_tile("concatenate", part) for part in parts], axis)


def stack(parts, axis=0) -> Tile:
    """Tiles of one shape along a new axis."""
    return concatenate([expand_dims(part, axis) for part in parts], axis)


# ---- Across lanes. Rows of captured arrays, which only mods have, are summed by `_elementwise`.


def _reduction(name, document):
    core = getattr(_lang, name)
    of_rows = {"sum": _elementwise.sum, "max": _elementwise.max, "min": _elementwise.min}.get(name)

    def function(x, axis=None, keepdims=False):
        in_kernel = _lang.in_kernel()
        is_value = isinstance(axis, Tile if in_kernel else Tile | float | np.floating)
        if is_value or not (in_kernel or isinstance(x, Tile) or np.ndim(x) > 0):
            given = [repr(v) if isinstance(v, Tile) else v for v in (x, axis) if v is not None]
            raise TypeError(
                f"[{name}] expected a tile, or a row of a captured array, and an axis but got "
                f"{', '.join(map(str, given))}: of two values use tw.minimum, tw.maximum or operators"
            )
        if of_rows is not None and not isinstance(x, Tile) and np.ndim(x) != 0:
            return of_rows(x)
        return core(x, _axis_or_axes(name, axis), bool(keepdims))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = document
    return function


_OVER = " over an axis, a tuple of axes or, without one, all."
sum = _reduction("sum", "The sum" + _OVER + " Of a row of a captured array too.")  # noqa: A001
prod = _reduction("prod", "The product" + _OVER)
max = _reduction(  # noqa: A001
    "max", "The largest element" + _OVER + " NaN propagates. Of a row of a captured array too."
)
min = _reduction(  # noqa: A001
    "min", "The smallest element" + _OVER + " NaN propagates. Of a row of a captured array too."
)
mean = _reduction("mean", "The mean" + _OVER)
any = _reduction("any", "Whether any element of a bool tile is true" + _OVER)  # noqa: A001
all = _reduction("all", "Whether every element of a bool tile is true" + _OVER)  # noqa: A001


def argmax(x, axis=None, keepdims=False) -> Tile:
    """i32 index of the first largest element along an axis, or in row-major order without one."""
    return _arg_reduction(_lang.argmax, "argmax", x, axis, keepdims)


def argmin(x, axis=None, keepdims=False) -> Tile:
    """i32 index of the first smallest element along an axis, or in row-major order without one."""
    return _arg_reduction(_lang.argmin, "argmin", x, axis, keepdims)


def _arg_reduction(core, op, x, axis, keepdims):
    if axis is not None:
        return core(x, _integer(op, "axis", axis), bool(keepdims))
    x = _tile(op, x)
    place = core(reshape(x, -1), 0, False)
    return broadcast_to(place, (1,) * x.ndim) if keepdims else place


def cumsum(x, axis=0, reverse=False) -> Tile:
    """The sums of all elements up to each one along an axis."""
    return _lang.cumsum(x, _integer("cumsum", "axis", axis), bool(reverse))


def cumprod(x, axis=0, reverse=False) -> Tile:
    """The products of all elements up to each one along an axis."""
    return _lang.cumprod(x, _integer("cumprod", "axis", axis), bool(reverse))


def cummax(x, axis=0, reverse=False) -> Tile:
    """The largest of all elements up to each one along an axis."""
    return _lang.cummax(x, _integer("cummax", "axis", axis), bool(reverse))


def cummin(x, axis=0, reverse=False) -> Tile:
    """The smallest of all elements up to each one along an axis."""
    return _lang.cummin(x, _integer("cummin", "axis", axis), bool(reverse))


def cumlogsumexp(x, axis=0, reverse=False) -> Tile:
    """`log(sum(exp(x)))` of all elements up to each one along an axis, without overflow."""
    return _lang.cumlogsumexp(x, _integer("cumlogsumexp", "axis", axis), bool(reverse))


_PRECISIONS = ("ieee", "tf32", "tf32x3")
#: Names of jax.lax.Precision and jax.lax.DotAlgorithmPreset, in capitals, and ours for them.
_PRECISIONS_OF_JAX = {
    **dict.fromkeys(("DEFAULT", "HIGHEST", "FLOAT32", "F32_F32_F32"), "ieee"),
    "TF32_TF32_F32": "tf32",
    **dict.fromkeys(("HIGH", "TF32_TF32_F32_X3"), "tf32x3"),
}


def dot(a, b, acc=None, precision=None, *, trans_a=False, trans_b=False) -> Tile:
    """The matrix product (m, k) x (k, n), or batched (b, m, k) x (b, k, n), plus `acc`.

    f16, bf16 and f8 operands give f32, i8 and u8 give i32. precision: how f32 products are
    computed: "ieee" (default), "tf32", "tf32x3" (three tf32 products, nearly f32), or JAX's names
    for these ("default", "high", "highest", "TF32_TF32_F32", members of jax.lax.Precision).
    `trans_a`: a is stored (k, m); `trans_b`: b is stored (n, k). For two rows of captured arrays,
    their dot product.
    """
    if not isinstance(a, Tile) and not isinstance(b, Tile):
        return _elementwise.dot(a, b)
    return _lang.dot(a, b, acc, _precision(precision), bool(trans_a), bool(trans_b))


def _precision(given) -> str:
    if given is None or given in _PRECISIONS:
        return given or "ieee"
    name = str(getattr(given, "name", given)).upper()
    if name not in _PRECISIONS_OF_JAX:
        names = (*_PRECISIONS, *(n.lower() for n in _PRECISIONS_OF_JAX))
        raise ValueError(f"[dot] expected precision to be one of {names} but got {given!r}")
    return _PRECISIONS_OF_JAX[name]


# ---- More elementwise functions.


def gelu(x, approximate=True) -> Tile:
    """The tanh approximation by default, as in JAX; else the exact form by erf."""
    return _lang.gelu(x, bool(approximate))


def cdiv(x, y):
    """x / y of integers, rounded up. For two Python integers a Python integer."""
    if isinstance(x, int) and isinstance(y, int):
        return -(-x // y)
    return _lang.cdiv(x, y)


def fma(a, b, c) -> Tile:
    """a * b + c, rounded once."""
    return _lang.fma(a, b, c)


def random_bits(seed, counter) -> Tile:
    """u32 bits of philox4x32-10 for each element of an integer tile: the same on every device."""
    return _lang.random_bits(seed, counter)


def uniform(seed, counter) -> Tile:
    """f32 in [0, 1) for each element of an integer tile, by `random_bits`."""
    return _lang.uniform(seed, counter)


# ---- Debugging.


def debug_print(format, *operands) -> None:  # noqa: A002
    """Prints `format` with one {} for each operand, once per program."""
    _lang.debug_print(format, [_tile("debug_print", x) for x in operands])


def debug_check(condition, message) -> None:
    """In the checked mode, a false element of `condition` raises an error with this message."""
    _lang.debug_check(condition, message)


# ---- Tiles as objects.


class DType(str):
    """The name of a dtype, "f32"; also compares equal to NumPy's dtype."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        if isinstance(other, str):
            return str.__eq__(self, other)
        try:
            return str.__eq__(self, dtype_name("dtype", "dtype", other))
        except TypeError:
            return False

    def __ne__(self, other):
        return not self == other


def _named(core):
    return property(lambda self: DType(core.__get__(self)), doc="The dtype's name.")


def _getitem(tile, subscript):
    """Static indices and slices, None for a new axis: `t[:, None]`, `t[0]`, `t[..., 2:4]`."""
    items = list(subscript) if isinstance(subscript, tuple) else [subscript]
    named = len([i for i in items if i is not None and i is not ...])
    if named > tile.ndim:
        raise IndexError(f"[index] expected at most {tile.ndim} indices but got {named}")
    whole = [slice(None)] * (tile.ndim - named)
    place = next((k for k, item in enumerate(items) if item is ...), None)
    items = items + whole if place is None else items[:place] + whole + items[place + 1 :]
    starts, sizes, strides, dropped, added = [], [], [], [], []
    extents = iter(tile.shape)
    for item in items:
        if item is None:
            added.append(len(starts) - len(dropped) + len(added))
            continue
        extent = next(extents)
        if isinstance(item, slice):
            if item.step is not None and _integer("index", "the step of a slice", item.step) < 1:
                raise IndexError(
                    f"[index] expected a slice of a tile with a positive step but got {item.step}; "
                    "the index tw.arange(...) of a Ref reads elements in any order"
                )
            start, stop, step = item.indices(extent)
            starts.append(start)
            sizes.append(len(range(start, stop, step)))
            strides.append(step)
            continue
        if isinstance(item, Tile):
            raise TypeError(
                "[index] expected static indices of a tile but got a traced one; index the Ref "
                "before it is loaded"
            )
        index = _integer("index", "index", item)
        if not -extent <= index < extent:
            raise IndexError(f"[index] expected an index below {extent} but got {index}")
        dropped.append(len(starts))
        starts.append(index % extent)
        sizes.append(1)
        strides.append(1)
    if sizes != list(tile.shape):
        tile = _lang.slice(tile, starts, sizes, strides)
    for axis in reversed(dropped):
        tile = _lang.squeeze(tile, axis)
    for axis in added:
        tile = _lang.expand_dims(tile, axis)
    return tile


def _tile_text(tile):
    try:
        if tile.ndim == 0:
            return f"Scalar({tile.dtype!s})"
        return f"Tile({tile.dtype!s}{list(tile.shape)})"
    except ValueError:
        return "Tile(of a trace that has ended)"


def _transposed(tile, *axes):
    """The tile with its axes reversed, or in the given order."""
    return transpose(tile, axes[0] if len(axes) == 1 and np.ndim(axes[0]) else axes or None)


def _not_assignable(tile, subscript, value):
    raise TypeError("a tile cannot be assigned to: choose with tw.where, or store to a Ref")


Tile.dtype = _named(Tile.__dict__["dtype"])
Ref.dtype = _named(Ref.__dict__["dtype"])
Ref.__repr__ = lambda ref: f"Ref({ref.dtype!s}{list(ref.shape)})"
Tile.__getitem__ = _getitem
Tile.__setitem__ = _not_assignable
Tile.__matmul__ = lambda a, b: dot(a, b)
Tile.__repr__ = _tile_text
Tile.T = property(transpose, doc="The tile with its axes reversed.")
Tile.reshape = reshape
Tile.transpose = _transposed
for _function in (sum, prod, max, min, mean, any, all, argmax, argmin, cumsum, squeeze):
    setattr(Tile, _function.__name__, _function)

_elementwise.UFUNCS[np.matmul] = dot


def _var(x, axis=None, keepdims=False):
    gap = x - mean(x, axis, keepdims=True)
    return mean(gap * gap, axis, keepdims)


def _swapaxes(x, axis1, axis2):
    axes = list(range(len(x.shape)))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return transpose(x, axes)


_elementwise.TILE_FUNCTIONS.update(
    {
        np.sum: sum,
        np.prod: prod,
        np.max: max,
        np.min: min,
        np.mean: mean,
        np.any: any,
        np.all: all,
        np.argmax: argmax,
        np.argmin: argmin,
        np.cumsum: cumsum,
        np.cumprod: cumprod,
        np.dot: dot,
        np.reshape: reshape,
        np.transpose: transpose,
        np.expand_dims: expand_dims,
        np.squeeze: squeeze,
        np.broadcast_to: broadcast_to,
        np.concatenate: concatenate,
        np.stack: stack,
        np.amax: max,
        np.amin: min,
        np.var: _var,
        np.std: lambda x, axis=None, keepdims=False: _elementwise.FUNCTIONS["sqrt"](
            _var(x, axis, keepdims)
        ),
        np.swapaxes: _swapaxes,
        np.ravel: lambda x: reshape(x, -1),
        np.outer: lambda x, y: expand_dims(reshape(x, -1), 1) * expand_dims(reshape(y, -1), 0),
        np.zeros_like: lambda x, dtype=None: full(x.shape, 0, dtype or x.dtype),
        np.ones_like: lambda x, dtype=None: full(x.shape, 1, dtype or x.dtype),
        np.full_like: lambda x, value, dtype=None: full(x.shape, value, dtype or x.dtype),
    }
)


# ---- Arguments.


def _kind(value):
    return type(value).__name__


def _integer(op, argument, value):
    if isinstance(value, Tile):
        raise TypeError(f"[{op}] expected {argument} to be a static integer but got a traced value")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"[{op}] expected {argument} to be an integer but got {_kind(value)}"
        ) from None


def _axis_or_axes(op, axis):
    if axis is None:
        return None
    if isinstance(axis, tuple | list):
        return tuple(_integer(op, "axis", a) for a in axis)
    return _integer(op, "axis", axis)


def _shape(op, shape):
    if isinstance(shape, tuple | list):
        return [_integer(op, "extents", n) for n in shape]
    return [_integer(op, "shape", shape)]


def _tile(op, value):
    if not isinstance(value, Tile):
        raise TypeError(f"[{op}] expected a tile but got {_kind(value)}")
    return value
