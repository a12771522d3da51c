"""Tilewright in JAX: fused operations as XLA custom calls, differentiable, batched, sharded.

Every function works under `jax.jit`, ahead-of-time compilation, `jax.export` and the persistent
compilation cache, on the CPU.
"""

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError("tilewright.jax needs JAX: pip install 'tilewright[jax]'") from error

from . import _targets
from ._norm import layer_norm, rms_norm

_targets.register()

__all__ = ["layer_norm", "rms_norm"]
