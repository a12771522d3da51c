#!/usr/bin/env python3
"""Runs a test file that is written for torch's attention, unmodified, on Tilewright.

usage: tools/run_torch_suite.py FILE [--golden-torch] [--expected LIST] [--update]
                                [--jobs N] [--timeout S] [--seconds S] [--state STATE] [-- PYTEST ARGUMENT...]
       tools/run_torch_suite.py FILE --script [-- ARGUMENT...]

`tilewright.torch.install()` comes first. With --golden-torch calls of flex_attention outside of
torch.compile, which torch's tests take as the golden value, run torch's own dense evaluation;
without it they run here, too. In files of scaled_dot_product_attention (test_transformers.py)
that function is replaced.

Without a GPU, what torch's own files say of CPUs is replaced in the text that runs: CPUs have
gradients, nothing is left out on them, tensors for "cuda" are on "cpu", and tests of length 2048
are shortened to 256, as later versions of torch's file have it (those of decoding to 1024). With a
GPU the tests of CPUs, which later versions of torch's file have besides, are left out. Tests that
torch runs on A100 GPUs alone run on every machine.

LIST, tools/torch_suite/NAME.txt for a file NAME.py, has a line `OUTCOME TEST  # why` for the tests
that do not pass: failed or skipped; * in TEST stands for any text. `OUTCOME torch<2.12 TEST` is for
these versions of torch alone, and `OUTCOME gpus>=1 TEST` for machines with a GPU. Any other outcome,
and a line that no test needs, ends with status 1. --update prints the lines that are missing in
LIST. The file stays where it is; what runs is a copy in a temporary folder.

--jobs runs tests in N processes. A test whose process ends or that takes longer than --timeout
(600 seconds) has failed, and another process takes the next tests. Outcomes are added to the file
STATE, a line of JSON for each test, and tests that are there are not run again (to run some again,
remove their lines). After --seconds no test begins and those that run are given up; with tests left
the status is 2.

--script runs a program as it is, with these arguments.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import re
import runpy
import sys
import tempfile
import time

import pytest

from pytest_workers import Remote, run_in_workers

WITHOUT_A_GPU = [
    (r"DEVICE_SUPPORTS_BACKWARDS = SubstringSet\(\s*\[", 'DEVICE_SUPPORTS_BACKWARDS = SubstringSet(["cpu",'),
    (r"def skip_on_cpu\(test_func\):", "def skip_on_cpu(test_func):\n    return test_func\n"),
    (r"def supports_learnable_bias\(\):", "def supports_learnable_bias():\n    return lambda f: f\n"),
    (r'if self.device == "cpu":\s*test_inference_only = True', "if False:\n            pass"),
    (r"(?ms)^(supported_platform|supports_learnable_bias) = (unittest\.)?skipUnless\(.*?^\)", r"\1 = lambda f: f"),
    (r"^B = 4\nH = 8\nS = 2048$", "B = 4\nH = 8\nS = 256"),
    (r"^B = 4\nS = 2048$", "B = 4\nS = 1024"),
    (r"SKIP_UT_ON_CPU = True", "SKIP_UT_ON_CPU = False"),
    (r"self\.test_inference_only = True", "self.test_inference_only = False"),
    (r'test_device\[0\] if HAS_GPU else "cuda"', "test_device[0]"),
]  # fmt: skip
# With a GPU torch's later files test the CPU besides.
WITH_A_GPU = [(r'test_device = \(\s*"cuda",\s*"cpu",\s*\)', 'test_device = ("cuda",)')]
# A test that leaves torch another set of warnings than the one that the file imports.
RESTORED = [
    (r"fa\._WARNINGS_SHOWN = original_warnings_shown", "fa._WARNINGS_SHOWN.clear()"),
]
# Tests that torch runs on one kind of GPU.
ON_ANY_GPU = [
    (r"(?ms)^running_on_a100_only = (unittest\.)?skipUnless\(.*?^\)", "running_on_a100_only = lambda f: f"),
]  # fmt: skip
# Changes of torch 2.7 to functions that torch 2.6's test files call.
CHANGED = [
    (r"\.assign\(batch_idx, input_pos,", ".assign(batch_idx, input_pos.expand(k.shape[0], -1),"),
    (r"torch\.tensor\(\[KV_S, KV_S, KV_S, KV_S\]", "torch.tensor([KV_S] * max(4, KV_B)"),
]
PAGES_TO_CPU = [
    (
        r"PagedAttention\((n_pages, page_size, max_batch_size)\)",
        r'PagedAttention(\1, device="cpu")',
    ),
]
# For files that name the device in every call; later ones take it as a parameter.
CUDA_TO_CPU = [(r'"cuda(:0)?"', '"cpu"'), (r"\.cuda\(\)", ""), (r"\.is_cuda\b", ".is_cpu")]


class Outcomes:
    """The outcome of each test."""

    def __init__(self, verbose):
        self.of, self.why, self.records, self.verbose = {}, {}, {}, verbose

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        name, details = test_name(report.nodeid), ""
        if report.outcome == "failed":
            details = str(report.longrepr)[-4000:]
        self.add(name, report.outcome, reason(report), report.duration, details)

    def add(self, name, outcome, why, seconds, details):
        self.of[name], self.why[name] = outcome, why
        self.records[name] = {"test": name, "outcome": outcome, "why": why, "seconds": seconds}
        if details:
            self.records[name]["details"] = details
        if self.verbose:
            print(f"\n{outcome} {name}  # {why} ({seconds:.1f} s)", flush=True)

    def pytest_collectreport(self, report):
        if report.failed:
            details = str(report.longrepr)[-4000:]
            self.add(report.nodeid or "collection", "failed", reason(report), 0.0, details)


def test_name(nodeid):
    """The name of a test without that of its file."""
    return nodeid.partition("::")[2] or nodeid


def reason(report):
    """The line of a report that tells what went wrong."""
    if report.outcome == "passed" or not report.longrepr:
        return ""
    lines = str(report.longrepr).strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines)[0 if errors else -1][:110]


class Expected:
    """A list of expected outcomes."""

    def __init__(self, path, found):
        """found: the version of torch and the number of GPUs, as {"torch": (2, 15), "gpus": (1,)}"""
        self.lines = []  # [pattern, outcome, why, number of tests]
        for line in path.read_text().splitlines() if path.exists() else []:
            text, _, why = line.partition("#")
            words = text.split()
            if not words:
                continue
            if len(words) < 2 or words[0] not in ("failed", "skipped"):
                sys.exit(
                    f"run_torch_suite.py: expected `failed TEST` or `skipped TEST` but got: {line}"
                )
            if not all(self.holds(word, found) for word in words[1:-1]):
                continue
            pattern = re.compile(".*".join(map(re.escape, words[-1].split("*"))))
            self.lines.append([pattern, words[0], why.strip(), 0])

    @staticmethod
    def holds(condition, found):
        match = re.fullmatch(r"(torch|gpus)(<|>=)([0-9.]+)", condition)
        if not match:
            sys.exit(f"run_torch_suite.py: expected torch<2.12 or gpus>=1 but got: {condition}")
        less = found[match[1]] < tuple(int(part) for part in match[3].split("."))
        return less == (match[2] == "<")

    def __call__(self, name):
        for line in self.lines:
            if line[0].fullmatch(name):
                line[3] += 1
                return line[1]
        return "passed"


def replace_flex_attention(golden_torch):
    """Replaces the tests' flex_attention by ours; outside of torch.compile by torch's if
    golden_torch."""
    from torch.nn.attention import flex_attention as flex

    torchs, hop = flex.flex_attention, flex.flex_attention_hop

    import torch

    import tilewright.torch

    tilewright.torch.install()
    if not golden_torch:
        return
    ours = flex.flex_attention

    def flex_attention(*arguments, **options):
        if torch.compiler.is_dynamo_compiling():
            return ours(*arguments, **options)
        marker, flex.flex_attention_hop = flex.flex_attention_hop, hop
        try:
            return torchs(*arguments, **options)
        finally:
            flex.flex_attention_hop = marker

    flex.flex_attention = flex_attention


def run_script(file, arguments):
    """Runs a program as it is."""
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    runpy.run_path(str(file), run_name="__main__")


def run_tests(copy, options, pytest_arguments, plugins):
    """Runs pytest on an edited copy of the file."""
    import torch

    import tilewright.torch

    replace_flex_attention(options.golden_torch)
    if options.file.stem.startswith("test_transformers"):
        torch.nn.functional.scaled_dot_product_attention = (
            tilewright.torch.scaled_dot_product_attention
        )
    sys.path.insert(0, str(options.file.resolve().parent))
    arguments = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", "--tb=short", str(copy)]
    pytest.main([*arguments, f"--rootdir={copy.parent}", *pytest_arguments], plugins=plugins)


def write_copy(file, folder, device):
    """Writes the file, edited for this device and this version of torch, to the folder."""
    text = file.read_text()
    by_name = "instantiate_device_type_tests" not in text
    replacements = ON_ANY_GPU + RESTORED + CHANGED * by_name
    if device == "cpu":
        replacements += WITHOUT_A_GPU + (CUDA_TO_CPU + PAGES_TO_CPU) * by_name
    else:
        replacements += WITH_A_GPU
    for pattern, replacement in replacements:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    copy = pathlib.Path(folder) / file.name
    copy.write_text(text)
    return copy


class MemoryForOthers:
    """Gives the GPU memory that torch keeps after a test to the other workers."""

    def pytest_runtest_logfinish(self):
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def work(connection, number, copy, devices, options, pytest_arguments):
    """A worker process: its tests' output is dropped, their errors and warnings are not. Workers
    take the GPUs in turn, and see the others as the next ones."""
    if devices > 1:
        order = [str((number + index) % devices) for index in range(devices)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    outcomes = Outcomes(False)
    remote = Remote(connection, test_name, outcomes.records)
    run_tests(copy, options, pytest_arguments, [outcomes, remote, MemoryForOthers()])


def read_state(path, heading, outcomes):
    """Takes the outcomes that the file has of earlier runs; begins the file if there is none."""
    if not path.exists() or not path.read_text():
        path.write_text(json.dumps(heading) + "\n")
    first, *lines = path.read_text().splitlines()
    if json.loads(first) != heading:
        sys.exit(
            f"run_torch_suite.py: expected the outcomes of {heading} in {path} but got {first}"
        )
    for line in lines:
        record = json.loads(line)
        outcomes.of[record["test"]], outcomes.why[record["test"]] = record["outcome"], record["why"]


def run_jobs(copy, devices, options, pytest_arguments, heading, outcomes):
    """Runs the tests in workers; returns how many are left, None if that is not known."""
    if options.state:
        read_state(options.state, heading, outcomes)

    def report(name, record, fault):
        record = record or {"outcome": "failed", "why": fault, "seconds": 0.0}
        outcomes.add(
            name, record["outcome"], record["why"], record["seconds"], record.get("details", "")
        )
        if options.state:
            with options.state.open("a") as state:
                state.write(json.dumps(outcomes.records[name]) + "\n")

    tests = run_in_workers(
        work,
        (copy, devices, options, pytest_arguments),
        options.jobs or 1,
        frozenset(outcomes.of),
        report,
        timeout=options.timeout,
        seconds=options.seconds,
    )
    return None if tests is None else sum(test not in outcomes.of for test in tests)


def main():
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--golden-torch", action="store_true")
    parser.add_argument("--expected", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--script", action="store_true")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--state", type=pathlib.Path)
    options = parser.parse_args(own)
    if not options.file.is_file():
        sys.exit(f"run_torch_suite.py: expected a file but got {options.file}")
    listed = pathlib.Path(__file__).parent / "torch_suite" / f"{options.file.stem}.txt"
    listed = options.expected or listed
    if options.script:
        replace_flex_attention(options.golden_torch)
        run_script(options.file, rest)
        return 0

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    digest = hashlib.sha256(options.file.read_bytes()).hexdigest()[:12]
    heading = {"file": options.file.name, "digest": digest, "torch": torch.__version__}
    heading |= {"device": device, "golden torch": options.golden_torch}
    outcomes, left = Outcomes(options.update), 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = write_copy(options.file, folder, device)
        if options.jobs or options.state or options.seconds != float("inf"):
            devices = torch.cuda.device_count()
            left = run_jobs(copy, devices, options, rest, heading, outcomes)
        else:
            run_tests(copy, options, rest, [outcomes])
    if not outcomes.of and left == 0:
        sys.exit("run_torch_suite.py: expected tests in the file but found none")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    expected = Expected(listed, {"torch": version, "gpus": (torch.cuda.device_count(),)})
    unexpected, counts = [], collections.Counter(outcomes.of.values())
    for name, outcome in sorted(outcomes.of.items()):
        wanted = expected(name)
        if outcome != wanted:
            unexpected.append(f"{name}: expected {wanted} but {outcome}: {outcomes.why[name]}")
            if options.update and outcome != "passed":
                print(f"{outcome} {name}  # {outcomes.why[name]}")
    print(
        f"{options.file.name} ({digest}), torch {torch.__version__}, {device}, "
        f"{time.monotonic() - begun:.0f} s: {dict(sorted(counts.items()))}"
    )
    by_reason = collections.Counter()
    for _, outcome, why, count in expected.lines:
        by_reason[outcome, why] += count
    for (outcome, why), count in by_reason.most_common():
        print(f"  {count} {outcome}: {why}")
    partly = left != 0 or "-k" in rest
    unused = [line[0].pattern for line in expected.lines if not line[3] and not partly]
    print("\n".join([*unexpected, *(f"no such test: {name}" for name in unused)]))
    print(f"{len(unexpected) + len(unused)} unexpected outcomes")
    if left != 0:
        print(f"{'some' if left is None else left} tests are left")
    return 1 if unexpected or unused else 2 if left != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
