"""Walks jaxprs and writes tile IR: environment, dispatch, inlining, errors."""

from collections import Counter
from contextlib import contextmanager

import jax
from jax._src import source_info_util

from .text import UnsupportedError, Value, Writer, ir_dtype

RULES = {}  # primitive's name -> rule(translator, eqn, *operands) -> Value, or a list of them


def rule(*names):
    """Registers the translation of primitives. Names hold across JAX versions, objects do not."""

    def register(function):
        for name in names:
            RULES[name] = function
        return function

    return register


def inner_jaxpr(closed):
    """A jaxpr and its constants, of Jaxpr or ClosedJaxpr."""
    return getattr(closed, "jaxpr", closed), list(getattr(closed, "consts", ()))


# What only moves elements does so with each word of a random key.
_MOVES = frozenset(
    """broadcast_in_dim concatenate dynamic_slice expand_dims gather reshape select_n slice
                      split squeeze stack transpose unstack""".split()
)


def is_key(aval):
    """Whether an aval is of random keys: as Values their words are one more dimension."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def source_of(eqn):
    """The user's (file, line) that made an equation; None when unknown."""
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    return (frame.file_name, frame.start_line) if frame is not None else None


class Translator:
    """Translates the jaxprs of one kernel into one Writer."""

    def __init__(self, writer: Writer, program_ids=(), num_programs=(), axis_names=()):
        self.writer = writer
        self.program_ids = program_ids  # per grid axis that the kernel sees: () -> i32 Value
        self.num_programs = num_programs
        self.axis_names = axis_names  # per grid axis that the kernel sees, or ()
        self.platform = "cpu"  # what the program is lowered for
        self.checked = False  # report indices that leave their block
        self.recorder = None  # of the first translation, see grid.py
        self.read_only = set()  # Refs of inputs
        self.arrays = {}  # Ref -> the array behind it: aliased Refs share one
        self.kept_scratch = {}  # Ref -> shape of scratch that outlives a step of the grid
        self.source = None  # of the equation being translated
        self.uses = Counter()  # of the jaxpr being walked
        self.consumers = {}

    # ---- Values.

    def constant(self, value, dtype, shape=()):
        return self.writer.constant(value, dtype, shape)

    def like(self, value, number):
        """`number` in every element of a tile like `value`."""
        return self.writer.constant(number, value.dtype, value.shape)

    def is_used(self, var):
        return self.uses[var] > 0

    @contextmanager
    def guarded(self, condition=None):
        """What is written inside runs under a condition, or any number of times."""
        if self.recorder is None:
            yield
            return
        self.recorder.guards.append(condition.first_of if condition is not None else None)
        yield
        self.recorder.guards.pop()

    def scratch(self, dtype, shape):
        """Memory of the program's own, as a Ref."""
        from .refs import View

        type_ = f"scratch<{dtype}{list(shape) if shape else ''}>"
        return View.whole(self.writer.parameter("scratch", type_), dtype, tuple(shape))

    # ---- Jaxprs.

    def literal(self, atom):
        value = atom.val
        if getattr(value, "shape", ()) not in ((), None) and value.size != 1:
            raise UnsupportedError(
                f"a constant array of shape {value.shape}; pass it as an operand"
            )
        return self.constant(value, ir_dtype(atom.aval.dtype), tuple(atom.aval.shape))

    def evaluate(self, closed, *args):
        """The results of a jaxpr on Values and Views, written in place."""
        jaxpr, consts = inner_jaxpr(closed)
        # Arguments may stand for the constants too, as those of run_scoped do.
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        if len(args) < len(inputs):
            args = [*(self.captured(value) for value in consts), *args]
        env = dict(zip(inputs, args, strict=True))
        outer = self.uses, self.consumers
        self.uses, self.consumers = Counter(), {}
        for eqn in jaxpr.eqns:
            for atom in eqn.invars:
                if not hasattr(atom, "val"):
                    self.uses[atom] += 1
                    self.consumers[atom] = eqn
        for atom in jaxpr.outvars:
            if not hasattr(atom, "val"):
                self.uses[atom] += 1
                self.consumers[atom] = None

        def read(atom):
            return self.literal(atom) if hasattr(atom, "val") else env[atom]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        self.uses, self.consumers = outer
        return [read(atom) for atom in jaxpr.outvars]

    def captured(self, value):
        if isinstance(value, Value) or not hasattr(value, "dtype"):
            return value
        if value.size != 1:
            raise UnsupportedError(
                f"a captured array of shape {value.shape}; pass it as an operand"
            )
        return self.constant(value, ir_dtype(value.dtype), tuple(value.shape))

    def equation(self, eqn, operands):
        name = eqn.primitive.name
        outer = self.source
        # What a library traced once and kept knows no line: that of the call counts.
        source = self.source = source_of(eqn) or outer
        if source is not None:
            self.writer.locate(*source)
        try:
            translate = RULES.get(name)
            if translate is None:
                raise UnsupportedError("which has no counterpart in tile IR")
            keys = [is_key(var.aval) for var in eqn.invars]
            if any(keys) and name in _MOVES:
                results = self.words_moved(eqn, keys, operands)
            else:
                results = translate(self, eqn, *operands)
        except UnsupportedError as error:
            if getattr(error, "located", False):
                raise
            where = f" at {source[0]}:{source[1]}" if source else ""
            located = UnsupportedError(f"`{name}`{where}: {error}")
            located.located = True
            raise located from None
        finally:
            self.source = outer
        return results if isinstance(results, list | tuple) else [results]

    def words_moved(self, eqn, keys, operands):
        def moved(*values):
            return eqn.primitive.bind(*values, **eqn.params)

        axes = [-1 if key else None for key in keys]
        return self.inline_all(jax.vmap(moved, axes, -1), *operands)

    def inline(self, function, *operands):
        """The result of a jnp function of these Values, traced and written in place."""
        (result,) = self.inline_all(function, *operands)
        return result

    def inline_all(self, function, *operands):
        """All its results."""
        avals = [jax.ShapeDtypeStruct(v.shape, _JAX_DTYPES[v.dtype]) for v in operands]
        return self.evaluate(jax.make_jaxpr(function)(*avals), *operands)


def _jax_dtypes():
    import jax.numpy as jnp

    names = """bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32
               float64 float8_e4m3fn float8_e5m2"""
    return {ir_dtype(name): jnp.dtype(name) for name in names.split()}


_JAX_DTYPES = _jax_dtypes()
