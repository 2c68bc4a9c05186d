"""scripts/bench-rivals-hosts with a stand-in for the programs: what is asked for, and ratios within a run."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
SCRIPT = str(Path(__file__).resolve().parents[2] / "scripts" / "bench-rivals-hosts")
LOADER = importlib.machinery.SourceFileLoader("bench_rivals_hosts", SCRIPT)
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_rivals_hosts", LOADER))
LOADER.exec_module(bench)


class BenchRivalsHosts(unittest.TestCase):
    def test_ranks(self):
        self.assertEqual([bench.ranks_of(hosts) for hosts in ("2x4", "1,3", "5")], [8, 4, 5])

    def run_with(self, statuses):
        """(commands, output) of a measurement of gloo alone, whose runs end so."""
        commands, output = [], io.StringIO()
        times = iter([(10, 20), (100, 300)])

        def started(command, **_):
            commands.append(command)
            status = statuses[len(commands) - 1]
            if status == 0:
                ours, theirs = next(times)
                ways = [{"name": name, "us": [{"cycle": us, "round_trip": us}]}
                        for name, us in (("ubep", ours), ("gloo", theirs))]
                Path(command[-1]).write_text(json.dumps({"ways": ways}))
            return mock.Mock(returncode=status, stderr="why")

        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "ubep_rivals_gloo").touch()
            arguments = ["", "--programs", folder, "--runs", str(len(statuses)), "--tokens", "7", "--rate", "1gbit"]
            with mock.patch.object(sys, "argv", arguments), mock.patch("subprocess.run", started), \
                    contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
                bench.main()
        return commands, output.getvalue()

    def test_ratios_are_within_a_run(self):
        commands, output = self.run_with([0, 0])
        self.assertIn("2x2 --rate 1gbit --timeout", " ".join(commands[0]))
        line = next(line for line in output.splitlines() if " gloo " in line)
        self.assertIn("2.50 (2.00..3.00)", line)

    def test_a_failed_run_does_not_count(self):
        _, output = self.run_with([1, 0])
        self.assertIn("2.00 (2.00..2.00)", output)

    def test_without_namespaces(self):
        with self.assertRaises(SystemExit) as ended:
            self.run_with([77])
        self.assertEqual(ended.exception.code, "why")


if __name__ == "__main__":
    unittest.main()
