"""Finds arrays that were changed in place between a forward pass and its pullback."""

from . import _core


def _mark(tensor, value):
    """A mark that changes with the elements: a hash, on a GPU PyTorch's version; None: unknown."""
    if tensor.device == "cpu":
        return tensor.fingerprint()
    try:
        return value._version
    except (AttributeError, RuntimeError):  # not a PyTorch tensor, or one made in inference mode
        return None


class Unchanged:
    """Remembers the arrays that a pullback reads again as they are when this is made.

    `arrays`: (name, tensor, what it was made from). `check` raises ValueError if one has changed.
    """

    def __init__(self, arrays):
        self._arrays = [(*array, _mark(*array[1:])) for array in arrays if array[1].defined]

    def check(self, op):
        for name, tensor, value, mark in self._arrays:
            if _mark(tensor, value) != mark:
                raise ValueError(
                    f"[{op}] expected {name} as it was in the forward pass but it has been changed "
                    "in place since: pass or keep a copy"
                )


def captured(mod, argument):
    """The arrays that a mod reads, for `Unchanged`."""
    captures = mod.captures() if isinstance(mod, _core.Mod) else []
    return [
        (f"capture `{c.name}` of {argument}" if c.name else f"capture {i} of {argument}", c.tensor)
        for i, c in enumerate(captures)
    ]
