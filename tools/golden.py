#!/usr/bin/env python3
"""Compares the generated code of a corpus of programs with the files under tests/golden.

usage: golden.py [--update] [--program build/tilewright] [--out FOLDER]

The text of small programs (IR, bytecode, CUDA) is kept in full; for the others statistics.txt keeps
what decides their speed: IR operations, bytecode instructions, operations of the scheduled form,
and registers, spills and opcodes of the PTX. Nothing depends on the machine: bytecode is for the
scalar kernels and two threads, PTX for the architectures below. The PTX needs the NVRTC that the
file was made with; without it those lines are not compared, and the output says so. --update
rewrites the files. --out writes the corpus to another folder instead, for tools/kernel_diff.py.
Exit status 0: equal.
"""

import argparse
import collections
import concurrent.futures
import difflib
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"

#: File under tests/golden: arguments of `tilewright dump`.
TEXTS = {
    "gather.bytecode": ["gather.ir", "--to", "bytecode"],
    "gather.sm_80.cu": ["gather.ir", "--to", "cuda", "--arch", "sm_80"],
    "histogram.bytecode": ["histogram.ir", "--to", "bytecode"],
    "histogram.sm_80.cu": ["histogram.ir", "--to", "cuda", "--arch", "sm_80"],
    "layer_norm.ir": ["layer_norm", "--to", "ir"],
    "layer_norm.optimised.ir": ["layer_norm", "--to", "ir", "--optimised"],
    "layer_norm.bytecode": ["layer_norm", "--to", "bytecode"],
    "matmul.ir": ["matmul", "--to", "ir"],
    "matmul.bytecode": ["matmul", "--to", "bytecode"],
    "rms_norm_backward.ir": ["rms_norm_backward", "--to", "ir"],
    "rms_norm_backward.bytecode": ["rms_norm_backward", "--to", "bytecode"],
    # Row loads are issued one iteration ahead, all in one branch.
    "rows_ahead.sm_90a.cu": ["rows_ahead.ir", "--to", "cuda", "--arch", "sm_90a"],
    "running_max.bytecode": ["running_max.ir", "--to", "bytecode"],
    "running_max.sm_80.cu": ["running_max.ir", "--to", "cuda", "--arch", "sm_80"],
    "softmax.ir": ["softmax", "--to", "ir"],
    "softmax.bytecode": ["softmax", "--to", "bytecode"],
    "softmax.sm_80.cu": ["softmax", "--to", "cuda", "--arch", "sm_80"],
}

FLEX = ["--mask", "causal & sliding_window(1024)", "--score", "softcap(20, alibi(8))"]
#: Programs of statistics.txt: arguments of `tilewright dump`, and the architectures of their PTX.
PROGRAMS = [
    (["attention"], ["sm_80"]),
    (["attention", "--dtype", "bf16"], ["sm_80", "sm_90a"]),
    (["attention_backward", "--dtype", "bf16"], ["sm_80"]),
    (["decode", "--dtype", "bf16"], ["sm_80"]),
    (["flex", "--dtype", "bf16", *FLEX], ["sm_80"]),
    (["flex_backward", "--dtype", "bf16", *FLEX], ["sm_80"]),
    (["layer_norm_backward"], ["sm_80"]),
    (["matmul"], ["sm_80"]),
    (["matmul", "--dtype", "bf16"], ["sm_80", "sm_90a"]),
    (["rms_norm"], ["sm_90a"]),
    (["softmax"], ["sm_90a"]),
]

#: Opcodes that are also told apart by their second word: the state space decides the time.
BY_PLACE = {"atom", "bar", "cp", "fence", "ld", "mbarrier", "mma", "red", "shfl", "st", "wgmma"}
INSTRUCTION = re.compile(r"(?:@!?%\w+\s+)?([a-z]\w*)((?:[.:]+\w+)*)\s")
NVRTC = re.compile(r"^NVRTC (\S+)", re.MULTILINE)


def run(program, *arguments):
    environment = {**os.environ, "TILEWRIGHT_TARGET": "scalar", "TILEWRIGHT_THREADS": "2"}
    for name in ("TILEWRIGHT_DEBUG", "TILEWRIGHT_DEBUG_IR"):
        environment.pop(name, None)
    if (ROOT / ".venv").exists():  # for its NVRTC
        environment.setdefault("VIRTUAL_ENV", str(ROOT / ".venv"))
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"golden: {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def dump(program, arguments):
    name, *options = arguments
    file = GOLDEN / "programs" / name
    return run(program, "dump", file if file.exists() else name, *options)


def nvrtc_version(program):
    found = re.search(r"NVRTC (\d+\.\d+)", run(program, "doctor"))
    return found[1] if found else None


def counted(names):
    """`12 add, 3 mul`, the most frequent first."""
    counts = collections.Counter(names)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {name}" for name, count in ordered)


def ir_statistics(text):
    operations = []
    for line in text.splitlines()[1:]:
        line = re.sub(r"^\s*(?:%[\w, %]+ = )?", "", line)
        operation = re.match(r"[a-z]\w*", line)
        if operation:
            operations.append(operation[0])
    return f"{len(operations)} operations: {counted(operations)}"


