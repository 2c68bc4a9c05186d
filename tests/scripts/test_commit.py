"""cmake/UbepCommit.cmake, which tells the build which commit it is made from."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "cmake" / "UbepCommit.cmake"
# Nobody's settings, and no repository around the scratch folder's.
ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull,
               "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CEILING_DIRECTORIES": tempfile.gettempdir()}
GIT = shutil.which("git")


class Commit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = Path(folder.name) / "source"
        self.source.mkdir()
        self.output = Path(folder.name) / "commit.cpp"

    def run_program(self, *command):
        return subprocess.run(command, cwd=self.source, env=ENVIRONMENT, check=True,
                              stdout=subprocess.PIPE, text=True).stdout.strip()

    def written(self, git=GIT):
        self.run_program("cmake", "-D", f"SOURCE={self.source}", "-D", f"GIT={git}", "-D",
                         f"OUTPUT={self.output}", "-P", str(SCRIPT))
        return self.output.read_text().split('"')[1]

    def commit(self, text):
        (self.source / "file").write_text(text)
        self.run_program(GIT, "add", "file")
        self.run_program(GIT, "-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c")

    @unittest.skipUnless(GIT, "no git here")
    def test_names_the_commit_and_whether_files_were_changed(self):
        self.run_program(GIT, "init", "-q")
        self.commit("one")
        self.run_program(GIT, "tag", "v9")
        head = self.run_program(GIT, "rev-parse", "HEAD")
        self.assertEqual(self.written(), head[:12])
        (self.source / "file").write_text("two")
        self.assertEqual(self.written(), head[:12] + "-changed")
        self.commit("three")
        self.assertNotEqual(self.written(), head[:12])

    @unittest.skipUnless(GIT, "no git here")
    def test_is_not_written_again_without_news(self):
        self.run_program(GIT, "init", "-q")
        self.commit("one")
        self.written()
        os.utime(self.output, (1, 1))
        self.written()
        self.assertEqual(self.output.stat().st_mtime, 1)

    def test_is_unknown_without_git_and_outside_a_checkout(self):
        self.assertEqual(self.written(git=""), "unknown")
        if GIT:
            self.assertEqual(self.written(), "unknown")


if __name__ == "__main__":
    unittest.main()
