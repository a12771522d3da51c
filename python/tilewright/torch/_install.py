"""install(): routes code that calls torch's flex_attention to this package."""

import functools
import threading

import torch
import torch.nn.attention
from torch.nn.attention import flex_attention as _flex

from ._attention import flex_attention
from ._block_mask import create_block_mask, create_mask
from ._errors import BadInput
from ._options import wrong_backend

_lock = threading.Lock()
_depth = 0
_saved = []


class _Installed:
    """What `install` returns: a context manager that uninstalls on exit."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        uninstall()


def install():
    """Makes ``torch.nn.attention.flex_attention`` run here until `uninstall`; or ``with
    install():``.

    Replaces its functions flex_attention, create_block_mask and create_mask, and the operator under
    torch's flex_attention, so that functions imported or compiled earlier run here too. Allows
    gradients on the CPU. May be nested.
    """
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            _replace()
    return _Installed()


def uninstall():
    """Undoes one `install`; does nothing if there was none."""
    global _depth
    with _lock:
        if _depth == 0:
            return
        _depth -= 1
        if _depth == 0:
            while _saved:
                module, name, value = _saved.pop()
                setattr(module, name, value)
            if _silenced:
                _flex._WARNINGS_SHOWN.discard(_UNFUSED)


# torch's warning that uncompiled calls are unfused, which is not so here.
_UNFUSED = "flex_attention_performance"
_silenced = False  # by `install`


def _replace():
    global _silenced
    from . import _marker

    _silenced = _UNFUSED not in _flex._WARNINGS_SHOWN
    _flex._WARNINGS_SHOWN.add(_UNFUSED)
    replacements = {
        "flex_attention": flex_attention,
        "create_block_mask": functools.wraps(create_block_mask)(_with_lists),
        "create_mask": create_mask,
        "flex_attention_hop": _marker.base2_marker,
        "_validate_device": _accept_device,
        "_apply_kernel_options": _options_for_torch,
    }
    for module in (_flex, torch.nn.attention):
        for name, value in replacements.items():
            # torch.nn.attention.flex_attention is the module itself.
            if callable(getattr(module, name, None)):
                _saved.append((module, name, getattr(module, name)))
                setattr(module, name, value)


def _with_lists(*arguments, **options):
    """create_block_mask with the lists made at once: compiled functions of torch may read them."""
    mask = create_block_mask(*arguments, **options)
    if mask._core is not None:
        mask.as_tuple()
    return mask


def _options_for_torch(query, key, value, return_lse, kernel_options, *_, **__):
    """Replaces torch's checks of options, which refuse max_scores on the CPU."""
    options = {} if kernel_options is None else dict(kernel_options)
    wrong = wrong_backend(options)
    if wrong is None:
        options.pop("FORCE_USE_FLEX_ATTENTION", None)
        options["BACKEND"] = "AUTO"  # for "FLASH" torch would not expect logarithms to base 2
    elif not torch.compiler.is_dynamo_compiling():  # there the operator raises the error itself
        raise BadInput(f"[flex_attention] {wrong}")
    return options


def _accept_device(*_):
    """Replaces torch's check, which refuses gradients on the CPU."""
