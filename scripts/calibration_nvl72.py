"""NVL72: costs of a GPU's lanes, from a one-sided all-to-all of 8 GPUs of one rack (bf16, hidden
7168, top-8 of 256 experts; a token goes once to each GPU that it is routed to)."""

import itertools
import math

import calibration
from calibration import changed, table

# Tokens of each rank: us of dispatch and of combine.
TARGETS = {
    1: (18.9, 31.0), 8: (17.6, 31.4), 32: (18.2, 32.7), 64: (22.3, 34.1), 128: (31.7, 38.1),
    256: (50.8, 53.0), 512: (89.5, 91.7), 1024: (166.3, 175.6), 2048: (311.8, 322.6),
}
FITTED = (1, 8, 64, 256, 2048)  # the others are looked at afterwards
TOLERANCE = 0.25  # of each; and of all, root mean square:
MEAN_TOLERANCE = 0.10
SHAPE = {"ranks": 8, "hidden": 7168, "topk": 8, "experts": 256, "layout": "rank_major",
         "path": "push", "protocol": "put-with-signal"}

# Whether each token went to all 8 GPUs, as the bytes were counted, or to those of 8 random experts.
ROUTINGS = ("all ranks", "random")
LATENCIES_NS = (1000, 2000)
# What keeps small batches from being faster: a word for each other GPU, or what is done once.
FLOORS = ("words", "once")
KEPT = 6

PARAMETERS = ("tiers.0.rate_gb_s", "launch_ns", "combine_launch_ns", "lane.signal_ns")
START = (600, 10500, 20000, 1500)
LOW = (100, 100, 100, 10)
ISSUE_NS = 50  # of a lane
HIGH = (900, 40000, 60000, 8000)


def routings(simulator):
    rows = {}
    for tokens in TARGETS:
        tokens_of_all = [[rank * 32 + (7 * t + rank) % 32 for rank in range(8)]
                         for t in range(8 * tokens)]
        rows[tokens] = simulator.routing(f"all-{tokens}", tokens_of_all)
    return rows


def values(structure, point):
    _, latency, _ = structure
    return {"tiers.0.latency_ns": latency, **dict(zip(PARAMETERS, point))}


def limits(structure):
    """Where the fit begins, and how far it may go: without words, a word costs what any copy does."""
    if structure[2] == "words":
        return START, LOW, HIGH
    return (*START[:3], ISSUE_NS), (*LOW[:3], ISSUE_NS), (*HIGH[:3], ISSUE_NS)


def measure(simulator, pod, files, structure, points, batches=FITTED):
    """Residuals of each point: log of simulated over published."""
    runs = []
    for point in points:
        machine = changed(pod, values(structure, point))
        for tokens in batches:
            routing = files[tokens] if structure[0] == "all ranks" else "uniform"
            runs.append((machine, {**SHAPE, "tokens": tokens, "routing": routing}))
    results = iter(simulator.all(runs))
    residuals = []
    for _ in points:
        one = []
        for tokens in batches:
            published, result = TARGETS[tokens], next(results)
            one.append(math.log(result["dispatch_us"]["p50"] / published[0]))
            one.append(math.log(result["combine_us"]["p50"] / published[1]))
        residuals.append(one)
    return residuals


def percent(residual):
    return f"{(math.exp(residual) - 1) * 100:+.1f}"


def name_of(structure):
    routing, latency, floor = structure
    return f"{routing}, latency {latency} ns, floor {floor}"


def meets(residuals):
    return (max(abs(r) for r in residuals) < TOLERANCE
            and calibration.rms(residuals) < MEAN_TOLERANCE)


