"""cpp_reference.py: declarations as in the header, without bodies and private members."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

from cpp_reference import Entity, class_text, comment_above, declaration, prose, start_of

HEADER = """\
/// A box.
class Box : public Base {
  public:
    /// Empty.
    Box() = default;
    explicit Box(int a) : a_(a) {}
    template <typename F>
    requires std::is_invocable_v<F> void apply(
        F f = {}) {
        f();
        f();
    }
    int size = 0;  ///< elements

  private:
    int a_ = 0;
};
""".splitlines()


def function(line, end):
    return Entity("f", "function", line, end, True)


class CppReference(unittest.TestCase):
    def test_declarations_end_before_their_bodies(self):
        self.assertEqual(declaration(HEADER, 4), ["    Box() = default;"])
        self.assertEqual(declaration(HEADER, 5), ["    explicit Box(int a);"])
        start = start_of(HEADER, 8)
        self.assertEqual(declaration(HEADER, start)[-1], "        F f = {});")
        self.assertEqual(len(declaration(HEADER, start)), 3)

    def test_classes_lose_bodies_and_private_members(self):
        members = [function(5, 5), function(6, 6), function(8, 12)]
        box = Entity("Box", "class", 2, len(HEADER), True)
        text = "\n".join(class_text(HEADER, 1, box, members))
        self.assertIn("    /// Empty.\n    Box() = default;", text)
        self.assertIn("    int size = 0;  ///< elements\n};", text)
        for hidden in ("private", "a_", "f();\n"):
            self.assertNotIn(hidden, text)

    def test_comments_show_their_characters(self):
        self.assertEqual(comment_above(HEADER, 1), ["A box."])
        self.assertEqual(prose(["a_b <c> `d_e`"]), [r"a\_b &lt;c> `d_e`"])


if __name__ == "__main__":
    unittest.main()
