"""User-written CUDA C++ as an operation on arrays."""

import inspect
import os
import pathlib
import sys
import weakref

from . import _core, _kernels, _language, _tuning
from ._arrays import dtype_name, stream_of, to_tensor
from ._attributes import Attribute, attribute
from ._language import DType
from ._programs import Program, ShapeDtype, check_writable, like_array

#: All live kernels, for `import tilewright.torch`, which makes operators of them.
KERNELS = weakref.WeakSet()
VMAP_METHODS = ("sequential", "grid", "expand_dims", "broadcast_all")


class Launch:
    """One `__global__` function of a CUDA kernel and the threads that run it, for kernels of
    several launches. The fields mean what the arguments of `tw.cuda_kernel` of these names do."""

    def __init__(self, kernel, *, grid=1, block=256, shared=0, cluster=1, template=()):
        if not isinstance(kernel, str) or not kernel:
            raise TypeError(f"[Launch] expected the name of a kernel but got {kernel!r}")
        self.kernel = kernel
        self.grid, self.block, self.shared, self.cluster = grid, block, shared, cluster
        self.template = (template,) if isinstance(template, str) else tuple(template)


class CpuFunction:
    """The function `entry` of a shared library, run by calls on the CPU: a `tw_cpu_function` as
    tilewright/cpu_function.h declares it."""

    def __init__(self, library: str | os.PathLike, entry: str):
        self.library = str(pathlib.Path(library).resolve())
        if not pathlib.Path(self.library).is_file():
            raise ValueError(f"[CpuFunction] expected a shared library but got {library!r}")
        self.entry = entry


def cuda_kernel(
    source,
    name,
    *,
    inputs,
    outputs,
    out_shape,
    grid=1,
    block=256,
    shared=0,
    cluster=1,
    template=(),
    launches=None,
    attributes=None,
    workspace=None,
    clear_workspace=False,
    cpu=None,
    vjp=None,
    vmap_method="sequential",
    sharding_rule=None,
    headers=None,
    options=(),
    types=None,
) -> "CudaKernel":
    """CUDA C++ as an operation on arrays of NumPy, CuPy, PyTorch, JAX, anything with DLPack.

    The `__global__` function takes pointers to the inputs (const), the outputs and the workspace,
    if there is one, then the attributes by value. NVRTC compiles it at the first call of each
    signature and checks its parameters against what is passed; the source may include
    <tilewright.cuh>.

    - source: CUDA C++, or the path of a file (a `pathlib.Path`, or text that ends in ".cu").
    - name: the `__global__` function's, also used for the operation in error messages.
    - inputs, outputs: names of the arrays.
    - out_shape: a `ShapeDtype`, a tuple of them for several outputs, or a function of the inputs.
      Functions, here and below, get a `ShapeDtype` for each input, and those attributes that they
      name as keyword-only parameters.
    - grid, block, shared, cluster: grid size in blocks, block size in threads, bytes of dynamic
      shared memory, cluster size in blocks; numbers, tuples (x first), or functions of the inputs.
    - template: the template arguments: names of inputs and outputs (for their element types) and of
      attributes (dtypes as types; integers, bools and enumerations as values, which are then not
      passed as parameters).
    - launches: several `tw.Launch`, run in order with the same parameters, in place of the above.
    - attributes: {name: `tw.Attribute` or its type}, in the order of the parameters.
    - workspace: bytes, or a function of the inputs; `clear_workspace` sets them to 0 first.
    - cpu: what runs for arrays on the CPU: `tw.CpuFunction(library, entry)`, or a tile program
      (`tw.call`'s, also under `tw.autotune`, `tw.Program`, IR text), or a function of the inputs
      that returns one.
    - vjp: `vjp(inputs, outputs, cotangents)` returns the gradient of each input, or None; inputs is
      a tuple, as are outputs and cotangents if there are several outputs. Or another CUDA kernel,
      matched by names: its inputs are inputs, outputs and cotangents ("dy" for y) of this one; its
      output "dx" is the gradient of x.
    - vmap_method: "sequential" launches the kernel once per element of the batch; "grid" once, with
      the batch as grid axis z and `tw::batched<T>` parameters in place of `T*`; "expand_dims" and
      "broadcast_all" call it with leading dimensions; a function `rule(size, mapped, *arrays)`
      returns outputs with the batch as the first dimension.
    - sharding_rule: as in `tilewright.jax.op`: "b n, n -> b n, b".
    - headers: {name: text} that the source may include; options: for NVRTC, such as "-DX=1" or
      "-Ifolder"; types: C++ element types in place of tilewright.cuh's, {"bf16": "__nv_bfloat16"}.
    """
    return CudaKernel(**locals())


