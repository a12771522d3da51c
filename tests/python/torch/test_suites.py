"""tools/run_torch_suite.py: several processes, tests that crash or hang, lists, and resuming."""

import json
import pathlib
import runpy
import subprocess
import sys

TOOL = pathlib.Path(__file__, "../../../../tools/run_torch_suite.py").resolve()
FILE = """
import ctypes, pathlib, time, unittest

class Case(unittest.TestCase):
    def setUp(self):
        with pathlib.Path({runs!r}).open("a") as runs:
            runs.write(self._testMethodName + "\\n")
    def test_crash(self):
        ctypes.string_at(0)
    def test_fail(self):
        self.assertEqual(1, 2)
    def test_hang(self):
        time.sleep(1000)
    @unittest.skip("why not")
    def test_skip(self):
        pass

for n in range(6):
    setattr(Case, f"test_pass_{{n}}", lambda self: None)
"""
# What later versions of torch's files say of devices.
LATER = """
import unittest
HAS_GPU = {gpu}
if HAS_GPU:
    test_device = (
        "cuda",
        "cpu",
    )
    SKIP_UT_ON_CPU = False
else:
    test_device = ("cpu",)
    SKIP_UT_ON_CPU = True
only_for = (test_device[0] if HAS_GPU else "cuda",)

class Case:
    def __init__(self):
        self.test_inference_only = False
        if test_device[0] == "cpu":
            self.test_inference_only = True
"""
LIST = """
failed Case::test_crash  # crashes
failed gpus<100 torch>=2.0 Case::test_f*l  # fails
failed gpus>=100 Case::test_pass_0  # of another machine
failed torch<2.0 Case::test_pass_1  # of another version
skipped Case::test_skip  # skipped
"""


class Suite:
    def __init__(self, folder):
        self.folder, self.runs = folder, folder / "runs"
        (folder / "test_case.py").write_text(FILE.format(runs=str(self.runs)))
        (folder / "list.txt").write_text(LIST)

    def __call__(self, *options):
        self.runs.write_text("")
        command = [sys.executable, TOOL, "test_case.py", "--expected", "list.txt", *options]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=500)
        return done.returncode, done.stdout


def test_a_suite_in_processes_that_crash_and_hang(tmp_path):
    suite = Suite(tmp_path)
    status, shown = suite("--jobs", "2", "--timeout", "3", "--state", "state")
    assert status == 1, shown
    assert "{'failed': 3, 'passed': 6, 'skipped': 1}" in shown
    assert "Case::test_hang: expected passed but failed: took longer than 3 s" in shown
    assert "1 unexpected outcomes" in shown
    assert sorted(suite.runs.read_text().split()) == sorted(
        ["test_crash", "test_fail", "test_hang", *(f"test_pass_{n}" for n in range(6))]
    )

    # What the state has is not run again; what it lacks is.
    lines = (tmp_path / "state").read_text().splitlines()
    records = {record["test"]: record for record in map(json.loads, lines[1:])}
    assert records["Case::test_crash"]["why"] == "its process ended with status -11"
    assert "1 != 2" in records["Case::test_fail"]["details"]
    kept = [line for line in lines if "test_pass_3" not in line and "test_hang" not in line]
    hang = {"test": "Case::test_hang", "outcome": "passed", "why": ""}
    (tmp_path / "state").write_text("\n".join([*kept, json.dumps(hang)]) + "\n")
    status, shown = suite("--state", "state")
    assert status == 0, shown
    assert "{'failed': 2, 'passed': 7, 'skipped': 1}" in shown
    assert suite.runs.read_text().split() == ["test_pass_3"]

    # Outcomes of another file are refused.
    (tmp_path / "state").write_text('{"file": "test_other.py"}\n')
    assert suite("--state", "state")[0] == 1 and not suite.runs.read_text()


def test_a_suite_stops_after_its_seconds(tmp_path):
    suite = Suite(tmp_path)
    status, shown = suite("--seconds", "0")
    assert status == 2 and "some tests are left" in shown
    assert not suite.runs.read_text()


def test_later_files_leave_out_nothing_on_a_cpu_and_cpus_beside_a_gpu(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(TOOL.parent)
    write_copy = runpy.run_path(str(TOOL))["write_copy"]
    for device in "cpu", "cuda":
        (tmp_path / "test_later.py").write_text(LATER.format(gpu=device == "cuda"))
        (tmp_path / device).mkdir()
        copy = write_copy(tmp_path / "test_later.py", tmp_path / device, device)
        later = runpy.run_path(str(copy))
        assert later["test_device"] == later["only_for"] == (device,)
        assert not later["SKIP_UT_ON_CPU"]
        assert not later["Case"]().test_inference_only
