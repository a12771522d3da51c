"""Registers the handlers of the extension module with XLA."""

import jax


def register():
    """Makes every custom call of the extension known to XLA; once is enough."""
    try:
        from . import _ffi
    except ImportError as error:
        raise ImportError(
            "tilewright.jax is not part of this build: Tilewright was built without jaxlib, whose "
            "headers it needs. Install jax, then build Tilewright again"
        ) from error
    for target, handlers in _ffi.targets().items():
        for platform, handler in handlers.items():
            jax.ffi.register_ffi_target(target, handler, platform=platform)
