"""The table and the pictures of scripts/bench-rivals, from the results of its runs.

A run holds, for every round, the placement of the CPUs before and after it and the median times of
every way. Ratios are taken within a round, between ways of one process, and only in rounds whose
placement did not change; the figure is their median over the rounds of one placement.
"""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Callable

FEWEST_ROUNDS = 2


@dataclass(frozen=True)
class Comparison:
    title: str
    figure: str  # of a way's times
    ours: Callable  # of a way: whether it is ours
    theirs: Callable
    ours_over_theirs: bool = False  # else theirs over ours: above 1 = we are faster
    most_ranks: int = 64
    program: str = None  # only in its runs: others have the same rival beside their own


def named(name):
    return lambda way: way["name"] == name


def kind(*kinds, layout=None, but=()):
    return lambda way: (way["kind"] in kinds and way["name"] not in but
                        and layout in (None, way["layout"]))


def starting(text):
    return lambda way: way["name"].startswith(text)


def fixed(layout):
    chosen = ("ubep", "ubep drop-in", "ubep expert_major")
    return kind("ubep", layout=layout, but=chosen)


RANK, EXPERT = named("ubep"), named("ubep expert_major")
GATHERED = ("agrs", "agrs plain", "agrs streamed sums")


def gathered(way):
    return way["name"] in GATHERED


AGRS = gathered


def over_mpi(way):
    return way["kind"] == "messages" and way["name"].startswith(("Open MPI", "MPICH"))


COMPARISONS = [
    Comparison("rank_major against the best AgRs, whole cycle", "cycle", RANK, AGRS),
    Comparison("rank_major against the best AgRs, round trip", "round_trip", RANK, AGRS),
    Comparison("rank_major against AgRs read in place, whole cycle", "cycle", RANK,
               starting("agrs in place")),
    Comparison("drop-in against the best AgRs, whole cycle", "cycle", named("ubep drop-in"), AGRS),
    Comparison("rank_major against AgRs as engines store it, whole cycle", "cycle", RANK,
               named("agrs")),
    Comparison("rank_major against all-reduce and slice, whole cycle", "cycle", RANK,
               named("all-reduce")),
    Comparison("expert_major against the best direct, whole cycle", "cycle", EXPERT, kind("direct"),
               program="ubep_rivals"),
    Comparison("expert_major against the best direct, round trip", "round_trip", EXPERT,
               kind("direct"), program="ubep_rivals"),
    Comparison("expert_major against MPI's shared window, whole cycle", "cycle", EXPERT,
               kind("window")),
    Comparison("expert_major against MPI's shared window, round trip", "round_trip", EXPERT,
               kind("window")),
    Comparison("expert_major against packed Alltoallv, round trip", "round_trip", EXPERT,
               lambda way: way["name"].endswith("alltoallv packed")),
    Comparison("expert_major against the best message passing, round trip", "round_trip", EXPERT,
               over_mpi),
    Comparison("expert_major against the best message passing, whole cycle", "cycle", EXPERT,
               over_mpi),
    Comparison("rank_major against gloo, whole cycle", "cycle", RANK, starting("gloo")),
    Comparison("rank_major against oneCCL, whole cycle", "cycle", RANK, starting("oneCCL")),
    Comparison("rank_major over the floor, round trip", "round_trip", RANK,
               kind("floor", layout="rank_major"), True, 2),  # floors wait for nobody
    Comparison("rank_major over the floor, whole cycle", "cycle", RANK,
               kind("floor", layout="rank_major"), True, 2),  # floors wait for nobody
    Comparison("expert_major over the floor, round trip", "round_trip", EXPERT,
               kind("floor", layout="expert_major"), True, 2),  # floors wait for nobody
    Comparison("expert_major over the floor, whole cycle", "cycle", EXPERT,
               kind("floor", layout="expert_major"), True, 2),  # floors wait for nobody
    Comparison("rank_major chosen over the best fixed, whole cycle", "cycle", RANK,
               fixed("rank_major"), True),
    Comparison("expert_major chosen over the best fixed, whole cycle", "cycle", EXPERT,
               fixed("expert_major"), True),
]
PICTURES = {"agrs.svg": "rank_major against the best AgRs, whole cycle",
            "direct.svg": "expert_major against the best direct, whole cycle",
            "messages.svg": "expert_major against the best message passing, whole cycle",
            "window.svg": "expert_major against MPI's shared window, whole cycle"}


