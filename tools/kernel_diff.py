#!/usr/bin/env python3
"""Shows what a commit changes in the generated code of the corpus of tools/golden.py.

usage: kernel_diff.py [OLD [NEW]]

OLD (default: HEAD) and NEW (default: build/tilewright) are commits, which are built in
build/kernel_diff, or `tilewright` programs that are already built. Prints the differences in text,
and in registers, spilled bytes, shared memory and instruction counts of each program.
"""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

import golden

ROOT = golden.ROOT
#: Of a commit only the program is built.
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DTILEWRIGHT_BUILD_TESTS=OFF", "-DTILEWRIGHT_UNITY=ON"]


def git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"kernel_diff: {done.stderr.strip()}")
    return done.stdout.strip()


def program_of(name):
    """The program at a path, or that of a commit, built if necessary."""
    if pathlib.Path(name).is_file():
        return pathlib.Path(name).resolve()
    commit = git("rev-parse", "--verify", "--short=12", f"{name}^{{commit}}")
    folder = ROOT / "build" / "kernel_diff" / commit
    program = folder / "build" / "tilewright"
    if not program.exists():
        print(f"kernel_diff: building {name} in {folder}, some minutes", file=sys.stderr)
        if not (folder / "source").exists():
            git("worktree", "prune")
            git("worktree", "add", "--detach", str(folder / "source"), commit)
        configure = ["cmake", "-G", "Ninja", "-S", folder / "source", "-B", folder / "build"]
        subprocess.run([*configure, *OPTIONS], check=True, stdout=subprocess.DEVNULL)
        build = ["cmake", "--build", folder / "build", "--target", "tilewright_cli"]
        subprocess.run(build, check=True, stdout=sys.stderr)
        git("worktree", "remove", "--force", str(folder / "source"))
    return program


def numbers(text):
    """{name: count} from a line of statistics."""
    return {
        name.strip(): int(count) for count, name in re.findall(r"(\d+) ([a-zA-Z][\w. ]*)", text)
    }


def changed_numbers(old, new):
    """Entries such as `168 -> 160 registers`, one for each number that differs."""
    old, new = numbers(old), numbers(new)
    return [
        f"{old.get(name, 0)} -> {new.get(name, 0)} {name}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name, 0) != new.get(name, 0)
    ]


def changes(old, new):
    """Lines that compare the statistics of two programs, {title: {label: text}} each."""
    for title in dict.fromkeys([*old, *new]):
        for label in dict.fromkeys([*old.get(title, {}), *new.get(title, {})]):
            before, after = (x.get(title, {}).get(label, "") for x in (old, new))
            if before != after:
                yield f"{title}, {label}: {', '.join(changed_numbers(before, after))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", nargs="?", default="HEAD")
    parser.add_argument("new", nargs="?", default=str(ROOT / "build" / "tilewright"))
    arguments = parser.parse_args()
    programs = [program_of(name) for name in (arguments.old, arguments.new)]
    found = []
    for program in programs:
        version = golden.nvrtc_version(program)
        if version is None:
            print("kernel_diff: NOT COMPARED: PTX, for which there is no NVRTC", file=sys.stderr)
        found.append(golden.statistics(program, version))
    differs = False
    for name, options in golden.TEXTS.items():
        texts = [golden.dump(program, options).splitlines(keepends=True) for program in programs]
        lines = list(difflib.unified_diff(*texts, f"old/{name}", f"new/{name}"))
        sys.stdout.writelines(lines)
        differs |= bool(lines)
    for line in changes(*found):
        print(line)
        differs = True
    if not differs:
        print("kernel_diff: the generated code is the same")


if __name__ == "__main__":
    main()
