"""The back end for mods: functions of scalars, on the values of `_values.py`.

Values are constants, Numbers, small arrays of these, captured arrays and their gradients.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ...._errors import UnsupportedError
from ...._numbers import ELEMENTWISE, limits, operand
from ...._values import Captured, Scattered, is_constant
from ..._values import apply_all, dtype_of, element, number, objects
from ..._values import literal as constant_of
from ..walker import Walker

_HINTS = {
    "random": "; attention has a dropout of its own",
    "threefry": "; attention has a dropout of its own",
    "callback": "; mods run for every pair of positions, not in Python",
    "debug": "; mods run for every pair of positions, not in Python",
}


#: Primitives that are walked into or stand for others, even if all operands are constants.
_STRUCTURE = {*Walker.rules, "cond", "while", "scan", "dim_as_value", "tilewright_mod"}


class ModWalker(Walker):
    """Translates the jaxpr of one mod, or of its derivative."""

    gradients: dict = {}  #: rules of primitives whose first operand is a gradient

    def __init__(self, captured=(), locate=None):
        """`captured`: the arrays that the mod reads; `locate(file, line)` gets every line."""
        super().__init__()
        self.captured = captured
        if locate is not None:
            self.locate = locate

    def literal(self, atom):
        return constant_of(atom.val)

    def constant(self, value):
        if isinstance(value, jax.core.Tracer):
            raise UnsupportedError(
                "expected inner functions of a mod to take traced arrays as arguments"
            )
        return constant_of(value)

    def type_of(self, value):
        return jax.ShapeDtypeStruct((), dtype_of(objects(value)))

    def apply(self, equation, operands):
        name = equation.primitive.name
        if name in _STRUCTURE:
            return super().apply(equation, operands)
        if _starts_gradient(equation, operands):
            return Scattered(equation.outvars[0].aval.shape, dtype_out(equation))
        if name in self.gradients and isinstance(operands[0], Scattered):
            return self.gradients[name](self, equation, *operands)
        if (
            (operands or name == "iota")
            and not equation.effects
            and all(map(is_constant, operands))
        ):
            return _evaluated(equation, operands)
        if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in equation.outvars):
            raise UnsupportedError(
                f"expected a mod of real numbers but got {dtype_out(equation)} from {name}"
            )
        return super().apply(equation, operands)

    def unknown(self, equation):
        name = equation.primitive.name
        raise UnsupportedError(
            f"expected a mod of scalar operations but got the primitive {name}"
            + next((hint for part, hint in _HINTS.items() if part in name), "")
        )

    def described(self, error, equation, where):
        return f"{error}{where}"

    def integer_division(self, equation, name, a, b):
        dtypes = {atom.aval.dtype for atom in [*equation.invars, *equation.outvars]}
        integer = all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes)
        # Division by zero must give what jnp's functions give, not the library's.
        low, high = limits(objects(b).flat[0]) if integer else (0, 0)
        if len(dtypes) == 1 and (low > 0 or high < 0) and not (is_constant(a) and is_constant(b)):
            return apply_all(name, [a, b], dtypes.pop())
        return None


rule = ModWalker.rule


def dtype_out(equation):
    """The dtype of the first result."""
    return equation.outvars[0].aval.dtype


def is_zero(value):
    is_float = is_constant(value) and jnp.issubdtype(value.dtype, jnp.floating)
    return is_float and np.ndim(value) == 0 and not value


def _starts_gradient(equation, operands):
    if equation.primitive.name != "broadcast_in_dim":
        return False
    return is_zero(operands[0]) and bool(equation.outvars[0].aval.shape)


def _evaluated(equation, constants):
    with jax.ensure_compile_time_eval():
        results = equation.primitive.bind(*constants, **equation.params)
    return [constant_of(x) for x in (results if equation.primitive.multiple_results else [results])]


@rule(*ELEMENTWISE)
def _elementwise(w, equation, *operands):
    return apply_all(equation.primitive.name, operands, dtype_out(equation))


@rule("empty", "empty2")
def _empty(w, equation):
    return np.zeros(equation.outvars[0].aval.shape, dtype_out(equation))


@rule("dim_as_value")
def _extent(w, equation):
    """A symbolic extent, which is that of an array that the mod reads."""
    dim = equation.params["dim"]
    for array in w.captured:
        if dim in array.shape:
            core = array.core.extent(array.shape.index(dim))
            return number(core, dtype_out(equation), (0, int(jnp.iinfo(np.int32).max)))
    raise UnsupportedError(f"expected symbolic extents of arrays that the mod reads but got {dim}")


@rule("tilewright_mod")
def _library_mod(w, equation, *operands):
    mod, arrays = equation.params["mod"], equation.params["arrays"]
    if not all(isinstance(x, Captured) for x in operands[:arrays]):
        raise UnsupportedError(f"expected arrays of {mod.name} that are made outside of the mod")
    captures = [x.core for x in operands[:arrays]]
    scalars = [operand(element(x)) for x in operands[arrays:]]
    return number(mod.apply(captures, scalars), dtype_out(equation))