def rounds_by_placement(result):
    rounds = defaultdict(list)
    for i, probes in enumerate(result["rounds"]):
        before, after = probes["before"]["placement"], probes["after"]["placement"]
        if before == after and before in ("near", "far", "smt"):
            rounds[before].append(i)
    return {placement: chosen for placement, chosen in rounds.items()
            if len(chosen) >= FEWEST_ROUNDS}


def median_of(way, figure, rounds):
    return statistics.median(way["us"][i][figure] for i in rounds)


def shape_of(result):
    return result["ranks"], max(result["tokens"]), result["hidden"], result["topk"]


@dataclass
class Ratio:
    shape: tuple  # ranks, tokens, hidden, topk
    placement: str
    ratio: float
    ours: str
    ours_us: float
    theirs: str
    theirs_us: float

    def against_us(self):
        return self.ours_us / self.theirs_us


def ratios_of(comparison, runs):
    """One Ratio for each run and placement in which both sides were measured."""
    for result in runs:
        if result["ranks"] > comparison.most_ranks:
            continue
        if comparison.program is not None and result["program"] != comparison.program:
            continue
        ours = [way for way in result["ways"] if comparison.ours(way)]
        theirs = [way for way in result["ways"] if comparison.theirs(way)]
        if not ours or not theirs:
            continue
        for placement, rounds in rounds_by_placement(result).items():
            def us(way, rounds=rounds):
                return median_of(way, comparison.figure, rounds)
            a, b = min(ours, key=us), min(theirs, key=us)
            quotients = [b["us"][i][comparison.figure] / a["us"][i][comparison.figure]
                         for i in rounds]
            ratio = statistics.median(quotients)
            yield Ratio(shape_of(result), placement,
                        1 / ratio if comparison.ours_over_theirs else ratio,
                        a["name"], us(a), b["name"], us(b))


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def one_per_shape(ratios):
    """Of the same comparison in several programs (two MPIs, say) the one that is worst for us."""
    worst = {}
    for r in ratios:
        key = (r.shape, r.placement)
        if key not in worst or r.against_us() > worst[key].against_us():
            worst[key] = r
    return worst.values()


def groups_of(ratios):
    """(ranks, topk, placement) -> ratios, one for each shape; prefill apart."""
    groups = defaultdict(list)
    for r in one_per_shape(ratios):
        ranks, tokens, _, topk = r.shape
        groups[ranks, topk, "prefill" if tokens > 128 else "decode", r.placement].append(r)
    return dict(sorted(groups.items()))


def cell(group):
    if not group:
        return ""
    values = [r.ratio for r in group]
    return f"**{geometric_mean(values):.2f}** ({len(values)}: {min(values):.2f}..{max(values):.2f})"


