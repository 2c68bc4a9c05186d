"""A throw-away tree to run a check on."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))


class CheckCase(unittest.TestCase):
    check = None  # the check's function, as a staticmethod

    def problems(self, tree):
        """What the check says of {path: text}."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in tree.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return self.check(Path(folder))[0]

    def assert_good(self, tree):
        self.assertEqual(self.problems(tree), [])

    def assert_bad(self, tree, *parts):
        """One problem, and it contains every part."""
        found = self.problems(tree)
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])
