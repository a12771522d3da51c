#!/usr/bin/env python3
"""Runs clang-tidy on this project's translation units, as many at a time as there are cores.

usage: run_clang_tidy.py --clang-tidy PROGRAM --build FOLDER [FILE...]

Tests are skipped unless named: they are half of the units, and a unit takes five to ten seconds. A
clean unit is checked again only when it, one of our headers that it includes, its compile command
or the checks change.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "bench", "examples", "python")
PRECOMPILED = re.compile(r"-Winvalid-pch|-include \S+/cmake_pch\.hxx")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def units(entry):
    """Separate compile commands for the files that the unit of `entry` compiles together."""
    if "/Unity/unity_" not in entry["file"]:
        return [entry]
    files = INCLUDE.findall(pathlib.Path(entry["file"]).read_text())
    return [
        entry | {"file": file, "command": entry["command"].replace(entry["file"], file)}
        for file in files
    ]


@functools.cache
def own_includes(path):
    """Headers of this project that `path` includes directly."""
    found = set()
    for name in INCLUDE.findall(path.read_text()):
        for folder in (path.parent, ROOT / "src", ROOT / "include", ROOT):
            if (folder / name).is_file():
                found.add((folder / name).resolve())
                break
    return found


def closure(path):
    """`path` and every header of ours that it includes, also indirectly, sorted."""
    seen, todo = set(), [path]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo.extend(own_includes(current))
    return sorted(seen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clang-tidy", required=True)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()

    wanted = {path.resolve() for path in options.files}
    entries = []
    commands = json.loads((options.build / "compile_commands.json").read_text())
    for entry in (unit for command in commands for unit in units(command)):
        path = pathlib.Path(entry["file"]).resolve()
        own = any((ROOT / folder) in path.parents for folder in FOLDERS)
        # Without the precompiled header, so that missing includes are found.
        entry["command"] = PRECOMPILED.sub("", entry["command"])
        if path in wanted if wanted else own:
            entries.append(entry)

    cache = options.build / "clang-tidy"
    cache.mkdir(exist_ok=True)
    (cache / "compile_commands.json").write_text(json.dumps(entries))
    version = subprocess.run([options.clang_tidy, "--version"], capture_output=True, check=True)
    common = version.stdout + (ROOT / ".clang-tidy").read_bytes()

    def check(entry):
        path = pathlib.Path(entry["file"]).resolve()
        digest = hashlib.sha256(common + entry["command"].encode())
        for part in closure(path):
            digest.update(part.read_bytes())
        stamp = cache / digest.hexdigest()
        if stamp.exists():
            return ""
        done = subprocess.run(
            [options.clang_tidy, "--quiet", "-p", cache, "--extra-arg=-Wno-unknown-warning-option"]
            + [path],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            stamp.touch()
            return ""
        return done.stdout + done.stderr

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for output in pool.map(check, entries):
            if output:
                failed += 1
                print(output, flush=True)
    print(f"clang-tidy: {len(entries)} files, {failed} with findings", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
