#!/usr/bin/env python3
"""scripts/check_instructions.py [--write] PROGRAM [BASELINE]: instructions of decode, and a baseline.

PROGRAM is ubep_instructions; it runs under valgrind's callgrind, which counts the instructions that
one rank spends on a dispatch and on a combine. A case fails when it takes over TOLERANCE more than
bench/instructions/baseline.json says; --write puts the new counts there, beside those of other
builds. Counts are those of one build: for a compiler, C library, Highway, build type or instruction
set that the baseline does not know, the check passes and says so.

Exits 1 when a case takes more, 2 when nothing could be counted, 77 (skipped) without valgrind.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BASELINE = Path(__file__).resolve().parent.parent / "bench/instructions/baseline.json"
# Ten times what runs of one program differ by (at most 0.2 %: where heap and stack lie decides how
# many steps a copy takes). An empty loop over the 128 local experts of the cases with 256 shows.
TOLERANCE = 0.02
SKIPPED = 77
# Callgrind counts each step of `rep movsb`, a byte, as one instruction. The C library's other loops
# copy by vectors.
TUNABLES = "glibc.cpu.hwcaps=-ERMS"
FACTS = {
    "compiler": r"^compiler (.*), build ",
    "build": r", build (\w+), sanitizers",
    "flags": r"^flags (.*), libc ",
    "libc": r", libc (\S+), callgrind",
    "highway": r"^Highway ([\d.]+)",
    "instruction_set": r", here (\w+)",
}


class CannotCount(Exception):
    """Says why."""


class Skip(Exception):
    """Says what is missing."""


def parse_facts(text):
    """What the counts depend on, from the program's output."""
    if "callgrind.h missing" in text:
        raise Skip("the program was built without valgrind/callgrind.h (scripts/deps test, then "
                   "build it anew)")
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in FACTS.items()}
    missing = [name for name, match in found.items() if match is None]
    if missing:
        raise CannotCount(f"the program does not tell its {', '.join(missing)}: {text!r}")
    return {name: match[1] for name, match in found.items()}


def parse_dumps(texts):
    """{"CASE OPERATION": instructions of one layer} of callgrind's dumps."""
    counts = {}
    for text in texts:
        case = re.search(r"^desc: Trigger: Client Request: (\S+) (\S+) (\d+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
        if case and total:
            counts[f"{case[1]} {case[2]}"] = round(int(total[1]) / int(case[3]))
    return counts


def count(program):
    """Runs the program: (facts, counts)."""
    if shutil.which("valgrind") is None:
        raise Skip("valgrind is not installed (scripts/deps test)")
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no",
                   f"--callgrind-out-file={folder}/dump", str(program)]
        done = subprocess.run(command, check=False, text=True, capture_output=True,
                              env={**os.environ, "GLIBC_TUNABLES": TUNABLES})
        if done.returncode != 0:
            raise CannotCount(f"status {done.returncode} of {' '.join(command)}:\n"
                              f"{done.stdout}{done.stderr}")
        counts = parse_dumps(path.read_text() for path in Path(folder).glob("dump.*"))
    facts = parse_facts(done.stdout)
    if not counts:
        raise CannotCount("callgrind has written no counts")
    return facts, counts


def find(builds, facts):
    """The counts of the same build, or None."""
    for build in builds:
        if all(build.get(name) == fact for name, fact in facts.items()):
            return build["counts"]
    return None


def compare(old, new):
    """(problems, notes): what takes more than it did, and what takes less."""
    problems, notes = [], []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            problems.append(f"{name}: in the baseline, but was not counted; --write if it is to go")
        elif name not in old:
            problems.append(f"{name}: {new[name]} instructions, not in the baseline; --write adds "
                            "it")
        else:
            more, allowed = new[name] - old[name], old[name] * TOLERANCE
            text = f"{name}: {old[name]} -> {new[name]} instructions ({more / old[name]:+.1%})"
            if more > allowed:
                problems.append(f"{text}, allowed +{TOLERANCE:.0%}")
            elif more < -allowed:
                notes.append(f"{text}: --write holds it")
    return problems, notes


def updated(builds, facts, counts):
    """The builds with these counts in place of the same build's, or beside the others."""
    others = [build for build in builds if find([build], facts) is None]
    return sorted([*others, {**facts, "counts": dict(sorted(counts.items()))}],
                  key=lambda build: [build[name] for name in FACTS])


def main(arguments):
    write = "--write" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--write"]
    if not 1 <= len(paths) <= 2 or any(str(path).startswith("-") for path in paths):
        print(__doc__.split("\n\n", maxsplit=1)[0], file=sys.stderr)
        return 2
    baseline = paths[1] if len(paths) == 2 else BASELINE
    if not baseline.parent.is_dir():
        print(f"instructions: there is no folder {baseline.parent}", file=sys.stderr)
        return 2
    try:
        facts, counts = count(paths[0])
    except Skip as skip:
        print(f"SKIPPED instructions: {skip}")
        return SKIPPED
    except CannotCount as error:
        print(f"instructions: {error}", file=sys.stderr)
        return 2
    builds = json.loads(baseline.read_text())["builds"] if baseline.is_file() else []
    build = ", ".join(f"{name} {fact}" for name, fact in facts.items())
    if write:
        baseline.write_text(json.dumps({"builds": updated(builds, facts, counts)}, indent=1) + "\n")
        print(f"instructions: {len(counts)} counts written for {build}")
        return 0
    old = find(builds, facts)
    if old is None:
        print(f"NOTICE: no baseline for this compiler ({build}): nothing compared; --write adds it")
        return 0
    problems, notes = compare(old, counts)
    for line in [*notes, *problems]:
        print(line)
    print(f"instructions: {len(counts)} counts of {build}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
