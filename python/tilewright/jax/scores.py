"""The scores of tilewright.scores on JAX arrays, traced ones too: score mods to use alone or in jnp."""

from . import _library

globals().update(_library.export("scores"))
__all__ = sorted(_library.export("scores"))
