"""Tilewright in JAX: fused operations as XLA custom calls, differentiable, batched, sharded.

Every function works under `jax.jit`, ahead-of-time compilation, `jax.export` and the persistent
compilation cache, on CPUs and NVIDIA GPUs.
"""

import platform
import sys

if sys.version_info < (3, 11):  # noqa: UP036  # NumPy and PyTorch are supported from 3.10 on
    raise ImportError(
        "tilewright.jax needs JAX 0.10.2 or newer, which needs Python 3.11 or newer, but this is "
        f"Python {platform.python_version()}"
    )
try:
    import jax
except ImportError as error:
    raise ImportError("tilewright.jax needs JAX: pip install 'jax>=0.10.2'") from error
if jax.__version_info__ < (0, 10, 2):
    raise ImportError(f"tilewright.jax needs JAX 0.10.2 or newer but this is {jax.__version__}")

from .._attention import AuxRequest
from . import _targets, masks, scores
from ._attention import AuxOutput, flex_attention
from ._block_mask import BlockMask, create_block_mask, create_mask, create_scores
from ._mha import mha, mha_reference
from ._mods import and_masks, or_masks
from ._norm import layer_norm, rms_norm
from ._op import op
from ._pallas import install_pallas, pallas_call

_targets.register()

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "create_scores",
    "flex_attention",
    "install_pallas",
    "layer_norm",
    "masks",
    "mha",
    "mha_reference",
    "op",
    "or_masks",
    "pallas_call",
    "rms_norm",
    "scores",
]
