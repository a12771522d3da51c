"""Refs: views of arrays, made by blocks and indexers, and accesses through them."""

from dataclasses import dataclass, replace

from jax._src.state import indexing

from ...._errors import UnsupportedError
from .arithmetic import broadcast, cast, product, total
from .program import MAX_RANK, Ref, Value


@dataclass(frozen=True)
class Dim:
    """How one dimension of the array is seen: a scalar, a slice or an index tile."""

    kind: str  # "scalar", "slice" or "tile"
    start: Value  # an i64 scalar; the indices for "tile"
    size: int = 1
    stride: int = 1


@dataclass(frozen=True)
class View:
    """What a kernel sees of an array. Tile dimensions broadcast together and come before the slices
    if `tiles_first`, else where the first of them is."""

    ref: Ref
    dtype: str
    dims: tuple
    tile_shape: tuple = ()
    tiles_first: bool = False
    permutation: tuple | None = None  # of the axes that the kernel sees, applied last

    @staticmethod
    def whole(ref, dtype, shape):
        zero = Value("i64", (), constant=0)
        return View(ref, dtype, tuple(Dim("slice", zero, extent) for extent in shape))

    @property
    def shape(self):
        shape = self._stored_shape()
        return tuple(shape[axis] for axis in self.permutation) if self.permutation else shape

    def access_shape(self):
        """The access's shape in the IR's order: index tiles come where the first of them is."""
        shape, done = [], False
        for dim in self.dims:
            if dim.kind == "slice":
                shape.append(dim.size)
            elif dim.kind == "tile" and not done:
                shape.extend(self.tile_shape)
                done = True
        return tuple(shape)

    def _stored_shape(self):
        shape = self.access_shape()
        if not self.tiles_first:
            return shape
        return self.tile_shape + tuple(d.size for d in self.dims if d.kind == "slice")

    def axes_from_access(self):
        """For each axis that the kernel sees, the axis of the access; None if they agree."""
        order = list(range(len(self.access_shape())))
        if self.tiles_first:
            first = 0
            for dim in self.dims:
                if dim.kind == "tile":
                    break
                first += dim.kind == "slice"
            tiles = list(range(first, first + len(self.tile_shape)))
            order = tiles + [axis for axis in order if axis not in tiles]
        if self.permutation:
            order = [order[axis] for axis in self.permutation]
        return order if order != sorted(order) else None


# ---- Index arithmetic in i64, constant-folded.


def i64(t, value):
    if isinstance(value, int):
        return t.number(value, "i64")
    return cast(t, value, "i64")


def added(t, a, b):
    if a.is_constant and b.is_constant:
        return t.number(a.constant + b.constant, "i64")
    if a.is_constant and a.constant == 0:
        return b
    if b.is_constant and b.constant == 0:
        return a
    return total(t, a, b)


def scaled(t, a, factor):
    if a.is_constant:
        return t.number(a.constant * factor, "i64")
    return product(t, a, factor)


# ---- Indexers.


def apply_transforms(t, view, transforms):
    for transform in transforms:
        kind = type(transform).__name__
        if isinstance(transform, indexing.NDIndexer):
            view = index(t, view, transform)
        elif kind in ("TransposeTransform", "RefTransposer", "TransposeRef"):
            axes = tuple(transform.permutation)
            if view.permutation:
                axes = tuple(view.permutation[axis] for axis in axes)
            view = replace(view, permutation=axes)
        elif kind in ("ReshapeTransform", "RefReshaper"):
            view = reshaped(view, tuple(transform.shape))
        else:
            raise UnsupportedError(f"a Ref seen through {kind}")
    return view


def reshaped(view, shape):
    """A view with other extents: only dimensions of extent 1 may be added or removed."""
    if view.shape == shape:
        return view
    raise UnsupportedError(
        f"a Ref of shape {view.shape} reshaped to {shape}; reshape what is loaded"
    )


def _wrapped(start, extent):
    """Static negative indices count from the end, as they do in the interpreter of Pallas."""
    return start + extent if isinstance(start, int) and start < 0 else start


def _integer(value):
    """An index as an int if it is known, else its Value."""
    if isinstance(value, Value):
        return int(value.constant) if value.is_constant and value.rank == 0 else value
    return int(value)


