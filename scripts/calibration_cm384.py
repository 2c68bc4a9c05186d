"""CloudMatrix384: costs of a die's vector cores, from what is published of the machine and of the
expert parallelism that its own software offers (which path bsp stands for)."""

import itertools
import sys

import calibration
from calibration import changed, table

SHAPE = {"hidden": 7168, "topk": 8, "experts": 256, "quant": "int8", "path": "bsp"}
# A dispatch: its options, us, tolerance.
NEAR = ({**SHAPE, "ranks": 8, "tokens": 128}, 116, 0.05)
FAR = ({**SHAPE, "ranks": 256, "tokens": 128}, 152, 0.05)
FEW = ({**SHAPE, "ranks": 128, "tokens": 4}, 25, 0.15)
LABELS = {"near": "128 tokens, 8 ranks", "far": "128 tokens, 256 ranks", "few": "4 tokens, 128 ranks"}
FEW_ROWS = 8  # tokens that show what words cost, in runs that are not long
# Both exchanges of a decode step, us: they cannot take longer than the published layer around them.
# Its words are looked at by lanes that wait, so this tells of looks what no dispatch does.
LAYER = ({**SHAPE, "ranks": 256, "tokens": 96}, 874)
# Half of the lanes reach so much of what all reach (of rows in flight, once they are many).
HALF_OF_LANES = (0.95, 0.1)
MANY = {**SHAPE, "ranks": 8, "tokens": 512}

# What is published does not say it. Latencies: one way, or there and back.
LATENCIES = {"one way": (218, 929, 2500), "both ways": (109, 464.5, 1250)}
# All three of a dispatch, without what lanes wait in them; with it they are said to be 15 % of it.
BARRIERS_US = (5, 20)
ROWS_IN_FLIGHT = (1, 4)
# What grows with the number of ranks: storing a status word, or looking at one.
WORDS = {"store": "bsp.signal_ns", "look": "lane.poll_ns"}
# Costs of a row that nothing published bears on, as a part of what the baseline's dispatch has:
# taking one out on the other paths, and preparing one for the way back.
PARTS = (1, 0.5)
KEPT = 8

PRIOR = {"launch": 5000.0, "receive": 1000.0, "word": 100.0}
MOST = {"launch": 60000.0, "receive": 20000.0, "word": 20000.0}


def rounded(value):
    return float(f"{value:.3g}")


def values(pod, structure, state, part=1):
    latency, barriers, in_flight, words = structure
    set_by = {f"tiers.{i}.latency_ns": ns for i, ns in enumerate(LATENCIES[latency])}
    set_by["lane.in_flight"] = in_flight
    set_by["bsp.barrier_ns"] = rounded(barriers * 1000 / 3)
    set_by["launch_ns"] = rounded(state["launch"])
    set_by["bsp.receive_row_ns"] = rounded(state["receive"])
    set_by["lane.receive_row_ns"] = rounded(state["receive"] * part)
    set_by["lane.combine_row_ns"] = rounded(pod["lane"]["row_ns"] * part)
    for name, path in WORDS.items():
        set_by[path] = rounded(state["word"] if name == words else PRIOR["word"])
    return set_by


