"""Tile IR as text, and the values it is written about."""

import math
from dataclasses import dataclass

import numpy as np

_NAMES = {
    "bool": "bool",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_BITS = {"bool": 8, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8}


MAX_RANK = 8  # of tiles and of arrays


class UnsupportedError(NotImplementedError):
    """What cannot be translated; the translator adds the user's source line."""


def ir_dtype(dtype):
    """The IR's name of a NumPy or JAX dtype; UnsupportedError for one it lacks."""
    name = _NAMES.get(str(dtype))
    if name is None:
        raise UnsupportedError(f"elements of {dtype}")
    return name


def is_float(dtype):
    return dtype[0] in "fb" and dtype != "bool"


def is_integer(dtype):
    return dtype[0] in "iu"


def bits_of(dtype):
    return _BITS.get(dtype) or int(dtype[1:])


def type_text(dtype, shape):
    return dtype + (f"[{', '.join(map(str, shape))}]" if shape else "")


def literal(value, dtype):
    """A Python or NumPy number as the IR writes it."""
    if dtype == "bool":
        return "true" if value else "false"
    if is_integer(dtype):
        bits, wrapped = bits_of(dtype), int(value)
        wrapped &= (1 << bits) - 1
        if dtype[0] == "i" and wrapped >> (bits - 1):
            wrapped -= 1 << bits
        return str(wrapped)
    value = float(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value) if dtype == "f64" else repr(float(np.float32(value)))


@dataclass(frozen=True)
class Affine:
    """An integer tile known to be offset + sum of factor * scalar + sum of step * (index along
    axis). Positions are taken not to overflow their type."""

    offset: int
    terms: tuple  # (scalar Value, factor), each Value once
    steps: tuple  # one int per axis; () of a scalar


@dataclass(eq=False)
class Value:
    """A tile or scalar of the IR. Constants have no name until something uses them."""

    dtype: str
    shape: tuple
    name: str | None = None
    constant: object = None  # the one value of every element, a Python number
    affine: Affine | None = None
    truth: "Value | None" = None  # the bool that an integer 0 or 1 came from
    first_of: frozenset | None = None  # of a condition: scalars that are all 0 where it holds
    pending: object = None  # writes the instruction at the first use; may take an accumulator
    transposed: "tuple | None" = None  # (source, permutation) of a transpose

    @property
    def rank(self):
        return len(self.shape)

    @property
    def is_constant(self):
        return self.constant is not None


class Writer:
    """The text of one kernel: parameters, constants in front, then instructions."""

    def __init__(self, name):
        self.name = name
        self.parameters = []
        self.grid = []
        self.hints = ""
        self._constants = {}
        self._lines = []
        self._depth = 1
        self._next = 0
        self._location = self._written = None

    # ---- Names and values.

    def fresh(self):
        self._next += 1
        return f"%{self._next - 1}"

    def parameter(self, hint, type_, alias=None):
        """Adds a Ref parameter and returns its name."""
        name = "%" + "".join(c if c.isalnum() or c == "_" else "_" for c in hint)
        if name[1:2].isdigit() or len(name) == 1:
            name = "%_" + name[1:]
        taken = {p[0] for p in self.parameters}
        unique, number = name, 1
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        self.parameters.append((unique, type_ + (f" alias {alias}" if alias is not None else "")))
        return unique

    def constant(self, value, dtype, shape=()):
        if isinstance(value, np.generic | np.ndarray):
            value = value.item()
        if is_integer(dtype):
            value = int(literal(value, dtype))
        elif dtype != "bool":
            value = float(value)
        affine = Affine(value, (), (0,) * len(shape)) if dtype in ("i32", "i64") else None
        return Value(dtype, tuple(shape), constant=value, affine=affine)

    def use(self, value, accumulator=None):
        """The name of a value, writing what was put off until now."""
        if value.name is None:
            if value.pending is not None:
                pending, value.pending = value.pending, None
                pending(accumulator)
            else:
                value.name = self._constant_name(value)
        return value.name

    def _constant_name(self, value):
        key = (literal(value.constant, value.dtype), value.dtype, value.shape)
        if key not in self._constants:
            self._constants[key] = self.fresh()
        return self._constants[key]

    # ---- Instructions.

    def locate(self, file, line):
        """The user's source line of the instructions that follow."""
        self._location = (file, line)

    def line(self, text):
        if self._location != self._written:
            self._written = self._location
            file, line = self._location
            escaped = file.replace("\\", "\\\\").replace('"', '\\"')
            self._lines.append("  " * self._depth + f'loc "{escaped}" {line}')
        self._lines.append("  " * self._depth + text)

    def emit(self, op, operands, dtype, shape, attributes="", **facts):
        """One instruction with one result."""
        result = Value(dtype, tuple(shape), **facts)
        names = ", ".join(self.use(operand) for operand in operands)
        result.name = self.fresh()
        text = " ".join(part for part in (op, names, attributes) if part)
        self.line(f"{result.name} = {text} : {type_text(dtype, result.shape)}")
        return result

    def open(self, text):
        self.line(text + " {")
        self._depth += 1

    def between(self, text):
        self._depth -= 1
        self._lines.append("  " * self._depth + "} " + text + " {")
        self._depth += 1

    def close(self):
        self._depth -= 1
        self._lines.append("  " * self._depth + "}")

    def text(self):
        parameters = ", ".join(f"{name}: {type_}" for name, type_ in self.parameters)
        grid = f" grid [{', '.join(map(str, self.grid))}]" if self.grid else ""
        constants = [
            f"  {name} = constant {value} : {type_text(dtype, shape)}"
            for (value, dtype, shape), name in self._constants.items()
        ]
        body = "\n".join(constants + self._lines + ["  yield"])
        return f'func @"{self.name}"({parameters}){grid}{self.hints} {{\n{body}\n}}\n'
