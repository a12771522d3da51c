"""The table of element types: the library's names for those of NumPy, JAX and PyTorch."""

#: Keyed by the name that NumPy, ml_dtypes, JAX and PyTorch use.
NAMES = {
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
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
#: Those that NumPy lacks without ml_dtypes.
EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
#: Floats that the library converts to f32 to compute with.
NARROW_FLOATS = ("f16", "bf16", "f8e4m3", "f8e5m2")

_BITS = {"bool": 8, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8}


def is_float(name):
    return name[0] in "fb" and name != "bool"


def is_integer(name):
    return name[0] in "iu"


def bits_of(name):
    """The bits of an element in memory."""
    return _BITS.get(name) or int(name[1:])
