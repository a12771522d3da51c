"""Tilewright on PyTorch tensors: a drop-in for ``torch.nn.attention.flex_attention``, and norms.

Names and signatures are torch's; what torch lacks follows as keyword arguments.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _TYPE_CHECKING

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

from ._cuda_kernel import make_operators, op  # noqa: E402
from ._norm import layer_norm, rms_norm  # noqa: E402

if _TYPE_CHECKING:
    from torch.nn.attention.flex_attention import (
        _DEFAULT_SPARSE_BLOCK_SIZE,
        AuxOutput,
        AuxRequest,
        FlexKernelOptions,
        and_masks,
        noop_mask,
        or_masks,
    )

    from . import masks, scores
    from ._attention import flex_attention
    from ._block_mask import BlockMask, create_block_mask, create_mask, create_scores
    from ._flash import attention, scaled_dot_product_attention
    from ._flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
    from ._flash_impl import register_flash_attention
    from ._install import install, uninstall
    from ._transformers import register_transformers

make_operators()

# Where the other names come from, imported on demand: PyTorch's flex_attention module, whose
# BlockMask ours subclasses, takes longer to import than all of this package.
_TORCHS = "torch.nn.attention.flex_attention"
_MODULES = {
    _TORCHS: (
        *("_DEFAULT_SPARSE_BLOCK_SIZE", "AuxOutput", "AuxRequest", "FlexKernelOptions"),
        *("and_masks", "noop_mask", "or_masks"),
    ),
    "_attention": ("flex_attention",),
    "_block_mask": ("BlockMask", "create_block_mask", "create_mask", "create_scores"),
    "_flash": ("attention", "scaled_dot_product_attention"),
    "_flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
    "_flash_impl": ("register_flash_attention",),
    "_install": ("install", "uninstall"),
    "_transformers": ("register_transformers",),
}
_module_of = {name: module for module, names in _MODULES.items() for name in names}
# Private names of torch's module that others import, if this version of torch has them; `install`
# replaces the last one, which is therefore looked up each time.
_PRIVATE = (
    *("_LARGE_SPARSE_BLOCK_SIZE", "_ModificationType", "_WARNINGS_SHOWN", "_apply_kernel_options"),
    *("_create_empty_block_mask", "_identity", "_mask_mod_signature", "_score_mod_signature"),
    *("_vmap_for_bhqkv", "flex_attention_hop"),
)


def __getattr__(name):
    if name in _PRIVATE:
        return getattr(_import(_TORCHS), name)
    if name in ("masks", "scores"):
        return _import(f".{name}", __name__)
    module = _module_of.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import(module if module == _TORCHS else f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})


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
