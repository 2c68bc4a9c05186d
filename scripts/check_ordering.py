#!/usr/bin/env python3
"""Memory orders are named in src/memory only, and who orders something says what and why.

Elsewhere the words of src/memory are used by method name. Each such call carries, on its line or
in the four lines above, a comment with one of the MARKERS and the name of the other side.
"""

import re
from pathlib import Path

from checklib import CPP_SUFFIXES, files, line_of, main, split_cpp

METHODS = (
    r"load_acquire|store_release|store_flag|signal|load_flag|fetch_add_acq_rel|try_claim"
    r"|compare_exchange\w*|store_fence|order|insert_release|or_release|subtract_acq_rel|try_insert|try_set"
)
MARKERS = ("publishes:", "acquires:", "claims:", "orders:")
LINES_ABOVE = 4

RAW = re.compile(
    r"\bmemory_order\w*|\batomic_(?:thread|signal)_fence\b|\b_mm_[slm]fence\b"
    r"|\b__(?:sync|atomic)_\w+"
)
CALL = re.compile(rf"\b(?:{METHODS})\s*\(")
# A declaration has nothing but a type, perhaps qualifiers, between the last statement and its name.
TYPE = re.compile(r"(?:\[\[.*?\]\]|[\w:<>,*&~\s]|\([^()]*\))+", re.DOTALL)
QUALIFIER = re.compile(r"(?:\w+(?:<[^<>]*>)?\s*::\s*)*$")
NOT_A_TYPE = re.compile(r"(?:return|co_return|co_await|co_yield|throw|else|do|case|if|while|for)\b")
LABEL = re.compile(r"(?:public|protected|private)\s*:(?!:)")


def is_declaration(code, at):
    start = max(code.rfind(mark, 0, at) for mark in ";{}") + 1
    head = re.sub(r"^[ \t]*#.*$", "", code[start:at], flags=re.MULTILINE)
    head = QUALIFIER.sub("", LABEL.sub("", head)).strip()
    if not head or NOT_A_TYPE.match(head) or head.endswith((".", "->")):
        return False
    return TYPE.fullmatch(head) is not None


def concepts(code):
    """The extents of concept definitions, whose requirements call nothing."""
    for match in re.finditer(r"\bconcept\s+\w+\s*=", code):
        depth = 0
        for at in range(match.end(), len(code)):
            depth += (code[at] in "{(") - (code[at] in "})")
            if code[at] == ";" and depth == 0:
                yield match.start(), at
                break


def check_calls(path, code, comments, problems):
    count, comment_lines = 0, comments.split("\n")
    exempt = list(concepts(code))
    for match in CALL.finditer(code):
        at = match.start()
        if is_declaration(code, at) or any(begin < at < end for begin, end in exempt):
            continue
        count += 1
        line = line_of(code, at)
        near = "\n".join(comment_lines[max(0, line - 1 - LINES_ABOVE) : line])
        if not any(marker in near for marker in MARKERS):
            name = match.group().rstrip("( ")
            problems.append(f"{path}:{line}: {name} needs a comment with {' or '.join(MARKERS)}")
    return count


def check(root):
    root, problems, count = Path(root), [], 0
    for path in files(root, ["include", "src", "tools", "python", "examples"], CPP_SUFFIXES):
        source = path.relative_to(root)
        if source.parts[:2] == ("src", "memory"):
            continue
        code, comments = split_cpp(path.read_text())
        for match in RAW.finditer(code):
            line = line_of(code, match.start())
            problems.append(f"{source}:{line}: {match.group()} belongs in src/memory")
        if source.parts[0] == "src":
            count += check_calls(source, code, comments, problems)
    return problems, f"{count} ordering calls"


if __name__ == "__main__":
    main(check)
