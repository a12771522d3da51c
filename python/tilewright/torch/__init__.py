"""Tilewright on PyTorch tensors: a drop-in for ``torch.nn.attention.flex_attention``, and norms.

Names and signatures are torch's; what torch lacks stands in keyword arguments behind them.
"""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "tilewright.torch needs PyTorch 2.11 or newer: pip install tilewright[torch]", name="torch"
    ) from None

from . import _versions

_versions.check(_torch.__version__)

from torch.nn.attention.flex_attention import (  # noqa: E402
    _DEFAULT_SPARSE_BLOCK_SIZE,
    AuxOutput,
    AuxRequest,
    noop_mask,
)

__all__ = [
    "_DEFAULT_SPARSE_BLOCK_SIZE",
    "AuxOutput",
    "AuxRequest",
    "noop_mask",
]