def index(t, view, indexer):
    """The view narrowed by an NDIndexer whose leaves are Values or ints."""
    if any(dim.kind == "tile" for dim in view.dims):
        raise UnsupportedError("a further index on a Ref that was indexed by an array")
    dims = list(view.dims)
    places = [i for i, dim in enumerate(dims) if dim.kind == "slice"]
    permutation = view.permutation or tuple(range(len(places)))
    visible = [places[axis] for axis in permutation]
    tile_shape = tuple(indexer.int_indexer_shape)
    if not all(isinstance(extent, int) for extent in tile_shape):
        raise UnsupportedError("an index of dynamic shape")
    tile_places, kept = [], []
    for axis, (place, by) in enumerate(zip(visible, indexer.indices, strict=True)):
        dim = dims[place]
        if isinstance(by, indexing.Slice):
            if not isinstance(by.size, int):
                raise UnsupportedError("a slice of traced size")
            start = _wrapped(_integer(by.start), dim.size)
            check(t, view, dim, start, (by.size - 1) * by.stride + 1)
            dims[place] = Dim(
                "slice",
                added(t, dim.start, scaled(t, i64(t, start), dim.stride)),
                by.size,
                dim.stride * by.stride if by.size > 1 else 1,
            )
            kept.append(axis)
        elif not tile_shape:
            start = _wrapped(_integer(by), dim.size)
            check(t, view, dim, start, 1)
            dims[place] = Dim("scalar", added(t, dim.start, scaled(t, i64(t, start), dim.stride)))
        else:
            tile = by if isinstance(by, Value) else t.number(by, "i32", tile_shape)
            dims[place] = tiled(t, dim, broadcast(t, tile, tile_shape))
            tile_places.append((axis, place))
    return _arranged(t, view, dims, permutation, kept, tile_places, tile_shape)


def check(t, view, dim, start, span):
    """In the checked mode, reports a traced index that leaves its block."""
    if not t.checked or isinstance(start, int) or dim.kind != "slice":
        return
    start = i64(t, start)
    low = t.program.emit("ge", [start, t.number(0, "i64")], "bool", ())
    high = t.program.emit("le", [start, t.number(dim.size - span, "i64")], "bool", ())
    inside = t.program.emit("bitwise_and", [low, high], "bool", ())
    text = f"index into `{view.ref.name}` leaves its block of {dim.size} elements"
    t.program.builder.debug_check(t.program.use(inside), text)


def tiled(t, dim, tile):
    """A dimension of a block indexed by a tile."""
    if dim.stride == 1 and dim.start.is_constant and dim.start.constant == 0:
        return Dim("tile", tile)
    start = product(t, cast(t, tile, "i64"), dim.stride)
    return Dim("tile", total(t, start, dim.start))


def _arranged(t, view, dims, permutation, kept, tile_places, tile_shape):
    """Puts the axes in the order of NumPy's indexing."""
    narrowed = replace(view, dims=tuple(dims), tile_shape=tile_shape, permutation=None)
    if not tile_places:
        order = [permutation[axis] for axis in kept]
        ranks = {axis: rank for rank, axis in enumerate(sorted(order))}
        order = tuple(ranks[axis] for axis in order)
        return replace(narrowed, permutation=None if order == tuple(sorted(order)) else order)
    if permutation != tuple(range(len(permutation))):
        raise UnsupportedError("an array index on a transposed Ref")
    axes = [axis for axis, _ in tile_places]
    sliced = as_slices(t, dims, tile_places, tile_shape)
    contiguous = axes == list(range(axes[0], axes[-1] + 1))
    if sliced is not None and contiguous:
        return replace(view, dims=sliced, permutation=None)
    return replace(narrowed, tiles_first=not contiguous)


def as_slices(t, dims, tile_places, tile_shape):
    """The same dimensions as slices and scalars if each index tile counts up along an axis of its
    own, in order: such a gather is only a slice."""
    if 0 in tile_shape:
        return None
    dims = list(dims)
    axes = []
    for _, place in tile_places:
        form = t.program.index_form(dims[place].start)
        if form is None:
            return None
        moving = [axis for axis, step in enumerate(form.steps) if step and tile_shape[axis] > 1]
        if len(moving) > 1 or (moving and form.steps[moving[0]] < 0):
            return None
        start = i64(t, form.offset)
        for scalar, dtype, factor in form.terms:
            term = i64(t, Value(dtype, (), id=scalar))
            start = added(t, start, scaled(t, term, factor))
        if moving:
            axis = moving[0]
            axes.append(axis)
            dims[place] = Dim("slice", start, tile_shape[axis], form.steps[axis])
        else:
            dims[place] = Dim("scalar", start)
    expected = [axis for axis, extent in enumerate(tile_shape) if extent > 1]
    if axes != expected or len(expected) != len(tile_shape):
        return None
    return tuple(dims)


# ---- Accesses.


def _indices(t, view):
    """The view's indices as the builder takes them."""
    return [(d.kind, t.program.use(d.start), int(d.size), int(d.stride)) for d in view.dims]


