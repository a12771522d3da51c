#!/usr/bin/env python3
"""Runs a test file that is written for torch's attention, unmodified, on Tilewright.

usage: tools/run_torch_suite.py FILE [--golden-torch] [--expected LIST] [--update] [-- PYTEST ARGUMENT...]
       tools/run_torch_suite.py FILE --script [-- ARGUMENT...]

`tilewright.torch.install()` comes first. With --golden-torch calls of flex_attention outside of
torch.compile, which torch's tests take as the golden value, run torch's own dense evaluation;
without it they run here, too. In files of scaled_dot_product_attention (test_transformers.py)
that function is replaced.

Without a GPU, what torch's own files say of CPUs is replaced in the text that runs: CPUs have
gradients, nothing is left out on them, tensors for "cuda" are on "cpu", and tests of length 2048
are shortened to 256, as later versions of torch's file have it (those of decoding to 1024).

LIST, tools/torch_suite/NAME.txt for a file NAME.py, has a line `OUTCOME TEST  # why` for the tests
that do not pass: failed or skipped; * in TEST stands for any text, and `OUTCOME torch<2.12 TEST`
is for these versions of torch alone. Any other outcome, and a line that no test needs, ends with
status 1. --update prints the lines that are missing in LIST. The file stays where it is; what runs is a
copy in a temporary folder.

--script runs a program as it is, with these arguments.
"""

import argparse
import collections
import hashlib
import pathlib
import re
import runpy
import sys
import tempfile

import pytest

WITHOUT_A_GPU = [
    (r"DEVICE_SUPPORTS_BACKWARDS = SubstringSet\(\s*\[", 'DEVICE_SUPPORTS_BACKWARDS = SubstringSet(["cpu",'),
    (r"def skip_on_cpu\(test_func\):", "def skip_on_cpu(test_func):\n    return test_func\n"),
    (r"def supports_learnable_bias\(\):", "def supports_learnable_bias():\n    return lambda f: f\n"),
    (r'if self.device == "cpu":\s*test_inference_only = True', "if False:\n            pass"),
    (r"(?ms)^(supported_platform|supports_learnable_bias|running_on_a100_only) = (unittest\.)?skipUnless\(.*?^\)", r"\1 = lambda f: f"),
    (r"^B = 4\nH = 8\nS = 2048$", "B = 4\nH = 8\nS = 256"),
    (r"^B = 4\nS = 2048$", "B = 4\nS = 1024"),
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
        self.of, self.why, self.verbose = {}, {}, verbose

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("::")[2]
        if report.when == "call" or report.outcome != "passed":
            self.of[name] = report.outcome
            self.why[name] = reason(report)
            if self.verbose:
                print(f"\n{report.outcome} {name}  # {self.why[name]} ({report.duration:.1f} s)")

    def pytest_collectreport(self, report):
        if report.failed:
            self.of[report.nodeid or "collection"] = "failed"
            self.why[report.nodeid or "collection"] = reason(report)


def reason(report):
    """The line of a report that tells what went wrong."""
    if report.outcome == "passed" or not report.longrepr:
        return ""
    lines = str(report.longrepr).strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines)[0 if errors else -1][:110]


class Expected:
    """A list of expected outcomes."""

    def __init__(self, path, version):
        self.lines = []  # [pattern, outcome, why, number of tests]
        for line in path.read_text().splitlines() if path.exists() else []:
            text, _, why = line.partition("#")
            words = text.split(maxsplit=1)
            if not words:
                continue
            only = re.match(r"torch(<|>=)([0-9.]+) +(.*)", words[-1])
            if len(words) != 2 or words[0] not in ("failed", "skipped"):
                sys.exit(
                    f"run_torch_suite.py: expected `failed TEST` or `skipped TEST` but got: {line}"
                )
            name = words[1].strip()
            if only:
                name = only[3].strip()
                older = version < tuple(int(part) for part in only[2].split("."))
                if older != (only[1] == "<"):
                    continue
            pattern = re.compile(".*".join(map(re.escape, name.split("*"))))
            self.lines.append([pattern, words[0], why.strip(), 0])

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
    options = parser.parse_args(own)
    if not options.file.is_file():
        sys.exit(f"run_torch_suite.py: expected a file but got {options.file}")
    listed = pathlib.Path(__file__).parent / "torch_suite" / f"{options.file.stem}.txt"
    listed = options.expected or listed

    import torch

    import tilewright.torch

    replace_flex_attention(options.golden_torch)
    if options.script:
        sys.argv = [str(options.file), *rest]
        sys.path.insert(0, str(options.file.resolve().parent))
        runpy.run_path(str(options.file), run_name="__main__")
        return 0
    text = options.file.read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    by_name = "instantiate_device_type_tests" not in text
    replacements = CHANGED * by_name
    if not torch.cuda.is_available():
        replacements += WITHOUT_A_GPU + (CUDA_TO_CPU + PAGES_TO_CPU) * by_name
    for pattern, replacement in replacements:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    if options.file.stem.startswith("test_transformers"):
        torch.nn.functional.scaled_dot_product_attention = (
            tilewright.torch.scaled_dot_product_attention
        )
    outcomes = Outcomes(options.update)
    sys.path.insert(0, str(options.file.resolve().parent))
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / options.file.name
        copy.write_text(text)
        arguments = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", "--tb=short", str(copy)]
        pytest.main([*arguments, f"--rootdir={folder}", *rest], plugins=[outcomes])
    if not outcomes.of:
        sys.exit("run_torch_suite.py: expected tests in the file but found none")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    expected = Expected(listed, version)
    unexpected, counts = [], collections.Counter(outcomes.of.values())
    for name, outcome in sorted(outcomes.of.items()):
        wanted = expected(name)
        if outcome != wanted:
            unexpected.append(f"{name}: expected {wanted} but {outcome}: {outcomes.why[name]}")
            if options.update and outcome != "passed":
                print(f"{outcome} {name}  # {outcomes.why[name]}")
    print(f"{options.file.name} ({digest}), torch {torch.__version__}: {dict(counts)}")
    by_reason = collections.Counter()
    for _, outcome, why, count in expected.lines:
        by_reason[outcome, why] += count
    for (outcome, why), count in by_reason.most_common():
        print(f"  {count} {outcome}: {why}")
    unused = [line[0].pattern for line in expected.lines if not line[3] and "-k" not in rest]
    print("\n".join([*unexpected, *(f"no such test: {name}" for name in unused)]))
    print(f"{len(unexpected) + len(unused)} unexpected outcomes")
    return 1 if unexpected or unused else 0


if __name__ == "__main__":
    sys.exit(main())
