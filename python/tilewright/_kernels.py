"""Kernels written in Python: block specs, grids and calls."""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import overload

import numpy as np

from . import _core, _language, _threads
from ._arrays import dtype_name, flag, stream_of, to_tensor
from ._call_options import aliases_of, dynamic_of, grid_of, integers_of, out_shape_of, types_of
from ._errors import name_line
from ._profile import Profile, show_page
from ._programs import Cost, check_writable, cost_of, like_array

_core.lang.set_package_folder(os.path.join(os.path.dirname(os.path.abspath(__file__)), ""))


class Element:
    """A block dimension whose index map returns the first element, not the block's index."""

    def __init__(self, size):
        self.size = _language._integer("Element", "size", size)

    def __repr__(self):
        return f"Element({self.size})"


class BlockSpec:
    """Which block of an array a program sees.

    `block_shape` has one entry for each dimension of the array: a number (blocks of that many
    elements), None (one element; the kernel does not see the dimension), `Element(n)` (n elements
    from an offset), or `tw.all` (the whole dimension). `index_map` takes one traced index per grid
    axis and returns the index of the block along each dimension; without it every program sees the
    block at the origin. `BlockSpec()` is the whole array.

    A block may reach past the end of its array: lanes outside load `other`, 0 by default, and are
    never stored.
    """

    def __init__(self, block_shape=None, index_map=None):
        if block_shape is None:
            if index_map is not None:
                raise TypeError(
                    "[BlockSpec] expected a block_shape with the index_map but got None"
                )
            self._core = _core.BlockSpec()
        else:
            if not isinstance(block_shape, tuple | list):
                block_shape = (block_shape,)
            if index_map is not None and not callable(index_map):
                raise TypeError(
                    "[BlockSpec] expected index_map to be a function of the grid's indices but got "
                    f"{index_map!r}"
                )
            checked = None if index_map is None else _of_thegrid_of(index_map)
            self._core = _core.BlockSpec.make([_dim(n) for n in block_shape], checked)
        self.block_shape = None if block_shape is None else tuple(block_shape)
        self.index_map = index_map

    def __repr__(self):
        return f"BlockSpec({self.block_shape}, {self.index_map})"


def _of_thegrid_of(index_map):
    """The index map, which refuses a grid with another number of axes than it has parameters."""

    def checked(*indices):
        try:
            signature = inspect.signature(index_map)
        except (TypeError, ValueError):  # some callables have none
            return index_map(*indices)
        try:
            signature.bind(*indices)
        except TypeError:
            raise TypeError(
                f"[BlockSpec] expected index_map to take {len(indices)} "
                f"{'index' if len(indices) == 1 else 'indices'}, one for each axis of the grid, but "
                f"its parameters are {signature}"
            ) from None
        found = index_map(*indices)
        for index in found if isinstance(found, tuple | list) else (found,):
            if not isinstance(index, _language.Tile) and not hasattr(index, "__index__"):
                raise TypeError(
                    "[BlockSpec] expected index_map to return integers, one for each dimension of "
                    f"the array, but got {type(index).__name__}"
                )
        return found

    return checked


def _dim(entry):
    if entry is None:
        return ("squeezed", 1)
    if isinstance(entry, Element):
        return ("element", entry.size)
    if entry is _language.all:
        return ("whole", -1)
    return ("blocked", _language._integer("BlockSpec", "entries of block_shape", entry))


