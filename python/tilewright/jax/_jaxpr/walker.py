"""Walks a jaxpr: environment, dispatch to rules, calls, source lines, refusals.

Back ends decide what values are and what primitives become: `kernels/` makes tile programs, `mods/`
functions of scalars. Both build IR through the core.
"""

from collections import Counter

import jax
import jax.numpy as jnp
from jax._src import source_info_util

from ..._dtypes import NAMES
from ..._errors import UnsupportedError
from .._versions import expanded

#: JAX's dtypes by the library's names.
JAX_DTYPES = {ours: jnp.dtype(name) for name, ours in NAMES.items()}


def ir_dtype(dtype):
    """The library's name for a dtype of NumPy or JAX; UnsupportedError if there is none."""
    name = NAMES.get(str(dtype))
    if name is None:
        raise UnsupportedError(f"elements of {dtype}")
    return name


def inner_jaxpr(closed):
    """The jaxpr and the constants of a Jaxpr or ClosedJaxpr."""
    return getattr(closed, "jaxpr", closed), list(getattr(closed, "consts", ()))


def source_of(equation):
    """The user's (file, line) that made an equation; None when unknown."""
    frame = source_info_util.user_frame(equation.source_info.traceback)
    return (frame.file_name, frame.start_line) if frame is not None else None


class Walker:
    """One walk. A back end is a subclass with a table of rules of its own."""

    rules: dict = {}  #: primitive's name -> rule(walker, equation, *operands)

    def __init__(self):
        self.source = None  #: (file, line) of the equation being translated
        self.uses = Counter()  #: of the variables of the jaxpr being walked
        self.consumers = {}  #: variable -> the last equation that reads it; None: a result

    def __init_subclass__(cls):
        cls.rules = dict(cls.rules)

    @classmethod
    def rule(cls, *names):
        """Registers what primitives become: a value, or a list of one for each result.

        By name, since names are stable across versions of JAX and objects are not.
        """

        def register(function):
            cls.rules.update(dict.fromkeys(names, function))
            return function

        return register

    # ---- Hooks that back ends implement.

    def literal(self, atom):
        """The value of a constant in an equation."""
        raise NotImplementedError

    def constant(self, value):
        """The value of a constant that a jaxpr holds."""
        raise NotImplementedError

    def type_of(self, value):
        """The ShapeDtypeStruct of a value."""
        raise NotImplementedError

    def locate(self, file, line):
        """Told where the code that follows was written."""

    def apply(self, equation, operands):
        """The values of an equation's results."""
        rule = self.rules.get(equation.primitive.name)
        return self.unknown(equation) if rule is None else rule(self, equation, *operands)

    def unknown(self, equation):
        """Handles a primitive without a rule."""
        raise NotImplementedError

    def described(self, error, equation, where):
        """The text of an error with the line, " at FILE:LINE"."""
        raise NotImplementedError

    def integer_division(self, equation, name, a, b):
        """jnp's floor_divide or remainder as one operation; None to walk its dozen equations."""

    # ---- The walk.

    def evaluate(self, closed, *arguments):
        """The results of a jaxpr on values. Arguments may also include its constants."""
        jaxpr, constants = inner_jaxpr(closed)
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        if len(arguments) < len(inputs):
            arguments = [*map(self.constant, constants), *arguments]
        values = dict(zip(inputs, arguments, strict=True))
        outer = self.uses, self.consumers
        self.uses, self.consumers = Counter(), {}
        for atoms, reader in [*((e.invars, e) for e in jaxpr.eqns), (jaxpr.outvars, None)]:
            for atom in atoms:
                if not hasattr(atom, "val"):
                    self.uses[atom] += 1
                    self.consumers[atom] = reader

        def read(atom):
            return self.literal(atom) if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        self.uses, self.consumers = outer
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation, operands):
        """The values of an equation's results; refusals name the user's line."""
        outer = self.source
        # Equations that a library traced once and kept have no line; the caller's applies.
        source = self.source = source_of(equation) or outer
        if source is not None:
            self.locate(*source)
        try:
            results = self.apply(equation, operands)
        except UnsupportedError as error:
            if error.placed:
                raise
            where = f" at {source[0]}:{source[1]}" if source else ""
            raise error.at(self.described(error, equation, where)) from None
        finally:
            self.source = outer
        return results if isinstance(results, list | tuple) else [results]

    def is_used(self, variable):
        return self.uses[variable] > 0

    def inline(self, function, *operands):
        """The result of a jnp function of these values, traced and translated in place."""
        (result,) = self.inline_all(function, *operands)
        return result

    def inline_all(self, function, *operands):
        """All results of a jnp function, likewise."""
        return self.evaluate(jax.make_jaxpr(function)(*map(self.type_of, operands)), *operands)


# ---- Rules common to all back ends.


@Walker.rule("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "remat", "checkpoint",
             "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
             "jaxpr_call", "custom_lin", "run_state", "core_closed_call", "mpmd_call")  # fmt: skip
def _call(w, equation, *operands):
    name = str(equation.params.get("name", ""))
    if name in ("floor_divide", "remainder") and len(operands) == 2:
        quick = w.integer_division(equation, name, *operands)
        if quick is not None:
            return quick
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            return w.evaluate(equation.params[key], *operands)
    raise UnsupportedError("a call without a jaxpr")


@Walker.rule("call_hi_primitive")
def _call_hi_primitive(w, equation, *operands):
    return w.evaluate(expanded(equation), *operands)


@Walker.rule("copy", "copy_p", "optimization_barrier", "pvary", "pcast", "stop_gradient",
             "reshard", "with_memory_space_constraint", "layout_constraint",
             "sharding_constraint", "xla_metadata_value", "name")  # fmt: skip
def _identity(w, equation, *operands):
    return list(operands)
