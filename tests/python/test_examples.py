"""Every program of examples/python runs to the end, with its own checks, and its kernels are not
longer than those of the C++ example with the same number."""

import collections
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__, "../../..").resolve()
HELPERS = {"pallas_attention"}
EXAMPLES = sorted(p for p in (ROOT / "examples/python").glob("*.py") if p.stem not in HELPERS)
#: With TILEWRIGHT_DEVICE=cuda: attention in blocks that were chosen for a CPU, in f64 or with so many
#: mods that compiling takes minutes, and a refusal.
NOT_OFFLOADED = {"alibi", "notebook", "export_attention"}
NUMBERED = [path for path in EXAMPLES if path.stem[0].isdigit()]


def run(*command):
    """(standard output, the functions of IR that were traced)."""
    environment = {**os.environ, "TILEWRIGHT_DEBUG_IR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, functions(done.stderr)


def functions(text):
    """(name, how often each operation occurs) of each function."""
    found = []
    for function in re.findall(r"^func @.*?^}", text, re.M | re.S):
        name = re.match(r"func @(\w+)", function)[1]
        body = function.partition("{\n")[2]
        ops = re.findall(r"^ +(?:%[\w, %]+= )?(\w+)", body, re.M)
        # Python's integer division rounds down, C++'s towards zero.
        found.append((name, collections.Counter("div" if op == "floordiv" else op for op in ops)))
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    if "TILEWRIGHT_DEVICE" in os.environ and path.stem in NOT_OFFLOADED:
        pytest.skip("NOT RUN: not on a GPU through TILEWRIGHT_DEVICE")
    output, ir = run(sys.executable, str(path))
    assert output
    if path not in NUMBERED:
        return
    in_cpp = ROOT / f"build/examples/example_{path.stem}"
    if not in_cpp.exists():
        pytest.skip(f"{in_cpp} is not built")
    _, expected = run(str(in_cpp))
    assert ir
    assert [name for name, _ in ir] == [name for name, _ in expected]
    for (name, ours), (_, theirs) in zip(ir, expected, strict=True):
        longer = {op: (n, theirs[op]) for op, n in ours.items() if n > theirs[op]}
        assert not longer, f"{name}: more instructions than in C++: {longer}"


def test_every_cpp_example_has_its_twin():
    in_cpp = {path.stem for path in (ROOT / "examples").glob("[0-9]*.cpp")}
    assert {path.stem for path in NUMBERED} == in_cpp
