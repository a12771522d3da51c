#!/usr/bin/env python3
"""Checks the layout rules that compilers do not: who may include whom, and what a file looks like.

usage: check_layout.py

Rules: an include goes to the same module or to one that stands before it in the pipeline; public
headers include nothing private and export their names; a file opens with its purpose; no file passes 1,200 lines (a
warning above 600); each module's CMake lists name every source and test, sorted; no path of one
developer's machine and no unfinished-work marks.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# support <- ir <- {lang, cpu, cuda} <- run <- mod <- {mask, norm, attention} <- {c_api, cli}
USES = {
    "support": set(),
    "ir": {"support"},
    "lang": {"support", "ir"},
    "cpu": {"support", "ir"},
    "cuda": {"support", "ir"},
}
USES["run"] = {"lang", "cpu", "cuda"} | USES["lang"]
USES["mod"] = USES["norm"] = {"run"} | USES["run"]
USES["mask"] = {"mod"} | USES["mod"]
USES["attention"] = {"mask"} | USES["mask"]
USES["c_api"] = USES["cli"] = {"mask", "norm", "attention"} | USES["mask"]

CXX = {".h", ".cpp", ".cuh", ".inl"}
SCRIPTS = {".py", ".sh", ".cmake"}
SOFT_LINES, HARD_LINES = 600, 1200
FOLDERS = ("include", "src", "tests", "bench", "examples", "python", "tools", "cmake")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(root|work)/")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

problems = []


def report(path, line, text):
    problems.append(f"{path.relative_to(ROOT)}:{line}: {text}")


def files(*folders, suffixes):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def check_includes(path, lines):
    parts = path.relative_to(ROOT).parts
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        target = found[1].split("/")[0]
        if parts[0] == "include" and target in USES:
            report(path, number, f"a public header includes {found[1]}, which is not installed")
        if parts[0] == "src" and target in USES and target not in USES[parts[1]] | {parts[1]}:
            report(path, number, f"module {parts[1]} may not include {found[1]}")
        if parts[:2] == ("src", "cuda") and "device" in parts and target == "tilewright":
            report(path, number, "device headers are compiled by NVRTC alone")


def check_exports(path, lines):
    """What a public header declares is exported."""
    if path.relative_to(ROOT).parts[0] != "include":
        return
    for number, line in enumerate(lines, 1):
        if re.match(r"namespace tilewright\b", line):
            report(
                path, number, "declares names that are not exported: namespace TW_API tilewright"
            )


def check_opening(path, lines):
    first = lines[1 if lines and lines[0].startswith("#!") else 0 :][:1]
    mark = ("//",) if path.suffix in CXX else ("#", '"""', 'r"""')
    if not first or not first[0].startswith(mark):
        report(path, 1, "the first line must say what the file is for")


def check_text(path, lines):
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            report(path, number, "names a path of one machine")
        if UNFINISHED.search(line):
            report(path, number, "marks unfinished work")


def check_length(path, lines):
    if len(lines) > HARD_LINES:
        report(path, len(lines), f"longer than {HARD_LINES} lines")
    elif len(lines) > SOFT_LINES:
        print(f"{path.relative_to(ROOT)}: note: {len(lines)} lines, {SOFT_LINES} is the aim")


def check_lists(module):
    """Every .cpp of the module and of its tests stands in its CMakeLists.txt, lists sorted."""
    cmake = ROOT / "src" / module / "CMakeLists.txt"
    if not cmake.exists():
        if any(files(f"src/{module}", suffixes={".cpp"})):
            report(cmake.parent, 1, "has sources but no CMakeLists.txt")
        return
    text = re.sub(r"#.*", "", cmake.read_text())
    words = re.findall(r"[^\s()]+", text)
    for folder in (f"src/{module}", f"tests/{module}"):
        for path in files(folder, suffixes={".cpp"}):
            # Helpers of tests belong to several modules; only the tests themselves must stand here.
            helper = folder.startswith("tests/") and not path.stem.endswith("_test")
            if not helper and str(path.relative_to(ROOT / folder)) not in words:
                report(cmake, 1, f"does not list {path.relative_to(ROOT)}")
    for keyword, body in re.findall(r"\b(SOURCES|TESTS)\s+((?:[\w./]+\.cpp\s*)+)", text):
        names = body.split()
        if names != sorted(names):
            report(cmake, 1, f"{keyword} is not sorted: {' '.join(sorted(names))}")


def main():
    for path in files(*FOLDERS, suffixes=CXX | SCRIPTS):
        lines = path.read_text().splitlines()
        check_opening(path, lines)
        check_length(path, lines)
        if path.suffix in CXX:
            check_includes(path, lines)
            check_exports(path, lines)
        if path != pathlib.Path(__file__).resolve():
            check_text(path, lines)
    for path in [*ROOT.glob("*.md"), *files("docs", "src", suffixes={".md"})]:
        check_text(path, path.read_text().splitlines())
    for module in USES:
        check_lists(module)
    for folder in (ROOT / "src").iterdir():
        if folder.is_dir() and folder.name not in USES:
            report(folder, 1, "is no module of the pipeline")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
