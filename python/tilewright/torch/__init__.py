"""Tilewright on PyTorch tensors: a drop-in for ``torch.nn.attention.flex_attention``, and norms.

Names and signatures are torch's; what torch lacks stands in keyword arguments after them.
"""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "tilewright.torch needs PyTorch 2.11 or newer: pip install 'torch>=2.11'", name="torch"
    ) from None

from . import _versions

_versions.check(_torch.__version__)

from torch.nn.attention.flex_attention import (  # noqa: E402
    _DEFAULT_SPARSE_BLOCK_SIZE,
    AuxOutput,
    AuxRequest,
    FlexKernelOptions,
    and_masks,
    noop_mask,
    or_masks,
)

from . import masks, scores  # noqa: E402
from ._attention import flex_attention  # noqa: E402
from ._block_mask import BlockMask, create_block_mask, create_mask, create_scores  # noqa: E402
from ._cuda_kernel import make_operators, op  # noqa: E402
from ._flash import attention, scaled_dot_product_attention  # noqa: E402
from ._flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from ._flash_impl import register_flash_attention  # noqa: E402
from ._install import install, uninstall  # noqa: E402
from ._norm import layer_norm, rms_norm  # noqa: E402
from ._transformers import register_transformers  # noqa: E402

make_operators()

# Private names of torch's module that others import, as far as this version of torch has them.
_PRIVATE = (
    *("_LARGE_SPARSE_BLOCK_SIZE", "_ModificationType", "_WARNINGS_SHOWN", "_apply_kernel_options"),
    *("_create_empty_block_mask", "_identity", "_mask_mod_signature", "_score_mod_signature"),
    "_vmap_for_bhqkv",
)


def __getattr__(name):
    if name in _PRIVATE:
        from torch.nn.attention import flex_attention as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "_DEFAULT_SPARSE_BLOCK_SIZE",
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "attention",
    "create_block_mask",
    "create_mask",
    "create_scores",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "flex_attention",
    "install",
    "layer_norm",
    "masks",
    "noop_mask",
    "op",
    "or_masks",
    "register_flash_attention",
    "register_transformers",
    "rms_norm",
    "scaled_dot_product_attention",
    "scores",
    "uninstall",
]
