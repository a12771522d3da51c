"""Programs from IR text, their costs, and conversion of results to a framework's arrays."""

import dataclasses
import functools
import math
import sys
import time

import numpy as np

from . import _core, _language
from ._arrays import dtype_name, is_on_gpu, stream_of, to_array, to_tensor
from ._language import DType
from ._profile import Profile, show_page


class ShapeDtype:
    """The shape and dtype of an array that does not exist yet."""

    def __init__(self, shape, dtype):
        # Symbolic extents of PyTorch stay as they are.
        symbolic = isinstance(shape, tuple | list) and "SymInt" in [type(n).__name__ for n in shape]
        self.shape = tuple(shape if symbolic else _language._shape("ShapeDtype", shape))
        if not symbolic and min(self.shape, default=0) < 0:
            raise ValueError(f"[ShapeDtype] expected extents of at least 0 but got {self.shape}")
        self.dtype = DType(dtype_name("ShapeDtype", "dtype", dtype))

    def __repr__(self):
        return f"ShapeDtype({self.shape}, {self.dtype!s})"

    def __eq__(self, other):
        if not isinstance(other, ShapeDtype):
            return NotImplemented
        return self.shape == other.shape and self.dtype == other.dtype

    def __hash__(self):
        return hash((self.shape, self.dtype))


def _limits(peak_flops, bytes_per_second):
    if peak_flops is None or bytes_per_second is None:
        measured = cpu_roofs()
        peak_flops = measured[0] if peak_flops is None else peak_flops
        bytes_per_second = measured[1] if bytes_per_second is None else bytes_per_second
    return peak_flops, bytes_per_second


