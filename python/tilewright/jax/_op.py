"""Tile programs as JAX ops: jit-able, differentiable, batched, sharded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from .. import _core
from .._cuda_kernel import CudaKernel
from . import _ffi, _primitive, _targets
from ._jaxpr.walker import JAX_DTYPES

_op_p = _primitive.define("tilewright_op")
_METHODS = ("grid", "sequential", "expand_dims", "broadcast_all")


def op(kernel, vjp=None, sharding_rule=None, vmap_method=None):
    """A tile program, or a CUDA kernel, as a JAX function of arrays and attributes.

    kernel: one of

    - IR text for fixed shapes, as `tilewright dump KERNEL --to ir` and C++'s `Call::ir` print it;
    - a function of arrays (of which only shape and dtype are known) that returns IR text, so that
      the op takes any shape, or an object with such a function as its attribute `ir`;
    - a function of arrays made of Pallas kernels (`twj.pallas_call`);
    - a CUDA kernel (`tw.cuda_kernel`), whose own vjp, sharding_rule and vmap_method apply where
      none are given here.

    The trailing Refs of a program, which it writes, are the results; Refs that share memory with
    one (`alias`) are inputs updated in place. The op returns an array, or a tuple of several.

    Keyword arguments of the op are attributes: Python values that are constant under `jit` and can
    be hashed. A function gets them as keyword arguments, `lambda x, eps: text`.

    vjp: `vjp(inputs, outputs, cotangents)` returns the gradient of each input, or None for one that
    has none; inputs is a tuple, as are outputs and cotangents if there are several results. Or a
    pair `(forward, backward)` as for jax.custom_vjp. These functions also get the attributes of the
    call as keyword arguments.

    sharding_rule: which dimensions may be split over devices, such as `"b n, n -> b n"`: dimensions
    of one name are split alike. A name that some operand or result lacks is not split unless
    listed: `(rule, {"reduction_factors": ("b",)})` splits b and sums the results that lack it.
    Without a rule nothing is split.

    vmap_method: "grid" (the default) runs the batch as one more axis of the grid, for any program;
    "sequential" runs one element after the other; "expand_dims" and "broadcast_all" call the kernel
    with the batch as leading dimensions (of extent 1, or repeated, for inputs without one).
    """
    batching = None
    if isinstance(kernel, CudaKernel):
        if not isinstance(vjp, tuple | list):
            vjp = _by_kernel(kernel, kernel.vjp if vjp is None else vjp)
        sharding_rule = kernel.sharding_rule if sharding_rule is None else sharding_rule
        if vmap_method is None:
            batching = kernel.batch if callable(kernel.vmap_method) else None
            vmap_method = "sequential" if batching else kernel.vmap_method
        elif (vmap_method == "grid") != (kernel.vmap_method == "grid"):
            raise ValueError(
                f"[{kernel.name}] expected the vmap_method that the kernel was made with, "
                f"{kernel.vmap_method!r}, since 'grid' changes its parameters, but got "
                f"{vmap_method!r}"
            )
    vmap_method = "grid" if vmap_method is None else vmap_method
    if vmap_method not in _METHODS:
        raise ValueError(
            f"[op] expected vmap_method to be one of {_METHODS} but got {vmap_method!r}"
        )
    source = _Source(kernel)
    rule = _Rule.of(sharding_rule)

    @functools.lru_cache(maxsize=256)
    def of_attributes(attributes):
        """The op with these values, which are constants like the kernel itself."""
        given = {name: value for name, _, value in attributes}
        spec = _Spec(source.with_attributes(given), rule, vmap_method, (), batching)

        def call(*arrays):
            outputs = _op_p.bind(*arrays, spec=spec)
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        call.__name__ = call.__qualname__ = source.name
        return call if vjp is None else _differentiable(call, _with(vjp, given))

    def call(*arrays, **attributes):
        if not arrays:
            raise TypeError("[op] expected at least one array but got none")
        # Outside of the derivative rule: JAX then sums gradients of replicated arrays over shards.
        arrays = _primitive.aligned(*(_array(i, x) for i, x in enumerate(arrays)))
        return of_attributes(_frozen(source, attributes))(*arrays)

    call.__name__ = call.__qualname__ = source.name
    call.__doc__ = f"The {source.kind} `{source.name}` as a JAX op."
    return call


def _by_kernel(kernel, vjp):
    """The derivative of a CUDA kernel, as `vjp` of an op."""
    if vjp is None:
        return None

    def by_kernel(inputs, outputs, cotangents, **attributes):
        if kernel.single:
            outputs, cotangents = (outputs,), (cotangents,)
        return kernel.gradients(inputs, outputs, cotangents, _thawed(attributes), vjp)

    return by_kernel


def _with(vjp, attributes):
    if not attributes:
        return vjp
    if isinstance(vjp, tuple | list):
        return tuple(functools.partial(f, **attributes) for f in vjp)
    return functools.partial(vjp, **attributes)


def _frozen(source, attributes):
    """Attributes sorted and hashable."""
    attributes = source.values(attributes)
    for name, value in attributes.items():
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"[{source.name}] expected the attribute `{name}` to be a Python value, since it "
                f"is part of the program, but it is traced: {value}"
            )
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"[{source.name}] expected the attribute `{name}` to be hashable but got {value!r}"
            ) from None
    # With their types, since 1, 1.0 and True are equal.
    return tuple((name, type(value), value) for name, value in sorted(attributes.items()))


def _array(place, value):
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"[op] expected argument {place} to be an array but got {value!r}"
        ) from None


def _differentiable(call, vjp):
    function = jax.custom_vjp(call)
    if isinstance(vjp, tuple | list):
        forward, backward = vjp
        function.defvjp(forward, backward)
        return function

    def forward(*inputs):
        outputs = call(*inputs)
        return outputs, (inputs, outputs)

    def backward(saved, cotangents):
        inputs, outputs = saved
        gradients = vjp(inputs, outputs, cotangents)
        if not isinstance(gradients, tuple | list):
            gradients = (gradients,)
        if len(gradients) != len(inputs):
            raise ValueError(
                f"[op] expected vjp to give {len(inputs)} gradients, one for each input, but got "
                f"{len(gradients)}"
            )
        return tuple(gradients)

    function.defvjp(forward, backward)
    return function


class _Source:
    """Makes the program for given shapes. Compared by identity."""

    def __init__(self, kernel, attributes=None):
        self.is_cuda = isinstance(kernel, CudaKernel)
        self.kind = "CUDA kernel" if self.is_cuda else "tile program"
        if not isinstance(kernel, str) and hasattr(kernel, "ir"):
            kernel = kernel.ir
        if not isinstance(kernel, str) and not callable(kernel):
            raise TypeError(
                f"[op] expected IR text or a function of arrays as kernel but got {type(kernel)}"
            )
        if isinstance(kernel, str):
            _ffi.program_parameters(kernel)  # reports where the text is wrong
        self.kernel = kernel
        self.attributes = attributes or {}
        self.checked = bool(getattr(kernel, "checked", False))  # in the checked mode
        self.profiled = getattr(kernel, "profiled", None)  # where profiled calls are recorded
        self.name = "tile_program" if isinstance(kernel, str) else _name_of(kernel)
        self._programs = {}

    def values(self, attributes):
        """The given attributes and, for a CUDA kernel, defaults for the others."""
        if self.is_cuda:
            values = self.kernel.values(attributes)
            return {
                n: tuple(sorted(v.items())) if isinstance(v, dict) else v for n, v in values.items()
            }
        if isinstance(self.kernel, str) and attributes:
            raise TypeError(
                "[op] expected no attributes of a program that is IR text but got "
                f"{', '.join(attributes)}"
            )
        return attributes

    def with_attributes(self, attributes):
        return _Source(self.kernel, attributes) if attributes else self

    def program(self, avals):
        """The _Program for these shapes, or None if the kernel is a function of Pallas kernels."""
        key = tuple((x.shape, str(x.dtype)) for x in avals)
        if key not in self._programs:
            self._programs[key] = self._make(avals)
        return self._programs[key]

    def _make(self, avals):
        if self.is_cuda:
            plan = self.kernel.plan(*avals, **_thawed(self.attributes))
            return _CudaProgram(plan.text)
        text = self.kernel
        if not isinstance(text, str):
            text = self._text_of(avals)
            if text is None:
                return None
        return _Program(text, avals, self.checked, self.profiled)

    def _text_of(self, avals):
        """What the kernel returns for these shapes, if that is text."""
        found = []

        def run(*arrays):
            result = self.kernel(*arrays, **self.attributes)
            if isinstance(result, str):
                found.append(result)
                return ()
            return result

        jax.eval_shape(run, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals))
        return found[0] if found else None


def _thawed(attributes):
    """Structs as dicts again."""
    return {n: dict(v) if isinstance(v, tuple) else v for n, v in attributes.items()}


def _name_of(function):
    if isinstance(function, CudaKernel):
        return function.name
    if isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "op")


class _Program:
    """IR text, with its parameters split into inputs, results and aliases."""

    def __init__(self, text, avals, checked, profiled):
        self.text, self.checked, self.profiled = text, checked, profiled
        parameters = [
            (name, dtype, shape, written, alias)
            for name, dtype, shape, written, alias in _ffi.program_parameters(text)
        ]
        last_of = {alias: i for i, (*_, alias) in enumerate(parameters) if alias >= 0}
        results = [
            i
            for i, (*_, written, alias) in enumerate(parameters)
            if written and (alias < 0 or last_of[alias] == i)
        ]
        first = len(parameters) - len(results)
        if not results or results != list(range(first, len(parameters))):
            raise ValueError(
                "[op] expected a program whose last Refs, and no others, are written but it "
                f"writes {[parameters[i][0] for i in results]} of {[p[0] for p in parameters]}"
            )
        inputs = parameters[:first]
        if len(inputs) != len(avals):
            raise TypeError(f"[op] expected {len(inputs)} arrays but got {len(avals)}")
        for (name, dtype, shape, *_), aval in zip(inputs, avals, strict=True):
            fits = len(shape) == len(aval.shape) and all(
                want in (-1, n) for want, n in zip(shape, aval.shape, strict=True)
            )
            if not fits or JAX_DTYPES[dtype] != aval.dtype:
                raise ValueError(
                    f"[op] expected `{name}` to be {dtype}{list(shape)} but got "
                    f"{aval.dtype}{list(aval.shape)}"
                )
        self.results = []
        for name, dtype, shape, *_ in parameters[first:]:
            if -1 in shape:
                raise ValueError(f"[op] expected the result `{name}` to have a static shape")
            self.results.append(jax.ShapeDtypeStruct(shape, JAX_DTYPES[dtype]))
        self.aliases = {
            i: last_of[alias] - first for i, (*_, alias) in enumerate(inputs) if alias in last_of
        }

    def batched(self, mapped, size, avals):
        flags = [*mapped, *[True] * len(self.results)]
        text = _ffi.batched_ir(self.text, flags, size)
        return _Program(text, avals, self.checked, self.profiled)

    def __call__(self, *operands):
        shared = set(self.aliases.values())
        aliased = "".join("01"[o in shared] for o in range(len(self.results)))
        call = jax.ffi.ffi_call(
            "tilewright_program", self.results, input_output_aliases=self.aliases
        )
        profile = self.profiled is not None
        if profile:
            self.profiled[:] = [(self.text, len(operands), aliased)]
        given = {"ir": self.text, "checked": self.checked, "profile": profile, "aliased": aliased}
        return list(call(*operands, **_targets.attributes(given)))


class _CudaProgram:
    """A plan of a CUDA kernel."""

    def __init__(self, text):
        self.text = text
        plan = _core.CudaPlan(text)
        self.results = [
            jax.ShapeDtypeStruct(shape, JAX_DTYPES[dtype]) for dtype, shape in plan.outputs
        ]

    def batched(self, mapped, size, avals):
        return _CudaProgram(_core.CudaPlan(self.text).batched(list(mapped), size).text)

    def __call__(self, *operands):
        call = jax.ffi.ffi_call("tilewright_cuda_kernel", self.results)
        return list(call(*operands, **_targets.attributes({"plan": self.text})))


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A sharding rule: names of the dimensions of operands and results."""

    operands: tuple
    results: tuple
    options: tuple

    @staticmethod
    def of(rule):
        if rule is None:
            return None
        text, options = (rule, {}) if isinstance(rule, str) else rule
        sides = text.split("->")
        if len(sides) != 2:
            raise ValueError(f"[op] expected a sharding rule such as 'b n -> b n' but got {text!r}")
        operands, results = (tuple(tuple(t.split()) for t in side.split(",")) for side in sides)
        return _Rule(operands, results, tuple(sorted(options.items())))

    def text(self):
        left, right = (
            ", ".join(" ".join(t) for t in side) for side in (self.operands, self.results)
        )
        return f"{left} -> {right}"

    def arguments(self):
        """For custom_partitioning: names that not all arrays have stay whole unless listed."""
        options = dict(self.options)
        listed = {name for names in options.values() for name in names}
        everywhere = [set(term) for term in (*self.operands, *self.results)]
        names = [n for term in (*self.operands, *self.results) for n in term]
        partial = [n for n in dict.fromkeys(names) if not all(n in term for term in everywhere)]
        kept = [n for n in partial if n not in listed]
        # A name that only some operands have may be split if every result has it.
        kept = [n for n in kept if not all(n in term for term in map(set, self.results))]
        kept = (*options.pop("need_replication_factors", ()), *kept)
        # To Shardy only a name that no result has is a reduction; others are summed all the same.
        inner = [n for n in options.pop("reduction_factors", ())
                 if not any(n in term for term in self.results)]  # fmt: skip
        if inner:
            options["reduction_factors"] = tuple(inner)
        return {**options, **({"need_replication_factors": kept} if kept else {})}

    def batched(self, dims):
        """The rule with a batch as the first dimension of the operands that have it."""
        name = f"batch{len(self.results[0])}"

        def term(names, mapped):
            return (name, *names) if mapped else names

        return _Rule(
            tuple(term(t, d is not None) for t, d in zip(self.operands, dims, strict=True)),
            tuple(term(t, True) for t in self.results),
            self.options,
        )


