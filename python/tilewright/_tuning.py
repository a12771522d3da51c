"""Calls chosen by measurement: `tw.autotune`."""

import sys
import threading

from . import _core, _language
from ._arrays import dtype_name, stream_of, to_tensor
from ._kernels import Call

_MOST_NAMES = 8


def autotune(configs, key):
    """A decorator: the function under it makes a call for each config, and the fastest one runs.

    ``tw.autotune([{"block": 64}, {"block": 128}], "matmul")`` on a function of `block` that returns
    ``tw.call(...)`` gives a `Tuned`, which is called with arrays, like what it chooses from.

    - configs: dicts of 1 to 8 integers of 64 bits by name, the function's keyword arguments. One for
      which it, or its kernel, raises a ValueError is left out; where none is left, the call raises
      the ValueError of the first.
    - key: names what is tuned. The first call with new dtypes and shapes measures the configs, and
      the choice is kept on disk by key, device, threads, dtypes, shapes and configs: change the key
      when the kernel changes.

    TypeError for another key or other configs, ValueError for integers beyond 64 bits.
    """
    if not isinstance(key, str) or not key:
        raise TypeError(f"[autotune] expected key to be a text but got {key!r}")
    if not isinstance(configs, list | tuple) or not configs:
        raise TypeError(
            f"[autotune] expected configs to be a list of at least one dict but got {configs!r}"
        )
    configs = [_config(i, config) for i, config in enumerate(configs)]
    return lambda make: Tuned(configs, key, make)


def _config(i, config):
    if not isinstance(config, dict) or not 1 <= len(config) <= _MOST_NAMES:
        raise TypeError(
            f"[autotune] expected configs[{i}] to be a dict of 1 to {_MOST_NAMES} integers by name "
            f"but got {config!r}"
        )
    for name, value in config.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(
                f"[autotune] expected names in configs[{i}] that can be arguments but got {name!r}"
            )
        number = _language._integer("autotune", f"`{name}` of configs[{i}]", value)
        if not -(2**63) <= number < 2**63:
            raise ValueError(
                f"[autotune] expected `{name}` of configs[{i}] to fit 64 bits but got {value}"
            )
    return {name: int(value) for name, value in config.items()}


class Tuned:
    """A call whose config is chosen by measurement; made by `tw.autotune`.

    Calling it with arrays runs the fastest call for their dtypes and shapes, which the first such
    call measures. May be called from many threads.
    """

    def __init__(self, configs, key, make):
        if not callable(make):
            raise TypeError(f"[autotune] expected a function that makes calls but got {make!r}")
        self._configs, self._make = configs, make
        self._calls = {}  # by index of the config
        self._lock = threading.Lock()
        self._core = _core.Tuned(configs, key, lambda i: self._call(i)._core)
        self.__name__ = getattr(make, "__name__", "tuned")
        self.__doc__ = make.__doc__

    def __call__(self, *arrays, out=None):
        """Runs the fastest call on the inputs; `out` as for what `tw.call` makes."""
        return self.best(*arrays)(*arrays, out=out)

    def best(self, *inputs) -> Call:
        """The call chosen for such inputs (arrays or `ShapeDtype`s); measures them if need be.

        Inputs without elements, such as those of a function under `jax.jit`, are measured as zeros.
        """
        return self._call(self._choice(inputs))

    def best_config(self, *inputs) -> dict[str, int]:
        """The config chosen for such inputs, likewise."""
        return dict(self._configs[self._choice(inputs)])

    def ir(self, *inputs) -> str:
        """The tile IR of the call chosen for such inputs, likewise."""
        return self.best(*inputs).ir(*inputs)

    @property
    def num_measured(self) -> int:
        """Configs measured so far; 0 if all choices came from the disk cache."""
        return self._core.num_measured()

    def _call(self, index):
        with self._lock:
            call = self._calls.get(index)
        if call is None:
            call = self._make(**self._configs[index])
            if not isinstance(call, Call):
                raise TypeError(
                    f"[autotune] expected `{self.__name__}` to return what tw.call made but got "
                    f"{type(call).__name__}"
                )
            with self._lock:
                call = self._calls.setdefault(index, call)
        return call

    def _choice(self, inputs):
        like = next((x for x in inputs if hasattr(x, "__dlpack__")), None)
        with stream_of(like):
            return self._core.best([_measurable(i, x) for i, x in enumerate(inputs)])

    def __repr__(self):
        return f"<tilewright autotuner of {self.__name__}>"


def _measurable(i, value):
    jax = sys.modules.get("jax")
    traced = jax is not None and isinstance(value, jax.core.Tracer)
    if not traced and (value is None or hasattr(value, "__dlpack__")):
        if getattr(value, "requires_grad", False):
            value = value.detach()
        return to_tensor("autotune", f"argument {i}", value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(
            f"[autotune] expected argument {i} to be an array or a tw.ShapeDtype but got "
            f"{type(value).__name__}"
        )
    on_gpu = traced and jax.default_backend() == "gpu"
    dtype = dtype_name("autotune", f"the dtype of argument {i}", value.dtype)
    return _core.Tensor.zeros(dtype, list(value.shape), "cuda" if on_gpu else "cpu")
