#!/usr/bin/env python3
"""Checks the types of the Python package, and that users' checkers see them.

usage: check_types.py TOOLS PYTHON

The folder TOOLS has mypy and pyright; PYTHON has the package installed, for whose extension modules
nanobind writes stubs. mypy checks a copy of the package with its stubs, in build/types; both check
tests/python/typed_program.py, which uses the package as a typed program does.
"""

import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "types"
PACKAGE = FOLDER / "tilewright"
PROGRAM = ROOT / "tests" / "python" / "typed_program.py"
#: pyright infers missing annotations, often wrongly for this package, which adds methods to the
#: classes of its extension module: it only checks the stubs and the program.
PYRIGHT = {
    "include": [PROGRAM.name, "tilewright/_core", "tilewright/__init__.py"],
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    # Operators on traced values return traced values, and several C++ overloads are one in Python.
    "reportIncompatibleMethodOverride": False,
    "reportOverlappingOverload": False,
    "reportInconsistentOverload": False,
    "reportUnsupportedDunderAll": False,
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
    "reportUnnecessaryTypeIgnoreComment": True,
    "enableTypeIgnoreComments": False,
}


def assemble(python):
    """Puts the package with its stubs, and the program, in FOLDER."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.so*")
    shutil.copytree(ROOT / "python" / "tilewright", PACKAGE, ignore=ignore)
    shutil.copy(PROGRAM, FOLDER)
    find = "import tilewright, pathlib; print(pathlib.Path(tilewright.__file__).parent)"
    installed = subprocess.run(
        [python, "-c", find], cwd=FOLDER.parent, capture_output=True, text=True
    )
    if installed.returncode != 0:
        raise SystemExit("check_types: the package is not installed: ./dev python")
    modules = pathlib.Path(installed.stdout.strip())
    for name, folder in (("_core", "."), ("_ffi", "jax")):
        if not list((modules / folder).glob(f"{name}.*.so")):
            continue
        stubs = [python, "-m", "nanobind.stubgen", "-q", "-r", "-m", name]
        subprocess.run([*stubs, "-i", modules / folder, "-O", PACKAGE / folder], check=True)
    for stub in (PACKAGE / "_core").glob("*.pyi"):  # imported outside of its package
        text = stub.read_text().replace("\nimport _core\n", "\nfrom tilewright import _core\n")
        stub.write_text(text)


def check(name, command):
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    if done.returncode != 0:
        text = (done.stdout + done.stderr).replace(f"{FOLDER}/", "")
        lines = text.replace("tilewright/", "python/tilewright/").replace(
            PROGRAM.name, str(PROGRAM.relative_to(ROOT))
        )
        print(lines, end="")
        print(f"check_types: {name} finds errors")
    return done.returncode == 0


def main():
    tools, python = (pathlib.Path(argument).absolute() for argument in sys.argv[1:])
    assemble(python)
    (FOLDER / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    config = ["--config-file", ROOT / "tools" / "mypy.ini", "--python-executable", python]
    fine = check("mypy", [tools / "mypy", *config, "-p", "tilewright"])
    fine &= check("mypy", [tools / "mypy", *config, PROGRAM.name])
    fine &= check("pyright", [tools / "pyright", "--pythonpath", python])
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
