"""Scales that change from call to call: tile programs hold the scale of the first call, and those
that come often, as a constant. They read others from an array, so that a new value compiles
nothing."""

import functools
import math

import torch

from .._memo import Memo

# What tells calls apart that run different programs anyway -> their scales.
_known = Memo("scales of attention", 4096)

# A scale gets programs of its own in this call: without them each takes 1.04 to 1.14 times as long,
# and compiling them takes milliseconds.
_OFTEN = 16
_MOST = 64  # scales that are remembered


class _Scales:
    """The scales of calls that are alike but for them."""

    def __init__(self, first):
        self.calls = {first: _OFTEN}  # by scale, the latest last

    def is_constant(self, scale):
        """Counts a call; whether its programs hold the scale."""
        calls = self.calls.pop(scale, 0)
        self.calls[scale] = calls = min(calls + 1, _OFTEN)
        if len(self.calls) > _MOST:
            self.calls.pop(next(iter(self.calls)), None)
        return calls == _OFTEN


# Factors in f32 hold scales below this one; the call itself checks the others, and NaN.
_LARGEST = 1e30


def with_operand(score_mod, mask_mod, scale, query):
    """(score_mod, scale) for a call: the scale of the first call like this one and one that comes
    often stay; any other becomes a factor in score_mod, times the default scale."""
    if type(scale) not in (int, float) or not abs(scale) < _LARGEST or _takes_argument(query):
        return score_mod, scale
    width = query.shape[-1]
    key = (*map(_identity, (score_mod, mask_mod)), query.dtype, query.device.type, width)
    if width == 0 or (_known.find(key) or _known.put(key, _Scales(scale))).is_constant(scale):
        return score_mod, scale
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    factor = torch.full((), scale * math.sqrt(width), dtype=wide, device=query.device)
    return _scaled(score_mod, factor), None


def _identity(mod):
    return getattr(mod, "__code__", None) or type(mod)


def _takes_argument(query):
    """Whether the engine for Hopper GPUs may run the call: its kernels take the scale as an
    argument."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return half and query.device.type == "cuda" and _is_hopper(query.device.index)


@functools.cache
def _is_hopper(index):
    return torch.cuda.get_device_capability(index)[0] == 9


def _scaled(score_mod, factor):
    if score_mod is None:
        return lambda score, b, h, q_idx, kv_idx: score * factor

    def scaled(score, b, h, q_idx, kv_idx):
        return score_mod(score * factor, b, h, q_idx, kv_idx)

    return scaled
