"""The library of score mods: functions (score, b, h, q_idx, kv_idx) -> score.

Arrays are NumPy arrays, things with ``__dlpack__``, or captures, which get gradients.
"""

from collections.abc import Callable

from . import _core
from ._library import export
from ._mods import Mod, as_mod

_functions = export(_core.scores)
globals().update(_functions)
# For type checkers, which do not see names that are made here.
activation: Callable[..., Mod]
alibi: Callable[..., Mod]
bias: Callable[..., Mod]
checkerboard: Callable[..., Mod]
graphormer_edge: Callable[..., Mod]
graphormer_spatial: Callable[..., Mod]
mla_rope: Callable[..., Mod]
relative_position: Callable[..., Mod]
sandwich: Callable[..., Mod]
softcap: Callable[..., Mod]
t5: Callable[..., Mod]
__all__ = sorted([*_functions, "compose"])


def compose(outer, inner):
    """outer(inner(score)): ``compose(softcap(20), alibi(slopes))``."""
    return _core.compose(
        as_mod("compose", "outer", outer, False), as_mod("compose", "inner", inner, False)
    )
