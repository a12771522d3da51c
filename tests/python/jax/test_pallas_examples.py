"""The Pallas tutorial, and the example from a C++ file to an op, run to the end."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "jax"
PREFIX = ROOT / "build" / "python" / "prefix"


def test_pallas_tutorial(capsys):
    runpy.run_path(str(EXAMPLES / "pallas_tutorial.py"), run_name="__main__")
    assert "taken over: ok" in capsys.readouterr().out


@pytest.mark.skipif(not (PREFIX / "include").is_dir(), reason="needs the library of ./dev python")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_custom_op(tmp_path):
    library = tmp_path / "librms_norm.so"
    folder = EXAMPLES / "custom_op"
    compiler = ["c++", "-std=c++20", "-shared", "-fPIC", str(folder / "rms_norm.cpp")]
    paths = [f"-I{PREFIX}/include", f"-L{PREFIX}/lib", "-ltilewright"]
    subprocess.run([*compiler, "-o", str(library), *paths], check=True)
    found = f"{PREFIX}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run(
        [sys.executable, str(folder / "rms_norm.py"), str(library)],
        env={**os.environ, "LD_LIBRARY_PATH": found},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "8 devices: 1 all-reduce, 0 all-gather" in done.stdout