class CudaKernel:
    """CUDA C++ as an operation; made by `tw.cuda_kernel`. Called with arrays and attributes it runs
    on the arrays' device. `out=`, an array or a tuple of them, receives the outputs."""

    def __init__(self, source, name, **given):
        self.name = _checked(name, str, "name")
        source, file = _source(self.name, source)
        self.source = source
        self.inputs = _names(name, "inputs", given["inputs"])
        self.outputs = _names(name, "outputs", given["outputs"])
        self.attributes = {str(n): attribute(a) for n, a in dict(given["attributes"] or {}).items()}
        #: Attributes that calls may give.
        self.free = {n: a for n, a in self.attributes.items() if not a.computed}
        self._out_shape = given["out_shape"]
        self.single = len(self.outputs) == 1
        self.vjp, self.sharding_rule = given["vjp"], given["sharding_rule"]
        self.vmap_method = given["vmap_method"]
        if not callable(self.vmap_method) and self.vmap_method not in VMAP_METHODS:
            raise ValueError(
                f"[{name}] expected vmap_method to be one of {VMAP_METHODS} or a function but got "
                f"{self.vmap_method!r}"
            )
        _check_vjp(self, self.vjp)
        launches = given["launches"]
        if launches is None:
            one = ("grid", "block", "shared", "cluster", "template")
            launches = [Launch(name, **{n: given[n] for n in one})]
        workspace = given["workspace"]
        cpu = given["cpu"]
        self._core = _core.CudaKernel.make(
            source,
            name,
            {
                "inputs": self.inputs,
                "outputs": self.outputs,
                "out_shape": self._core_function(self._out_types),
                "launches": [self._launch(x) for x in launches],
                "attributes": [self._attribute(n, a) for n, a in self.attributes.items()],
                "workspace": None if workspace is None else self._extents("workspace", workspace),
                "clear_workspace": bool(given["clear_workspace"]),
                "batch_in_grid": self.vmap_method == "grid",
                "cpu": None if cpu is None else self._core_function(self._cpu_function(cpu)),
                "file": file,
                "headers": [(str(n), str(t)) for n, t in dict(given["headers"] or {}).items()],
                "options": [str(o) for o in given["options"]],
                "types": {
                    dtype_name(name, "types", d): str(t)
                    for d, t in dict(given["types"] or {}).items()
                },
            },
        )
        self._ops = {}
        KERNELS.add(self)
        if "tilewright.torch" in sys.modules:
            self._in_torch()

    def __repr__(self):
        return f"<CUDA kernel {self.name}>"

    # ---- Functions of the inputs.

    def _core_function(self, function):
        """`function(inputs, attributes)` for the extension; its inputs are (dtype, shape) each."""

        def run(types, attributes):
            return function([ShapeDtype(shape, dtype) for dtype, shape in types], attributes)

        return run

    def _call(self, function, inputs, attributes):
        """Calls a user's function with the inputs and the attributes that it names."""
        return function(*inputs, **self.named_by(function, attributes))

    def named_by(self, function, attributes):
        """The attributes that the function has as parameters."""
        parameters = inspect.signature(function).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            attributes = {n: v for n, v in attributes.items() if n in named}
        return {n: self._seen(n, v) for n, v in attributes.items()}

    def _seen(self, name, value):
        return DType(value) if self.attributes[name].kind["kind"] == "dtype" else value

    def _out_types(self, inputs, attributes):
        types = self.out_types(inputs, attributes)
        return [(str(t.dtype), list(t.shape)) for t in types]

    def out_types(self, inputs, attributes):
        """A `ShapeDtype` of each output."""
        types = self._out_shape
        if callable(types):
            types = self._call(types, inputs, attributes)
        types = list(types) if isinstance(types, tuple | list) else [types]
        for type_ in types:
            if not hasattr(type_, "shape") or not hasattr(type_, "dtype"):
                raise TypeError(
                    f"[{self.name}] expected out_shape to give a tw.ShapeDtype for each output but "
                    f"got {type_!r}"
                )
        if len(types) != len(self.outputs):
            raise ValueError(
                f"[{self.name}] expected out_shape to give the types of {len(self.outputs)} "
                f"outputs ({', '.join(self.outputs)}) but got {len(types)}"
            )
        return [t if isinstance(t, ShapeDtype) else ShapeDtype(t.shape, t.dtype) for t in types]

    def _extents(self, what, given):
        def numbers(values):
            values = values if isinstance(values, tuple | list) else (values,)
            return [_language._integer(self.name, what, v) for v in values]

        if not callable(given):
            return numbers(given)
        return self._core_function(lambda inputs, a: numbers(self._call(given, inputs, a)))

    def _launch(self, launch):
        if not isinstance(launch, Launch):
            raise TypeError(f"[{self.name}] expected launches of tw.Launch but got {launch!r}")
        extents = {
            n: self._extents(n, getattr(launch, n)) for n in ("grid", "block", "shared", "cluster")
        }
        return {"kernel": launch.kernel, "template": list(launch.template), **extents}

    def _attribute(self, name, given: Attribute):
        value = given.default
        if given.computed:
            compute = given.default

            def function(inputs, attributes):
                return given.value(self.name, name, self._call(compute, inputs, attributes))

            value = self._core_function(function)
        elif value is not None:
            value = given.value(self.name, name, value)
        return {**given.kind, "name": name, "value": value, "passed": given.passed}

    def _cpu_function(self, cpu):
        kinds = (CpuFunction, _kernels.Call, _tuning.Tuned, Program, str)

        def parts(inputs, attributes):
            found = cpu
            if not isinstance(found, kinds):
                found = self._call(cpu, inputs, attributes)
            if isinstance(found, CpuFunction):
                return ["", found.library, found.entry]
            if isinstance(found, _kernels.Call | _tuning.Tuned):
                return [found.ir(*inputs), "", ""]
            if isinstance(found, Program):
                return [found.text, "", ""]
            if isinstance(found, str):
                return [found, "", ""]
            raise refused(found)

        def refused(found):
            return TypeError(
                f"[{self.name}] expected cpu to give a tw.CpuFunction, a tw.call, a function under "
                f"tw.autotune, a tw.Program or IR text but got {found!r}"
            )

        if not isinstance(cpu, kinds) and not callable(cpu):
            raise refused(cpu)
        return parts

    # ---- Calls.

    def values(self, attributes):
        """The given attributes, their names and types checked, and defaults for the others."""
        unknown = [n for n in attributes if n not in self.free]
        if unknown:
            computed = unknown[0] in self.attributes
            raise TypeError(
                f"[{self.name}] expected attributes among ({', '.join(self.free) or 'it has none'}) "
                f"but got `{unknown[0]}`" + (", which is computed from the inputs" * computed)
            )
        result = {}
        for name, attr in self.free.items():
            given = attributes.get(name, attr.default)
            if given is None:
                raise TypeError(
                    f"[{self.name}] expected a value of the attribute `{name}` but it is missing"
                )
            result[name] = attr.value(self.name, name, given)
        return result

    def plan(self, *inputs, **attributes):
        """What runs for inputs such as these (arrays or `ShapeDtype`s); `plan(...).ptx("sm_90a")`
        is its PTX by NVRTC, without a GPU."""
        types = [
            (dtype_name(self.name, self._input(i), x.dtype), list(x.shape))
            for i, x in enumerate(inputs)
        ]
        return self._core.plan(types, self.values(attributes))

    def _input(self, i):
        return f"`{self.inputs[i]}`" if i < len(self.inputs) else f"argument {i}"

    def __call__(self, *arrays, out=None, **attributes):
        """Runs on arrays and returns the output, or a tuple of several."""
        if out is None:
            if _of_torch(arrays):
                return self._in_torch()(*arrays, **attributes)
            if _kernels._of_jax(arrays) or _is_traced(arrays):
                return self._in_jax()(*arrays, **attributes)
        elif _kernels._of_jax(arrays):
            raise TypeError(f"[{self.name}] expected no `out` with JAX arrays, which are immutable")
        return self._run(arrays, out, attributes)

    def _in_torch(self):
        if "torch" not in self._ops:
            if sys.modules["torch"].compiler.is_compiling():
                raise RuntimeError(
                    f"[{self.name}] expected `import tilewright.torch` before a function that "
                    "calls the kernel is compiled, which makes its operator"
                )
            from .torch import op

            self._ops["torch"] = op(self)
        return self._ops["torch"]

    def _in_jax(self):
        if "jax" not in self._ops:
            from .jax import op

            self._ops["jax"] = op(self)
        return self._ops["jax"]

    def _run(self, arrays, out, attributes):
        like = arrays[0] if arrays else None
        with stream_of(like):
            tensors = [to_tensor(self.name, self._input(i), x) for i, x in enumerate(arrays)]
        for i, tensor in enumerate(tensors):
            if not tensor.defined:
                raise TypeError(
                    f"[{self.name}] expected {self._input(i)} to be an array but got None"
                )
        types = [(t.dtype, list(t.shape)) for t in tensors]
        with stream_of(like):
            plan = self._core.plan(types, self.values(attributes))
            if out is None:
                device = tensors[0].device if tensors else "cpu"
                outputs = [_core.Tensor.empty(d, list(s), device) for d, s in plan.outputs]
                plan.run([*tensors, *outputs])
                results = tuple(like_array(t, like) for t in outputs)
                return results[0] if self.single else results
            outs = out if isinstance(out, tuple | list) else (out,)
            outputs = []
            for name, array in zip(self.outputs, outs, strict=False):
                check_writable(f"out, `{name}`", array)
                tensor = to_tensor(self.name, f"`{name}`", array)
                _kernels._check_shared(f"out, `{name}`", array, tensor)
                outputs.append(tensor)
            if len(outs) != len(self.outputs):
                raise ValueError(
                    f"[{self.name}] expected {len(self.outputs)} arrays as out but got {len(outs)}"
                )
            plan.run([*tensors, *outputs])
            return out

    # ---- Derivatives.

    def gradients(self, inputs, outputs, cotangents, attributes, vjp=None):
        """The gradient of each input, or None, as `vjp` computes them."""
        vjp = self.vjp if vjp is None else vjp
        if isinstance(vjp, CudaKernel):
            _check_vjp(self, vjp)
            named = dict(zip(self.inputs, inputs, strict=True))
            named |= zip(self.outputs, outputs, strict=True)
            named |= {f"d{n}": c for n, c in zip(self.outputs, cotangents, strict=True)}
            wanted = {n: v for n, v in attributes.items() if n in vjp.free}
            results = vjp(*(named[n] for n in vjp.inputs), **wanted)
            found = dict(zip(vjp.outputs, (results,) if vjp.single else results, strict=True))
            return tuple(found.get(f"d{n}") for n in self.inputs)
        single = (lambda x: x[0]) if self.single else tuple
        results = vjp(
            tuple(inputs), single(outputs), single(cotangents), **self.named_by(vjp, attributes)
        )
        results = results if isinstance(results, tuple | list) else (results,)
        if len(results) != len(self.inputs):
            raise ValueError(
                f"[{self.name}] expected vjp to give {len(self.inputs)} gradients, one for each "
                f"input, but got {len(results)}"
            )
        return tuple(results)

    def batch(self, size, mapped, arrays, attributes):
        """The outputs of a batch, which is their first dimension, by the user's rule."""
        rule = self.vmap_method
        results = rule(size, mapped, *arrays, **self.named_by(rule, attributes))
        results = tuple(results) if isinstance(results, tuple | list) else (results,)
        shapes = [list(x.shape[:1]) for x in results]
        if shapes != [[size]] * len(self.outputs):
            raise ValueError(
                f"[{self.name}] expected the vmap_method to give {len(self.outputs)} outputs with "
                f"the batch of {size} in front but got leading extents {shapes}"
            )
        return results

    def constant_outputs(self):
        """Positions of the outputs whose cotangents a vjp kernel does not take."""
        if not isinstance(self.vjp, CudaKernel):
            return ()
        return tuple(i for i, n in enumerate(self.outputs) if f"d{n}" not in self.vjp.inputs)