def calibrate(simulator, pod):
    files = routings(simulator)

    def fit(structure):
        point, _ = calibration.fit(lambda points: measure(simulator, pod, files, structure, points),
                                   *limits(structure), 4)
        return point, measure(simulator, pod, files, structure, [point], tuple(TARGETS))[0]

    all_of = list(itertools.product(ROUTINGS, LATENCIES_NS, FLOORS))
    fits = simulator.map(fit, all_of)
    table(["structure", *(p.split(".")[-1] for p in PARAMETERS), "rms %", "worst %", ""],
          [[name_of(s), *point, f"{calibration.rms(r) * 100:.1f}", percent(max(r, key=abs)),
            "kept" if meets(r) else ""] for s, (point, r) in zip(all_of, fits)])
    kept = [(s, point, r) for s, (point, r) in zip(all_of, fits) if meets(r)]
    if not kept:
        print("  nothing meets the targets")
        return pod
    points = [[ROUTINGS.index(s[0]), s[1], FLOORS.index(s[2]), *map(math.log, point)] for s, point, _ in kept]
    chosen, weights = calibration.representatives(points, KEPT)
    structure, point, residuals = kept[chosen[0]]
    print(f"  {len(kept)} of {len(all_of)} structures are kept; residuals of {name_of(structure)}:")
    table(["tokens", "dispatch us", "%", "combine us", "%"],
          [[tokens, us[0], percent(residuals[2 * i]), us[1], percent(residuals[2 * i + 1])]
           for i, (tokens, us) in enumerate(TARGETS.items())])
    table(["cost", "least", "most"],
          [[p, min(x[1][i] for x in kept), max(x[1][i] for x in kept)]
           for i, p in enumerate(PARAMETERS)])
    left_out(simulator, pod, files, structure)
    return calibration.with_variants(pod, [(name_of(kept[i][0]), weight,
                                            values(kept[i][0], kept[i][1]))
                                           for i, weight in zip(chosen, weights)])


def left_out(simulator, pod, files, structure):
    """What the fit to all batches but one says about it."""
    def without(tokens):
        rest = tuple(t for t in FITTED if t != tokens)
        point, _ = calibration.fit(
            lambda points: measure(simulator, pod, files, structure, points, rest),
            *limits(structure), 4)
        return measure(simulator, pod, files, structure, [point], (tokens,))[0]

    found = simulator.map(without, FITTED)
    print("  left out:")
    table(["tokens", "dispatch %", "combine %"],
          [[tokens, percent(d), percent(c)] for tokens, (d, c) in zip(FITTED, found)])


def check(simulator, pod):
    """What the variants in the pod's file give now."""
    files = routings(simulator)

    def times(variant):
        structure = (variant["name"].split(",")[0], variant["set"]["tiers.0.latency_ns"],
                     variant["name"].split()[-1])
        point = [variant["set"][p] for p in PARAMETERS]
        return measure(simulator, pod, files, structure, [point], tuple(TARGETS))[0]

    table(["variant", "rms %", "worst %"],
          [[v["name"], f"{calibration.rms(r) * 100:.1f}", percent(max(r, key=abs))]
           for v, r in zip(pod["variants"], simulator.map(times, pod["variants"]))])


def derived(pod):
    """Eight racks of a later generation: four times the rates, a second tier of links, and the lanes
    and costs of nvl72. Nobody has published a measurement."""
    racks = calibration.changed(pod, {
        "name": "nvl576",
        "source": "A projection from nvl72: docs/simulator.md",
        "ranks": 576,
        "lanes": 64,
        "port_gb_s": 4 * pod["port_gb_s"],
        "memory_gb_s": 4 * pod["memory_gb_s"],
        "lane.put_gb_s": 2 * pod["lane"]["put_gb_s"],
    })
    racks["variants"] = []
    for variant in pod["variants"]:
        set_by = dict(variant["set"])
        rate = set_by.pop("tiers.0.rate_gb_s")
        latency = set_by["tiers.0.latency_ns"]
        set_by.update({"tiers.0.rate_gb_s": 4 * rate, "tiers.1.rate_gb_s": 4 * rate,
                       "tiers.1.latency_ns": 2 * latency})
        racks["variants"].append({**variant, "set": set_by})
    first = racks["variants"][0]["set"]
    racks["tiers"] = [
        {"name": "rack", "ranks": 72, "latency_ns": first["tiers.0.latency_ns"],
         "rate_gb_s": first["tiers.0.rate_gb_s"]},
        {"name": "racks", "ranks": 576, "latency_ns": first["tiers.1.latency_ns"],
         "rate_gb_s": first["tiers.1.rate_gb_s"]},
    ]
    variants = racks.pop("variants")
    return {"nvl576": {"name": racks.pop("name"), "source": racks.pop("source"),
                       "projection": True, **racks, "variants": variants}}
