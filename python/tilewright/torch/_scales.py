"""Scales that change from call to call: tile programs hold the scale of the first call as a
constant, and read others from an array, so that a new value compiles nothing."""

import functools
import math

import torch

from .._memo import Memo

# What tells calls apart that run different programs anyway -> the first scale.
_first = Memo("scales of attention", 4096)

# Factors in f32 hold scales below this one; the call itself checks the others, and NaN.
_LARGEST = 1e30


def with_operand(score_mod, mask_mod, scale, query):
    """(score_mod, scale) for a call: the scale of another call like this one stays; any other
    becomes a factor in score_mod, times the default scale."""
    if type(scale) not in (int, float) or not abs(scale) < _LARGEST or _takes_argument(query):
        return score_mod, scale
    width = query.shape[-1]
    key = (*map(_identity, (score_mod, mask_mod)), query.dtype, query.device.type, width)
    if width == 0 or (_first.find(key) or _first.put(key, (scale,)))[0] == scale:
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
