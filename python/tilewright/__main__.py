"""The command line: `tilewright` in an environment, `python -m tilewright`.

The program is the C++ library's, which the wheel ships with its headers and CMake package;
--cmake-dir and --include-dir print where they are.
"""

import os
import pathlib
import sys

_PREFIX = pathlib.Path(__file__).parent
_FOLDERS = {
    "--cmake-dir": _PREFIX / "lib" / "cmake" / "tilewright",
    "--include-dir": _PREFIX / "include",
}


def main():
    if len(sys.argv) == 2 and sys.argv[1] in _FOLDERS:
        print(_FOLDERS[sys.argv[1]])
        return
    # `bench --baseline` runs its baselines with the Python of this environment.
    os.environ.setdefault("TILEWRIGHT_PYTHON", sys.executable)
    program = _PREFIX / "bin" / "tilewright"
    os.execv(program, ["tilewright", *sys.argv[1:]])


if __name__ == "__main__":
    main()
