"""The library of score mods: functions (score, b, h, q_idx, kv_idx) -> score.

Arrays are NumPy arrays, things with __dlpack__, or captures, which get gradients.
"""

from . import _core
from ._library import export
from ._mods import as_mod

_functions = export(_core.scores)
globals().update(_functions)
__all__ = sorted([*_functions, "compose"])


def compose(outer, inner):
    """outer(inner(score)): ``compose(softcap(20), alibi(slopes))``."""
    return _core.compose(
        as_mod("compose", "outer", outer, False), as_mod("compose", "inner", inner, False)
    )
