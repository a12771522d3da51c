"""Sorting, and taking elements by index along an axis, in the kernel language."""

import numpy as np

from . import _core, _elementwise
from ._arrays import dtype_name
from ._language import Tile, _integer

_lang = _core.lang


def sort(x, axis=-1, descending=False) -> Tile:
    """The elements along an axis in order. On GPUs they have to fit in shared memory.

    Stable in both directions; zeros of both signs are equal, and NaN is larger than every number.
    """
    return _lang.sort(x, _integer("sort", "axis", axis), bool(descending))


def argsort(x, axis=-1, descending=False) -> Tile:
    """i32 indices along an axis that put its elements in the order of `sort`."""
    return _lang.argsort(x, _integer("argsort", "axis", axis), bool(descending))


def sort_by_key(keys, values, axis=-1, descending=False) -> tuple[Tile, Tile]:
    """Keys in the order of `sort`, and values, of the keys' shape, permuted as the keys were."""
    axis = _integer("sort_by_key", "axis", axis)
    return _lang.sort_by_key(keys, values, axis, bool(descending))


def top_k(x, k, axis=-1) -> tuple[Tile, Tile]:
    """The k largest elements along an axis, the largest first, and their i32 indices.

    Equal elements keep their order; NaN is larger than every number.
    """
    k, axis = _integer("top_k", "k", k), _integer("top_k", "axis", axis)
    if isinstance(x, Tile) and -x.ndim <= axis < x.ndim and not 1 <= k <= x.shape[axis]:
        raise ValueError(f"[top_k] expected k from 1 to {x.shape[axis]} but got {k}")
    return _lang.top_k(x, k, axis)


def take_along_axis(x, indices, axis=-1) -> Tile:
    """Elements of x at integer indices along an axis, as in `numpy.take_along_axis`.

    The other extents are equal or 1. An index out of bounds, which includes negative ones, gives 0.
    """
    _expect_integers("take_along_axis", indices)
    return _lang.take_along_axis(x, indices, _integer("take_along_axis", "axis", axis))


def one_hot(indices, depth, dtype=np.float32, axis=-1) -> Tile:
    """1 where the new axis counts to the index, else 0; all zeros for an index out of bounds."""
    _expect_integers("one_hot", indices)
    return _lang.one_hot(
        indices,
        _integer("one_hot", "depth", depth),
        dtype_name("one_hot", "dtype", dtype),
        _integer("one_hot", "axis", axis),
    )


def _expect_integers(op, indices):
    if isinstance(indices, Tile) and str(indices.dtype)[0] not in "iu":
        raise ValueError(f"[{op}] expected indices to be integers but got {indices.dtype!s}")


_elementwise.TILE_FUNCTIONS.update(
    {np.sort: sort, np.argsort: argsort, np.take_along_axis: take_along_axis}
)
