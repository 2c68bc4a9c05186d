"""What the calibrations share; and that the pods are as their scripts write them."""

import json
import math
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import calibration  # noqa: E402


class CalibrationTest(unittest.TestCase):
    def test_changed_sets_values_by_path_and_leaves_the_pod(self):
        pod = {"tiers": [{"latency_ns": 1}], "lane": {}, "variants": [1]}
        new = calibration.changed(pod, {"tiers.0.latency_ns": 7, "lane.row_ns": 3, "launch_ns": 2})
        self.assertEqual(new, {"tiers": [{"latency_ns": 7}], "lane": {"row_ns": 3}, "launch_ns": 2})
        self.assertEqual(pod["tiers"][0]["latency_ns"], 1)

    def test_dump_is_json(self):
        for name in ("generic", "cm384", "nvl72"):
            pod = calibration.read(ROOT / "pods" / f"{name}.json")
            text = calibration.dump(pod)
            self.assertEqual(json.loads(text), pod)
            self.assertLessEqual(max(len(line) for line in text.splitlines()), 140)

    def test_fit_finds_the_parameters(self):
        def measure(points):
            return [[math.log((a + 3 * b) / 13), math.log((2 * a + b) / 11), math.log(a * b / 12)]
                    for a, b in points]

        point, residuals = calibration.fit(measure, (1, 1), (0.1, 0.1), (100, 100), 20)
        self.assertAlmostEqual(point[0], 4, delta=0.1)
        self.assertAlmostEqual(point[1], 3, delta=0.1)
        self.assertLess(calibration.rms(residuals), 0.02)

    def test_fit_stays_within_its_limits(self):
        point, _ = calibration.fit(lambda points: [[math.log(a / 50)] for (a,) in points],
                                   (1,), (0.5,), (10,), 20)
        self.assertAlmostEqual(point[0], 10, delta=0.1)

    def test_representatives_lie_apart_and_stand_for_all(self):
        points = [[0, 0], [0, 1], [10, 0], [10, 1], [5, 0.5], [9, 1]]
        chosen, weights = calibration.representatives(points, 3)
        self.assertEqual(chosen[0], 4)
        self.assertEqual(sum(weights), len(points))
        self.assertEqual(len(set(chosen)), 3)
        self.assertEqual(calibration.representatives(points[:2], 9)[1], [1, 1])


class PodsTest(unittest.TestCase):
    def test_variants_of_a_pod_begin_with_the_pod_itself(self):
        for name in ("cm384", "nvl72"):
            pod = calibration.read(ROOT / "pods" / f"{name}.json")
            base = {key: value for key, value in pod.items() if key != "variants"}
            self.assertEqual(calibration.changed(pod, pod["variants"][0]["set"]), base)
            self.assertLessEqual(len(pod["variants"]), 9)

    def test_derived_pods_are_as_they_follow(self):
        import calibration_cm384
        import calibration_nvl72
        for machine, name in ((calibration_cm384, "cm384"), (calibration_nvl72, "nvl72")):
            pod = calibration.read(ROOT / "pods" / f"{name}.json")
            for other, derived in machine.derived(pod).items():
                path = ROOT / "pods" / f"{other}.json"
                self.assertEqual(path.read_text(), calibration.dump(derived))


if __name__ == "__main__":
    unittest.main()