def _checked(value, kind, what):
    if not isinstance(value, kind) or not value:
        raise TypeError(f"[cuda_kernel] expected {what} to be a text but got {value!r}")
    return value


def _names(op, what, names):
    names = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(n, str) for n in names):
        raise TypeError(f"[{op}] expected names as {what} but got {names!r}")
    return names


def _source(name, source):
    """The text, and its name in error messages."""
    is_path = isinstance(source, os.PathLike)
    if isinstance(source, str) and "\n" not in source and source.endswith((".cu", ".cuh")):
        is_path = True
    if not is_path:
        if not isinstance(source, str):
            raise TypeError(
                f"[{name}] expected CUDA C++, or the path of a file, but got {source!r}"
            )
        return source, f"{name}.cu"
    path = pathlib.Path(source)
    if not path.is_file():
        raise ValueError(f"[{name}] expected a file of CUDA C++ but got {str(path)!r}")
    return path.read_text(), path.name


def _check_vjp(kernel, vjp):
    if vjp is None or (callable(vjp) and not isinstance(vjp, CudaKernel)):
        return
    if not isinstance(vjp, CudaKernel):
        raise TypeError(
            f"[{kernel.name}] expected vjp to be a function or a kernel but got {vjp!r}"
        )
    known = [*kernel.inputs, *kernel.outputs, *(f"d{n}" for n in kernel.outputs)]
    for name in vjp.inputs:
        if name not in known:
            raise ValueError(
                f"[{kernel.name}] expected inputs of vjp among {', '.join(known)} but got `{name}`"
            )
    for name in vjp.outputs:
        if name.removeprefix("d") not in kernel.inputs or not name.startswith("d"):
            raise ValueError(
                f"[{kernel.name}] expected outputs of vjp among "
                f"{', '.join(f'd{n}' for n in kernel.inputs)} but got `{name}`"
            )


def _of_torch(arrays):
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(a, torch.Tensor) for a in arrays)


def _is_traced(arrays):
    """Whether any of them is a tracer of JAX, which is not imported for that."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(a, jax.core.Tracer) for a in arrays)
