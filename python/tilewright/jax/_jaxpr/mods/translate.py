"""Jaxprs of mods, translated while the core traces."""

from ...._numbers import operand
from ..._values import element
from . import arrays, captures, gradients, loops  # noqa: F401  (they register rules)
from .walker import ModWalker


def run(jaxpr, *arguments, captured=(), locate=None):
    """The results of a jaxpr on values of mods, its constants among them.

    `captured`: the arrays that the mod reads; `locate(file, line)` is told the lines of equations.
    """
    return ModWalker(captured, locate).evaluate(jaxpr, *arguments)


def result(value):
    """The scalar that a mod returns, as the core takes it."""
    return operand(element(value))
