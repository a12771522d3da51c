"""Pallas kernels as tile programs: the grid, block specs and scratch around a kernel's jaxpr."""

from dataclasses import dataclass
from typing import Any

import jax
from jax import tree_util
from jax._src.pallas import core as pallas_core

from ...._errors import UnsupportedError
from ..walker import inner_jaxpr, ir_dtype
from . import (  # noqa: F401  (imported to register rules)
    arithmetic,
    control,
    dots,
    elementwise,
    gathers,
    memory,
    random,
    shapes,
    sorting,
)
from .grid import Recorder, declared_parallel, sequential_axes
from .memory import scratch_of
from .program import MAX_RANK, Program
from .refs import Dim, View, added, covered, i64, load, scaled
from .translate import KernelWalker


@dataclass(frozen=True)
class Call:
    """What pallas_call passes to a lowering rule."""

    jaxpr: object
    grid_mapping: object
    aliases: tuple  # (input, output) pairs
    compiler_params: object
    name: str
    platform: str = "cpu"

    def hint(self, name):
        """num_warps or num_stages from any kind of compiler_params; 0 if not given."""
        return int(getattr(self.compiler_params, name, None) or 0)


class _Builder:
    """Writes one kernel; `sequential` says which axes are loops inside the program."""

    def __init__(self, call, sequential, recorder, checked):
        self.call = call
        self.grid = call.grid_mapping
        self.sequential = sequential
        self.recorder = recorder
        self.program = Program(call.name)
        self.program.builder.set_hints(call.hint("num_warps"), call.hint("num_stages"))
        self.t = KernelWalker(self.program)
        self.t.platform = call.platform
        self.t.checked = checked
        self.t.recorder = recorder

    def build(self):
        self.parameters()
        self.grid_axes()
        self.in_loops(self.sequential)
        return self.program.builder.text()

    # ---- Parameters: bounds of dynamic axes, prefetched scalars, inputs, outputs.

    def parameters(self):
        grid, aliases = self.grid, dict(self.call.aliases)
        num_index = grid.num_index_operands
        self.bounds = [
            View.whole(self.program.ref("bound", "i32", ()), "i32", ())
            for _ in range(grid.num_dynamic_grid_bounds)
        ]
        self.indices = [
            self.array(aval.dtype, aval.shape, f"index{i}")
            for i, aval in enumerate(grid.index_map_avals[len(grid.grid) :])
        ]
        self.t.read_only.update(view.ref for view in (*self.bounds, *self.indices))
        names = parameter_names(self.call.jaxpr, num_index, len(grid.block_mappings))
        self.arrays = []
        groups = {}
        for group, (i, o) in enumerate(aliases.items()):
            if i < num_index:
                raise UnsupportedError("a prefetched scalar aliased to an output")
            groups[i - num_index] = groups[grid.num_inputs + o] = group
        for i, mapping in enumerate(grid.block_mappings):
            aval = mapping.array_aval
            view = self.array(aval.dtype, aval.shape, names[i], groups.get(i, -1))
            self.arrays.append(view)
            # Inputs that no output shares are only read.
            if i < grid.num_inputs and i not in groups:
                self.t.read_only.add(view.ref)
            self.t.arrays[view.ref] = ("alias", groups[i]) if i in groups else view.ref

    def array(self, dtype, shape, name, alias=-1):
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            raise UnsupportedError(
                f"the Ref `{name}` of random keys; pass jax.random.key_data(keys) and wrap it with "
                "jax.random.wrap_key_data in the kernel"
            )
        if not all(isinstance(extent, int) for extent in shape):
            raise UnsupportedError("an array of symbolic shape")
        if len(shape) > MAX_RANK:
            raise UnsupportedError(
                f"an array of {len(shape)} dimensions, of which there may be {MAX_RANK}"
            )
        dtype = ir_dtype(dtype)
        return View.whole(self.program.ref(name, dtype, shape, alias), dtype, tuple(shape))

    # ---- The grid.

    def grid_axes(self):
        """The extent of each axis, and the i32 index along those that are not loops."""
        grid, t = self.grid, self.t
        bounds = iter(self.bounds)
        self.extents, self.program_ids = [], [None] * len(grid.grid)
        parallel = 0
        for axis, extent in enumerate(grid.grid):
            known = isinstance(extent, int)
            self.extents.append(t.number(extent, "i32") if known else load(t, next(bounds)))
            if axis not in self.sequential:
                self.program.builder.add_grid_axis(extent)
                index = self.program.emit("program_id", [], "i64", (), {"axis": parallel})
                self.program_ids[axis] = arithmetic.cast(t, index, "i32")
                parallel += 1
        visible = [axis for axis in range(len(grid.grid)) if axis not in grid.vmapped_dims]
        t.program_ids = [lambda axis=axis: self.program_ids[axis] for axis in visible]
        t.num_programs = [lambda axis=axis: self.extents[axis] for axis in visible]
        # JAX 0.11 names the axes that vmap added None, 0.10 leaves them out.
        t.axis_names = tuple(name for name in grid.grid_names or () if name is not None)

    def in_loops(self, axes):
        """The kernel's body inside a loop over each of the axes."""
        if not axes:
            return self.body()
        axis, *rest = axes

        def step(index, carries):
            self.program_ids[axis] = arithmetic.cast(self.t, index, "i32")
            self.in_loops(rest)
            return []

        low, high = self.t.number(0, "i64"), i64(self.t, self.extents[axis])
        return self.program.for_loop(low, high, [], step)

    # ---- Blocks.

    def block(self, view, mapping):
        t = self.t
        if mapping.transforms:
            raise UnsupportedError(f"the transforms of the block of {mapping.origin}")
        flat = t.evaluate(mapping.index_map_jaxpr, *self.program_ids, *self.indices)
        places = tree_util.tree_unflatten(mapping.index_map_out_tree, flat)
        if not isinstance(places, tuple | list):
            places = (places,)
        dims = []
        for place, dim, extent in zip(places, mapping.block_shape, view.shape, strict=True):
            dims.append(self.dim(place, dim, extent, mapping.origin))
        return View(view.ref, view.dtype, tuple(dims))

    def dim(self, place, dim, extent, origin):
        t = self.t
        if isinstance(dim, pallas_core.Squeezed):
            return Dim("scalar", i64(t, place))
        if isinstance(dim, pallas_core.Blocked):
            # A block that spans its dimension lies outside of it unless its index is 0.
            return Dim("slice", scaled(t, i64(t, place), dim.block_size), dim.block_size)
        if isinstance(dim, pallas_core.Element):
            start = added(t, i64(t, place), t.number(-dim.padding[0], "i64"))
            return Dim("slice", start, dim.block_size)
        if isinstance(dim, pallas_core.BoundedSlice):
            return Dim("slice", i64(t, place.start), dim.block_size)
        raise UnsupportedError(f"the block dimension {dim} of {origin}")

    def body(self):
        views = []
        self.blocks = {}
        for view, mapping in zip(self.arrays, self.grid.block_mappings, strict=True):
            block = self.block(view, mapping)
            views.append(block)
            self.blocks.setdefault(self.t.arrays[view.ref], []).append(covered(self.t, block))
        scratch = [scratch_of(self.t, aval) for aval in self.grid.scratch_avals]
        self.t.kept_scratch.update({view.ref: view.shape for view in scratch})
        jaxpr, consts = inner_jaxpr(self.call.jaxpr)
        if jaxpr.constvars or consts:
            raise UnsupportedError("a kernel that captures arrays; pass them as operands")
        self.t.evaluate(jaxpr, *self.indices, *views, *scratch)


