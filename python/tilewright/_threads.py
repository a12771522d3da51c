"""Makes torch.set_num_threads apply to the library's threads too."""

import os

import tilewright

from . import _core

_is_first = True


def follow(number):
    """Adopts torch's number of threads if it has changed since the last call."""
    global _is_first
    first, _is_first = _is_first, False
    # A number set through the library itself holds until torch's changes.
    if first and (tilewright._threads_are_given or os.environ.get("TILEWRIGHT_THREADS")):
        return
    _core.set_num_threads(number)
