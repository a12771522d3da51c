"""tools/golden.py and tools/kernel_diff.py report changes in generated code."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import golden
import kernel_diff

PTX = """// 128 threads, 40 registers, 256 bytes of shared memory, 8 bytes spilled
.version 9.0
.visible .entry kernel(
	.param .u64 p
)
{
	.reg .b32 %r<3>;
	ld.param.u64 %rd1, [p];
	@%p1 bra $L__BB0_2;
	// begin inline asm
	{cp.async.cg.shared.global [%r1], [%rd1], 16;}
	// end inline asm
	ld.global.f32 %f1, [%rd1];
	ld.global.f32 %f2, [%rd1];
$L__BB0_2:
	ret;
}
"""

# A stand-in for `tilewright`: prints the requested text, or NVRTC's version.
PROGRAM = """#!/bin/sh
case $1 in doctor) echo "  NVRTC {version} (libnvrtc.so)"; exit ;; esac
case "$*" in
*ptx*) cat {folder}/ptx ;;
*bytecode*) printf 'program p: 1 buffers, 1 KiB a thread\\n   0  s0 = program_id 0\\n   1  halt\\n' ;;
*) printf 'func @p() grid [] {{\\n  %%0 = {operation} axis 0 : i64\\n  yield\\n}}\\n' ;;
esac
"""


class Golden(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "ptx").write_text(PTX)
        golden.GOLDEN, self.saved = self.folder / "golden", golden.GOLDEN
        golden.GOLDEN.mkdir()
        self.addCleanup(setattr, golden, "GOLDEN", self.saved)
        files, _ = golden.corpus(self.program())
        for name, text in files.items():
            (golden.GOLDEN / name).write_text(text)

    def program(self, operation="program_id", version="13.0"):
        path = self.folder / f"tilewright_{operation}_{version}"
        path.write_text(PROGRAM.format(folder=self.folder, operation=operation, version=version))
        os.chmod(path, 0o755)
        return path

    def differences(self, *arguments):
        return golden.compare(*golden.corpus(self.program(*arguments)))

    def test_equal_files_have_no_differences(self):
        self.assertEqual(self.differences(), "")

    def test_changed_ir_is_shown_in_texts_and_statistics(self):
        found = self.differences("num_programs")
        self.assertIn("-  %0 = program_id axis 0 : i64\n+  %0 = num_programs", found)
        self.assertIn("-  ir: 2 operations: 1 program_id, 1 yield", found)

    def test_registers_spills_and_opcodes_are_kept(self):
        text = (golden.GOLDEN / "statistics.txt").read_text()
        self.assertIn("40 registers, 256 bytes of shared memory, 8 bytes spilled;", text)
        self.assertIn(
            "6 instructions:\n    2 ld.global, 1 bra, 1 cp.async, 1 ld.param, 1 ret", text
        )
        (self.folder / "ptx").write_text(PTX.replace("40 registers", "41 registers"))
        self.assertIn("41 registers", self.differences())

    def test_ptx_of_another_nvrtc_is_not_compared(self):
        (self.folder / "ptx").write_text(PTX.replace("40 registers", "41 registers"))
        self.assertEqual(self.differences("program_id", "12.9"), "")
        self.assertIn("num_programs", self.differences("num_programs", "12.9"))

    def test_missing_and_left_over_files_are_differences(self):
        (golden.GOLDEN / "softmax.ir").unlink()
        (golden.GOLDEN / "old.ir").write_text("")
        self.assertIn("softmax.ir: missing", self.differences())
        self.assertIn("old.ir: no program", self.differences())

    def test_kernel_diff_names_what_changed(self):
        old = {"p": {"sm_80": "128 threads, 40 registers; 6 instructions: 2 ld.global"}}
        new = {"p": {"sm_80": "128 threads, 41 registers; 5 instructions: 1 ld.global, 1 mul"}}
        self.assertEqual(
            list(kernel_diff.changes(old, new)),
            ["p, sm_80: 40 -> 41 registers, 6 -> 5 instructions, 2 -> 1 ld.global, 0 -> 1 mul"],
        )
        self.assertEqual(list(kernel_diff.changes(old, old)), [])


if __name__ == "__main__":
    unittest.main()
