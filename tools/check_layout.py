#!/usr/bin/env python3
"""Checks layout rules that compilers do not: which module may include which, and how files look.

usage: check_layout.py

Rules: a module includes itself and exactly the modules that its row below lists; no file includes
or imports itself through others; a namespace is its folder's, and an anonymous one is opened once;
public headers include nothing private and export their names; a file opens with its purpose; no
file is longer than 1,200 lines (a warning above 600); a test of an error names its text; each
module's CMake lists name every source and test, sorted; the registry of benchmarks has all of them
and nothing else; no path of a developer's machine, no package mirror's host, no word that
CONTRIBUTING.md's table replaces, and no unfinished-work marks.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

#: The modules that each module includes, besides public headers, in pipeline order:
#: support <- ir <- {lang, cpu, cuda} <- run <- mod <- {mask, norm, attention} <- {c_api, cli}
USES = {
    "support": {},
    "ir": {"support"},
    "lang": {"support", "ir"},
    "cpu": {"support", "ir"},
    "cuda": {"support", "ir"},
    "run": {"support", "ir", "lang", "cpu", "cuda"},
    "mod": {"support", "ir", "lang"},
    "mask": {"support", "ir", "cuda", "run", "mod"},
    "norm": {"support", "run"},
    "attention": {"support", "ir", "lang", "cuda", "run", "mod", "mask"},
    "c_api": {"support"},
    "cli": {"support", "ir", "cpu", "cuda", "run", "mod", "mask", "norm", "attention"},
}

#: GPU-only code in modules that leave the choice of a device to `run`; no other includes cuda.
FOR_GPUS = ("attention/sm", "mask/device/", "mask/gpu.")

#: Namespaces within tilewright, by folder, if they are not the module's name. Implementations of
#: public functions are in tilewright itself, in any folder, and what public templates need in
#: detail.
NAMESPACES = {
    "attention": "attn",  # `attention` is the function
    "attention/sm90": "attn::sm90",
    "attention/tiles": "attn::tiles",
    "cuda/schedule": "cuda::schedule",
}
PUBLIC_NAMESPACES = ("tilewright", "tilewright::detail", "tilewright::masks", "tilewright::scores")

PACKAGE = ROOT / "python" / "tilewright"
#: Imports inside functions of modules that import theirs: frameworks, and what few calls need.
DEFERRED = {
    ("_cuda_kernel.py", "jax/__init__.py"),
    ("_cuda_kernel.py", "torch/__init__.py"),
    ("_kernels.py", "jax/__init__.py"),
    ("_programs.py", "_artifacts.py"),
    ("_programs.py", "_kernels.py"),
    ("_attention.py", "torch/_marker.py"),
    ("_norm.py", "torch/_marker.py"),
}

CXX = {".h", ".cpp", ".cuh", ".inl"}
SCRIPTS = {".py", ".sh", ".cmake"}
SOFT_LINES, HARD_LINES = 600, 1200
FOLDERS = ("include", "src", "tests", "bench", "examples", "python", "tools", "cmake")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(root|work)/")
MIRROR = re.compile(r"https?://[\w.-]*\b(debian|ubuntu|pypi|pythonhosted|conda)\b[\w.-]*")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
#: Words that CONTRIBUTING.md's table says not to write, if the word alone tells.
WORDS = {
    re.compile(pattern, re.IGNORECASE): term
    for pattern, term in {
        r"copy[ _]engine": "TMA",
        r"\b(in|by|takes?|taking|their)[ _]turns\b|\b(take|pass)_turn\b": "iteration, or interleaved",
        r"(next|last|first|later) round of (a|the) loop|\brounds? ahead\b|join_rounds": "iteration",
        r"(?<![a-z])guess": "speculative row maximum",
        r"(?<![a-z])tickets?(?![a-z])": "dynamic tile scheduler",
        r"kShares\b|\.shares\b|in equal shares": "stream-K",
        r"\bparts of (\{\}|\d+) keys\b": "split-KV",
        r"\b(met|meets?) (a|its first) key\b": "has an unmasked key",
        r"\bkWide\b|\bwide (heads?|kernels?|backwards?)\b": "head_dim > 128",
        r"(?<![a-z])behind(?![a-z])": "after",
        r"\b(cannot|can't|could not|do not|does not|did not) serve\b|\bserve[sd]\b": "supports",
        r"\bcomplaints?\b": "known issues",
    }.items()
}

ANY_WORD = re.compile("|".join(pattern.pattern for pattern in WORDS), re.IGNORECASE)
CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")

#: `throws` of tests/support/throws.h takes the text.
WITHOUT_TEXT = re.compile(r"\b(EXPECT|ASSERT)_(ANY_)?THROW\(")

problems = []


def report(path, line, text):
    problems.append(f"{path.relative_to(ROOT)}:{line}: {text}")


def files(*folders, suffixes):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def included(lines):
    """(line number, path) of every #include."""
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found[1]


