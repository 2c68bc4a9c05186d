"""The faults of scripts/mutate still apply to the tree."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from mutations import MUTATIONS  # noqa: E402


class MutationsTest(unittest.TestCase):
    def test_each_text_occurs_once(self):
        for name, file, old, new, arguments in MUTATIONS:
            with self.subTest(name):
                if file is None:
                    self.assertTrue(arguments, "neither an edit nor an option")
                    continue
                self.assertEqual((ROOT / file).read_text().count(old), 1)
                self.assertNotEqual(old, new)

    def test_names_differ(self):
        names = [mutation[0] for mutation in MUTATIONS]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
