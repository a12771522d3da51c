#!/usr/bin/env python3
"""Runs a test file that is written for torch's FlexAttention, unmodified, on Tilewright.

usage: tools/run_torch_suite.py FILE [--expected LIST] [--update] [-- PYTEST ARGUMENT...]

`tilewright.torch.install()` comes first. Without a GPU, what torch's own files say of CPUs is
replaced in the text that runs: CPUs have gradients, and nothing is left out on them.

LIST, tools/torch_suite/NAME.txt for a file NAME.py, has a line `OUTCOME TEST  # why` for each test
that does not pass: failed or skipped. Any other outcome ends with status 1. --update prints
the list of this run. The file stays where it is; what runs is a copy in a temporary folder.
"""

import argparse
import collections
import pathlib
import re
import sys
import tempfile

import pytest

REPLACED = [
    (r"DEVICE_SUPPORTS_BACKWARDS = SubstringSet\(\s*\[", 'DEVICE_SUPPORTS_BACKWARDS = SubstringSet(["cpu",'),
    (r"def skip_on_cpu\(test_func\):", "def skip_on_cpu(test_func):\n    return test_func\n"),
    (r"def supports_learnable_bias\(\):", "def supports_learnable_bias():\n    return lambda f: f\n"),
]  # fmt: skip


class Outcomes:
    """What became of each test."""

    def __init__(self):
        self.of, self.why = {}, {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("::")[2]
        if report.when == "call" or report.outcome != "passed":
            self.of[name] = report.outcome
            self.why[name] = (
                str(report.longrepr).strip().splitlines()[-1:] if report.longrepr else []
            )

    def pytest_collectreport(self, report):
        if report.failed:
            self.of[report.nodeid or "collection"] = "failed"
            self.why[report.nodeid or "collection"] = str(report.longrepr).splitlines()[-1:]


def read(path):
    """{test: outcome} of a list."""
    expected = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.partition("#")[0].split(maxsplit=1)
        if not words:
            continue
        if len(words) != 2 or words[0] not in ("failed", "skipped"):
            sys.exit(
                f"run_torch_suite.py: expected `failed TEST` or `skipped TEST` but got: {line}"
            )
        expected[words[1].strip()] = words[0]
    return expected


def main():
    own, _, rest = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--expected", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args(own.split())
    if not options.file.is_file():
        sys.exit(f"run_torch_suite.py: expected a file but got {options.file}")
    listed = pathlib.Path(__file__).parent / "torch_suite" / f"{options.file.stem}.txt"
    listed = options.expected or listed

    import torch

    import tilewright.torch

    tilewright.torch.install()
    text = options.file.read_text()
    if not torch.cuda.is_available():
        for pattern, replacement in REPLACED:
            text = re.sub(pattern, lambda _, r=replacement: r, text)
    outcomes = Outcomes()
    sys.path.insert(0, str(options.file.resolve().parent))
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / options.file.name
        copy.write_text(text)
        arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", str(copy)]
        pytest.main([*arguments, f"--rootdir={folder}", *rest.split()], plugins=[outcomes])
    if not outcomes.of:
        sys.exit("run_torch_suite.py: expected tests in the file but found none")
    counts = collections.Counter(outcomes.of.values())
    print(f"{options.file.name}, torch {torch.__version__}: {dict(counts)}")
    if options.update:
        for name, outcome in sorted(outcomes.of.items()):
            if outcome != "passed":
                print(f"{outcome} {name}  # {' '.join(outcomes.why[name])[:100]}")
        return 0
    expected = read(listed)
    unexpected = [
        f"{name}: expected {expected.get(name, 'passed')} but {outcome}"
        for name, outcome in sorted(outcomes.of.items())
        if outcome != expected.get(name, "passed")
    ]
    print("\n".join([*unexpected, f"{len(unexpected)} unexpected outcomes"]))
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
