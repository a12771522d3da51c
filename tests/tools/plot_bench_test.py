"""plot_bench.py: titles tell what is shown, names of cases do not overlap, scales fit the bars."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "plot_bench.py"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def load_script():
    spec = importlib.util.spec_from_file_location("plot_bench", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(case, ms, impl="tilewright", op="forward", **more):
    return {
        "case": case,
        "op": op,
        "impl": impl,
        "ms": ms,
        "tflops": None,
        "gbs": None,
        "ratio": None,
        "ok": True,
        **more,
    }


def run_of(*rows, **more):
    return {"device": "a CPU", "version": "9.9", "options": ["bench", "norm"], "rows": rows, **more}


def plot(data, *arguments):
    text = data if isinstance(data, str) else json.dumps(data)
    return subprocess.run(
        [sys.executable, SCRIPT, "-", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


class PlotBench(unittest.TestCase):
    def test_titles_name_metric_machine_and_run(self):
        out = plot(run_of(row("a", 1), row("b", 2, op="backward")), "--text").stdout
        for part in ("forward, backward: median milliseconds", "a CPU", "tilewright bench norm"):
            self.assertIn(part, out)
        self.assertNotIn("failed", out)
        self.assertNotIn("cut short", out)
        bad = plot(run_of(row("a", 1, ok=False), complete=False), "--text").stdout
        self.assertIn("hatched: the check failed", bad)
        self.assertIn("the run was cut short", bad)
        some = plot(run_of(row("a", 1, ratio=2.0), row("b", 2)), "--text", "--metric", "ratio")
        self.assertIn("1 rows without this figure are left out", some.stdout)

    def test_bad_input_is_named(self):
        for data, part in (
            ("no json", "expected the output of tilewright bench --json"),
            (run_of(), "expected rows with ms"),
            ({"device": "x"}, "expected the output of tilewright bench --json"),
        ):
            result = plot(data, "--text")
            self.assertEqual(result.returncode, 2)
            self.assertTrue(result.stderr.startswith("[plot_bench] "), result.stderr)
            self.assertIn(part, result.stderr)
        self.assertIn("--out", plot(run_of(row("a", 1))).stderr)

    @unittest.skipUnless(HAS_MATPLOTLIB, "needs matplotlib")
    def test_names_do_not_overlap_and_scales_fit(self):
        script = load_script()
        cases = [f"B{n} H8 S4096 D64, a case with a long name that takes lines" for n in range(8)]
        rows = [row(case, 1 + n, impl) for n, case in enumerate(cases) for impl in ("x", "y")]
        figure = script.figure_of(["title"], script.group(rows), "ms")
        axes = figure.axes[0]
        figure.canvas.draw()
        boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
        for i, box in enumerate(boxes):
            self.assertFalse(any(box.overlaps(other) for other in boxes[i + 1 :]))
        self.assertEqual(axes.get_xscale(), "linear")
        wide = script.figure_of(["t"], script.group([row("a", 0.01), row("b", 100)]), "ms")
        self.assertEqual(wide.axes[0].get_xscale(), "log")
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "p.svg"
            self.assertEqual(plot(run_of(*rows), "--out", str(out)).returncode, 0)
            self.assertGreater(out.stat().st_size, 1000)


if __name__ == "__main__":
    unittest.main()