class Fit:
    """Of one structure: the three free costs."""

    def __init__(self, simulator, pod, structure):
        self.simulator, self.pod, self.structure = simulator, pod, structure
        self.state = dict(PRIOR)

    def result(self, options):
        machine = changed(self.pod, values(self.pod, self.structure, self.state))
        return self.simulator.all([(machine, options)])[0]

    def error(self, target):
        """us too many."""
        return self.result(target[0])["dispatch_us"]["p50"] - target[1]

    def few_error(self):
        """Of FEW, which another kernel took that pulls rows: so it bounds what is fixed, launch and
        barriers, and not what this one does for each word."""
        word, self.state["word"] = self.state["word"], PRIOR["word"]
        error = self.error(FEW)
        self.state["word"] = word
        return error

    def move(self, name, ns):
        self.state[name] = min(max(self.state[name] + ns, 0), MOST[name])

    def far_error(self):
        """As error(FAR), from runs that are shorter: the words of 256 ranks, the rows of 64."""
        few, many = ({**FAR[0], "tokens": FEW_ROWS}, {**FAR[0], "ranks": 64})
        us = [self.result(o)["dispatch_us"]["p50"]
              for o in (few, many, {**many, "tokens": FEW_ROWS})]
        return us[0] + us[1] - us[2] - FAR[1]

    def errors(self, targets):
        """us too many, of FEW, NEAR and FAR."""
        return [self.few_error() if "few" in targets else 0,
                self.error(NEAR) if "near" in targets else 0,
                self.far_error() if "far" in targets else 0]

    def moves(self, columns, slopes, errors):
        """Without those costs that are 0 and would have to be less."""
        moves = calibration.step([[row[c] for c in columns] for row in slopes], errors)
        stuck = [c for c, move in zip(columns, moves)
                 if move < 0 and self.state[list(PRIOR)[c]] == 0]
        if not stuck or len(stuck) == len(columns):
            return columns, moves
        return self.moves([c for c in columns if c not in stuck], slopes, errors)

    def run(self, free=("launch", "receive", "word"), targets=("few", "near", "far")):
        """Moves the free costs until the targets are met, or as near as they can be."""
        # us for each ns: rows that a lane takes out, words that it stores or looks at; Broyden's
        # rank-one updates mend what is wrong with it.
        look = self.structure[3] == "look"
        slopes = [[1e-3, 1e-3, 0], [1e-3, 35e-3, 9e-3 if look else 4e-3],
                  [1e-3, 23e-3, 37e-3 if look else 14e-3]]
        rows = [i for i, name in enumerate(("few", "near", "far")) if name in targets]
        columns = [i for i, name in enumerate(PRIOR) if name in free]
        errors = self.errors(targets)
        for _ in range(7):
            # Nothing is to be won from FEW once launch is 0.
            open_rows = [r for r in rows if r != 0 or 0 in columns and self.state["launch"] > 0]
            if calibration.rms([errors[r] for r in open_rows]) < 0.8:
                break
            before = dict(self.state)
            columns, moves = self.moves(columns, [slopes[r] for r in rows],
                                        [errors[r] for r in rows])
            for c, move in zip(columns, moves):
                self.move(list(PRIOR)[c], move)
            moved = [self.state[name] - before[name] for name in PRIOR]
            length = sum(m * m for m in moved)
            if length < 1:
                break
            new = self.errors(targets)
            for r in rows:
                wrong = new[r] - errors[r] - sum(a * m for a, m in zip(slopes[r], moved))
                slopes[r] = [a + wrong * m / length for a, m in zip(slopes[r], moved)]
            errors = new
        print(f"  {name_of(self.structure)}: {[round(e, 1) for e in errors]}", file=sys.stderr,
              flush=True)
        return self

    def figures(self):
        rates = []
        for count in (24, 48):
            many = self.result({**MANY, "lanes": count})
            rates.append(1 / (many["dispatch_lanes_us"]["last_row_max"]
                              - self.state["launch"] / 1000))
        figures = {name: self.result(t[0])["dispatch_us"]["p50"] / t[1] - 1
                   for name, t in (("near", NEAR), ("far", FAR), ("words", FEW))}
        figures["few"] = self.few_error() / FEW[1]
        figures["half"] = rates[0] / rates[1]
        layer = self.result(LAYER[0])
        figures["layer"] = sum(layer[f"{part}_us"]["p50"] for part in ("dispatch", "combine"))
        return figures


def meets(figures):
    return (abs(figures["near"]) <= NEAR[2] and abs(figures["far"]) <= FAR[2]
            and abs(figures["few"]) <= FEW[2]
            and abs(figures["half"] / HALF_OF_LANES[0] - 1) <= HALF_OF_LANES[1]
            and figures["layer"] < LAYER[1])


def name_of(structure, part=None):
    latency, barriers, in_flight, words = structure
    text = f"latency {latency}, barriers {barriers} us, {in_flight} in flight, words {words}"
    return text if part is None else f"{text}, rows {part}"


def row_of(fit, figures):
    s = fit.state
    return [name_of(fit.structure), *(f"{s[k]:.0f}" for k in PRIOR),
            *(f"{figures[k] * 100:+.1f}" for k in ("near", "far", "few", "words")),
            f"{figures['half']:.2f}", f"{figures['layer']:.0f}", "kept" if meets(figures) else ""]


def left_out(simulator, pod, structure, full):
    """What the fit without one target says about it."""
    names = list(PRIOR)
    rows = []
    for target, free in (("far", names[:2]), ("few", names[1:]), ("near", names[::2])):
        fit = Fit(simulator, pod, structure)
        if target == "few":
            fit.state["word"] = full.state["word"]
        fit.run(free, [t for t in ("few", "near", "far") if t != target])
        published = {"far": FAR, "few": FEW, "near": NEAR}[target]
        error = fit.few_error() if target == "few" else fit.error(published)
        rows.append([LABELS[target], published[1], f"{published[1] + error:.1f}"])
    print(f"  left out, at {name_of(structure)}:")
    table(["target", "us", "predicted"], rows)


def other_experts(fit):
    options = {**NEAR[0], "experts": 64}
    us = fit.result(options)["dispatch_us"]["p50"]
    print(f"  64 experts instead of 256 behind the 8 ranks: {us:.1f} us\n")


