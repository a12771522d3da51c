"""The masks of tilewright.masks on JAX arrays, traced ones too: mask mods to use alone or in jnp."""

from . import _library

globals().update(_library.export("masks"))
__all__ = sorted(_library.export("masks"))
