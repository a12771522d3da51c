"""run_logged.py: the output goes to the log, and the command's progress is shown."""

import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "run_logged.py"
#: Prints ninja's output for `sys.argv[1]` steps, and exits with a status.
STEPS = """
import sys, time
for step in range(1, int(sys.argv[1]) + 1):
    print(f"[{step}/{sys.argv[1]}] Building part {step}", flush=True)
    time.sleep(0.01)
sys.exit(int(sys.argv[2]))
"""


class RunLogged(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.log = pathlib.Path(temporary.name) / "log"

    def command(self, steps, status=0):
        program = [sys.executable, "-c", STEPS, str(steps), str(status)]
        return [sys.executable, SCRIPT, self.log, "build", *program]

    def run_it(self, *arguments):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_a_file_gets_a_line_for_each_tenth(self):
        status, shown = self.run_it(40)
        self.assertEqual(status, 0)
        self.assertNotIn("\r", shown)
        self.assertNotIn("Building", shown)
        self.assertLessEqual(len(shown.splitlines()), 11)
        self.assertIn("build: done in", shown)
        self.assertIn("[40/40] Building part 40", self.log.read_text())

    def test_a_failure_shows_the_end_of_the_log_and_its_place(self):
        status, shown = self.run_it(100, 3)
        self.assertEqual(status, 3)
        self.assertIn("build: failed with status 3", shown)
        self.assertIn("[100/100] Building part 100", shown)
        self.assertNotIn("[50/100]", shown)
        self.assertIn(str(self.log), shown)

    def test_a_terminal_gets_one_line_that_is_wiped(self):
        leader, follower = pty.openpty()
        done = subprocess.Popen(self.command(40), stdout=follower, stderr=follower)
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 4096):
                shown += chunk
        except OSError:  # the end of output, on Linux
            pass
        os.close(leader)
        self.assertEqual(done.wait(), 0)
        text = shown.decode()
        self.assertIn("\r\x1b[Kbuild: 40 of 40, ", text)
        self.assertRegex(text, r"\r\x1b\[K(\r\x1b\[K)?build: done in \d+ s\r\n$")
        self.assertEqual(text.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
