#!/usr/bin/env python3
"""Checks that libtilewright.so exports all functions of c_api.h and, of C++, only what the public
headers name, and that its SONAME has its version.

usage: check_symbols.py LIBRARY INCLUDE_FOLDER VERSION
"""

import pathlib
import re
import subprocess
import sys


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def components(symbol):
    """The names in a mangled C++ symbol up to its template arguments: tilewright, Tensor, dim."""
    found = re.match(r"_Z(?:T[ISV]|GV)?N[rVK]*((?:\d+\w+)?)", symbol)
    rest, names = found[1] if found else "", []
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    return names


def main():
    library, include, version = sys.argv[1:]
    headers = list(pathlib.Path(include).rglob("*.h"))
    public = set(re.findall(r"\w+", "\n".join(path.read_text() for path in headers)))
    c_header = pathlib.Path(include, "tilewright", "c_api.h").read_text()
    c_functions = set(re.findall(r"\b(tw_\w+)\(", re.sub(r"//.*", "", c_header)))
    listed = output_of("nm", "-D", "--defined-only", "--format=posix", library)
    symbols = [line.split()[0].split("@")[0] for line in listed.splitlines()]

    bad = [f"c_api.h declares {name}, which is not exported" for name in c_functions - set(symbols)]
    for symbol in symbols:
        names = components(symbol)
        if symbol not in c_functions and not (names and public.issuperset(names)):
            readable = output_of("c++filt", symbol).strip()
            bad.append(f"exported, but in no public header: {readable}")
    soname = f"libtilewright.so.{'.'.join(version.split('.')[:2])}"
    if f"[{soname}]" not in output_of("readelf", "-d", library):
        bad.append(f"expected the SONAME {soname}, as find_package takes the same minor version")
    for line in bad:
        print(line)
    print(f"{len(symbols)} symbols are exported, {len(c_functions)} of them C functions")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
