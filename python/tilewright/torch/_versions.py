"""The versions of torch that this package supports."""

import re
import warnings

_OLDEST = (2, 11)
_NEWEST = (2, 15)  # the newest that the tests have run with


def check(version):
    """ImportError for a torch that is too old, a warning for one newer than those tested."""
    found = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if found < _OLDEST:
        raise ImportError(
            f"[tilewright.torch] expected torch {_text(_OLDEST)} or newer but got {version}"
        )
    if found > _NEWEST:
        warnings.warn(
            f"tilewright.torch is tested with torch {_text(_OLDEST)} to {_text(_NEWEST)}; this is "
            f"{version}",
            stacklevel=3,
        )


def _text(version):
    return ".".join(map(str, version))
