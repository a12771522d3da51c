"""Translates the jaxprs of mods while the core traces."""

from ...._numbers import operand
from ..._values import element
from . import arrays, captures, gradients, loops  # noqa: F401  (imported to register rules)
from .walker import ModWalker


def run(jaxpr, *arguments, captured=(), locate=None):
    """The results of a jaxpr on a mod's values, which include its constants.

    `captured`: the arrays that the mod reads; `locate(file, line)` gets each equation's line.
    """
    return ModWalker(captured, locate).evaluate(jaxpr, *arguments)


def result(value):
    """The scalar that a mod returns, as the core takes it."""
    return operand(element(value))
