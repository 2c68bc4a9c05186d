"""scripts/cross-check: its tables, from blocks that were stored, and what it discards."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
SCRIPT = str(Path(__file__).resolve().parents[2] / "scripts" / "cross-check")
LOADER = importlib.machinery.SourceFileLoader("cross_check", SCRIPT)
check = importlib.util.module_from_spec(importlib.util.spec_from_loader("cross_check", LOADER))
LOADER.exec_module(check)


def times(dispatch, combine):
    return {path: {"dispatch": dispatch, "combine": combine} for path in check.PATHS}


def block(tokens=8, measured=(100.0, 200.0), predicted=((90.0, 220.0), (110.0, 260.0)), **other):
    values = {
        "shape": {"tokens": tokens, "hidden": 2048, "experts": 128},
        "measured": times(*measured),
        "placement": {"before": "near", "after": "near", "stores": ["near"]},
        "others": 0.0,
        "pods": [{"mapped": "near"}, {"mapped": "near"}],
        "predicted": [times(*p) for p in predicted],
    }
    return {**values, **other}


def printed(blocks):
    out = io.StringIO()
    return check.report(blocks, out), out.getvalue()


class Discarding(unittest.TestCase):
    def reason(self, **other):
        return check.why_discarded(block(**other))

    def test_what_is_kept(self):
        self.assertIsNone(self.reason())
        self.assertIsNone(self.reason(placement={"before": "smt", "after": "smt",
                                                 "stores": ["near"]}))

    def test_moved_cpus(self):
        self.assertEqual(self.reason(placement={"before": "near", "after": "far",
                                                "stores": ["near"]}),
                         "the CPUs were near before and far after")
        self.assertEqual(self.reason(placement={"before": "mixed", "after": "mixed",
                                                "stores": ["far"]}),
                         "the CPUs were mixed before and mixed after")
        moved = {**block(), "pods": [{"mapped": "near"}, None], "predicted": [{}, None]}
        self.assertEqual(check.why_discarded(moved), "the CPUs were moved during a probe")

    def test_store_policies_that_differ(self):
        text = "probes and bench took different store policies"
        self.assertEqual(self.reason(pods=[{"mapped": "near"}, {"mapped": "far"}]), text)
        self.assertEqual(self.reason(placement={"before": "near", "after": "near",
                                                "stores": ["far"]}), text)

    def test_other_programs(self):
        self.assertEqual(self.reason(others=0.5), "other programs took 0.5 cores")


class Table(unittest.TestCase):
    def test_mean_of_both_predictions_and_median_of_blocks(self):
        rows = check.table_of([block(), block(measured=(50.0, 200.0)), block(measured=(80.0, 100.0)),
                               block(measured=(1.0, 1.0), others=1.0)])
        self.assertEqual(len(rows), 6)
        dispatch, combine = rows[:2]
        self.assertEqual(dispatch["key"], ("near", 2048, 8, "pull", "dispatch"))
        self.assertEqual((dispatch["blocks"], dispatch["predicted"], dispatch["measured"]),
                         (3, 100.0, 80.0))
        self.assertAlmostEqual(dispatch["error"], 0.25)
        self.assertAlmostEqual(combine["error"], 240 / 200 - 1)

    def test_placements_are_apart(self):
        far = block(placement={"before": "far", "after": "far", "stores": ["far"]},
                    pods=[{"mapped": "far"}] * 2)
        self.assertEqual({row["key"][0] for row in check.table_of([block(), far])}, {"near", "far"})

    def test_summary(self):
        rows = [{"key": (i,), "error": error} for i, error in enumerate((0.1, -0.4, 0.2, 0.0, 0.3))]
        got = check.summary_of(rows)
        self.assertEqual((got["median"], got["within"], got["cells"]), (0.2, 3, 5))
        self.assertEqual(got["worst"]["key"], (1,))

    def test_a_prediction_is_of_the_slower_rank_and_begins_with_a_flag(self):
        def run(p99):
            return [{op: {"p50": 1.0, "p99": p99} for op in check.OPERATIONS} for _ in check.PATHS]
        got = check.combine_runs([run(10.0), run(30.0), run(20.0)], 0.25)
        self.assertEqual(got["bsp"], {"dispatch": 20.25, "combine": 20.25})

    def test_report(self):
        code, text = printed([block(), block(tokens=1, others=2.0)])
        self.assertEqual(code, 0)
        self.assertIn("discarded: 1 tokens, hidden 2048: other programs took 2.0 cores", text)
        self.assertIn("| near | 2048 | 8 | pull | combine | 1 | 240.0 | 200.0 | +20 % |", text)
        self.assertIn("near: median absolute error 10.0 %, 6 of 6 cells within 20 %, worst +20 % "
                      "(near 2048 8 pull combine)", text)

    def test_no_block_left(self):
        code, text = printed([block(others=1.0)])
        self.assertEqual(code, 2)
        self.assertIn("no block is left", text)


class Command(unittest.TestCase):
    def run_it(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], check=False, text=True,
                              capture_output=True)

    def test_stored_blocks(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "blocks.json"
            path.write_text(json.dumps([block()]))
            done = self.run_it("--from", str(path))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("6 of 6 cells within 20 %", done.stdout)

    def test_a_command_that_is_not_there(self):
        done = self.run_it("--command", "no-such-command")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no-such-command is not there: build the preset release", done.stderr)

    def test_a_command_that_fails(self):
        error = io.StringIO()
        with contextlib.redirect_stderr(error), self.assertRaises(check.CannotCheck) as caught:
            check.run(sys.executable, "-c", "import sys; sys.exit('broken')")
        self.assertIn("broken", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
