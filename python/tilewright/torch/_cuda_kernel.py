"""Users' CUDA kernels as PyTorch operators: autograd, torch.compile, vmap, DTensors."""

import functools

import torch

from .._arrays import dtype_name
from .._cuda_kernel import KERNELS, CudaKernel
from .._dtypes import NAMES
from .._programs import ShapeDtype
from . import _errors, _ops

_library = torch.library.Library("tilewright_cuda", "DEF")
_dtypes = {ours: getattr(torch, name) for name, ours in NAMES.items()}
_names = {dtype: name for name, dtype in _dtypes.items()}
_taken = {}
_transforms = torch._C._functorch.peek_interpreter_stack


def op(kernel, vjp=None):
    """A CUDA kernel (`tw.cuda_kernel`) as a function of tensors and attributes.

    It is a torch.library operator, `torch.ops.tilewright_cuda.NAME` (`op.operator`), with a fake
    implementation and with autograd by `vjp` or the kernel's own; it works under
    `torch.compile(fullgraph=True)`, `torch.export` and `torch.func.vmap` and on DTensors. Without a
    vjp, a backward pass through it raises. The kernel's vmap_method and sharding_rule apply.
    """
    if not isinstance(kernel, CudaKernel):
        raise TypeError(f"[op] expected a tw.cuda_kernel but got {kernel!r}")
    return _function(_Operator(kernel, kernel.vjp if vjp is None else vjp))


def make_operators():
    """Makes the operators of all live kernels: torch.compile cannot make them while tracing."""
    for kernel in list(KERNELS):
        kernel._ops.setdefault("torch", op(kernel))


def _function(of):
    operator, kernel = of.operator, of.kernel
    single, arity, name = kernel.single, len(kernel.inputs), kernel.name
    values = of.values

    def call(*tensors, **attributes):
        if len(tensors) != arity:
            raise TypeError(
                f"[{name}] expected {arity} inputs ({', '.join(kernel.inputs)}) but got "
                f"{len(tensors)}"
            )
        for place, x in zip(kernel.inputs, tensors, strict=True):
            if not isinstance(x, torch.Tensor):
                raise TypeError(
                    f"[{name}] expected `{place}` to be a tensor but got {type(x).__name__}"
                )
        given = values(attributes)
        # Transforms of torch.func cannot see through register_autograd: they use a Function.
        if torch.compiler.is_compiling() or _transforms() is None:
            results = operator(*tensors, "", **given)
        else:
            results = _Transformed.apply(of, "", given, *tensors)
        return results[0] if type(results) is tuple and single else results

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"The CUDA kernel `{name}` on tensors."
    call.operator = operator
    return call


class _Transformed(torch.autograd.Function):
    """apply(of, batches, values, *tensors) -> outputs, for an _Operator."""

    @staticmethod
    def forward(of, batches, values, *tensors):
        return of.as_tuple(of.operator(*tensors, batches, **values))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.of, batches, values, *tensors = inputs
        ctx.of._save(ctx, (*tensors, batches), output, values)

    @staticmethod
    def backward(ctx, *gradients):
        found = ctx.of._gradients(ctx, gradients, ctx.needs_input_grad[3:])
        return None, None, None, *found

    @staticmethod
    def vmap(info, in_dims, of, batches, values, *tensors):
        def again(*arguments, **values):
            *tensors, batches = arguments
            return _Transformed.apply(of, batches, values, *tensors)

        return of._vmap_by(again, info, in_dims[3:], tensors, batches, values)