used = {module: set() for module in USES}


def check_includes(path, lines):
    parts = path.relative_to(ROOT).parts
    for number, name in included(lines):
        target = name.split("/")[0]
        if parts[0] == "include" and target in USES:
            report(path, number, f"a public header includes {name}, which is not installed")
        if parts[0] == "src" and parts[1] in USES and target in USES and target != parts[1]:
            used[parts[1]].add(target)
            if target not in USES[parts[1]]:
                report(path, number, f"module {parts[1]} may not include {name}")
            chooses = target == "cuda" and parts[1] in {"mask", "norm", "attention"}
            if chooses and not "/".join(parts[1:]).startswith(FOR_GPUS):
                report(path, number, f"includes {name}, where run alone chooses a device")
        if parts[:2] == ("src", "cuda") and "device" in parts and target == "tilewright":
            report(path, number, "device headers are compiled by NVRTC alone")


def check_rows():
    """Checks that every module in a row of USES is included."""
    for module, uses in USES.items():
        for unused in sorted(set(uses) - used[module]):
            report(
                pathlib.Path(__file__).resolve(),
                1,
                f"module {module} includes nothing of {unused}: leave it out of its row",
            )


def check_cycles(graph):
    """Checks that no file includes itself through others. graph: {path: [(line, other path)]}"""
    done, open_files = set(), []

    def visit(path):
        open_files.append(path)
        for number, target in graph[path]:
            if target in open_files and target != path:  # foreach_target.h includes its file again
                cycle = [*open_files[open_files.index(target) :], target]
                names = " -> ".join(str(file.relative_to(ROOT)) for file in cycle)
                report(path, number, f"includes itself: {names}")
            elif target not in done and target != path:
                visit(target)
        open_files.pop()
        done.add(path)

    for path in graph:
        if path not in done:
            visit(path)


def includes_of(path, sources):
    """(line, path) of the project's files that a C++ file includes."""
    for number, name in included(sources[path]):
        for folder in (ROOT / "src", ROOT / "include", ROOT / "python/src", ROOT, path.parent):
            if folder / name in sources:
                yield number, folder / name
                break


