"""Artifacts: operations compiled ahead of time, as folders that run without tracing or NVRTC."""

import os

from . import _core
from ._arrays import stream_of, to_array, to_tensor
from ._programs import Program, ShapeDtype, check_writable, like_array


def export(
    operation,
    folder,
    *arrays,
    name="",
    names=(),
    archs=(),
    cpu=True,
    gpu_operation=None,
) -> "Artifact | None":
    """Writes what an operation launches for arrays like these to a folder, for `load_artifact`.

    operation: a function of NumPy arrays of these dtypes and shapes that returns one result or a
    tuple, such as ``lambda q, k, v: tw.flex_attention(q, k, v, causal=True)`` or ``tw.call(...)``;
    or a `Program`, without arrays. Arrays that it captures are stored as they are now. name: of the
    generated C++17 header and its class; names: of the arrays, inputs before results. archs: GPUs
    to compile cubins for, such as "sm_90a" (needs NVRTC, but no GPU). gpu_operation: run on GPUs
    instead. Returns the artifact, loaded for the CPU; None with cpu=False. Raises ValueError for
    operations that compute on the host, and for those that a GPU of archs cannot run.
    """
    folder, names = os.fspath(folder), list(names)
    archs = [archs] if isinstance(archs, str) else list(archs)
    if isinstance(operation, Program):
        if arrays or gpu_operation is not None:
            raise TypeError("[export] expected no arrays and no gpu_operation with a Program")
        _core.export_program(folder, operation.text, name, names, bool(cpu), archs)
    elif callable(operation):
        tensors = [to_tensor("export", f"array {i}", array) for i, array in enumerate(arrays)]
        functions = [_of_tensors(f) for f in (operation, gpu_operation)]
        _core.export_operation(
            *(folder, tensors, functions[0]),
            *(name or _name_of(operation), names, bool(cpu), archs, functions[1]),
        )
    else:
        raise TypeError(f"[export] expected a function or a Program but got {operation!r}")
    return load_artifact(folder) if cpu else None


def _name_of(operation):
    name = getattr(operation, "__name__", "")
    return "" if name == "<lambda>" else name


def _of_tensors(function):
    if function is None:
        return None

    def on_tensors(tensors):
        results = function(*[to_array(tensor) for tensor in tensors])
        results = results if isinstance(results, tuple | list) else (results,)
        return [to_tensor("export", f"result {i}", result) for i, result in enumerate(results)]

    return on_tensors


class Artifact:
    """An exported operation, ready to run on one device; made by `load_artifact`.

    Called with its inputs it returns the result, or a tuple of several, as arrays of the first
    input's framework. May be called from many threads at once.
    """

    def __init__(self, core):
        self._core = core

    @property
    def name(self) -> str:
        """The artifact's name."""
        return self._core.name

    @property
    def checksum(self) -> str:
        """A checksum that tells this export from every other one."""
        return self._core.checksum

    @property
    def parameters(self) -> list:
        """(name, ShapeDtype, written) of each array, results included."""
        return [(n, ShapeDtype(s, d), w) for n, d, s, w, _ in self._core.parameters]

    def _tensors(self, parameters, arrays):
        tensors = []
        for i, array in enumerate(arrays):
            name = f"`{parameters[i][0]}`" if i < len(parameters) else f"argument {i}"
            if i < len(parameters) and parameters[i][3]:
                check_writable(name, array)
            tensors.append(to_tensor(self.name, name, array))
        return tensors

    def run(self, *arrays) -> None:
        """Runs on one row-major array per parameter, results included."""
        with stream_of(arrays[0] if arrays else None):
            self._core.run(self._tensors(self._core.parameters, arrays))

    def __call__(self, *inputs):
        given = [p for p in self._core.parameters if not p[4]]
        like = inputs[0] if inputs else None
        with stream_of(like):
            results = self._core(self._tensors(given, inputs))
            results = [like_array(result, like) for result in results]
        return results[0] if len(results) == 1 else tuple(results)

    def __repr__(self):
        return f"<Artifact {self.name} {self.checksum[:8]}>"


def load_artifact(folder, device=None) -> Artifact:
    """Loads what `export` or `tilewright export` wrote; device: "cpu" (default), "cuda", "cuda:N".

    Needs neither NVRTC nor the code that was traced. Raises ValueError with the reason if the
    folder is damaged, comes from another version of Tilewright, or was not exported for the device.
    """
    device = "cpu" if device is None else str(device)
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and (kind == "cpu" or not index.isdigit())):
        raise ValueError(
            f'[load_artifact] expected device to be "cpu", "cuda" or "cuda:N" but got {device!r}'
        )
    return Artifact(_core.Artifact(os.fspath(folder), device))
