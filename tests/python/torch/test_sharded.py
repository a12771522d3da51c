"""DTensors, on four processes of one machine."""

import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).with_name("sharded_calls.py")


def test_four_ranks():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "4", str(PROGRAM)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("done") == 4
