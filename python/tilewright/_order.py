"""Sorting, and elements taken from places along an axis, in the kernel language."""

import numpy as np

from . import _core, _elementwise
from ._arrays import dtype_name
from ._language import Tile, _integer

_lang = _core.lang


def sort(x, axis=-1, descending=False) -> Tile:
    """The elements along an axis in order: on GPUs as many as shared memory holds.

    Stable in both directions; zeros of both signs are equal, and a NaN is larger than every number.
    """
    return _lang.sort(x, _integer("sort", "axis", axis), bool(descending))


def argsort(x, axis=-1, descending=False) -> Tile:
    """i32 places of the elements along an axis in the order of `sort`."""
    return _lang.argsort(x, _integer("argsort", "axis", axis), bool(descending))


def sort_by_key(keys, values, axis=-1, descending=False) -> tuple[Tile, Tile]:
    """Keys in the order of `sort`, and values of their shape as the keys went."""
    axis = _integer("sort_by_key", "axis", axis)
    return _lang.sort_by_key(keys, values, axis, bool(descending))


def top_k(x, k, axis=-1) -> tuple[Tile, Tile]:
    """The k largest elements along an axis, the largest first, and their i32 places.

    Among equals the first comes first; a NaN is larger than every number.
    """
    return _lang.top_k(x, _integer("top_k", "k", k), _integer("top_k", "axis", axis))


def take_along_axis(x, indices, axis=-1) -> Tile:
    """Elements of x at integers along an axis, as `numpy.take_along_axis`.

    The other extents are alike or 1. An index outside of the axis, a negative one too, gives 0.
    """
    return _lang.take_along_axis(x, indices, _integer("take_along_axis", "axis", axis))


def one_hot(indices, depth, dtype=np.float32, axis=-1) -> Tile:
    """1 where the new axis counts to the integer, else 0: all zeros for one outside of it."""
    return _lang.one_hot(
        indices,
        _integer("one_hot", "depth", depth),
        dtype_name("one_hot", "dtype", dtype),
        _integer("one_hot", "axis", axis),
    )


_elementwise.TILE_FUNCTIONS.update(
    {np.sort: sort, np.argsort: argsort, np.take_along_axis: take_along_axis}
)
