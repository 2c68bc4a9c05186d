"""scripts/bench-compare with stand-ins for the two commands."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
SCRIPT = str(Path(__file__).resolve().parents[2] / "scripts" / "bench-compare")
LOADER = importlib.machinery.SourceFileLoader("bench_compare", SCRIPT)
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_compare", LOADER))
LOADER.exec_module(bench)

HELP = "--ranks INT=2   ranks\n--tokens TEXT\n--activations TEXT\n--json TEXT\n"
# Says help, or the next line of its file of results, over and over.
COMMAND = """#!/bin/sh
case "$*" in *--help*) cat "$0.help"; exit 0;; esac
echo "$(basename "$0")" >>"$(dirname "$0")/order"
n=$(cat "$0.count" 2>/dev/null || echo 0)
echo $((n + 1)) >"$0.count"
lines=$(wc -l <"$0.results")
sed -n "$((n % lines + 1))p" "$0.results"
"""


def result(cycle, before="near", after="near", store="near", others=0):
    times = {figure: {"p50": cycle} for figure in bench.FIGURES}
    path = {"path": "read", "variant": "copied", "layout": "rank_major", "store": store, **times}
    return {"machine": {"placement": before, "placement_after": after}, "others": others,
            "points": [{"ranks": 2, "tokens": [1], "paths": [path]}]}


class Parts(unittest.TestCase):
    def test_defaults_stand_aside(self):
        self.assertEqual(bench.arguments_of(["--ranks=4", "--activations", "both"]),
                         ["bench", "--ranks=4", "--activations", "both", "--json", "-"])
        self.assertIn("--ranks=2", bench.arguments_of(["--tokens", "1"]))

    def test_missing_options(self):
        self.assertEqual(bench.missing_options(HELP, ["bench", "--tokens", "-1", "--tok=3"]),
                         ["--tok"])

    def test_rounds_agree_in_placement_and_store(self):
        self.assertTrue(bench.agree(result(1), result(1), 0))
        for other in (result(1, "far", "far"), result(1, after="far"), result(1, store="far")):
            self.assertFalse(bench.agree(result(1), other, 0))
        mixed = result(1, "mixed", "mixed")
        self.assertFalse(bench.agree(mixed, mixed, 0))

    def test_only_rounds_that_agree_are_compared_if_enough_do(self):
        good, bad = (result(10), result(10)), (result(10), result(20, after="far"))
        self.assertEqual(bench.chosen([good] * 5 + [bad] * 5, 0), ([good] * 5, "", True))
        used, note, judged = bench.chosen([good] * 4 + [bad] * 6, 0)
        self.assertEqual((len(used), judged), (10, True))
        self.assertIn("ALL COMPARED", note)

    def test_rounds_with_other_programs_are_left_out(self):
        calm, loud = (result(10), result(10)), (result(10), result(20, others=0.5))
        self.assertEqual(bench.chosen([calm] * 5 + [loud], 0), ([calm] * 5, "", True))
        used, note, judged = bench.chosen([calm] * 4 + [loud] * 2, 0)
        self.assertEqual((len(used), judged), (6, False))
        self.assertIn("NOT JUDGED", note)

    def test_a_busy_program_is_seen(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            before = bench.busy_seconds() - bench.own_seconds()
            while bench.busy_seconds() - bench.own_seconds() < before + 0.2:
                time.sleep(0.05)
            other.kill()

    def test_slower_beyond_the_noise(self):
        self.assertTrue(bench.is_slower([1.06, 1.07, 1.08, 1.2], 1.05))
        self.assertFalse(bench.is_slower([0.9, 1.0, 1.3, 1.4], 1.05))  # the median is
        self.assertFalse(bench.is_slower([1.04] * 4, 1.05))

    def test_unknown_revision(self):
        with self.assertRaisesRegex(bench.CannotCompare, "'no-such-thing' is no revision"):
            bench.resolve("no-such-thing")

    def test_a_failed_build_shows_the_end_of_its_log(self):
        with tempfile.TemporaryDirectory() as folder, \
                contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaisesRegex(bench.CannotCompare, "(?s)CMake.*building base failed"):
            bench.build(Path(folder), "base")


class Whole(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.busy = bench.own_seconds  # by this test alone

    def command(self, name, results, help_text=HELP):
        path = self.folder / name
        path.write_text(COMMAND)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (self.folder / f"{name}.help").write_text(help_text)
        (self.folder / f"{name}.results").write_text("".join(json.dumps(r) + "\n" for r in results))
        return path

    def compare(self, base, new, *arguments):
        """(exit status, what was printed); base and new: [result] or a command's path."""
        commands = {"base": base, "new": new}
        for name, results in commands.items():
            if isinstance(results, list):
                commands[name] = self.command(name, results)
        printed = io.StringIO()
        with mock.patch.multiple(bench, resolve=lambda base: "0123456789abcdef",
                                 unpack=lambda sha: None, busy_seconds=lambda: self.busy(),
                                 build=lambda tree, name: commands[name]), \
                contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = bench.main(list(arguments) or ["--rounds", "6", "HEAD~1", "--tokens", "1"])
        return code, printed.getvalue()

    def test_as_fast(self):
        code, text = self.compare([result(10)], [result(10.2)])
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"cycle +1\.020 +quartiles 1\.020-1\.020 +range 1\.020-1\.020")
        self.assertIn("6 of 6 rounds", text)

    def test_slower(self):
        code, text = self.compare([result(10)], [result(11)])
        self.assertEqual(code, 1, text)
        self.assertIn("SLOWER", text)
        self.assertIn("1 cycles are slower by more than 5 %: read:copied@rank_major", text)
        self.assertEqual(self.compare([result(10)], [result(11)], "--limit", "12", "HEAD~1",
                                      "--tokens", "1")[0], 0)

    def test_slow_rounds_elsewhere_do_not_count(self):
        new = [result(10)] * 5 + [result(30, "far", "far")]
        code, text = self.compare([result(10)], new)
        self.assertEqual(code, 0, text)
        self.assertIn("5 of 6 rounds)", text)
        self.assertIn("near/near near/far", text)
        self.assertIn("runs by placement: near 11, far 1", text)

    def test_too_few_rounds_agree(self):
        code, text = self.compare([result(10)], [result(30, "far", "far")])
        self.assertEqual(code, 1, text)
        self.assertIn("ALL COMPARED", text)

    def test_a_busy_machine_is_not_judged(self):
        self.busy = lambda: time.monotonic() + bench.own_seconds()  # one core
        code, text = self.compare([result(10)], [result(30)])
        self.assertEqual(code, 2, text)
        self.assertIn("NOT JUDGED", text)
        self.assertIn("1 cycles were not judged: the machine was not idle", text)

    def test_runs_are_interleaved(self):
        self.compare([result(10)], [result(10)])
        order = (self.folder / "order").read_text().split()
        self.assertEqual(order[:8], ["base", "new", "new", "base"] * 2)

    def test_an_option_that_the_base_lacks(self):
        old = self.command("old", [result(10)], HELP.replace("--tokens TEXT\n", ""))
        code, text = self.compare(old, [result(10)])
        self.assertEqual(code, 2)
        self.assertIn("`ubep bench` of HEAD~1 (the base) has no option --tokens", text)

    def test_a_run_that_fails(self):
        bad = self.folder / "bad"
        bad.write_text(f"#!/bin/sh\ncase \"$*\" in *--help*) echo '{HELP}'; exit;; esac\n"
                       "echo 'a peer was lost' >&2\nexit 3\n")
        bad.chmod(0o755)
        code, text = self.compare([result(10)], bad)
        self.assertEqual(code, 2)
        self.assertIn("a peer was lost", text)
        self.assertIn("of new ended with status 3", text)

    def test_json_is_taken(self):
        with self.assertRaises(SystemExit):
            self.compare([result(10)], [result(10)], "HEAD", "--json", "x")


if __name__ == "__main__":
    unittest.main()
