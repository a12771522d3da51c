"""The library of masks: functions (b, h, q_idx, kv_idx) -> bool, combined with & | ~.

Arrays may be NumPy arrays, anything with ``__dlpack__``, or captures; masks given to masks may be
functions.
"""

from collections.abc import Callable as _Callable

from . import _core
from ._library import export as _export
from ._mods import Mod as _Mod

_functions = _export(_core.masks)
globals().update(_functions)
# For type checkers, which do not see names that are assigned at import time.
batchify: _Callable[..., _Mod]
block_diffusion: _Callable[..., _Mod]
causal: _Callable[..., _Mod]
chunked: _Callable[..., _Mod]
dilated_window: _Callable[..., _Mod]
document: _Callable[..., _Mod]
global_tokens: _Callable[..., _Mod]
jagged: _Callable[..., _Mod]
morton_natten: _Callable[..., _Mod]
natten: _Callable[..., _Mod]
noop: _Callable[..., _Mod]
offset: _Callable[..., _Mod]
packed_causal: _Callable[..., _Mod]
prefix_lm: _Callable[..., _Mod]
sasa: _Callable[..., _Mod]
segment: _Callable[..., _Mod]
selected_tiles: _Callable[..., _Mod]
shared_prefix: _Callable[..., _Mod]
sliding_tile_2d: _Callable[..., _Mod]
sliding_tile_3d: _Callable[..., _Mod]
sliding_window: _Callable[..., _Mod]
spatial_head: _Callable[..., _Mod]
strided: _Callable[..., _Mod]
temporal_head: _Callable[..., _Mod]
tiled_natten: _Callable[..., _Mod]
tree: _Callable[..., _Mod]
tree_training: _Callable[..., _Mod]
vision_cross_attention: _Callable[..., _Mod]
window: _Callable[..., _Mod]
__all__ = sorted(_functions)