class _Operator:
    """The operator of one kernel. Its argument `batches` gives, for each vmap around it, innermost
    first, the size and which inputs have the batch in front: "3:10,2:11"."""

    def __init__(self, kernel, vjp):
        self.kernel, self.vjp = kernel, vjp
        count = _taken[kernel.name] = _taken.get(kernel.name, 0) + 1
        self.name = kernel.name if count == 1 else f"{kernel.name}_{count}"
        tensors = [f"Tensor {n}" for n in kernel.inputs]
        attributes = [f"{a.schema()} {n}" for n, a in kernel.free.items()]
        schema = ", ".join([*tensors, "str batches", *(["*", *attributes] if attributes else [])])
        # A list would hide the number of results from DTensor and from functorch.
        returns = "Tensor" if kernel.single else f"({', '.join(['Tensor'] * len(kernel.outputs))})"
        _library.define(f"{self.name}({schema}) -> {returns}", tags=_ops.TAGS)
        qualified = f"tilewright_cuda::{self.name}"
        for key in ("CPU", "CUDA"):
            _library.impl(self.name, self._run, key)
        torch.library.register_fake(qualified, self._fake, lib=_library)
        torch.library.register_autograd(
            qualified, self._backward, setup_context=self._save, lib=_library
        )
        torch.library.register_vmap(qualified, self._vmap, lib=_library)
        self.operator = getattr(torch.ops.tilewright_cuda, self.name).default
        if kernel.sharding_rule is not None and torch.distributed.is_available():
            self._register_sharding()

    def values(self, attributes):
        """Attributes as the operator takes them."""
        values = self.kernel.values(attributes)
        return {n: _struct_text(v) if isinstance(v, dict) else v for n, v in values.items()}

    def _given(self, values):
        """Attributes as the kernel takes them."""
        structs = [n for n, a in self.kernel.free.items() if a.kind["kind"] == "struct"]
        return {n: _struct(v) if n in structs else v for n, v in values.items()}

    # ---- Forward.

    def _run(self, *arguments, **values):
        *tensors, batches = arguments
        kernel = self.kernel
        tensors = [_ops.plain(x) for x in tensors]
        batches = _parsed(batches)
        types = []
        for name, x, shape in zip(kernel.inputs, tensors, _inner(tensors, batches), strict=True):
            if x.device != tensors[0].device:
                raise _errors.BadInput(
                    f"[{kernel.name}] expected `{name}` on {tensors[0].device}, where "
                    f"`{kernel.inputs[0]}` is, but it is on {x.device}"
                )
            types.append((dtype_name(kernel.name, f"`{name}`", x.dtype), shape))
        plan = kernel._core.plan(types, self._given(values))
        for size, mapped in batches:
            plan = plan.batched(mapped, size)
        results = [
            torch.empty(shape, dtype=_dtypes[dtype], device=tensors[0].device)
            for dtype, shape in plan.outputs
        ]
        if not plan.run_on_torch([*tensors, *results]):
            raise TypeError(
                f"[{kernel.name}] expected plain tensors of the CPU or of CUDA but got "
                f"{[str(x.device) for x in tensors]}"
            )
        return self._as_result(results)

    def as_tuple(self, results):
        return tuple(results) if isinstance(results, tuple | list) else (results,)

    def _as_result(self, results):
        return results[0] if self.kernel.single else tuple(results)

    def _fake(self, *arguments, **values):
        *tensors, batches = arguments
        batches = _parsed(batches)
        inner = [
            ShapeDtype(shape, _names[x.dtype])
            for x, shape in zip(tensors, _inner(tensors, batches), strict=True)
        ]
        sizes = [size for size, _ in reversed(batches)]
        results = [
            tensors[0].new_empty((*sizes, *t.shape), dtype=_dtypes[str(t.dtype)])
            for t in self.kernel.out_types(inner, self._complete(inner, values))
        ]
        return self._as_result(results)

    def _complete(self, inputs, values):
        """All attributes that out_shape may name, including computed ones."""
        given = self._given(values)
        result = {}
        for name, attribute in self.kernel.attributes.items():
            if attribute.computed:
                compute = attribute.default
                result[name] = compute(*inputs, **self.kernel.named_by(compute, result))
            else:
                result[name] = given[name]
        return result

    # ---- Backward.

    def _save(self, ctx, inputs, output, keyword_only_inputs=()):
        # PyTorch omits the last argument if the call gives no attributes.
        *tensors, ctx.batches = inputs
        ctx.attributes = dict(keyword_only_inputs)
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *self.as_tuple(output))

    def _backward(self, ctx, *gradients):
        found = self._gradients(ctx, gradients, ctx.needs_input_grad[: ctx.count])
        return (*found, None)

    def _gradients(self, ctx, gradients, needed):
        kernel = self.kernel
        if self.vjp is None:
            raise NotImplementedError(
                f"[{kernel.name}] expected a kernel with a vjp to differentiate through but it has "
                "none: tw.cuda_kernel(..., vjp=...)"
            )
        saved = ctx.saved_tensors
        inputs, outputs = saved[: ctx.count], saved[ctx.count :]
        cotangents = tuple(
            torch.zeros_like(y) if g is None else g for g, y in zip(gradients, outputs, strict=True)
        )
        attributes = self._given(ctx.attributes)

        def run(inputs, outputs, cotangents):
            found = kernel.gradients(inputs, outputs, cotangents, attributes, self.vjp)
            present[:] = [n and g is not None for g, n in zip(found, needed, strict=True)]
            return tuple(g for g, p in zip(found, present, strict=True) if p)

        present = []
        batches = _parsed(ctx.batches)
        for _, mapped in batches:
            dims = tuple(0 if m else None for m in mapped)
            run = torch.func.vmap(run, in_dims=(dims, 0, 0))
        found = iter(run(inputs, outputs, cotangents))
        results = []
        for place in range(len(inputs)):
            if not present[place]:
                results.append(None)
                continue
            gradient = next(found)
            # Summed over the batches that the input does not have.
            lacks = [d for d, (_, m) in enumerate(reversed(batches)) if not m[place]]
            results.append(gradient.sum(lacks) if lacks else gradient)
        return tuple(results)

    # ---- vmap and DTensors.

    def _vmap(self, info, in_dims, *arguments, **values):
        *tensors, batches = arguments
        results, dims = self._vmap_by(self.operator, info, in_dims[:-1], tensors, batches, values)
        return self._as_result(results), self._as_result(dims)

    def _vmap_by(self, call, info, dims, tensors, batches, values):
        """Results for a batch, and their batch dimensions; `call` is the operator."""
        size = info.batch_size
        mapped = [d is not None for d in dims]
        moved = [x if d is None else x.movedim(d, 0) for x, d in zip(tensors, dims, strict=True)]
        method = self.kernel.vmap_method
        if callable(method):
            results = list(self.kernel.batch(size, tuple(mapped), moved, self._given(values)))
        elif method in ("expand_dims", "broadcast_all"):
            extent = size if method == "broadcast_all" else 1
            moved = [
                x if m else x.expand(extent, *x.shape) for x, m in zip(moved, mapped, strict=True)
            ]
            results = call(*moved, batches, **values)
        else:
            flags = "".join("01"[m] for m in mapped)
            outer = ",".join(filter(None, (batches, f"{size}:{flags}")))
            results = call(*moved, outer, **values)
        results = results if isinstance(results, tuple | list) else (results,)
        return tuple(results), (0,) * len(results)

    def _register_sharding(self):
        from torch.distributed.tensor.experimental import register_sharding

        register_sharding(self.operator)(functools.partial(_shardings, self.kernel))


