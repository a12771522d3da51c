"""Attributes of CUDA kernels: their types, and their values as the extension module takes them."""

import enum
import operator
from typing import Any

import numpy as np

from ._arrays import dtype_name


class Struct:
    """A struct of CUDA C++ by value: its name there, and its fields in order.

    `tw.Struct("Descriptor", rows="i64", eps="f32")` is
    `struct Descriptor { long long rows; float eps; };`. Compilation fails if the source declares it
    differently. A value is a dict.
    """

    def __init__(self, name: str, **fields):
        if not isinstance(name, str) or not fields:
            raise TypeError(
                f"[Struct] expected the name of a struct and its fields but got {name!r}, {fields}"
            )
        self.name = name
        self.fields = {
            field: dtype_name("Struct", f"the field `{field}`", dtype)
            for field, dtype in fields.items()
        }

    def __repr__(self):
        fields = ", ".join(f"{n}={d!r}" for n, d in self.fields.items())
        return f"Struct({self.name!r}, {fields})"


class Attribute:
    """An attribute of a CUDA kernel.

    - type: a dtype ("i64", np.float32, ...; bool, integers, f32, f64); "dtype" for an attribute
      that is a dtype; an `enum.Enum` of integers, or a dict of names and integers; a `tw.Struct`.
    - default: the value in calls that give none. A function, such as `lambda x, weight:
      x.shape[1]`, computes it from the inputs, and calls then cannot give it. Attributes declared
      before it are its keyword arguments.
    - passed: False for an attribute that functions of the call see but the kernel does not take.
    """

    def __init__(self, type: Any, default: Any = None, *, passed: bool = True):  # noqa: A002
        self.type, self.default, self.passed = type, default, bool(passed)
        self.kind: dict[str, Any]
        if isinstance(type, Struct):
            self.kind = {"kind": "struct", "struct": type.name, "fields": list(type.fields.items())}
        elif isinstance(type, enum.EnumMeta | dict):
            values = type.items() if isinstance(type, dict) else type.__members__.items()
            self.kind = {
                "kind": "enum",
                "values": [(str(n), operator.index(getattr(v, "value", v))) for n, v in values],
            }
        elif isinstance(type, str) and type == "dtype":
            self.kind = {"kind": "dtype"}
        else:
            self.kind = {"kind": dtype_name("Attribute", "a type", type)}

    @property
    def computed(self) -> bool:
        """Whether the default is a function of the inputs."""
        return callable(self.default) and not isinstance(self.default, type)

    def value(self, op, name, given):
        """A call's value for the extension module, which checks that it fits."""
        kind = self.kind["kind"]
        try:
            if kind == "dtype":
                return dtype_name(op, f"the attribute `{name}`", given)
            if kind == "enum":
                return given.name if isinstance(given, enum.Enum) else _text(given)
            if kind == "struct":
                return {str(field): _number(x) for field, x in dict(given).items()}
            return _number(given)
        except (TypeError, ValueError) as error:
            if str(error).startswith(f"[{op}]"):
                raise
            raise TypeError(
                f"[{op}] expected the attribute `{name}` to be {self.wanted()} but got {given!r}"
            ) from None

    def wanted(self) -> str:
        """What a value has to be, for error messages."""
        kind = self.kind["kind"]
        if kind == "enum":
            return "one of " + ", ".join(repr(n) for n, _ in self.kind["values"])
        return {"struct": f"a dict of the fields of {self.kind.get('struct')}"}.get(kind, kind)

    def schema(self) -> str:
        """Its type in the schema of a PyTorch operator."""
        kind = self.kind["kind"]
        if kind in ("dtype", "enum", "struct"):
            return "str"
        return "bool" if kind == "bool" else "float" if kind.startswith("f") else "int"


def attribute(value) -> Attribute:
    """What `attributes=` of tw.cuda_kernel takes: an Attribute, or its type alone."""
    return value if isinstance(value, Attribute) else Attribute(value)


def _text(given):
    if not isinstance(given, str):
        raise TypeError(given)
    return given


def _number(given):
    if isinstance(given, bool | np.bool_):
        return bool(given)
    if isinstance(given, float | np.floating):
        return float(given)
    try:
        return operator.index(given)
    except TypeError:
        return float(given.item()) if isinstance(given, np.generic) else _refuse(given)


def _refuse(given):
    raise TypeError(given)
