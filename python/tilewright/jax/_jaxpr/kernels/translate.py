"""The back end for tile programs: translates a kernel's values and primitives."""

from contextlib import contextmanager

import jax

from ...._errors import UnsupportedError
from ..walker import JAX_DTYPES, Walker, ir_dtype
from .arithmetic import cast, elementwise
from .program import Program, Value
from .refs import View

# Primitives that only move elements: on random keys they move each word.
_MOVES = frozenset(
    """broadcast_in_dim concatenate dynamic_slice expand_dims gather reshape select_n slice
                      split squeeze stack transpose unstack""".split()
)


def is_key(aval):
    """Whether an aval is of random keys, whose words are one more dimension of a Value."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def aval_of(equation, index=0):
    """The dtype and shape of a result's Value."""
    aval = equation.outvars[index].aval
    if is_key(aval):
        return "u32", (*aval.shape, *aval.dtype._impl.key_shape)
    return ir_dtype(aval.dtype), tuple(aval.shape)


class KernelWalker(Walker):
    """Translates the jaxprs of one kernel into one Program. Values are Values and Views."""

    def __init__(self, program: Program):
        super().__init__()
        self.program = program
        self.program_ids = ()  # per grid axis that the kernel sees: () -> i32 Value
        self.num_programs = ()
        self.axis_names = ()  # per grid axis that the kernel sees, or ()
        self.platform = "cpu"  # what the program is lowered for
        self.checked = False  # whether to report indices that leave their block
        self.recorder = None  # in the first translation, see grid.py
        self.read_only = set()  # Refs of inputs
        self.arrays = {}  # Ref -> its array: aliased Refs share one
        self.kept_scratch = {}  # Ref -> shape of scratch that outlives a step of the grid

    # ---- Values.

    def number(self, value, dtype, shape=()):
        """A tile with this number in every element."""
        return self.program.constant(value, dtype, shape)

    def like(self, value, number):
        """`number` in every element of a tile like `value`."""
        return self.program.constant(number, value.dtype, value.shape)

    def scratch(self, dtype, shape):
        """A Ref to memory of the program's own."""
        return View.whole(self.program.scratch(dtype, shape), dtype, tuple(shape))

    @contextmanager
    def guarded(self, condition=None):
        """Marks what is emitted inside as conditional, or as run any number of times."""
        if self.recorder is None:
            yield
            return
        self.recorder.guards.append(condition.first_of if condition is not None else None)
        yield
        self.recorder.guards.pop()

    # ---- Hooks of the walker.

    def literal(self, atom):
        return self._number(atom.val, atom.aval.dtype, atom.aval.shape, "constant")

    def constant(self, value):
        if isinstance(value, Value | View) or not hasattr(value, "dtype"):
            return value
        return self._number(value, value.dtype, value.shape, "captured")

    def _number(self, value, dtype, shape, kind):
        if getattr(value, "shape", ()) not in ((), None) and value.size != 1:
            raise UnsupportedError(
                f"a {kind} array of shape {tuple(value.shape)}; pass it as an operand"
            )
        return self.number(value, ir_dtype(dtype), tuple(shape))

    def type_of(self, value):
        return jax.ShapeDtypeStruct(value.shape, JAX_DTYPES[value.dtype])

    def locate(self, file, line):
        self.program.builder.set_location(file, line)

    def apply(self, equation, operands):
        keys = [is_key(variable.aval) for variable in equation.invars]
        if any(keys) and equation.primitive.name in _MOVES:
            return self._words_moved(equation, keys, operands)
        return super().apply(equation, operands)

    def _words_moved(self, equation, keys, operands):
        def moved(*values):
            return equation.primitive.bind(*values, **equation.params)

        axes = [-1 if key else None for key in keys]
        return self.inline_all(jax.vmap(moved, axes, -1), *operands)

    def unknown(self, equation):
        raise UnsupportedError("which has no counterpart in tile IR")

    def described(self, error, equation, where):
        return f"`{equation.primitive.name}`{where}: {error}"

    def integer_division(self, equation, name, a, b):
        dtype = equation.outvars[0].aval.dtype
        if dtype.kind not in "iu" or not b.is_constant or b.constant == 0:
            return None
        op = "floordiv" if name == "floor_divide" else "floormod"
        shape = tuple(equation.outvars[0].aval.shape)
        return elementwise(self, op, [a, cast(self, b, a.dtype)], a.dtype, shape)


rule = KernelWalker.rule