def parameter_names(jaxpr, skip, count):
    """The kernel's own names of its Refs, for messages and printed IR."""
    jaxpr, _ = inner_jaxpr(jaxpr)
    info = getattr(jaxpr, "debug_info", None)
    names = list(getattr(info, "arg_names", None) or ())[skip : skip + count]
    names = [str(name).split("[")[0] or f"ref{i}" for i, name in enumerate(names)]
    return names + [f"ref{i}" for i in range(len(names), count)]


def tile_program(call: Call, checked=False):
    """The IR text of a pallas_call, and the axes of its grid that run in order. UnsupportedError,
    with the user's line, for what cannot be translated."""
    grid: Any = call.grid_mapping
    # Axes whose extents are only known at run time become loops: a compiled grid is fixed.
    dynamic = tuple(axis for axis, n in enumerate(grid.grid) if not isinstance(n, int))
    try:
        recorder = Recorder()
        first = _Builder(call, dynamic, recorder, False)
        text = first.build()
        declared = declared_parallel(call.compiler_params, len(grid.grid), len(grid.vmapped_dims))
        declared = [word or n == 1 for word, n in zip(declared, grid.grid, strict=True)]
        ids = [first.program.index_form(index).terms[0][0] for index in first.program_ids]
        in_order = set(sequential_axes(recorder, first.blocks, ids, declared))
        sequential = tuple(sorted(in_order | set(dynamic)))
        if checked or sequential != dynamic:
            text = _Builder(call, sequential, None, checked).build()
    except UnsupportedError as error:
        raise UnsupportedError(f"[pallas] kernel `{call.name}` uses {error}") from None
    return text, sequential
