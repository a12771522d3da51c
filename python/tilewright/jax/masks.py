"""The masks of tilewright.masks on JAX arrays, also traced ones, for use alone or in jnp code."""

from . import _library

globals().update(_library.export("masks"))
__all__ = sorted(_library.export("masks"))
