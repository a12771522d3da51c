"""The library of masks: functions (b, h, q_idx, kv_idx) -> bool, combined with & | ~.

Arrays are NumPy arrays, things with __dlpack__, or captures; masks inside masks may be functions.
"""

from . import _core
from ._library import export

_functions = export(_core.masks)
globals().update(_functions)
__all__ = sorted(_functions)
