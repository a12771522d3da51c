"""The library of score mods: functions (score, b, h, q_idx, kv_idx) -> score.

Arrays may be NumPy arrays, anything with ``__dlpack__``, or captures, which get gradients.
"""

from collections.abc import Callable as _Callable

from . import _core
from ._library import export as _export
from ._mods import Mod as _Mod
from ._mods import as_mod as _as_mod

_functions = _export(_core.scores)
globals().update(_functions)
# For type checkers, which do not see names that are assigned at import time.
activation: _Callable[..., _Mod]
alibi: _Callable[..., _Mod]
bias: _Callable[..., _Mod]
checkerboard: _Callable[..., _Mod]
graphormer_edge: _Callable[..., _Mod]
graphormer_spatial: _Callable[..., _Mod]
mla_rope: _Callable[..., _Mod]
relative_position: _Callable[..., _Mod]
sandwich: _Callable[..., _Mod]
softcap: _Callable[..., _Mod]
t5: _Callable[..., _Mod]
__all__ = sorted([*_functions, "compose"])


def compose(outer, inner):
    """outer(inner(score)): ``compose(softcap(20), alibi(slopes))``."""
    return _core.compose(
        _as_mod("compose", "outer", outer, False), _as_mod("compose", "inner", inner, False)
    )