def _to_access(t, view, value):
    """A value with its axes in the access's order."""
    order = view.axes_from_access()
    if order is None or value.rank == 0:
        return value
    inverse = [order.index(axis) for axis in range(len(order))]
    shape = tuple(value.shape[axis] for axis in inverse)
    return t.program.emit("transpose", [value], value.dtype, shape, {"permutation": inverse})


def _from_access(t, view, value):
    order = view.axes_from_access()
    if order is None:
        return value
    shape = tuple(value.shape[axis] for axis in order)
    return t.program.emit("transpose", [value], value.dtype, shape, {"permutation": order})


def _lanes(t, view, mask, other=None):
    """Mask and other as the builder takes them; a mask that is all true is dropped."""
    lanes = {}
    if mask is not None and not (mask.is_constant and mask.constant):
        mask = _to_access(t, view, broadcast_to(t, mask, view.shape))
        lanes["mask"] = t.program.use(mask)
    if other is not None:
        other = _to_access(t, view, broadcast_to(t, cast(t, other, view.dtype), view.shape))
        lanes["other"] = t.program.use(other)
    return lanes


def broadcast_to(t, value, shape):
    """NumPy's broadcasting, from the right."""
    if value.rank and value.rank < len(shape):
        wanted = (1,) * (len(shape) - value.rank) + value.shape
        value = t.program.emit("reshape", [value], value.dtype, wanted)
    return broadcast(t, value, shape)


def check_rank(view):
    if len(view.access_shape()) > MAX_RANK:
        raise UnsupportedError(
            f"an access of {len(view.access_shape())} dimensions, of which a tile has at most "
            f"{MAX_RANK}; narrow the block or squeeze dimensions with None"
        )


def _record(t, view, op, mask=None):
    """Records what the kernel touches, in the first translation."""
    if t.recorder is None or view.ref in t.read_only:
        return
    if view.ref in t.kept_scratch:
        shape = t.kept_scratch[view.ref]
        whole = all(d.kind == "slice" and d.stride == 1 and d.size == n and d.start.constant == 0
                    for d, n in zip(view.dims, shape, strict=True))  # fmt: skip
        t.recorder.use_scratch(view.ref, op == "store" and mask is None and whole)
    elif view.ref in t.arrays:
        t.recorder.touch(t.arrays[view.ref], op == "atomic", covered(t, view))


def covered(t, view):
    """For each dimension of the array the IndexForm of the first element, and the extent."""
    dims = []
    for dim in view.dims:
        if dim.kind == "tile":
            dims.append((None, 0))
        else:
            dims.append((t.program.index_form(dim.start), (dim.size - 1) * dim.stride + 1))
    return tuple(dims)


def _repeats(view):
    return any(d.kind == "slice" and d.stride == 0 and d.size > 1 for d in view.dims)


def _load_repeated(t, view, mask, other):
    """Loads through slices of stride 0: each element once, then broadcast."""
    if mask is not None or other is not None:
        raise UnsupportedError("a masked load through a slice of stride 0; mask the value")
    once = [replace(d, size=1, stride=1) if d.kind == "slice" and d.stride == 0 else d
            for d in view.dims]  # fmt: skip
    value = load(t, replace(view, dims=tuple(once)))
    return broadcast(t, value, view.shape)


def load(t, view, mask=None, other=None):
    check_rank(view)
    if _repeats(view):
        return _load_repeated(t, view, mask, other)
    _record(t, view, "load")
    lanes = _lanes(t, view, mask, other)
    loaded = t.program.builder.load(view.ref.id, _indices(t, view), **lanes)
    return _from_access(t, view, Value(view.dtype, view.access_shape(), id=loaded))


def store(t, view, value, mask=None):
    check_rank(view)
    if _repeats(view):
        raise UnsupportedError("a store through a slice of stride 0")
    _record(t, view, "store", mask)
    lanes = _lanes(t, view, mask)
    value = _to_access(t, view, broadcast_to(t, value, view.shape))
    stored = t.program.use(value)
    t.program.builder.store(view.ref.id, _indices(t, view), stored, **lanes)


def atomic(t, op, view, operands, mask=None):
    check_rank(view)
    if _repeats(view):
        raise UnsupportedError("an atomic through a slice of stride 0")
    _record(t, view, "atomic")
    lanes = _lanes(t, view, mask)
    values = [t.program.use(_to_access(t, view, broadcast_to(t, v, view.shape))) for v in operands]
    old = t.program.builder.atomic(op, view.ref.id, _indices(t, view), values, **lanes)
    return _from_access(t, view, Value(view.dtype, view.access_shape(), id=old))
