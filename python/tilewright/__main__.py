"""The command line: `tilewright` in an environment, `python -m tilewright`.

The program is that of the C++ library, which the wheel holds with its headers and its CMake
package; --cmake-dir and --include-dir print where these are.
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
    # The Python of this environment runs what `bench --baseline` compares with.
    os.environ.setdefault("TILEWRIGHT_PYTHON", sys.executable)
    program = _PREFIX / "bin" / "tilewright"
    os.execv(program, ["tilewright", *sys.argv[1:]])


if __name__ == "__main__":
    main()