@functools.cache
def cpu_roofs() -> tuple[float, float]:
    """FLOP/s and bytes/s that f32 kernels reach on this CPU: a matrix product and a copy of 64 MiB.

    Measured once per process, in less than a second.
    """
    from ._kernels import BlockSpec, call

    n, block = 1024, 128

    def product(x, y, z):
        z[...] = x[...] @ y[...]

    def copy(x, z):
        z[...] = x[...]

    matmul = call(
        product,
        grid=(n // block, n // block),
        in_specs=[
            BlockSpec((block, n), lambda i, j: (i, 0)),
            BlockSpec((n, block), lambda i, j: (0, j)),
        ],
        out_specs=BlockSpec((block, block), lambda i, j: (i, j)),
        out_shape=ShapeDtype((n, n), np.float32),
    )
    size, rows = 1 << 24, 256
    part = BlockSpec(size // rows, lambda i: i)
    copied = call(
        copy, grid=rows, in_specs=part, out_specs=part, out_shape=ShapeDtype((size,), np.float32)
    )
    x, vector = np.ones((n, n), np.float32), np.ones(size, np.float32)
    return (
        2 * n**3 / _least_seconds(lambda: matmul(x, x)),
        8 * size / _least_seconds(lambda: copied(vector)),
    )


def _least_seconds(run):
    run()  # traces and compiles
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a run costs, summed over the grid."""

    flops: float  #: arithmetic on floats; a dot of m x k x n counts 2 m k n
    transcendentals: float  #: elements of exp, log, tanh, sqrt, ...
    bytes_read: float  #: by loads and atomics, of lanes inside of their arrays
    bytes_written: float  #: by stores and atomics
    array_bytes: float  #: every array once: what a perfect cache would move
    exact: bool  #: False: a loop or branch depends on data, or a large grid was sampled

    @property
    def bytes(self) -> float:
        """Bytes read and written by loads, stores and atomics."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte that would move with a perfect cache."""
        return self.flops / self.array_bytes if self.array_bytes else math.inf

    def seconds(self, peak_flops=None, bytes_per_second=None) -> float:
        """The least time by the roofline model, with `cpu_roofs` in place of None."""
        peak_flops, bytes_per_second = _limits(peak_flops, bytes_per_second)
        return max(self.flops / peak_flops, self.array_bytes / bytes_per_second)

    def roof(self, peak_flops=None, bytes_per_second=None) -> str:
        """Which limit of such a machine bounds the kernel: "compute" or "memory"."""
        peak_flops, bytes_per_second = _limits(peak_flops, bytes_per_second)
        return "compute" if self.intensity > peak_flops / bytes_per_second else "memory"


def cost_of(text):
    return Cost(*_core.program_cost(text))


def like_array(tensor, like):
    """The tensor as an array of the framework of `like`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.from_dlpack(tensor)
    return to_array(tensor, like if like is not None and is_on_gpu(like) else None)


def check_writable(name, array):
    flags = getattr(array, "flags", None)
    if getattr(flags, "writeable", True) is False:
        raise ValueError(
            f"[call] expected {name}, which is written, to be writable but it is read-only"
        )


class Program:
    """A kernel as IR text, as `f.ir()` and `tilewright dump --to ir` print it.

    Made by `Program.from_text(text)`, then called with its inputs: the trailing Refs, which it
    writes, are the results. It is compiled once for each device that its arrays are on.
    """

    def __init__(self, text: str, *, interpret: bool = False, profile: bool = False):
        self.text = text
        self._interpret = bool(interpret)
        self._profile = bool(profile)
        self._compiled = {}
        self._on("cpu")  # reports where the text is wrong

    @classmethod
    def from_text(cls, text: str, *, interpret: bool = False, profile: bool = False) -> "Program":
        """A program from IR text; ValueError names the line that is wrong.

        interpret: run in the checked mode; profile: time each line (on CPUs).
        """
        if not isinstance(text, str):
            raise TypeError(f"[Program] expected IR text but got {type(text).__name__}")
        return cls(text, interpret=interpret, profile=profile)

    def _on(self, device):
        if device not in self._compiled:
            self._compiled[device] = _core.Program(
                self.text, device, self._interpret, self._profile
            )
        return self._compiled[device]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._on("cpu").name

    @property
    def parameters(self) -> list:
        """(name, ShapeDtype, written) of each array; extents of -1 are given by the call."""
        return [
            (name, ShapeDtype(shape, dtype), written)
            for name, dtype, shape, written, _ in self._on("cpu").parameters
        ]

    def run(self, *arrays) -> None:
        """Runs on one array per parameter, written ones included."""
        parameters = self._on("cpu").parameters
        for (name, *_, written, _), array in zip(parameters, arrays, strict=False):
            if written:
                check_writable(name, array)
        names = [p[0] for p in parameters]
        with stream_of(arrays[0] if arrays else None):
            tensors = [
                to_tensor(self.name, names[i] if i < len(names) else f"argument {i}", array)
                for i, array in enumerate(arrays)
            ]
            device = next((t.device for t in tensors if t.defined), "cpu")
            self._on(device).run(tensors)

    def __call__(self, *inputs):
        """Runs on the inputs and returns the output, or a tuple of several."""
        parameters = self._on("cpu").parameters
        last_of = {p[4]: i for i, p in enumerate(parameters) if p[4] >= 0}
        outputs = [i for i, p in enumerate(parameters) if p[3] and (p[4] < 0 or last_of[p[4]] == i)]
        given = [i for i in range(len(parameters)) if i not in outputs]
        if len(inputs) != len(given):
            names = ", ".join(f"`{parameters[i][0]}`" for i in given)
            raise TypeError(
                f"[{self.name}] expected {len(given)} inputs ({names}) but got {len(inputs)}"
            )
        like = next((a for a in inputs if a is not None), None)
        tensors = dict.fromkeys(range(len(parameters)))
        with stream_of(like):
            for i, array in zip(given, inputs, strict=True):
                tensors[i] = to_tensor(self.name, f"`{parameters[i][0]}`", array)
            device = next((t.device for t in tensors.values() if t is not None), "cpu")
            for i in outputs:
                name, dtype, shape, _, group = parameters[i]
                shared = next((j for j in given if group >= 0 and parameters[j][4] == group), None)
                if shared is not None:
                    check_writable(f"`{parameters[shared][0]}`", inputs[given.index(shared)])
                    tensors[i] = tensors[shared]
                    continue
                if -1 in shape:
                    raise ValueError(
                        f"[{self.name}] expected `{name}` of static extents but got {list(shape)}; "
                        "pass it to run(...)"
                    )
                tensors[i] = _core.Tensor.empty(dtype, list(shape), device)
            self._on(device).run([tensors[i] for i in range(len(parameters))])
            results = [like_array(tensors[i], like) for i in outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def ir(self) -> str:
        """The text."""
        return self.text

    def explain(self, arch: str = "") -> str:
        """Why it is not faster on this CPU, or on a GPU of `arch`; see `Call.explain`."""
        return _core.explain_text(self.text, arch)

    def show(self, path=None, arch: str = "sm_80") -> str:
        """All of its forms side by side on one HTML page; see `Call.show`."""
        return show_page(_core.program_page(self.text, arch), path)

    def profile(self) -> Profile:
        """The time of each line over all runs, with `profile=True`, on CPUs."""
        return Profile(self._on("cpu").profile())

    def export(self, folder, **options):
        """Compiles it ahead of time into a folder; `tw.export` has the options."""
        from ._artifacts import export

        return export(self, folder, **options)

    def bytecode(self) -> str:
        """The bytecode of the CPU's tile machine."""
        return _core.program_text(self.text, "bytecode", "")

    def cuda(self, arch: str = "sm_80") -> str:
        """The CUDA C++ for a GPU. Needs no GPU."""
        return _core.program_text(self.text, "cuda", arch)

    def cost(self) -> Cost:
        """FLOPs and bytes of a run, counted from the text; nothing runs."""
        return cost_of(self.text)

    def ptx(self, arch: str = "sm_80") -> str:
        """Its PTX; needs NVRTC, but no GPU."""
        return _core.program_text(self.text, "ptx", arch)
