#!/usr/bin/env python3
"""Runs a command with its output in a log, and shows its progress.

usage: run_logged.py LOG LABEL COMMAND...

Lines such as `[46/135] Building ...` (ninja's) are progress: a terminal shows them as one line that
is overwritten, anything else gets a line for each tenth; other commands show the elapsed seconds.
The exit status is the command's; if it is not 0 the log's last lines are shown.
"""

import pathlib
import re
import selectors
import subprocess
import sys
import time

STEP = re.compile(rb"^\[(\d+)/(\d+)\]")
LAST_LINES = 40


def duration(seconds):
    seconds = int(seconds)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"


class Display:
    """A command's progress on stderr."""

    def __init__(self, label, out=sys.stderr):
        self.label, self.out = label, out
        self.start = time.monotonic()
        self.tenth = 0
        self.drawn = False

    def update(self, done, total):
        passed = duration(time.monotonic() - self.start)
        steps = f"{done} of {total}, " if total else ""
        if self.out.isatty():
            self.out.write(f"\r\033[K{self.label}: {steps}{passed}")
            self.out.flush()
            self.drawn = True
        elif total > 10 and 10 * done // total > self.tenth:
            self.tenth = 10 * done // total
            print(f"{self.label}: {steps}{passed}", file=self.out, flush=True)

    def finish(self, status):
        if self.drawn:
            self.out.write("\r\033[K")
        passed = duration(time.monotonic() - self.start)
        end = "done" if status == 0 else f"failed with status {status}"
        print(f"{self.label}: {end} in {passed}", file=self.out, flush=True)


def run(log, display, command):
    """Runs the command; returns its exit status."""
    done = total = 0
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    pipe = process.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        rest = b""
        while True:
            if selector.select(timeout=1):
                chunk = pipe.read1()
                if not chunk:
                    break
                log.write(chunk)
                log.flush()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    step = STEP.match(line)
                    if step:
                        done, total = int(step[1]), int(step[2])
            display.update(done, total)
    return process.wait()


def main():
    path, label, *command = sys.argv[1:]
    path = pathlib.Path(path)
    display = Display(label)
    with path.open("ab") as log:
        log.write(f"$ {' '.join(command)}\n".encode())
        log.flush()
        status = run(log, display, command)
    display.finish(status)
    if status != 0:
        lines = path.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print(*lines, f"{label}: the whole log is {path}", sep="\n", file=sys.stderr)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
