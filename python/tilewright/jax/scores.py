"""The scores of tilewright.scores on JAX arrays, traced ones too: score mods to use alone or in jnp."""

from . import _library

_functions = _library.export("scores")
globals().update(_functions)
__all__ = sorted([*_functions, "compose"])


def compose(outer, inner):
    """outer(inner(score)): ``compose(softcap(20), alibi(slopes))``."""

    def composed(score, b, h, q_idx, kv_idx):
        return outer(inner(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    return composed