class Kernel:
    """A function of Refs: inputs, outputs, then scratch; keyword-only parameters are static.

    Made by `tw.kernel`. Called with Refs inside of another kernel it acts as a plain function.
    """

    def __init__(self, function, name=None):
        if not callable(function):
            raise TypeError(f"[kernel] expected a function of Refs but got {function!r}")
        self.function = function
        self.name = name or getattr(function, "__name__", "kernel").replace("<lambda>", "kernel")
        functools.update_wrapper(self, function, updated=())
        kinds = inspect.Parameter
        parameters = inspect.signature(function).parameters.values()
        refs = [
            p.name
            for p in parameters
            if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        self.variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        #: Names of the Refs; empty if the kernel takes any number of them.
        self.names = [] if self.variadic else refs
        self.statics = {p.name: p.default for p in parameters if p.kind is kinds.KEYWORD_ONLY}
        self.any_static = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        taken = sorted(set(self.statics) & set(_OPTIONS))
        if taken:
            raise TypeError(
                f"[kernel] expected other names than tw.call's own for the static parameters of "
                f"`{self.name}` but got {', '.join(taken)}"
            )

    def __call__(self, *refs, **statics):
        return self.function(*refs, **statics)

    def __repr__(self):
        return f"<tilewright kernel {self.name}>"

    def bound(self, statics):
        """The function of Refs alone, with the static parameters bound to values."""
        unknown = [] if self.any_static else sorted(set(statics) - set(self.statics))
        if unknown:
            raise TypeError(
                f"[call] expected options of tw.call or static parameters of `{self.name}` "
                f"({', '.join(self.statics) or 'it has none'}) but got {', '.join(unknown)}"
            )
        empty = inspect.Parameter.empty
        missing = [n for n, d in self.statics.items() if d is empty and n not in statics]
        if missing:
            raise TypeError(
                f"[call] expected values of the static parameters of `{self.name}` but "
                f"{', '.join(missing)} is missing"
            )
        for name, value in statics.items():
            if isinstance(value, _language.Tile | _language.Ref):
                raise TypeError(f"[call] expected a static value of {name} but got a traced one")

        def run(*refs):
            try:
                result = self.function(*refs, **statics)
            except TypeError as error:
                name_line(error)
                raise
            except (IndexError, ValueError) as error:
                if str(error).startswith("["):  # ours, not one that the kernel itself raises
                    name_line(error)
                raise
            if result is not None:
                raise TypeError(
                    f"[kernel] expected `{self.name}` to return None, since a kernel stores its "
                    f"results, but it returned {type(result).__name__}"
                )

        return run


@overload
def kernel(function: Callable, *, name: str | None = None) -> Kernel: ...


@overload
def kernel(function: None = None, *, name: str | None = None) -> Callable[[Callable], Kernel]: ...


def kernel(function=None, *, name=None):
    """Makes a kernel from a Python function of Refs; a decorator, with or without arguments.

    The function runs once for each signature of a call, to be traced: what it does with Refs and
    tiles is recorded and compiled.
    """
    if function is None:
        return lambda function: Kernel(function, name)
    return Kernel(function, name)


def call(
    kernel,
    *,
    out_shape,
    grid=(),
    in_specs=(),
    out_specs=(),
    scratch=(),
    aliases=None,
    sequential=(),
    dynamic=None,
    num_warps=None,
    num_stages=None,
    tile_rows=None,
    tile_lanes=None,
    name=None,
    debug=False,
    interpret=False,
    profile=False,
    **statics,
) -> "Call":
    """Binds a kernel to its grid and blocks: a function of arrays.

    Make it once and keep it: each signature of its inputs (dtypes and shapes) is traced and
    compiled once, and kept for as long as the call lives.

    - kernel: made by `tw.kernel`, or a function of Refs; `statics` are its keyword parameters.
    - out_shape: a `ShapeDtype` (anything with `shape` and `dtype`), or a tuple of them for several
      outputs; or a function of the inputs that returns such.
    - grid: extents, the last axis fastest; () is a single program. An int, a tuple, or a function
      of the inputs that returns one.
    - in_specs, out_specs: a `BlockSpec` for each array; None, or none at all, is the whole array.
    - scratch: `ShapeDtype`s of memory private to each program; one more Ref each.
    - aliases: {input: output} that share memory; the input is updated in place.
    - sequential: grid axes whose steps run in order inside one program, so that scratch and output
      blocks keep what the previous step left there.
    - dynamic: {argument: (dimensions, ...)} whose extents may change without a new trace; arguments
      count inputs, then outputs.
    - num_warps, num_stages: hints to the GPU's compiler.
    - tile_rows, tile_lanes: hints for CPUs, given together: larger blocks are cut into tiles of so
      many rows and lanes (elements of the last axis), in loops inside the program.
    - name: used in place of the kernel's; debug: print the IR when it is traced; interpret: run in
      the checked mode (bounds, undefined values, races between programs; slow).
    - profile: time each line of the bytecode, for `f.profile()` (on CPUs).
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    single = not isinstance(out_shape, tuple | list)
    options = {
        "grid": grid_of(grid),
        "in_specs": _specs("in_specs", in_specs),
        "out_specs": _specs("out_specs", out_specs),
        "out_shape": out_shape_of(out_shape),
        "scratch": types_of("scratch", scratch),
        "aliases": aliases_of(aliases),
        "sequential": integers_of("sequential", sequential),
        "dynamic": dynamic_of(dynamic),
        "num_warps": _language._integer("call", "num_warps", num_warps or 0),
        "num_stages": _language._integer("call", "num_stages", num_stages or 0),
        "tile_rows": _language._integer("call", "tile_rows", tile_rows or 0),
        "tile_lanes": _language._integer("call", "tile_lanes", tile_lanes or 0),
        "debug": flag("call", "debug", debug),
        "interpret": flag("call", "interpret", interpret),
        "profile": flag("call", "profile", profile),
        "made_at": _line_of_caller(),
    }
    name = name or kernel.name
    arity = -1 if kernel.variadic else len(kernel.names)
    body = kernel.bound(statics)

    def make(**changes):
        return _core.Call.make(name, arity, kernel.names, body, {**options, **changes})

    num_inputs = None
    if arity >= 0 and not callable(out_shape):
        num_inputs = arity - len(options["out_shape"]) - len(options["scratch"])
    return Call(make, kernel, options, None if callable(out_shape) else single, num_inputs)


_OPTIONS = [
    p.name
    for p in inspect.signature(call).parameters.values()
    if p.kind is inspect.Parameter.KEYWORD_ONLY
]


def _line_of_caller():
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _specs(option, specs):
    if specs is None:
        return []
    specs = specs if isinstance(specs, tuple | list) else [specs]
    result = []
    for i, spec in enumerate(specs):
        spec = BlockSpec() if spec is None else spec
        if not isinstance(spec, BlockSpec):
            raise TypeError(
                f"[call] expected {option}[{i}] to be a tw.BlockSpec or None but got {spec!r}"
            )
        result.append(spec._core)
    return result


class Call:
    """A kernel bound to its grid and blocks; made by `tw.call`. Calling it with arrays runs it.

    Inputs are arrays of NumPy, PyTorch, JAX or anything with DLPack, of any strides, on one device;
    None omits an input: the kernel then sees None. The result is an array of the same framework, or
    a tuple of several. May be called from many threads.
    """

    def __init__(self, make, kernel, options, single, num_inputs, core=None):
        self._make, self._options = make, options
        self.kernel = kernel
        self._core = make() if core is None else core
        self._single = single
        self._num_inputs = num_inputs
        self._op = None
        self._profiled = []  # the last program run on JAX arrays with `profile`
        self._mapped = []

    def __call__(self, *arrays, out=None):
        """Runs on the inputs; `out`, an array or a tuple of them, receives the outputs."""
        if out is None:
            results = self._core(*arrays)
            if results is not NotImplemented:
                return self._results(results)
        return self._run(arrays, out)

    def _results(self, results):
        single = len(results) == 1 if self._single is None else self._single
        return results[0] if single else tuple(results)

    def _run(self, arrays, out):
        if _of_jax(arrays):
            return self._run_in_jax(arrays, out)
        if out is None and _can_use_torch(arrays):
            return self(*arrays)
        like = next((a for a in arrays if a is not None), None)
        with stream_of(like):
            inputs = [to_tensor("call", self._name(i), array) for i, array in enumerate(arrays)]
        for i, _ in self._options["aliases"]:
            if i < len(arrays):
                check_writable(self._name(i), arrays[i])
        with stream_of(like):
            if out is None:
                return self._results([like_array(t, like) for t in self._core.run(inputs)])
            outs = out if isinstance(out, tuple | list) else (out,)
            for i, array in enumerate(outs):
                check_writable(f"out[{i}]", array)
            outputs = [to_tensor("call", f"out[{i}]", array) for i, array in enumerate(outs)]
            for i, (array, tensor) in enumerate(zip(outs, outputs, strict=True)):
                _check_shared(f"out[{i}]", array, tensor)
            self._core.into(outputs, inputs)
            return out

    def _name(self, i):
        names = self.kernel.names
        return names[i] if i < len(names) else f"argument {i}"

    def _run_in_jax(self, arrays, out):
        if out is not None:
            raise TypeError("[call] expected no `out` with JAX arrays, which are immutable")
        from . import jax as twj

        if self._op is None:
            self._op = {}
        absent = tuple(a is None for a in arrays)
        if absent not in self._op:
            fixed = self._fixed(on_cpu=sys.modules["jax"].default_backend() == "cpu")

            def ir(*given):
                given = iter(given)
                inputs = [None if gone else next(given) for gone in absent]
                return fixed.ir([_type_tensor(x) for x in inputs], self._options["profile"])

            ir.__name__ = self.kernel.name
            ir.checked = self._options["interpret"]
            ir.profiled = self._profiled if self._options["profile"] else None
            self._op[absent] = twj.op(ir)
        result = self._op[absent](*(a for a in arrays if a is not None))
        return result if self._single is not False or isinstance(result, tuple) else (result,)

    def _fixed(self, on_cpu=True):
        """The same call without dynamic dimensions, whose programs need no run-time extents.

        On other devices than CPUs also without hints for those.
        """
        changes = {"dynamic": {}} if self._options["dynamic"] else {}
        if not on_cpu and self._options["tile_rows"]:
            changes |= {"tile_rows": 0, "tile_lanes": 0}
        if not changes:
            return self._core
        core = self._make(**changes)
        for axes in self._mapped:
            core = core.vmap(*axes)
        return core

    # ---- What it is compiled to.

    def ir(self, *inputs) -> str:
        """The tile IR for such inputs (arrays or `ShapeDtype`s), by default the last ones."""
        return self._core.ir(self._types_of("ir", inputs))

    def bytecode(self, *inputs) -> str:
        """The bytecode of the CPU's tile machine, likewise."""
        return _core.program_text(self._text("bytecode", inputs), "bytecode", "")

    def cuda(self, arch: str = "sm_80", *inputs) -> str:
        """The CUDA C++ for an architecture such as "sm_90a", likewise. Needs no GPU."""
        return _core.program_text(self._text("cuda", inputs), "cuda", arch)

    def ptx(self, arch: str = "sm_80", *inputs) -> str:
        """Its PTX; needs NVRTC (`pip install nvidia-cuda-nvrtc`), but no GPU."""
        return _core.program_text(self._text("ptx", inputs), "ptx", arch)

    def sass(self, arch: str = "sm_80", *inputs) -> str:
        """Its machine code; needs NVRTC and nvdisasm, but no GPU."""
        return _core.program_text(self._text("sass", inputs), "sass", arch)

    def explain(self, arch: str = "", *inputs) -> str:
        """Why it is not faster on this CPU, or on a GPU such as "sm_90a", likewise. Needs no GPU.

        Lists scalar paths, copies of tiles and strided panels on CPUs; on GPUs what does not use
        wgmma, is not pipelined or spills. With reasons and lines of the kernel.
        """
        return _core.explain_text(self._text("explain", inputs, lines=True), arch)

    def show(self, path=None, arch: str = "sm_80", *inputs) -> str:
        """Source, IR, bytecode, CUDA, PTX and SASS side by side on one page of HTML, likewise.

        Corresponding lines are linked. Writes to `path` and returns it; without one, to a temporary
        file, which is opened in the browser. Needs no GPU.
        """
        return show_page(_core.program_page(self._text("show", inputs, lines=True), arch), path)

    def profile(self) -> Profile:
        """The time of each line, over all runs with the signature that ran last.

        For calls with `profile=True`, or under TILEWRIGHT_PROFILE=1, on CPUs. On JAX arrays: for
        the signature that was compiled last; wait for the results first.
        """
        if self._profiled:
            from .jax import _ffi

            return Profile(_ffi.program_profile(*self._profiled[0]))
        return Profile(self._core.profile())

    def _text(self, op, inputs, lines=False):
        return self._core.ir(self._types_of(op, inputs), lines)

    def _types_of(self, op, inputs):
        if inputs:
            return [_type_tensor(x) for x in inputs]
        last = self._core.last_inputs()
        if last is None:
            if self._num_inputs == 0:
                return []
            raise ValueError(
                f"[{op}] expected inputs (arrays or tw.ShapeDtype) of `{self.kernel.name}`, or a "
                "run before, but got neither"
            )
        return [
            _core.Tensor() if t is None else _core.Tensor.of_type(t[0], list(t[1])) for t in last
        ]

    def cost(self, *inputs) -> Cost:
        """FLOPs and bytes of a run, likewise, counted from the IR; nothing runs."""
        inputs = self._types_of("cost", inputs)
        return cost_of(self._fixed().ir(inputs))

    @property
    def num_traces(self) -> int:
        """The number of signatures traced and compiled."""
        return self._core.num_traces()

    def __repr__(self):
        return f"<tilewright call of {self.kernel.name}>"


def _of_jax(arrays):
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(a, jax.Array) for a in arrays)


