"""Rules of primitives that touch memory, the grid or the user's terminal."""

from jax import tree_util

from ...._errors import UnsupportedError
from ..walker import inner_jaxpr, ir_dtype
from .arithmetic import cast, elementwise
from .control import while_loop
from .program import Value
from .refs import apply_transforms, atomic, broadcast_to, load, store
from .shapes import reduced
from .translate import rule


def _unflatten(tree, leaves):
    """A tree of Values; known integers become ints, as indexers expect."""
    return tree_util.tree_unflatten(
        tree, [x.constant if isinstance(x, Value) and _known_index(x) else x for x in leaves]
    )


def _known_index(value):
    return value.is_constant and value.rank == 0 and value.dtype in ("i32", "i64")


def _writable(t, view):
    if view.ref in t.read_only:
        raise UnsupportedError(
            f"a store to the input `{view.ref.name}`; alias it to an output to write it"
        )


# ---- Loads and stores.


@rule("get")
def _get(t, eqn, view, *leaves):
    transforms = _unflatten(eqn.params["tree"], leaves)
    return load(t, apply_transforms(t, view, transforms))


@rule("swap")
def _swap(t, eqn, view, value, *leaves):
    transforms = _unflatten(eqn.params["tree"], leaves)
    return _exchange(t, eqn, apply_transforms(t, view, transforms), value)


def _exchange(t, eqn, view, value, mask=None):
    _writable(t, view)
    # A lane that is masked off returns the value itself.
    kept = value if mask is not None else None
    old = load(t, view, mask, kept) if t.is_used(eqn.outvars[0]) else None
    store(t, view, value, mask)
    return old


@rule("addupdate")
def _addupdate(t, eqn, view, value, *leaves):
    view = apply_transforms(t, view, _unflatten(eqn.params["tree"], leaves))
    _writable(t, view)
    old = load(t, view)
    if value.pending is not None and value.shape == old.shape:
        t.program.use(value, accumulator=old)
        store(t, view, value)
    else:
        store(t, view, t.program.emit("add", [old, value], view.dtype, view.shape))
    return []


@rule("masked_load", "load")
def _masked_load(t, eqn, *leaves):
    tree = eqn.params["args_tree"]
    view, transforms, mask, other = _arguments(t, tree, leaves)
    return load(t, apply_transforms(t, view, transforms), mask, other)


@rule("masked_swap")
def _masked_swap(t, eqn, *leaves):
    view, transforms, value, mask = _arguments(t, eqn.params["args_tree"], leaves)
    return _exchange(t, eqn, apply_transforms(t, view, transforms), value, mask)


def _arguments(t, tree, leaves):
    """(ref, transforms, and two more that stay Values)."""
    view, transforms, third, fourth = tree_util.tree_unflatten(tree, leaves)
    children = tree_util.tree_structure(transforms)
    transforms = _unflatten(children, tree_util.tree_leaves(transforms))
    return view, transforms, third, fourth


_BITWISE = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_ATOMICS = {"add": "atomic_add", "max": "atomic_max", "min": "atomic_min", "xchg": "atomic_xchg"}


@rule("atomic_rmw")
def _atomic_rmw(t, eqn, *leaves):
    view, transforms, value, mask = _arguments(t, eqn.params["args_tree"], leaves)
    kind = eqn.params["atomic_type"].value
    view = apply_transforms(t, view, transforms)
    _writable(t, view)
    value = cast(t, value, view.dtype)
    if kind in _BITWISE:
        return _atomic_bits(t, _BITWISE[kind], view, value, mask)
    if kind not in _ATOMICS:
        raise UnsupportedError(f"an atomic `{kind}`")
    return atomic(t, _ATOMICS[kind], view, [value], mask)


def _atomic_bits(t, op, view, value, mask):
    """An atomic by compare-and-swap, repeated until each lane finds the element it expects."""
    shape = view.shape
    value = broadcast_to(t, value, shape)
    pending = t.number(True, "bool", shape)
    pending = pending if mask is None else broadcast_to(t, mask, shape)

    def again(carries):
        return reduced(t, carries[0], "any", range(len(shape)))

    def attempt(carries):
        waiting, expected = carries
        new = elementwise(t, op, [expected, value], view.dtype, shape)
        seen = atomic(t, "atomic_cas", view, [expected, new], waiting)
        failed = elementwise(t, "ne", [seen, expected], "bool", shape)
        expected = t.program.emit("select", [waiting, seen, expected], view.dtype, shape)
        return [elementwise(t, "bitwise_and", [waiting, failed], "bool", shape), expected]

    return while_loop(t, [pending, t.number(0, view.dtype, shape)], again, attempt)[1]


@rule("atomic_cas")
def _atomic_cas(t, eqn, view, expected, desired):
    _writable(t, view)
    return atomic(t, "atomic_cas", view, [expected, desired])


# ---- The grid.


@rule("program_id")
def _program_id(t, eqn):
    return t.program_ids[eqn.params["axis"]]()


@rule("num_programs")
def _num_programs(t, eqn):
    return t.num_programs[eqn.params["axis"]]()


@rule("platform_index")
def _platform_index(t, eqn):
    """Which branch of lax.platform_dependent is the platform's; the last may be the default."""
    for index, platforms in enumerate(eqn.params["platforms"]):
        if platforms is None or t.platform in platforms:
            return t.number(index, "i32")
    raise UnsupportedError(f"no branch of platform_dependent for {t.platform}")


@rule("axis_index")
def _axis_index(t, eqn):
    name = eqn.params["axis_name"]
    if name not in t.axis_names:
        raise UnsupportedError(f"the index along `{name}`, which is no axis of the grid")
    return t.program_ids[list(t.axis_names).index(name)]()


# ---- The program's memory.


@rule("run_scoped")
def _run_scoped(t, eqn, *consts):
    if eqn.params.get("collective_axes"):
        raise UnsupportedError("memory shared between programs")
    if any(eqn.params.get("ref_transforms", ())):
        raise UnsupportedError("memory seen through transforms")
    jaxpr, _ = inner_jaxpr(eqn.params["jaxpr"])
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    refs = [scratch_of(t, var.aval) for var in inputs[len(consts) :]]
    return t.evaluate(eqn.params["jaxpr"], *consts, *refs)


def scratch_of(t, aval):
    """The program's memory for a Ref; UnsupportedError for semaphores and the like."""
    inner = getattr(aval, "inner_aval", aval)
    if not hasattr(inner, "shape") or "semaphore" in str(inner.dtype).lower():
        raise UnsupportedError(f"scratch of {inner}: only arrays, no semaphores or barriers")
    return t.scratch(ir_dtype(inner.dtype), tuple(inner.shape))


# ---- Debugging.


@rule("debug_print")
def _debug_print(t, eqn, *values):
    fmt = eqn.params["fmt"]
    if fmt.count("{}") != len(values):
        if "{" in fmt:
            raise UnsupportedError(f"the format {fmt!r}: only `{{}}`, one for each value")
        fmt += " {}" * len(values)
    t.program.builder.debug_print(fmt, [t.program.use(value) for value in values])
    return []


@rule("check")
def _check(t, eqn, *values):
    tree = eqn.params["err_tree"]
    error = tree_util.tree_unflatten(tree, values)
    failed = list(error._pred.values())
    for value in failed:
        fine = t.program.emit("bitwise_not", [value], "bool", value.shape)
        t.program.builder.debug_check(t.program.use(fine), "debug_check failed")
    return []


@rule("debug_barrier_p", "debug_barrier")
def _barrier(t, eqn):
    # A program sees its own stores: its instructions keep their order.
    return []
