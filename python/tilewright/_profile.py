"""The time that each line of a program's bytecode took."""

import dataclasses
import json
import os
import pathlib
import tempfile
import webbrowser


@dataclasses.dataclass(frozen=True)
class ProfileLine:
    """One instruction of the bytecode, summed over all runs of the profile."""

    instruction: int  #: its number in `f.bytecode()`
    text: str  #: as in the listing, on one line
    source: str  #: "kernels.py:12, 14": lines of the kernel; empty where unknown
    executions: int  #: over all programs of the grid
    ms: float  #: summed over threads
    bytes: float  #: of arrays, read and written; buffers of tiles do not count
    flops: float
    #: The least time that this machine needs by its roofline, divided by the time it took. Above 1
    #: if the arrays were in caches.
    roof: float

    @property
    def gflops_per_second(self) -> float:
        """Floating-point operations per nanosecond."""
        return self.flops / self.ms * 1e-6 if self.ms else 0.0


class Profile:
    """Times of the runs of one program; made by `f.profile()` of a call with `profile=True`.

    It prints as a table of the lines, slowest first. Reading the clock costs about 50 ns per
    instruction, so that shorter ones look slower than they are.
    """

    def __init__(self, core):
        self._core = core
        self.kernel: str = core.kernel
        self.runs: int = core.runs
        self.programs: int = core.programs  #: of the grid, over all runs
        self.wall_ms: float = core.wall_ms  #: of the runs
        self.thread_ms: float = core.thread_ms  #: of the programs, summed over threads
        self.threads: int = core.threads  #: that runs may use
        self.scalar_ms: float = core.scalar_ms  #: of scalars, jumps and the clock
        self.lines: list[ProfileLine] = [ProfileLine(*line) for line in core.lines]

    def table(self, most: int = 20) -> str:
        """The `most` slowest lines with their times, slowest first."""
        return self._core.table(most)

    def chrome_trace(self) -> dict:
        """Events for chrome://tracing and ui.perfetto.dev: programs of the grid and instructions.

        Holds the first 200,000; `left_out` counts the others.
        """
        return json.loads(self._core.chrome_trace())

    def save_trace(self, path) -> None:
        """Writes the events to a JSON file."""
        with open(path, "w") as file:
            file.write(self._core.chrome_trace())

    def __str__(self):
        return self.table()

    def __repr__(self):
        return f"<tilewright profile of {self.kernel}, {self.runs} runs>"


def show_page(page, path):
    """Writes an HTML page; without a path, to a temporary file, which is opened."""
    if path is None:
        handle, name = tempfile.mkstemp(prefix="tilewright-", suffix=".html")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        webbrowser.open(pathlib.Path(name).as_uri())
        return name
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
    return os.fspath(path)
