"""The error class for bad input, and errors in the words of another function."""

import functools
import re

from torch.compiler import is_dynamo_compiling


class BadInput(ValueError, RuntimeError):  # noqa: N818
    """An argument that does not fit.

    For the same mistake some versions of torch raise ValueError, others RuntimeError: this is both.
    """


_CLASSES = (BadInput, TypeError, NotImplementedError)  # of checks of arguments
_OF_ATTENTION = "[flex_attention] "
_OF_MODS = ("score_mod: ", "mask_mod: ")


def of_caller(op, names):
    """A decorator for a function that calls flex_attention with arguments of its own: errors about
    these become its own. names: what they are called here, by what flex_attention calls them."""
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)")

    def decorator(function):
        @functools.wraps(function)
        def caller(*arguments, **options):
            if is_dynamo_compiling():  # which would not show the text of an error raised here
                return function(*arguments, **options)
            try:
                return function(*arguments, **options)
            except _CLASSES as error:
                text = str(error)
                if not text.startswith(_OF_ATTENTION):
                    raise
                text = text.removeprefix(_OF_ATTENTION)
                if not text.startswith(_OF_MODS):
                    text = pattern.sub(lambda found: names[found[0]], text)
                raise type(error)(f"[{op}] {text}") from None

        return caller

    return decorator