def longest_transfers(fit):
    """The longest time that a lane sends rows, of a shape of which the batch is not published."""
    rows = []
    for tokens in (16, 32, 64, 128):
        row = [tokens]
        for quant in ("int8", "none"):
            result = fit.result({**SHAPE, "ranks": 64, "tokens": tokens, "quant": quant,
                                 "routing": "hot:8"})
            last = result["dispatch_lanes_us"]["last_row_max"] - fit.state["launch"] / 1000
            row.append(f"{last:.1f}")
        rows.append(row)
    print("  longest transfer of a lane, 64 ranks, 8 hot experts; 62.2 us is published:")
    table(["tokens", "int8", "bf16"], rows)


def all_fits(simulator, pod):
    """Each begins where one that differs in less has ended: what barriers take more, launch takes
    less."""
    ends = {}

    def fit(structure, near):
        one = Fit(simulator, pod, structure)
        if near is not None:
            one.state = dict(ends[near].state)
            one.move("launch", 1000 * (near[1] - structure[1]))
        return one.run()

    def fit_all(pairs):
        ends.update(zip([s for s, _ in pairs], simulator.map(lambda pair: fit(*pair), pairs)))

    first = [(latency, BARRIERS_US[0], ROWS_IN_FLIGHT[0], words)
             for latency, words in itertools.product(LATENCIES, WORDS)]
    fit_all([(s, None) for s in first])
    fit_all([((s[0], s[1], n, s[3]), s) for s in first for n in ROWS_IN_FLIGHT[1:]])
    fit_all([((s[0], b, *s[2:]), s) for s in list(ends) for b in BARRIERS_US[1:]])
    return [ends[s] for s in itertools.product(LATENCIES, BARRIERS_US, ROWS_IN_FLIGHT, WORDS)]


def calibrate(simulator, pod):
    fits = all_fits(simulator, pod)
    return finish(pod, fits, simulator.map(Fit.figures, fits))


def finish(pod, fits, figures):
    simulator = fits[0].simulator
    table(["structure", "launch", "receive", "word", "near %", "far %", "few %", "with words %",
           "half", "layer", ""], [row_of(*pair) for pair in zip(fits, figures)])
    kept = [(fit, part) for fit, f in zip(fits, figures) if meets(f) for part in PARTS]
    if not kept:
        print("  nothing meets the targets")
        return pod
    points = [[list(LATENCIES).index(f.structure[0]), f.structure[1], f.structure[2],
               list(WORDS).index(f.structure[3]), f.state["launch"], f.state["receive"], part]
              for f, part in kept]
    chosen, weights = calibration.representatives(points, KEPT)
    ranges = []
    for i, name in enumerate(PRIOR):
        of = [f.state[name] for f, _ in kept]
        ranges.append([name, f"{min(of):.0f}", f"{max(of):.0f}"])
    print(f"  {len(kept) // len(PARTS)} of {len(fits)} structures are kept; ranges, ns:")
    table(["cost", "least", "most"], ranges)
    centre = kept[chosen[0]][0]
    left_out(simulator, pod, centre.structure, centre)
    other_experts(centre)
    longest_transfers(centre)
    return calibration.with_variants(pod, [(name_of(kept[i][0].structure, kept[i][1]), weight,
                                            values(pod, kept[i][0].structure, kept[i][0].state, kept[i][1]))
                                           for i, weight in zip(chosen, weights)])


def check(simulator, pod):
    """What the variants in the pod's file give now."""
    def times(variant):
        machine = changed(pod, variant["set"])
        return [simulator.all([(machine, t[0])])[0]["dispatch_us"]["p50"] for t in (NEAR, FAR, FEW)]

    found = simulator.map(times, pod["variants"])
    table(["variant", *(f"{LABELS[n]}, {t[1]} us" for n, t in (("near", NEAR), ("far", FAR),
                                                              ("few", FEW)))],
          [[v["name"], *(f"{us:.1f}" for us in row)] for v, row in zip(pod["variants"], found)])


def derived(pod):
    """The same with the rate of a package of two dies for each die; not fitted again."""
    both = {"port_gb_s": 2 * pod["port_gb_s"],
            "tiers.1.rate_gb_s": 2 * pod["tiers"][1]["rate_gb_s"],
            "tiers.2.rate_gb_s": 2 * pod["tiers"][2]["rate_gb_s"]}
    other = calibration.changed(pod, both)
    other["name"] = "cm384-392"
    other["source"] = "As cm384, with twice the rates: docs/simulator.md"
    other["variants"] = pod["variants"]
    return {"cm384-392": other}
