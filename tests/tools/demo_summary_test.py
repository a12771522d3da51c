"""demo_summary.py: pictures, a line for each case, and a status that is 0 if all are right."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_summary.py"
LOG = "".join(
    f"== {name} ==\nBlockMask(shape=(1, 1, 8, 8), sparsity=0.00%,\n(0, 0)\n"
    + "".join(f"{'█' * (2 * i + 2):16}\n" for i in range(8))
    + ")\n"
    for name in ("causal", "noop", "document")
)


def row(case, op, impl="tilewright", **changes):
    return {
        "case": case,
        "op": op,
        "impl": impl,
        "ms": 2.5,
        "tflops": 0.05,
        "error": 1e-7,
        "ok": True,
        **changes,
    }


def summary(rows, complete=True):
    report = {"version": "0.1.0", "device": "a CPU", "complete": complete, "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        log, json_file = pathlib.Path(folder, "log"), pathlib.Path(folder, "json")
        log.write_text(LOG)
        json_file.write_text(json.dumps(report))
        done = subprocess.run([sys.executable, SCRIPT, log, json_file], capture_output=True)
        return done.returncode, done.stdout.decode()


class DemoSummary(unittest.TestCase):
    def test_shows_pictures_and_cases(self):
        both = [
            row("causal", op, impl)
            for op in ("forward", "backward")
            for impl in ("tilewright", "dense")
        ]
        status, text = summary(both)
        self.assertEqual(status, 0)
        lines = text.splitlines()
        self.assertEqual(lines[2].rstrip(), "██" + " " * 17 + "██")
        self.assertEqual(lines[10].split(), ["causal", "document"])
        self.assertIn(
            ["causal", "2.50", "50.0", "2.50", "50.0", "yes", "(1e-07)"], [x.split() for x in lines]
        )
        self.assertLessEqual(max(map(len, lines)), 80)

    def test_wrong_missing_and_interrupted_runs_fail(self):
        good = [row("causal", "forward"), row("causal", "backward")]
        self.assertEqual(summary([row("causal", "forward", ok=False), good[1]])[0], 1)
        self.assertIn("NO", summary([row("causal", "forward", ok=False), good[1]])[1])
        self.assertEqual(summary(good[:1])[0], 1)
        self.assertEqual(summary([])[0], 1)
        self.assertEqual(summary(good, complete=False)[0], 1)


if __name__ == "__main__":
    unittest.main()
