import unittest

import tree  # noqa: F401
from checklib import split_cpp


class SplitCpp(unittest.TestCase):
    def test_blanks_comments_and_literals_in_place(self):
        code, comments = split_cpp('a("// {"); // b "c\nint d = 1\'000; char e = \'{\'; /* f\n*/ g')
        self.assertEqual(code, 'a("    ");        \nint d = 1\'000; char e = " ";     \n   g')
        self.assertEqual(comments.split(), ["//", "b", '"c', "/*", "f", "*/"])

    def test_raw_string_ends_at_its_own_delimiter(self):
        code, comments = split_cpp('f(R"x(" ) // )" \n } )x"); g /* h */')
        self.assertEqual(code.split(), ['f("', '");', "g"])
        self.assertEqual(comments.strip(), "/* h */")

    def test_comment_goes_on_after_a_backslash(self):
        code, _ = split_cpp("// a \\\n b\nc")
        self.assertEqual(code.strip(), "c")

    def test_unclosed_quote_stays_on_its_line(self):
        code, _ = split_cpp("#error don't\nint a;")
        self.assertIn("int a;", code)


if __name__ == "__main__":
    unittest.main()
