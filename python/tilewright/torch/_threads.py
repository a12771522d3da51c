"""torch.set_num_threads holds for the library's threads too."""

import os

import torch

import tilewright

from .. import _core

_number = torch.get_num_threads
_seen = None


def follow():
    """Takes over torch's number of threads where it is another one than at the last call."""
    if _number() != _seen:
        _take()


def _take():
    global _seen
    first, _seen = _seen is None, _number()
    # What was asked of the library itself holds until torch's number changes.
    if first and (tilewright._threads_are_given or os.environ.get("TILEWRIGHT_THREADS")):
        return
    _core.set_num_threads(_seen)