def summary(runs):
    """Geometric mean and range over the shapes of each group, as Markdown: decode, then prefill."""
    all_ranks = sorted({result["ranks"] for result in runs})
    columns = [(ranks, placement) for ranks in all_ranks for placement in ("near", "far")]
    lines = ["| comparison | top-k | " +
             " | ".join(f"{ranks} ranks, {placement}" for ranks, placement in columns) + " |",
             "|---|---|" + "---|" * len(columns)]
    for kinds in ("decode", "prefill"):
        for comparison in COMPARISONS:
            groups = groups_of(ratios_of(comparison, runs))
            for topk in sorted({key[1] for key in groups if key[2] == kinds}, reverse=True):
                cells = [cell(groups.get((ranks, topk, kinds, placement)))
                         for ranks, placement in columns]
                if any(cells):
                    title = comparison.title + (", prefill" if kinds == "prefill" else "")
                    lines.append(f"| {title} | {topk} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def probes_of(runs):
    flags = [probe["flag_one_way_ns"] for result in runs for entry in result["rounds"]
             for probe in entry.values() if "flag_one_way_ns" in probe]
    if not flags:
        return "placement unknown"
    return f"a flag took {min(flags):.0f} to {max(flags):.0f} ns one way"


def details(runs):
    lines = ["| ranks x tokens x hidden, top-k | placement | comparison | ours, us | theirs, us | ratio |",
             "|---|---|---|---|---|---|"]
    for comparison in COMPARISONS:
        for r in sorted(ratios_of(comparison, runs), key=lambda r: (r.shape, r.placement)):
            ranks, tokens, hidden, topk = r.shape
            lines.append(f"| {ranks} x {tokens} x {hidden}, {topk} | {r.placement} | "
                         f"{comparison.title} | {r.ours_us:.1f} | {r.theirs} {r.theirs_us:.1f} | "
                         f"{r.ratio:.2f} |")
    return "\n".join(lines)


def legend(runs):
    ways = {way["name"]: (way["kind"], way["layout"], way["text"])
            for result in runs for way in result["ways"]}
    lines = ["| way | kind | layout | what |", "|---|---|---|---|"]
    lines += [f"| {name} | {kind_} | {layout} | {text} |"
              for name, (kind_, layout, text) in ways.items()]
    return "\n".join(lines)


def markdown(runs):
    machine = runs[0]["machine"]
    wrong = sum(way["mismatches"] for result in runs for way in result["ways"])
    checked = sum(len(result["ways"]) for result in runs)
    return f"""# UBEP and its rivals

{machine["cpus"]} CPUs, {machine["model"]}; {probes_of(runs)}. {checked} ways and shapes checked against
the reference: {wrong} rows differ. Ratios are theirs over ours (above 1: UBEP is faster), but "over the
floor" and "over the best fixed" are ours over theirs (below is better).

{summary(runs)}

## Every shape
{details(runs)}

## The ways
{legend(runs)}
"""


COLOURS = {"near": "#2a7ab9", "far": "#c8553d", "smt": "#6a994e"}


def picture(comparison, runs):
    """A dot for each shape, a column for each group, on a logarithmic scale."""
    groups = groups_of(ratios_of(comparison, runs))
    if not groups:
        return None
    values = [r.ratio for group in groups.values() for r in group]
    low, high = math.log2(min(0.7, *values)), math.log2(max(2, *values))
    left, top, step, height = 60, 50, 64, 300

    def y_of(ratio):
        return top + height - height * (math.log2(ratio) - low) / (high - low)

    width = left + step * len(groups) + 20
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + height + 70}" '
             'font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{top + height + 70}" fill="white"/>',
             f'<text x="{left}" y="20" font-size="13">{comparison.title}</text>',
             f'<text x="{left}" y="36" fill="dimgray">times of the rival over ours; a dot is a shape, '
             'a bar the geometric mean</text>']
    for tick in (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128):
        if low <= math.log2(tick) <= high:
            parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y_of(tick):.1f}" '
                         f'y2="{y_of(tick):.1f}" stroke="{"black" if tick == 1 else "gainsboro"}"/>'
                         f'<text x="{left - 8}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick}'
                         '</text>')
    for column, ((ranks, topk, kinds, placement), group) in enumerate(groups.items()):
        x = left + step * column + step / 2
        mean = y_of(geometric_mean([r.ratio for r in group]))
        colour = COLOURS[placement]
        parts += [f'<circle cx="{x}" cy="{y_of(r.ratio):.1f}" r="3" fill="{colour}" '
                  f'fill-opacity="0.5"><title>{r.shape}: {r.ratio:.2f}</title></circle>'
                  for r in group]
        parts.append(f'<line x1="{x - 16}" x2="{x + 16}" y1="{mean:.1f}" y2="{mean:.1f}" '
                     f'stroke="{colour}" stroke-width="3"/>')
        for line, text in enumerate((f"{ranks} ranks", f"top-{topk}", f"{kinds}, {placement}")):
            parts.append(f'<text x="{x}" y="{top + height + 18 + 14 * line}" font-size="9" '
                         f'text-anchor="middle">{text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def pictures(runs):
    by_title = {comparison.title: comparison for comparison in COMPARISONS}
    drawn = {name: picture(by_title[title], runs) for name, title in PICTURES.items()}
    return {name: text for name, text in drawn.items() if text is not None}
