import unittest

from tree import CheckCase
import check_docs

EXAMPLE = "int main() {\n  // [call]\n  f(1);\n  if (x) {\n    g();\n  }\n  // [/call]\n}\n"
BLOCK = "<!-- from: examples/a/main.cpp#call -->\n```cpp\nf(1);\nif (x) {\n  g();\n}\n```\n"


class CheckDocs(CheckCase):
    check = staticmethod(check_docs.check)

    def test_block_equals_region(self):
        for document in ("README.md", "docs/guide/one.md"):
            self.assert_good({document: "# A\n\n" + BLOCK, "examples/a/main.cpp": EXAMPLE})

    def test_block_differs(self):
        for document in ("README.md", "docs/guide/one.md"):
            text = BLOCK.replace("f(1)", "f(2)")
            self.assert_bad({document: text, "examples/a/main.cpp": EXAMPLE}, f"{document}:2: differs")

    def test_region_is_missing_or_doubled(self):
        self.assert_bad({"README.md": BLOCK}, "has no region [call]")
        self.assert_bad({"README.md": BLOCK, "examples/a/main.cpp": EXAMPLE * 2}, "no region")

    def test_unmarked_block(self):
        block = "text\n```cpp\nf();\n```\n"
        self.assert_bad({"README.md": block}, "README.md:2: no <!-- from:")
        self.assert_bad({"README.md": BLOCK + block, "examples/a/main.cpp": EXAMPLE}, "README.md:9:")
        self.assert_good({"docs/guide/a.md": block, "README.md": "```sh\nls\n```\n"})

    def test_links(self):
        good = "[a](docs/a.md#x) [b](https://x.org/y) [c](#here) `[d](no.md)`\n```\n[e](no.md)\n```\n"
        self.assert_good({"README.md": good, "docs/a.md": "[up](../README.md)\n"})
        self.assert_bad({"docs/a.md": "\n[b](b.md)\n"}, "docs/a.md:2: b.md leads nowhere")

    def test_words(self):
        for words in ("see /work/main", "in /home/me/x", "issue 12", "fixes #12", "STYLE.md",
                      "an AI agent", "the coding session"):
            self.assert_bad({"docs/a.md": f"{words}\n"}, "docs/a.md:1: says")
            self.assert_bad({"src/base/a.hpp": f"\n// {words}\n"}, "src/base/a.hpp:2: says")
        self.assert_good({"docs/a.md": "the homework/home/ of an agent, ~/work/, 0x#, C#, a#1\n"})


if __name__ == "__main__":
    unittest.main()
