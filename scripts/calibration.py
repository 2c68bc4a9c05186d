"""What the calibrations of all pods share: runs of `ubep sim`, fits, and the choice of variants."""

import copy
import json
import math
import struct
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def read(path):
    return json.loads(Path(path).read_text())


def write(path, pod):
    Path(path).write_text(dump(pod))


def dump(value, indent=0, width=100):
    """JSON with small objects and lists on one line."""
    flat = json.dumps(value)
    if isinstance(value, dict) and value:
        flat = "{ " + flat[1:-1] + " }"
    nested = isinstance(value, (dict, list)) and (indent == 0 or len(flat) + indent > width - 2)
    if not nested or not value:
        return flat
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            head = f"{json.dumps(key)}: "
            items.append(inner + head + dump(item, indent + 2, width - len(head)))
        text = "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    else:
        items = [inner + dump(item, indent + 2, width) for item in value]
        text = "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"
    return text + ("\n" if indent == 0 else "")


def changed(pod, values):
    """The pod without its variants, and with other values by path, as a variant sets them."""
    pod = copy.deepcopy(pod)
    pod.pop("variants", None)
    for path, value in values.items():
        place = pod
        *parents, key = path.split(".")
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        place[key] = value
    return pod


class Simulator:
    """Runs `ubep sim`, a few at once; the same run only once."""

    def __init__(self, ubep, jobs):
        self.ubep = ubep
        self.jobs = jobs
        self.runs = 0
        self.begin = time.monotonic()
        self.known = {}

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    @property
    def seconds(self):
        return time.monotonic() - self.begin

    def routing(self, name, rows):
        """A file for --routing: lists of experts, token by token, rank after rank."""
        path = Path(self.folder.name) / f"{name}.safetensors"
        data = b"".join(struct.pack(f"<{len(row)}i", *row) for row in rows)
        head = json.dumps({"topk_idx": {"dtype": "I32", "shape": [len(rows), len(rows[0])],
                                        "data_offsets": [0, len(data)]}}).encode()
        head += b" " * (-len(head) % 8)
        path.write_bytes(struct.pack("<Q", len(head)) + head + data)
        return f"file:{path}"

    def all(self, runs):
        """[(pod, {option: value})...] -> times of each. One after the other: map() is outside."""
        keys = [json.dumps(run) for run in runs]
        new = [key for key in dict.fromkeys(keys) if key not in self.known]
        self.known.update(zip(new, map(self.run, new)))
        return [self.known[key] for key in keys]

    def map(self, function, items):
        """A few at once; results in the order of the items."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(function, items))

    def run(self, key):
        pod, options = json.loads(key)
        self.runs += 1
        path = Path(self.folder.name) / f"pod-{threading.get_ident()}.json"
        path.write_text(json.dumps(pod))
        command = [self.ubep, "sim", "--pod", str(path), "--json", "-"]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True)
        path.unlink()
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        path = json.loads(done.stdout)["points"][0]["paths"][0]
        return {"dispatch_us": path["dispatch"], "combine_us": path["combine"],
                "dispatch_lanes_us": path["dispatch_lanes"]}


def solve(matrix, vector):
    """Gauss with pivots."""
    n = len(vector)
    rows = [list(row) + [value] for row, value in zip(matrix, vector)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if rows[i][i] == 0:
            rows[i][i] = 1e-12
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def step(jacobian, residuals, damping=1e-3):
    """The step of Gauss and Newton: jacobian[i][j] = d residual i / d parameter j."""
    n = len(jacobian[0])
    normal = [[sum(row[i] * row[j] for row in jacobian) for j in range(n)] for i in range(n)]
    for i in range(n):
        normal[i][i] *= 1 + damping
    right = [-sum(row[i] * r for row, r in zip(jacobian, residuals)) for i in range(n)]
    return solve(normal, right)


def rms(values):
    return math.sqrt(sum(v * v for v in values) / len(values))


def fit(measure, start, low, high, iterations):
    """Least squares within limits. measure(list of points) -> residuals of each. A parameter moves
    by ratios, or not at all where its limits are one. Returns (point, residuals)."""
    point = list(start)
    residuals = measure([point])[0]
    for _ in range(iterations):
        tries = []
        free = [i for i in range(len(point)) if high[i] > low[i]]
        for i in free:
            value = point[i]
            tried = list(point)
            tried[i] = value * 1.1 if value * 1.1 <= high[i] else value / 1.1
            tries.append(tried)
        columns = measure(tries)
        jacobian = [[(column[r] - residuals[r]) / math.log(tried[i] / point[i])
                     for i, tried, column in zip(free, tries, columns)]
                    for r in range(len(residuals))]
        moves = [0.0] * len(point)
        for i, move in zip(free, step(jacobian, residuals)):
            moves[i] = move
        candidates = []
        for part in (1.0, 0.5, 0.2):
            candidates.append([min(max(value * math.exp(max(-1.0, min(1.0, part * move))), lo), hi)
                               for value, move, lo, hi in zip(point, moves, low, high)])
        candidates = [[float(f"{value:.4g}") for value in c] for c in candidates]
        results = measure(candidates)
        best = min(range(len(results)), key=lambda i: (rms(results[i]), i))
        if rms(results[best]) >= rms(residuals) * 0.999:
            break
        point, residuals = candidates[best], results[best]
    return point, residuals


def representatives(points, count):
    """Indices of points that lie far from each other, the one nearest to the centre first; and how
    many of all are nearest to each."""
    spans = [max(p[i] for p in points) - min(p[i] for p in points) or 1
             for i in range(len(points[0]))]

    def distance(a, b):
        return math.sqrt(sum(((x - y) / s) ** 2 for x, y, s in zip(a, b, spans)))

    centre = [sum(p[i] for p in points) / len(points) for i in range(len(points[0]))]
    chosen = [min(range(len(points)), key=lambda i: (distance(points[i], centre), i))]
    while len(chosen) < min(count, len(points)):
        rest = [i for i in range(len(points)) if i not in chosen]
        chosen.append(max(rest, key=lambda i: (min(distance(points[i], points[c])
                                                   for c in chosen), -i)))
    weights = [0] * len(chosen)
    for p in points:
        nearest = min(range(len(chosen)), key=lambda c: (distance(p, points[chosen[c]]), c))
        weights[nearest] += 1
    return chosen, weights


def with_variants(pod, variants):
    """The first is what the pod is without variants."""
    base = changed(pod, variants[0][2])
    base["variants"] = [{"name": name, "weight": weight, "set": values_of}
                        for name, weight, values_of in variants]
    return base


def table(head, rows):
    """Columns, the first to the left."""
    texts = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    for row in texts:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        print("  " + "  ".join(cells).rstrip())
    print(flush=True)