def imports_of(path):
    """(line, path) of the package's modules that one of them imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for alias in node.names:
            targets = [folder / f"{alias.name}.py", folder / alias.name / "__init__.py"]
            if node.module:  # a name of that module, not a module
                targets += [folder.with_suffix(".py"), folder / "__init__.py"]
            target = next((t for t in targets if t.exists()), None)
            deferred = (path.name, target and target.relative_to(PACKAGE).as_posix())
            if target is not None and deferred not in DEFERRED:
                yield node.lineno, target


def check_namespaces(path, lines):
    """Checks that names are in the namespace of their folder."""
    parts = path.relative_to(ROOT).parts
    if parts[0] != "src" or parts[1] not in USES:
        return
    folder = "/".join(parts[1:-1])
    of_folder = "tilewright::" + NAMESPACES.get(folder, NAMESPACES.get(parts[1], parts[1]))
    allowed = (*PUBLIC_NAMESPACES, of_folder, "std")
    if "device" in parts or path.suffix == ".cuh" or path.stem.endswith("_parameters"):
        allowed = ("twd",)  # compiled by NVRTC
    open_names = []
    for number, line in enumerate(lines, 1):
        opened = re.match(r"(?:inline )?namespace (?:TW_API )?([\w:]+)? ?\{", line)
        if opened:
            open_names.append(opened[1])
            name = "::".join(filter(None, open_names))
            below = any(name.startswith(f"{a}::") for a in allowed if a not in PUBLIC_NAMESPACES)
            if opened[1] and name not in allowed and not below:
                report(path, number, f"namespace {name}, where the folder's is {of_folder}")
        if re.match(r"\}.*// namespace", line) and open_names:
            open_names.pop()


def check_anonymous(path, lines):
    """Checks that each namespace of a file has at most one anonymous namespace."""
    open_names, seen = [], set()
    for number, line in enumerate(lines, 1):
        opened = re.match(r"(?:inline )?namespace (?:TW_API )?([\w:]+)? ?\{", line)
        if opened:
            open_names.append(opened[1] or "")
            if not opened[1]:
                if tuple(open_names) in seen or "" in open_names[:-1]:
                    report(path, number, "opens a second anonymous namespace")
                seen.add(tuple(open_names))
        if re.match(r"\}.*// namespace", line) and open_names:
            open_names.pop()


def check_exports(path, lines):
    """Checks that what a public header declares is exported."""
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
        if MIRROR.search(line):
            report(path, number, "names a host that packages come from")
        if UNFINISHED.search(line):
            report(path, number, "marks unfinished work")
        if WITHOUT_TEXT.search(line) and path.suffix in CXX:
            report(path, number, "does not say which error: EXPECT_THAT([&] { ... }, throws(text))")
        if path.name == "CONTRIBUTING.md" and line.startswith("|"):
            continue  # the table
        words = f"{line} {CAMEL_CASE.sub(' ', line)}" if CAMEL_CASE.search(line) else line
        for pattern, term in WORDS.items() if ANY_WORD.search(words) else ():
            if pattern.search(words):
                report(path, number, f"words: write {term} (CONTRIBUTING.md)")


def check_length(path, lines):
    if len(lines) > HARD_LINES:
        report(path, len(lines), f"longer than {HARD_LINES} lines")
    elif len(lines) > SOFT_LINES:
        print(f"{path.relative_to(ROOT)}: note: {len(lines)} lines, {SOFT_LINES} is the aim")


def check_lists(module):
    """Checks that CMakeLists.txt names every .cpp of the module and its tests, sorted."""
    cmake = ROOT / "src" / module / "CMakeLists.txt"
    if not cmake.exists():
        if any(files(f"src/{module}", suffixes={".cpp"})):
            report(cmake.parent, 1, "has sources but no CMakeLists.txt")
        return
    text = re.sub(r"#.*", "", cmake.read_text())
    words = re.findall(r"[^\s()]+", text)
    for folder in (f"src/{module}", f"tests/{module}"):
        for path in files(folder, suffixes={".cpp"}):
            # Test helpers belong to several modules; only the tests have to be listed here.
            helper = folder.startswith("tests/") and not path.stem.endswith("_test")
            if not helper and str(path.relative_to(ROOT / folder)) not in words:
                report(cmake, 1, f"does not list {path.relative_to(ROOT)}")
    for keyword, body in re.findall(r"\b(SOURCES|TESTS)\s+((?:[\w./]+\.cpp\s*)+)", text):
        names = body.split()
        if names != sorted(names):
            report(cmake, 1, f"{keyword} is not sorted: {' '.join(sorted(names))}")


def check_benchmarks():
    """Checks that the registry lists every file of bench/ and every function of `tilewright bench`."""
    registry = ROOT / "src/cli/bench/registry.cpp"
    cases = ROOT / "src/cli/bench/cases.h"
    text = registry.read_text()
    listed = set(re.findall(r'"([\w/]+\.(?:py|cpp))"', text))
    present = {
        path.relative_to(ROOT / "bench").as_posix()
        for path in files("bench", suffixes={".py", ".cpp"})
    }
    for name in sorted(present - listed):
        report(registry, 1, f"does not list bench/{name}")
    for name in sorted(listed - present):
        report(registry, 1, f"lists bench/{name}, which does not exist")
    for function in re.findall(r"\bvoid (bench_\w+)\(", cases.read_text()):
        if not re.search(rf"\b{function}\b", text):
            report(registry, 1, f"does not list {function} of {cases.name}")


def main():
    sources = {}
    for path in files(*FOLDERS, suffixes=CXX | SCRIPTS):
        lines = path.read_text().splitlines()
        check_opening(path, lines)
        check_length(path, lines)
        if path.suffix in CXX:
            sources[path] = lines
            check_includes(path, lines)
            check_exports(path, lines)
            check_namespaces(path, lines)
            check_anonymous(path, lines)
        if path != pathlib.Path(__file__).resolve():
            check_text(path, lines)
    check_rows()
    check_benchmarks()
    check_cycles({path: list(includes_of(path, sources)) for path in sources})
    check_cycles({path: list(imports_of(path)) for path in files(PACKAGE, suffixes={".py"})})
    scripts = [ROOT / "dev", *ROOT.glob("*.toml"), *files("tools", suffixes={".txt"})]
    for path in [*scripts, *ROOT.glob("*.md"), *files("docs", "src", suffixes={".md"})]:
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
