"""scripts/check_instructions.py with a stand-in for valgrind."""

import contextlib
import io
import json
import os
import stat
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import tree  # noqa: F401  the path to the scripts
import check_instructions as check

PROGRAM_SAYS = """ubep 0.1.0, wire 2, commit abc
compiler GNU 12.2.0, build RelWithDebInfo, sanitizers none
Highway 1.0.3, built for AVX3 AVX2 SSE4, here AVX2
flags -O2 -g1, libc 2.36, callgrind.h found
"""
FACTS = {"compiler": "GNU 12.2.0", "build": "RelWithDebInfo", "flags": "-O2 -g1", "libc": "2.36",
         "highway": "1.0.3", "instruction_set": "AVX2"}
# Takes the place of valgrind: writes the dumps that it is told in $DUMPS, one "NAME TOTAL" a line.
VALGRIND = """#!/bin/sh
for word; do case $word in --callgrind-out-file=*) out=${word#*=};; esac; done
n=0
echo "$DUMPS" | while read -r name operation layers total; do
  n=$((n + 1))
  printf 'desc: Trigger: Client Request: %s %s %s\\n\\nsummary: 1\\ntotals: %s\\n' \\
    "$name" "$operation" "$layers" "$total" >"$out.$n"
done
cat "$SAYS"
exit "$STATUS"
"""


class Parsing(unittest.TestCase):
    def test_facts(self):
        self.assertEqual(check.parse_facts(PROGRAM_SAYS), FACTS)

    def test_missing_facts_are_named(self):
        with self.assertRaisesRegex(check.CannotCount, "does not tell its highway"):
            check.parse_facts(PROGRAM_SAYS.replace("Highway", "Lowway"))

    def test_without_the_header(self):
        with self.assertRaises(check.Skip):
            check.parse_facts(PROGRAM_SAYS.replace("found", "missing"))

    def test_dumps_are_per_layer_and_the_last_one_is_no_case(self):
        case = "part: 1\ndesc: Trigger: Client Request: read-far dispatch 4\n\ntotals: 402\n"
        last = "part: 2\ndesc: Trigger: Program termination\n\ntotals: 9\n"
        self.assertEqual(check.parse_dumps([case, last]), {"read-far dispatch": 100})


class Comparing(unittest.TestCase):
    def test_within_the_tolerance(self):
        self.assertEqual(check.compare({"a": 1000, "b": 1000}, {"a": 1020, "b": 980}), ([], []))

    def test_more_names_case_old_and_new(self):
        problems, notes = check.compare({"a": 1000, "b": 1000}, {"a": 1021, "b": 1000})
        self.assertEqual(notes, [])
        self.assertEqual(problems, ["a: 1000 -> 1021 instructions (+2.1%), allowed +2%"])

    def test_less_is_a_note(self):
        problems, notes = check.compare({"a": 1000}, {"a": 900})
        self.assertEqual(problems, [])
        self.assertEqual(notes, ["a: 1000 -> 900 instructions (-10.0%): --write holds it"])

    def test_cases_that_came_or_went(self):
        problems, _ = check.compare({"a": 1}, {"b": 1})
        self.assertEqual([problem.split(":")[0] for problem in problems], ["a", "b"])

    def test_only_the_same_build_is_compared(self):
        builds = check.updated([], FACTS, {"a": 1})
        other = {**FACTS, "compiler": "Clang 16.0.6"}
        self.assertEqual(check.find(builds, FACTS), {"a": 1})
        self.assertIsNone(check.find(builds, other))
        builds = check.updated(builds, other, {"a": 2})
        builds = check.updated(builds, FACTS, {"a": 3})
        self.assertEqual([build["counts"] for build in builds], [{"a": 2}, {"a": 3}])


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        valgrind = self.folder / "valgrind"
        valgrind.write_text(VALGRIND)
        valgrind.chmod(valgrind.stat().st_mode | stat.S_IXUSR)
        (self.folder / "says").write_text(PROGRAM_SAYS)
        self.baseline = self.folder / "baseline.json"

    def run_check(self, *options, dumps="read dispatch 2 200", status=0, path=None):
        """(exit status, what was printed)"""
        environment = {"PATH": path or f"{self.folder}:{os.environ['PATH']}", "DUMPS": dumps,
                       "SAYS": str(self.folder / "says"), "STATUS": str(status)}
        printed = io.StringIO()
        with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(printed), \
                contextlib.redirect_stderr(printed):
            code = check.main([*options, "program", str(self.baseline)])
        return code, printed.getvalue()

    def test_written_then_held(self):
        self.assertEqual(self.run_check("--write")[0], 0)
        self.assertEqual(json.loads(self.baseline.read_text())["builds"],
                         [{**FACTS, "counts": {"read dispatch": 100}}])
        self.assertEqual(self.run_check(dumps="read dispatch 2 203")[0], 0)
        code, text = self.run_check(dumps="read dispatch 2 210")
        self.assertEqual(code, 1)
        self.assertIn("read dispatch: 100 -> 105 instructions (+5.0%)", text)

    def test_another_compiler_passes_with_a_notice(self):
        self.run_check("--write")
        (self.folder / "says").write_text(PROGRAM_SAYS.replace("12.2.0", "13.1.0"))
        code, text = self.run_check(dumps="read dispatch 2 900")
        self.assertEqual(code, 0)
        self.assertIn("NOTICE: no baseline for this compiler (compiler GNU 13.1.0", text)

    def test_without_valgrind_it_is_skipped(self):
        code, text = self.run_check(path="/nonexistent")
        self.assertEqual(code, 77)
        self.assertIn("valgrind is not installed", text)

    def test_a_program_that_fails_and_one_that_counts_nothing(self):
        code, text = self.run_check(status=3)
        self.assertEqual(code, 2)
        self.assertIn("status 3", text)
        self.assertEqual(self.run_check(dumps="")[0], 2)

    def test_usage(self):
        self.assertEqual(self.run_check("--what")[0], 2)


if __name__ == "__main__":
    unittest.main()
