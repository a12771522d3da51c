"""The scores of tilewright.scores on JAX arrays, also traced ones, for use alone or in jnp code."""

from .._library import compose as compose
from . import _library

_functions = _library.export("scores")
globals().update(_functions)
__all__ = sorted([*_functions, "compose"])
