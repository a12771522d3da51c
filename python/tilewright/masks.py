"""The library of masks: functions (b, h, q_idx, kv_idx) -> bool, combined with & | ~.

Arrays are NumPy arrays, things with ``__dlpack__``, or captures; masks inside masks may be functions.
"""

from collections.abc import Callable

from . import _core
from ._library import export
from ._mods import Mod

_functions = export(_core.masks)
globals().update(_functions)
# For type checkers, which do not see names that are made here.
batchify: Callable[..., Mod]
block_diffusion: Callable[..., Mod]
causal: Callable[..., Mod]
dilated_window: Callable[..., Mod]
document: Callable[..., Mod]
global_tokens: Callable[..., Mod]
jagged: Callable[..., Mod]
morton_natten: Callable[..., Mod]
natten: Callable[..., Mod]
noop: Callable[..., Mod]
offset: Callable[..., Mod]
packed_causal: Callable[..., Mod]
prefix_lm: Callable[..., Mod]
sasa: Callable[..., Mod]
segment: Callable[..., Mod]
selected_tiles: Callable[..., Mod]
shared_prefix: Callable[..., Mod]
sliding_tile_2d: Callable[..., Mod]
sliding_tile_3d: Callable[..., Mod]
sliding_window: Callable[..., Mod]
spatial_head: Callable[..., Mod]
strided: Callable[..., Mod]
temporal_head: Callable[..., Mod]
tiled_natten: Callable[..., Mod]
tree: Callable[..., Mod]
tree_training: Callable[..., Mod]
vision_cross_attention: Callable[..., Mod]
window: Callable[..., Mod]
__all__ = sorted(_functions)