def _struct_text(fields):
    """A struct in an operator's arguments: "rows=3,eps=0.5"; torch.compile traces this."""
    return ",".join([f"{name}={value!r}" for name, value in fields.items()])


def _struct(text):
    fields = {}
    for one in text.split(","):
        name, _, value = one.partition("=")
        if value in ("True", "False"):
            fields[name] = value == "True"
        else:
            fields[name] = int(value) if value.lstrip("-").isdigit() else float(value)
    return fields


def _parsed(batches):
    pairs = [one.split(":") for one in batches.split(",") if one]
    return [(int(size), [c == "1" for c in flags]) for size, flags in pairs]


def _inner(tensors, batches):
    """The shapes without the batches."""
    return [list(x.shape[sum(mapped[i] for _, mapped in batches) :]) for i, x in enumerate(tensors)]


def _shardings(kernel, *arguments, **values):
    """Placements of results and operands that need no communication: one for each dimension that
    the rule allows to split, and all replicated."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    rule = kernel.sharding_rule
    text, options = (rule, {}) if isinstance(rule, str) else rule
    sides = [[t.split() for t in side.split(",")] for side in text.split("->")]
    operands, results = sides
    summed = options.get("reduction_factors", ())
    kept = options.get("need_replication_factors", ())
    replicated = Replicate()
    accepted = [([replicated] * len(results), [replicated] * len(operands))]
    if arguments[-1] != "":
        return accepted  # for a batch
    for name in dict.fromkeys(n for term in operands for n in term):
        everywhere = all(name in term for term in results)
        if name in kept or not (everywhere or name in summed):
            continue
        outs = [Shard(t.index(name)) if name in t else Partial() for t in results]
        ins = [Shard(t.index(name)) if name in t else replicated for t in operands]
        accepted.append((outs, ins))
    return accepted