def bytecode_statistics(text):
    instructions = len(re.findall(r"^ *\d+  ", text, re.MULTILINE))
    head = text.splitlines()[0].split(":", 1)[1].strip()
    return f"{instructions} instructions, {head}"


def opcodes(ptx):
    for statement in re.split(r"[;\n]", re.sub(r"//.*", "", ptx)):
        found = INSTRUCTION.match(statement.strip(" \t{}") + " ")
        if found:
            words = found[2].strip(".").split(".")
            # wgmma.mma_async, ld.global, st.shared: where the second word is part of the operation.
            yield f"{found[1]}.{words[0]}" if found[1] in BY_PLACE and words[0] else found[1]


def schedule_statistics(text):
    lines = [line.strip() for line in text.splitlines()[1:]]
    form = re.compile(
        r"(?!operation )(%\S+ = |[a-z_]+ )"
    )  # without the lines that name those of IR
    operations = sum(form.match(line) is not None for line in lines)
    return f"{operations} operations"


def ptx_statistics(text):
    resources, ptx = text.split("\n", 1)
    names = list(opcodes(ptx))
    return f"{resources.removeprefix('// ')}; {len(names)} instructions: {counted(names)}"


def wrapped(label, text):
    """Lines of at most 100 characters, so that a diff shows what changed."""
    lines, line = [], f"  {label}: "
    for word in re.split(r"(?<=[,;:]) ", text):
        if len(line) + len(word) > 99:
            lines.append(line.rstrip())
            line = "    "
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


def statistics(program, version):
    """{title of a program: {label: text}}; labels that start with sm_ are for PTX."""
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for arguments, archs in PROGRAMS:
            forms = {"ir": ["--to", "ir"], "bytecode": ["--to", "bytecode"]}
            forms["schedule"] = ["--to", "schedule", "--arch", "sm_80"]
            if version:
                forms |= {arch: ["--to", "ptx", "--arch", arch] for arch in archs}
            of = {
                "ir": ir_statistics,
                "bytecode": bytecode_statistics,
                "schedule": schedule_statistics,
            }
            title = " ".join(f'"{word}"' if " " in word else word for word in arguments)
            jobs[title] = {
                label: pool.submit(
                    lambda a, f, s: s(dump(program, [*a, *f])),
                    arguments,
                    form,
                    of.get(label, ptx_statistics),
                )
                for label, form in forms.items()
            }
        return {
            title: {label: job.result() for label, job in forms.items()}
            for title, forms in jobs.items()
        }


def statistics_text(found, version):
    lines = [f"NVRTC {version or 'none'}"]
    for title, forms in found.items():
        lines += ["", title, *(wrapped(label, text) for label, text in forms.items())]
    return "\n".join(lines) + "\n"


def without_ptx(text):
    """Lines of statistics that need no NVRTC."""
    kept, skips = [], False
    for line in text.splitlines(keepends=True):
        if not line.startswith("    "):
            skips = line.startswith(("  sm_", "NVRTC"))
        if not skips:
            kept.append(line)
    return "".join(kept)


def corpus(program):
    """{file: text} of everything, and the version of NVRTC or None."""
    version = nvrtc_version(program)
    files = {name: dump(program, arguments) for name, arguments in TEXTS.items()}
    files["statistics.txt"] = statistics_text(statistics(program, version), version)
    return files, version


def compare(files, version):
    """The differences from tests/golden as text."""
    differences = []
    for name in sorted({*files, *(p.name for p in GOLDEN.iterdir() if p.is_file())}):
        path = GOLDEN / name
        if name not in files:
            differences.append(f"{path}: no program of the corpus has this file\n")
            continue
        if not path.exists():
            differences.append(f"{path}: missing\n")
            continue
        old, new = path.read_text(), files[name]
        if name == "statistics.txt":
            golden_version = NVRTC.search(old)[1]
            if golden_version != version:
                print(
                    f"golden: NOT COMPARED: statistics of PTX, of NVRTC {golden_version}; "
                    f"this machine has {version or 'none'}"
                )
                old, new = without_ptx(old), without_ptx(new)
        differences += difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), "now"
        )
    return "".join(differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="rewrite the files")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "tilewright")
    parser.add_argument("--out", type=pathlib.Path, help="write the corpus to this folder")
    arguments = parser.parse_args()
    files, version = corpus(arguments.program)
    if arguments.out or arguments.update:
        folder = arguments.out or GOLDEN
        if not arguments.out and version is None:
            raise SystemExit("golden: --update needs NVRTC, for the statistics: ./dev python")
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.is_file() and path.name not in files:
                path.unlink()
        for name, text in files.items():
            (folder / name).write_text(text)
        return 0
    differences = compare(files, version)
    print(differences, end="")
    if differences:
        print("golden: generated code changed; review it, then ./dev golden --update")
        return 1
    print(f"golden: {len(files)} files, all as generated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
