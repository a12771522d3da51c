"""Registers the handlers of the extension module with XLA."""

import hashlib
import pathlib
import re

import jax
import jaxlib
import numpy as np


def _installed_api():
    """The version of the installed jaxlib's FFI, from the header that it ships."""
    header = pathlib.Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    return tuple(
        int(re.search(rf"#define XLA_FFI_API_{part} (\d+)", header)[1])
        for part in ("MAJOR", "MINOR")
    )


def _check_api(built, built_with):
    """XLA loads handlers of its own version and older; newer ones make the first call of anything
    fail, with an error about the backend."""
    installed = _installed_api()
    if built <= installed:
        return
    raise ImportError(
        "tilewright.jax was built with jaxlib {} (XLA FFI {}.{}), but jaxlib {} (XLA FFI {}.{}), "
        "which is older, cannot load it. Install jax {} or newer, or build Tilewright again with "
        "this jaxlib".format(built_with, *built, jaxlib.__version__, *installed, built_with)
    )


def register():
    """Registers every custom call of the extension with XLA; once is enough."""
    try:
        from . import _ffi
    except ImportError as error:
        raise ImportError(
            "tilewright.jax is not part of this build: Tilewright was built without jaxlib, whose "
            "headers it needs. Install jax, then build Tilewright again"
        ) from error
    _check_api(_ffi.api_version, _ffi.jaxlib_version)
    for target, platform, handler in _ffi.targets():
        jax.ffi.register_ffi_target(target, handler, platform=platform)


def attributes(values):
    """The attributes of a call, with a digest as the key of what handlers made from them."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(values.items()):
        digest.update(name.encode())
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return {**values, "site": digest.hexdigest()}
