"""The library of scores on PyTorch tensors: see `tilewright.scores`."""

from ._library import export as _export

_functions = _export("scores")
globals().update(_functions)
__all__ = sorted([*_functions, "compose"])


def compose(outer, inner):
    """outer(inner(score)): ``compose(softcap(20), alibi(slopes))``."""

    def composed(score, b, h, q_idx, kv_idx):
        return outer(inner(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    return composed
