"""torch.set_num_threads holds for the library's threads too."""

import os

import tilewright

from . import _core

_is_first = True


def follow(number):
    """Takes over a number of torch's threads that is another one than at the last call."""
    global _is_first
    first, _is_first = _is_first, False
    # What was asked of the library itself holds until torch's number changes.
    if first and (tilewright._threads_are_given or os.environ.get("TILEWRIGHT_THREADS")):
        return
    _core.set_num_threads(number)
