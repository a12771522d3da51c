"""The Python of README.md and docs/ runs as it stands, each block in a namespace of its own."""

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
    # Blocks whose framework is not installed are named there.
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "blocks of Python run" in done.stdout
