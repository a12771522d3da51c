"""check_layout.py: every rule is broken once."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_layout

#: A tree that obeys the rules: every module includes exactly what its row lists.
GOOD = {
    f"src/{module}/a.h": f"// {module}.\n"
    + "".join(f'#include "{other}/a.h"\n' for other in sorted(uses) if other not in apart)
    + f"namespace tilewright::{check_layout.NAMESPACES.get(module, module)} {{\n}}  // namespace\n"
    for module, uses in check_layout.USES.items()
    for apart in [{"cuda"} if module in {"mask", "attention"} else set()]
}
for gpu in "src/mask/gpu.h", "src/attention/sm90/a.h":
    GOOD[gpu] = '// For GPUs.\n#include "cuda/a.h"\n'
GOOD["src/cli/CMakeLists.txt"] = "SOURCES bench/registry.cpp\n"
GOOD["src/cli/bench/cases.h"] = "// Cases.\nvoid bench_norm(int);\n"
GOOD["src/cli/bench/registry.cpp"] = '// All.\n{"norm", bench_norm}, {{"cpu/a.cpp"}, "runs"}\n'
GOOD["bench/cpu/a.cpp"] = "// A benchmark.\n"


class CheckLayout(unittest.TestCase):
    def problems(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for name, text in {
                "dev": "",
                "README.md": "",
                **GOOD,
                **changes,
            }.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            saved = check_layout.ROOT, check_layout.__file__
            check_layout.ROOT = root
            check_layout.__file__ = str(root / "check_layout.py")
            check_layout.problems.clear()
            for modules in check_layout.used.values():
                modules.clear()
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    status = check_layout.main()
            finally:
                check_layout.ROOT, check_layout.__file__ = saved
            found = list(check_layout.problems)
        self.assertEqual(status, 1 if found else 0)
        return "\n".join(found)

    def test_a_good_tree_has_no_problem(self):
        self.assertEqual(self.problems({}), "")

    def test_broken_rules(self):
        cases = {
            "ir/b.h:2: module ir may not include cpu/a.h": {
                "src/ir/b.h": '// b.\n#include "cpu/a.h"\n'
            },
            "src/mask/b.h:2: includes cuda/a.h, where run alone chooses a device": {
                "src/mask/b.h": '// b.\n#include "cuda/a.h"\n'
            },
            "src/norm/b.h:2: module norm may not include cpu/a.h": {
                "src/norm/b.h": '// b.\n#include "cpu/a.h"\n'
            },
            "module norm includes nothing of run: leave it out of its row": {
                "src/norm/a.h": '// norm.\n#include "support/a.h"\n'
            },
            "registry.cpp:1: does not list bench/new.py": {"bench/new.py": "# new.\n"},
            "registry.cpp:1: lists bench/gone.py, which does not exist": {
                "src/cli/bench/registry.cpp": '// b.\nbench_norm "gone.py" "cpu/a.cpp"\n'
            },
            "registry.cpp:1: does not list bench_new of cases.h": {
                "src/cli/bench/cases.h": "// b.\nvoid bench_norm(int);\nvoid bench_new(int);\n"
            },
            "includes itself: src/ir/b.h -> src/ir/c.h -> src/ir/b.h": {
                "src/ir/b.h": '// b.\n#include "ir/c.h"\n',
                "src/ir/c.h": '// c.\n#include "ir/b.h"\n',
            },
            "src/ir/b.h:2: namespace tilewright::cpu, where the folder's is tilewright::ir": {
                "src/ir/b.h": "// b.\nnamespace tilewright::cpu {\n}  // namespace tilewright::cpu\n"
            },
            "src/ir/b.h:3: namespace tilewright::other": {
                "src/ir/b.h": "// b.\nnamespace tilewright {\nnamespace other {\n}  // namespace\n"
            },
            "attention/sm90/b.h:2: namespace tilewright::attn, where": {
                "src/attention/sm90/b.h": "// b.\nnamespace tilewright::attn {\n}  // namespace\n"
            },
            "src/ir/b.cpp:4: opens a second anonymous namespace": {
                "src/ir/b.cpp": "// b.\nnamespace {\n}  // namespace\nnamespace {\n}  // namespace\n"
            },
            "include/x.h:2: a public header includes ir/a.h": {
                "include/x.h": '// x.\n#include "ir/a.h"\n'
            },
            "the first line must say": {"src/ir/b.h": "\n"},
            "tests/ir/b_test.cpp:2: does not say which error": {
                "tests/ir/b_test.cpp": "// b.\nEXPECT_" + "THROW(f(), UserError);\n",
            },
            "src/ir/b.h:2: words: write speculative row maximum": {
                "src/ir/b.h": f"// b.\n// The {'gu'}ess of a maximum.\n"
            },
            "tests/ir/b_test.cpp:2: words: write after": {
                "tests/ir/b_test.cpp": "// b.\nTEST(B, StaysBe" + "hindIt) {}\n"
            },
            "README.md:1: words: write TMA": {"README.md": "The copy" + " engine.\n"},
            "README.md:1: words: write supports": {"README.md": "One kernel ser" + "ves all.\n"},
            "b.py:2: names a host that packages come from": {
                "tools/b.py": "# b.\n# http://deb." + "debian.org/debian\n"
            },
            "b.py:2: names a path of one machine": {"tools/b.py": "# b.\n# /ro" + "ot/x\n"},
            "longer than 1200 lines": {"src/ir/b.h": "// b.\n" * 1201},
            "has sources but no CMakeLists.txt": {"src/ir/b.cpp": "// b.\n"},
            "is no module of the pipeline": {"src/other/b.h": "// b.\n"},
        }
        for message, changes in cases.items():
            with self.subTest(message):
                self.assertIn(message, self.problems(changes))

    def test_names_that_are_allowed(self):
        text = (
            "// b.\nnamespace tilewright {\nnamespace detail {\n}  // namespace detail\n"
            "namespace attn::tiles {\nnamespace {\n}  // namespace\n}  // namespace attn::tiles\n"
            "}  // namespace tilewright\n"
        )
        self.assertEqual(self.problems({"src/attention/tiles/b.h": text}), "")
        device = "// b.\nnamespace twd::ptx {\n}  // namespace twd::ptx\n"
        self.assertEqual(self.problems({"src/cuda/device/b.cuh": device}), "")


if __name__ == "__main__":
    unittest.main()