def _can_use_torch(arrays):
    """Whether the direct path for PyTorch tensors has just been enabled for these arrays."""
    torch = sys.modules.get("torch")
    if torch is None or _core.uses_torch():
        return False
    if not any(isinstance(a, torch.Tensor) for a in arrays):
        return False
    try:
        _core.use_torch(torch, torch.nn.Parameter, ValueError, _threads.follow)
    except (AttributeError, ImportError):  # a PyTorch without the exchange functions
        return False
    return True


def _type_tensor(value):
    if value is None:
        return _core.Tensor()
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(f"[ir] expected arrays or tw.ShapeDtype but got {type(value).__name__}")
    return _core.Tensor.of_type(dtype_name("ir", "dtype", value.dtype), list(value.shape))


def _check_shared(name, array, tensor):
    if isinstance(array, np.ndarray) and tensor.address != array.__array_interface__["data"][0]:
        raise ValueError(f"[call] expected {name} to be aligned but it is not")


def vmap(call: Call, in_axes=0, out_axes=0) -> Call:
    """The call over a batch.

    in_axes: the batch axis of each input, or None for one that all elements share; an int applies
    to all of them. Results are stacked along `out_axes`. The batch is one more axis of the grid,
    which the kernel does not see. May be nested.
    """
    if not isinstance(call, Call):
        raise TypeError(f"[vmap] expected what tw.call made but got {type(call).__name__}")
    if not isinstance(in_axes, tuple | list):
        if call._num_inputs is None:
            raise TypeError(
                f"[vmap] expected in_axes to name an axis for each input of `{call.kernel.name}`, "
                f"which takes any number, but got {in_axes!r}"
            )
        in_axes = (in_axes,) * call._num_inputs
    out_axes = out_axes if isinstance(out_axes, tuple | list) else (out_axes,)
    count = None if callable(call._options["out_shape"]) else len(call._options["out_shape"])
    if len(out_axes) == 1 and count is not None:
        out_axes = tuple(out_axes) * count
    for axis in in_axes:
        if axis is not None and _language._integer("vmap", "in_axes", axis) < 0:
            raise ValueError(f"[vmap] expected in_axes >= 0 or None but got {axis}")
    axes = (
        [-1 if a is None else int(a) for a in in_axes],
        [_language._integer("vmap", "out_axes", a) for a in out_axes],
    )
    mapped = Call(
        call._make,
        call.kernel,
        call._options,
        call._single,
        call._num_inputs,
        core=call._core.vmap(*axes),
    )
    mapped._mapped = [*call._mapped, axes]
    return mapped
