"""wrap_docs.py: prose is filled at 100 columns, everything else is kept."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

from wrap_docs import wrapped

LONG = "word " * 40


class WrapDocs(unittest.TestCase):
    def test_long_paragraphs_are_filled_and_lose_no_word(self):
        text = wrapped(f"# Title\n\n{LONG}\n{LONG}\n\nShort.\n")
        self.assertLessEqual(max(map(len, text.split("\n"))), 100)
        self.assertEqual(text.split(), f"# Title {LONG} {LONG} Short.".split())

    def test_items_keep_their_indentation(self):
        lines = wrapped(f"- {LONG}\n- short\n").split("\n")
        self.assertTrue(lines[0].startswith("- word"))
        self.assertTrue(lines[1].startswith("  word"))
        self.assertEqual(lines[-2], "- short")

    def test_code_tables_and_headings_stay(self):
        text = f"```sh\n{LONG}\n```\n\n| {LONG} |\n\n# {LONG}\n\n    {LONG}\n"
        self.assertEqual(wrapped(text), text)

    def test_no_line_begins_with_what_would_be_a_list(self):
        for length in range(3, 12):
            words = " ".join(["w" * length, "-", "1.", "+", "#"] * 30)
            for line in wrapped(words).split("\n"):
                self.assertTrue(line.startswith("w"), line)

    def test_spans_of_code_stay_in_one_line(self):
        text = wrapped(" ".join(["`a + b`"] * 40))
        for line in text.split("\n"):
            self.assertEqual(line.count("`") % 2, 0, line)


if __name__ == "__main__":
    unittest.main()
