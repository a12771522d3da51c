"""Long commands show progress on a real terminal, and erase it before their results.

usage: terminal_test.py PROGRAM [unittest's arguments]
"""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = None
WIPE = "\r\x1b[K"


def run(*arguments):
    subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True)


def on_terminal(*arguments):
    """(seconds, everything that the terminal gets)."""
    leader, follower = pty.openpty()
    start = time.monotonic()
    process = subprocess.Popen(
        [PROGRAM, *map(str, arguments)], stdout=follower, stderr=follower, stdin=follower
    )
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:  # the end of output, on Linux
        pass
    os.close(leader)
    status = process.wait()
    text = shown.decode().replace("\r\n", "\n")
    assert status == 0, text
    return time.monotonic() - start, text


def what_stays(text):
    """The lines that are visible at the end."""
    return [re.sub(rf".*{re.escape(WIPE)}", "", line) for line in text.split("\n")]


class Terminal(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def check(self, heads, length):
        """Runs a check by the slow single-threaded reference."""
        file, out = self.folder / "x.npy", self.folder / "out.npy"
        run("random", "--out", file, "--shape", f"1,{heads},{length},64")
        arrays = ["--query", file, "--key", file, "--value", file, "--out", out]
        seconds, text = on_terminal("attention", *arrays, "--check", "--threads", 1)
        if seconds < 3.5:
            self.skipTest(f"NOT RUN: this machine is too fast, {seconds:.1f} s")
        stays = what_stays(text)
        self.assertRegex(stays[0], "^wrote .*out.npy: f32")
        self.assertRegex(stays[1], "^check out +largest error .*: ok$")
        self.assertRegex(stays[2], "^check lse +largest error .*: ok$")
        self.assertEqual(stays[3:], [""])
        return text

    def test_seconds_and_shares_are_shown_and_wiped(self):
        """From the third second on, however long each step takes."""
        text = self.check(4, 1280)
        self.assertIn(f"{WIPE}check, 2 s", text)
        self.assertRegex(text, rf"{re.escape(WIPE)}check, \d s, (25|50|75)%")

    def test_short_work_leaves_no_trace(self):
        _, text = on_terminal("mask", "causal", "--q-len", 512, "--kv-len", 512)
        self.assertNotIn("\r", text)
        self.assertIn("sparsity", text)

    def test_a_terminal_is_no_standard_input(self):
        with self.assertRaises(AssertionError) as caught:
            on_terminal("attention", "--query", "-", "--key", "-", "--value", "-", "--out", "-")
        self.assertIn("expected", str(caught.exception))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
