"""The Python of README.md and docs/ runs as it is, each block in its own namespace."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_blocks_of_the_documentation_run():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "run_snippets.py", "python"],
        capture_output=True,
        text=True,
    )
    # The output names blocks whose framework is not installed.
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "blocks of Python run" in done.stdout
