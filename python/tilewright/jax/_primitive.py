"""JAX primitives that lower to custom calls of the extension module.

A spec, frozen and hashable, holds everything about one call except its arrays:

- ``op``: the function that users call, for messages;
- ``target``: name of the custom call, ``attributes()``: its attributes;
- ``results(*operands)``: shapes and dtypes of the results;
- ``batch(operands, dims)``: for vmap, the primitive on operands with one more dimension, and the
  dimensions of its results;
- ``label(place)``, if there: the name of an operand for messages;
- ``sharding_rule(operands, results)``: which dimensions may be split over devices, for
  `custom_partitioning`, and ``shard(mesh, operands, results)``: the function of one shard.
"""

import contextlib
import functools
import warnings

import jax
import jax.numpy as jnp
from jax._src import dispatch
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from .._memo import Memo
from . import _targets

PLATFORMS = ("cpu", "cuda")


def define(name):
    """Defines the primitive of this name; ``bind(*operands, spec=spec)`` returns a list."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(_abstract_eval)
    primitive.def_impl(functools.partial(_run_eagerly, primitive))
    # custom_partitioning needs the devices, but JAX sees it only when this primitive is lowered.
    dispatch.prim_requires_devices_during_lowering.add(primitive)
    lower = mlir.lower_fun(_partitioned, multiple_results=True)
    mlir.register_lowering(primitive, _refuse_platform)
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, lower, platform=platform)
    batching.primitive_batchers[primitive] = _batch
    ad.primitive_jvps[primitive] = _refuse_derivative
    return primitive


def _batch(operands, dims, *, spec):
    """spec.batch, except for an empty batch, which makes no calls."""
    if all(d is None or x.shape[d] > 0 for x, d in zip(operands, dims, strict=True)):
        return spec.batch(operands, dims)
    one = [
        jax.ShapeDtypeStruct([n for axis, n in enumerate(x.shape) if axis != d], x.dtype)
        for x, d in zip(operands, dims, strict=True)
    ]
    empty = [jnp.zeros((0, *result.shape), result.dtype) for result in spec.results(*one)]
    return empty, [0] * len(empty)


def custom_call(spec, *operands):
    """The call itself, on one device: the target's, or the spec's own ``call(*operands)``."""
    if hasattr(spec, "call"):
        return spec.call(*operands)
    call = jax.ffi.ffi_call(spec.target, spec.results(*operands))
    return call(*operands, **_targets.attributes(spec.attributes()))


def _abstract_eval(*operands, spec):
    like = operands[0]
    return [
        like.update(
            shape=result.shape,
            dtype=result.dtype,
            weak_type=False,
            sharding=NamedSharding(like.sharding.mesh, PartitionSpec()),
        )
        for result in spec.results(*operands)
    ]


def _run_eagerly(primitive, *operands, spec):
    return _compiled(primitive, spec)(*operands)


_jitted = Memo("eager calls of JAX", 1024)


def _compiled(primitive, spec):
    key = primitive, spec
    return _jitted.find(key) or _jitted.put(
        key, jax.jit(lambda *operands: primitive.bind(*operands, spec=spec))
    )


def _partitioned(*operands, spec):
    call = custom_partitioning(functools.partial(custom_call, spec))

    def partition(mesh, operand_shapes, result_shapes):
        given = [_spec_of(x) for x in operand_shapes]
        shard, operand_specs, result_specs = spec.shard(
            mesh, given, [_spec_of(x) for x in result_shapes]
        )
        for place, (before, after) in enumerate(zip(given, operand_specs, strict=True)):
            _warn_of_gathering(spec, place, before, tuple(after))
        return (
            mesh,
            shard,
            [NamedSharding(mesh, s) for s in result_specs],
            tuple(NamedSharding(mesh, s) for s in operand_specs),
        )

    call.def_partition(
        partition,
        sharding_rule=lambda mesh, ins, outs: spec.sharding_rule(_shapes(ins), _shapes(outs)),
    )
    return call(*operands)


def _shapes(types):
    return [tuple(t.shape) for t in types]


def _warn_of_gathering(spec, place, before, after):
    """Warns if an operand was split along a dimension that the operation needs whole."""
    name = spec.label(place) if hasattr(spec, "label") else f"operand {place}"
    for dim, axes in enumerate(before):
        kept = after[dim] if dim < len(after) else None
        if axes is not None and axes != kept:
            warnings.warn(
                f"[{spec.op}] {name} is gathered along dimension {dim}, which is sharded "
                f"over {axes}: the operation needs all of it",
                stacklevel=2,
            )


def _spec_of(shape):
    """The sharding as a tuple with one entry per dimension."""
    entries = tuple(shape.sharding.spec)
    return entries + (None,) * (len(shape.shape) - len(entries))


def _refuse_platform(context, *operands, spec):
    platforms = ", ".join(context.module_context.platforms)
    raise NotImplementedError(
        f"[{spec.op}] expected one of the platforms {', '.join(PLATFORMS)} but got {platforms}"
    )


def _refuse_derivative(primals, tangents, *, spec):
    if getattr(spec, "has_no_derivative", False):
        raise NotImplementedError(
            f"[{spec.op}] expected an operation that has a derivative, differentiated in reverse "
            "mode and once; tilewright.jax.op(f, vjp=...) gives a kernel one"
        )
    raise NotImplementedError(
        f"[{spec.op}] expected to be differentiated once, in reverse mode (jax.grad, jax.vjp), but "
        "a second derivative or forward mode was asked for"
    )


@contextlib.contextmanager
def reverse_mode_only(op):
    """Names the operation when JAX refuses forward mode through its custom_vjp. Inside jit JAX
    refuses later, where this cannot see it."""
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise NotImplementedError(
            f"[{op}] expected to be differentiated in reverse mode (jax.grad, jax.vjp) but forward "
            "mode was asked for"
        ) from error


def over_explicit_axes(spec, operands, local, result_specs=None):
    """``local(*shards)`` under shard_map if operands are split over explicit axes of a mesh; None
    if none is. `result_specs` selects the results of `local` among those of the spec."""
    given = [entries(x) for x in operands]
    if not any(any(entry is not None for entry in e) for e in given):
        return None
    mesh = next(m for m in (jax.typeof(x).sharding.mesh for x in operands) if m.explicit_axes)
    ranks = [(None,) * len(r.shape) for r in spec.results(*operands)]
    _, operand_specs, specs = spec.shard(mesh, given, ranks)
    for place, (before, after) in enumerate(zip(given, operand_specs, strict=True)):
        _warn_of_gathering(spec, place, before, tuple(after))
    placed = [
        jax.sharding.reshard(x, NamedSharding(mesh, after))
        for x, after in zip(operands, operand_specs, strict=True)
    ]
    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=tuple(operand_specs),
        out_specs=tuple(result_specs(specs) if result_specs else specs),
    )
    return jax.jit(run)(*placed)


def entries(x):
    """The explicit axes over which each dimension is split."""
    sharding = jax.typeof(x).sharding
    explicit = set(sharding.mesh.explicit_axes)

    def kept(entry):
        axes = entry if isinstance(entry, tuple) else (entry,)
        return entry if explicit.issuperset(axes) else None

    return tuple(map(kept, sharding.spec))


def aligned(*operands):
    """The operands, made to vary over the same axes of an enclosing shard_map; None stays None.

    Replicated operands become varying, so that JAX sums their gradients over the shards.
    """
    axes = frozenset().union(*(_varying(x) for x in operands if x is not None))

    def align(x):
        missing = tuple(sorted(axes - _varying(x), key=str)) if x is not None else ()
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return [align(x) for x in operands]


def _varying(x):
    return jax.typeof(x).manual_axis_type.varying
