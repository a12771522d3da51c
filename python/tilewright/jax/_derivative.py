"""Derivatives of score mods by JAX, for mods with derivative rules of their own.

Other mods are differentiated in the tile IR. A mod with a custom_vjp, a custom_jvp or stop_gradient
is differentiated by JAX, and the result is translated like the mod itself, with gradients of
captured arrays as lists of elements to add.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import UnsupportedError
from .._numbers import Number, operand, unrounded
from .._values import Scattered
from ._jaxpr.mods.translate import run
from ._values import element, number

_RULES = ("custom_vjp_call", "custom_vjp_call_jaxpr", "custom_jvp_call", "stop_gradient")


def has_own_rules(jaxpr):
    """Whether a jaxpr, or one nested in it, contains a derivative rule of the user's."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in _RULES or (name == "call_hi_primitive" and _is_differentiable(equation)):
            return True
        leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
        if any(has_own_rules(getattr(x, "jaxpr", x)) for x in leaves if _is_jaxpr(x)):
            return True
    return False


def _is_differentiable(equation):
    return any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.outvars)


def _is_jaxpr(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def translate(closed, core, stands, numbers_of, score_dtype):
    """(text, gathers): the derivative of the core's mod, which was traced from `closed`.

    `stands` are the captured arrays; `numbers_of` converts the core's arguments to numbers.
    """
    floats = [i for i, x in enumerate(stands) if jnp.issubdtype(x.dtype, jnp.floating)]

    def pull(cotangent, scalars, arrays):
        def value(score, chosen):
            given = list(arrays)
            for i, x in zip(floats, chosen, strict=True):
                given[i] = x
            return jax.core.eval_jaxpr(closed.jaxpr, given, score, *scalars[1:])[0]

        _, pullback = jax.vjp(value, scalars[0], [arrays[i] for i in floats])
        return pullback(cotangent)

    scalar = jax.ShapeDtypeStruct((), score_dtype)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in stands]
    out_dtype = closed.out_avals[0].dtype
    traced = jax.make_jaxpr(pull)(
        jax.ShapeDtypeStruct((), out_dtype), [scalar, *[position] * 4], arrays
    )
    if any(jnp.ndim(x) for x in traced.consts):
        raise UnsupportedError(
            "expected derivative rules of a mod that read arrays through arguments"
        )
    place = {capture.name: i for i, capture in enumerate(core.captures())}
    gathers = []

    def body(*arguments):
        gathers.clear()
        *scalars, cotangent = arguments
        cotangent = number(cotangent, out_dtype)
        constants = [np.asarray(x) for x in traced.consts]
        score, *rest = run(
            traced.jaxpr, *constants, cotangent, *numbers_of(scalars), *stands, captured=stands
        )
        results = [_operand(element(score))]
        for i, gradient in zip(floats, rest, strict=True):
            if not isinstance(gradient, Scattered):
                raise UnsupportedError("expected gradients of captured arrays element by element")
            for index, value in gradient.entries:
                gathers.append(place[stands[i].name])
                results += [*stands[i].inside(index), _operand(unrounded(value))]
        return results

    text = core.derivative_ir(body, "f64" if score_dtype == jnp.float64 else "f32")
    return text, " ".join(map(str, gathers))


def _operand(value):
    return operand(value if isinstance(value, Number) else np.asarray(value)[()])