@dataclasses.dataclass(frozen=True)
class _Spec:
    """One op; `batches`: for each vmap, innermost first, which operands have the batch in front."""

    source: _Source
    rule: _Rule | None
    vmap_method: str
    batches: tuple
    batching: object = None  #: a user's rule for vmap

    has_no_derivative = True  # of its own: `vjp` is around the primitive

    @property
    def op(self):
        return self.source.name

    @property
    def target(self):
        return self.source.name

    def _function(self, avals):
        """The function that one device runs for operands of these shapes."""
        inner = list(avals)
        sizes, shapes = [], [inner]
        for mapped in reversed(self.batches):
            sizes.append(next(x.shape[0] for x, m in zip(inner, mapped, strict=True) if m))
            inner = [
                jax.ShapeDtypeStruct(x.shape[1:] if m else x.shape, x.dtype)
                for x, m in zip(inner, mapped, strict=True)
            ]
            shapes.append(inner)
        program = self.source.program(tuple(inner))
        if program is None:
            return self._pallas()
        for mapped, size, outer in zip(
            self.batches, reversed(sizes), reversed(shapes[:-1]), strict=True
        ):
            program = program.batched(mapped, size, outer)
        return program

    def _pallas(self):
        function = functools.partial(self.source.kernel, **self.source.attributes)
        for mapped in self.batches:
            function = jax.vmap(function, in_axes=tuple(0 if m else None for m in mapped))

        def run(*operands):
            outputs = function(*operands)
            return list(outputs) if isinstance(outputs, tuple | list) else [outputs]

        return run

    def results(self, *operands):
        function = self._function(operands)
        if isinstance(function, _Program | _CudaProgram):
            return function.results
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        return jax.eval_shape(function, *avals)

    def call(self, *operands):
        return self._function(operands)(*operands)

    def batch(self, operands, dims):
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
        moved = [
            x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)
        ]
        mapped = tuple(d is not None for d in dims)
        in_program = self.vmap_method == "grid" or (
            self.source.is_cuda and self.vmap_method == "sequential"
        )
        if self.batching is not None:
            outputs = self.batching(size, mapped, moved, _thawed(self.source.attributes))
        elif in_program:
            rule = self.rule and self.rule.batched(dims)
            spec = dataclasses.replace(self, rule=rule, batches=(*self.batches, mapped))
            outputs = _op_p.bind(*moved, spec=spec)
        elif self.vmap_method == "sequential":

            def step(_, i):
                parts = (x[i] if m else x for x, m in zip(moved, mapped, strict=True))
                return None, _op_p.bind(*parts, spec=self)

            _, outputs = jax.lax.scan(step, None, jnp.arange(size))
        else:
            extent = size if self.vmap_method == "broadcast_all" else 1
            moved = [
                x if m else jnp.broadcast_to(x, (extent, *x.shape))
                for x, m in zip(moved, mapped, strict=True)
            ]
            outputs = _op_p.bind(*moved, spec=dataclasses.replace(self, rule=None))
        return list(outputs), [0] * len(outputs)

    def sharding_rule(self, operands, results):
        operand_ranks, result_ranks = [len(x) for x in operands], [len(x) for x in results]
        rule = self.rule or _Rule(*_replicated(operand_ranks, result_ranks), ())
        wanted = [len(term) for term in (*rule.operands, *rule.results)]
        if wanted != [*operand_ranks, *result_ranks]:
            raise ValueError(
                f"[op] expected a sharding rule for operands of ranks {operand_ranks} and "
                f"results of ranks {result_ranks} but got '{rule.text()}'"
            )
        arguments = rule.arguments()
        if self.rule is None:
            names = tuple(n for term in (*rule.operands, *rule.results) for n in term)
            arguments = {"need_replication_factors": names} if names else {}
        return rule.text(), arguments

    def shard(self, mesh, operands, results):
        rule = self.rule
        if rule is None:
            return self.call, [PartitionSpec()] * len(operands), [PartitionSpec()] * len(results)
        kept = rule.arguments().get("need_replication_factors", ())
        axes = {}
        for term, entries in zip(rule.operands, operands, strict=True):
            for name, entry in zip(term, entries, strict=True):
                if entry is not None and name not in kept:
                    axes.setdefault(name, entry if isinstance(entry, tuple) else (entry,))
        summed = dict(rule.options).get("reduction_factors", ())

        def run(*shards):
            outputs = self.call(*shards)
            sums = []
            for term, output in zip(rule.results, outputs, strict=True):
                over = tuple(a for n in summed if n not in term for a in axes.get(n, ()))
                sums.append(jax.lax.psum(output, over) if over else output)
            return sums

        def spec(term):
            entries = [axes.get(name) for name in term]
            return PartitionSpec(*(e[0] if e and len(e) == 1 else e for e in entries))

        return run, [spec(t) for t in rule.operands], [spec(t) for t in rule.results]


def _replicated(operand_ranks, result_ranks):
    count = iter(range(sum(operand_ranks) + sum(result_ranks)))
    return tuple(
        tuple(tuple(f"d{next(count)}" for _ in range(rank)) for rank in ranks)
        for ranks in (operand_ranks, result_ranks)
    )
