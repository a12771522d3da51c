"""count_tests.py: single cases are counted, crashes and empty runs never pass."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "count_tests.py"
GOOD = {"status": "RUN", "result": "COMPLETED"}
BAD = {**GOOD, "failures": [{"failure": "no"}]}
SKIPPED = {"status": "RUN", "result": "SKIPPED"}
DISABLED = {"status": "NOTRUN", "result": "SUPPRESSED"}


def ctest_xml(**outcomes):
    """A report with a passed (True) or failed (False) row for each name."""
    rows = "".join(
        f'<testcase name="{name}" status="run">{"" if ok else "<failure/>"}</testcase>'
        for name, ok in outcomes.items()
    )
    return f"<testsuite>{rows}</testsuite>"


def count(ctest=None, whole=False, **programs):
    """(exit status, last line) for a ctest report and {program: cases}; or all lines."""
    with tempfile.TemporaryDirectory() as folder:
        if ctest is not None:
            (pathlib.Path(folder) / "ctest.xml").write_text(ctest)
        for name, cases in programs.items():
            report = {"testsuites": [{"testsuite": cases}]}
            (pathlib.Path(folder) / f"{name}_tests.json").write_text(json.dumps(report))
        done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
        if whole:
            return done.stdout.splitlines()
        return done.returncode, done.stdout.splitlines()[-1]


class CountTests(unittest.TestCase):
    def test_counts_cases_not_programs(self):
        xml = ctest_xml(ir=True, consumer=True)
        self.assertEqual(count(xml, ir=[GOOD, GOOD, SKIPPED, DISABLED]), (0, "3 passed, 0 failed"))

    def test_a_failed_case_fails(self):
        self.assertEqual(count(ctest_xml(ir=False), ir=[GOOD, BAD]), (1, "1 passed, 1 failed"))

    def test_a_failed_program_without_a_report_fails(self):
        self.assertEqual(count(ctest_xml(ir=False)), (1, "0 passed, 1 failed"))

    def test_a_crash_after_the_report_fails(self):
        self.assertEqual(count(ctest_xml(ir=False), ir=[GOOD]), (1, "1 passed, 1 failed"))

    def test_what_a_failed_case_said_is_repeated(self):
        bad = {**BAD, "name": "Case", "classname": "Suite"}
        bad["failures"] = [{"failure": "\n".join(f"line {i}" for i in range(30))}]
        lines = count(ctest_xml(ir=False), ir=[GOOD, bad], whole=True)
        start = lines.index("Suite.Case (ir) failed:")
        self.assertEqual(lines[start + 1 : start + 14][::12], ["  line 0", "failed: ir"])

    def test_what_a_failed_script_said_is_repeated(self):
        row = '<testcase name="links"><failure message="a.md has no b"/></testcase>'
        lines = count(f"<testsuite>{row}</testsuite>", whole=True)
        self.assertEqual(lines[2:4], ["links failed:", "  a.md has no b"])

    def test_the_slowest_cases_are_named(self):
        cases = [
            {**GOOD, "name": f"Case{i}", "classname": "Suite", "time": f"{i}.5s"} for i in range(20)
        ]
        lines = count(ctest_xml(ir=True), ir=cases, whole=True)
        self.assertEqual(lines[0], "the slowest 10:")
        self.assertEqual(lines[1].split(), ["19.5", "s", "Suite.Case19", "(ir)"])
        self.assertEqual(len(lines), 12)

    def test_nothing_run_is_no_pass(self):
        self.assertEqual(count(ctest_xml()), (1, "0 passed, 0 failed"))
        self.assertEqual(count(None, ir=[GOOD]), (1, "0 passed, 1 failed"))


if __name__ == "__main__":
    unittest.main()
