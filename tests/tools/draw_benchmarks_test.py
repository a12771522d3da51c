"""draw_benchmarks.py: tables of `tilewright bench --json FILE`, and their charts."""

import importlib.util
import json
import pathlib
import tempfile
import unittest
import xml.dom.minidom

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "draw_benchmarks.py"


def load_script():
    spec = importlib.util.spec_from_file_location("draw_benchmarks", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Suite(unittest.TestCase):
    def setUp(self):
        self.script = load_script()
        rows = [
            {"case": "add & <co>", "impl": "plain", "ms": 3.0},
            {"case": "add & <co>", "impl": "numba", "ms": 40.0},
            {"case": "add & <co>", "impl": "tilewright", "ms": 2.0},
            {"case": "sort", "impl": "plain", "ms": 1.0},
            {"case": "sort", "impl": "tilewright", "ms": 4.0},
        ]
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / f"suite{run}.json" for run in range(3)]
            for run, path in enumerate(paths):
                slower = [
                    row | {"ms": row["ms"] * (1 + run) if row["impl"] == "numba" else row["ms"]}
                    for row in rows
                ]
                path.write_text(json.dumps({"rows": slower}))
            self.table = self.script.suite_table(paths[:1])
            self.table_of_three = self.script.suite_table(paths)

    def test_tables_have_times_of_others_over_ours(self):
        self.assertEqual(
            self.table.splitlines(),
            [
                "| kernel | plain C++ | Numba |",
                "|---|---|---|",
                "| add & <co> | 1.50 | 20 |",
                "| sort | 0.25 |  |",
            ],
        )

    def test_tables_of_several_runs_have_medians(self):
        self.assertIn("| add & <co> | 1.50 | 40 |", self.table_of_three)

    def test_charts_have_a_point_for_each_number_of_the_first_table(self):
        section = f"{self.table}\n\ntext\n\n| kernel | cause |\n|---|---|\n| sort | why |\n"
        chart = xml.dom.minidom.parseString(self.script.suite_chart("Title", section))
        legend = 2
        self.assertEqual(len(chart.getElementsByTagName("circle")), 3 + legend)
        texts = [node.firstChild.data for node in chart.getElementsByTagName("text")]
        self.assertIn("add & <co>", texts)
        self.assertNotIn("why", texts)


class HeadDimensions(unittest.TestCase):
    def setUp(self):
        self.script = load_script()
        times = [
            (16, "forward", "tilewright", 2.0, True),
            (16, "forward", "cudnn", 3.0, True),
            (16, "backward", "tilewright", 4.0, True),
            (8, "forward", "tilewright", 1.23456, True),
            (8, "backward", "tilewright", 9.0, False),
        ]
        rows = [
            {"case": f"B2 H16 S8192 D{d} bf16", "op": op, "impl": impl, "ms": ms, "ok": ok}
            for d, op, impl, ms, ok in times
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "sweep.json"
            path.write_text(json.dumps({"rows": rows}))
            self.table = self.script.head_dim_table(path)

    def test_tables_have_milliseconds_and_nothing_for_wrong_or_missing_rows(self):
        self.assertEqual(
            self.table.splitlines(),
            [
                "| head dimension | forward | forward, cudnn | backward |",
                "|---|---|---|---|",
                "| 8 | 1.23 |  |  |",
                "| 16 | 2 | 3 | 4 |",
            ],
        )

    def test_charts_have_a_line_for_each_column_with_a_point_for_each_number(self):
        chart = self.script.head_dim_chart("Title", f"text\n\n{self.table}\n\ntext\n")
        lines = xml.dom.minidom.parseString(chart).getElementsByTagName("polyline")
        points = [len(line.getAttribute("points").split()) for line in lines]
        self.assertEqual(points, [2, 1, 1])


if __name__ == "__main__":
    unittest.main()
