#!/usr/bin/env python3
"""Code in the documents is compiled code, links lead somewhere, and nothing names a machine.

A block of C++ is shown like this, and equals what PATH has between // [REGION] and // [/REGION]:

    <!-- from: PATH#REGION -->
    ```cpp
    ...
    ```
"""

import re
import textwrap
from pathlib import Path

from checklib import SKIPPED_FOLDERS, files, line_of, main

TEXT_AREAS = ("include", "src", "tools", "tests", "examples", "bench", "python", "docs", "cmake",
              "scripts")
TEXT_SUFFIXES = {".md", ".hpp", ".cpp", ".h", ".py", ".sh", ".txt", ".cmake", ".json", ""}
# This script and its test have to spell what they forbid.
EXEMPT = {"scripts/check_docs.py", "tests/scripts/test_check_docs.py"}

# Paths of somebody's machine, and talk about how the work was organised instead of the work.
FORBIDDEN = re.compile(
    r"(?<![\w.$}~/])/(?:work|home|root|Users)/"
    r"|\bshared/(?:[A-Z]+\.md|facts\.md|data)"
    r"|\b(?:DESIGN|STYLE|MEASUREMENTS|PEERS|DEVELOPERS)\.md|\bfacts\.md"
    r"|\bissues? #?\d+|(?<![\w&/#])#\d{1,4}\b(?!-)"
    r"|\b(?:AI|LLM|coding|developer|CEO)(?:'s)? (?:agents?|assistants?|sessions?)\b"
    r"|\b(?:Claude|ChatGPT|Copilot)\b"
)
FENCE = re.compile(r"^```([\w+]*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- from: ([^#\s]+)#(\S+) -->\s*$")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")


def region(path, name):
    """The dedented text between the two marks, or None when they are not there once."""
    if not path.is_file():
        return None
    mark = rf"^[ \t]*// \[{re.escape(name)}\][ \t]*\n(.*?)^[ \t]*// \[/{re.escape(name)}\][ \t]*$"
    found = re.findall(mark, path.read_text(), re.MULTILINE | re.DOTALL)
    return textwrap.dedent(found[0]) if len(found) == 1 else None


def check_blocks(root, document, text):
    must_be_marked = document == Path("README.md")
    if not must_be_marked and document.parts[:2] != ("docs", "guide"):
        return
    for fence in FENCE.finditer(text):
        if fence[1] not in ("cpp", "c++", "cxx"):
            continue
        place = f"{document}:{line_of(text, fence.start())}"
        marker = MARKER.search(text, 0, fence.start())
        if marker is None:
            if must_be_marked:
                yield f"{place}: no <!-- from: PATH#REGION --> before this C++ block"
            continue
        source = region(root / marker[1], marker[2])
        if source is None:
            yield f"{place}: {marker[1]} has no region [{marker[2]}]"
        elif source != textwrap.dedent(fence[2]):
            yield f"{place}: differs from {marker[1]}#{marker[2]}"


def check_links(root, document, text):
    prose = FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    for link in LINK.finditer(prose):
        target = link[1].split("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            continue
        if not ((root / document).parent / target).exists():
            yield f"{document}:{line_of(prose, link.start())}: {link[1]} leads nowhere"


def check_words(place, text):
    for match in FORBIDDEN.finditer(text):
        yield f"{place}:{line_of(text, match.start())}: says {match.group()!r}"


def documents(root):
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts
        if not any(part in SKIPPED_FOLDERS or part.startswith(".") for part in parts[:-1]):
            yield path


def check(root):
    root, problems, count = Path(root).resolve(), [], 0
    for path in documents(root):
        document, text = path.relative_to(root), path.read_text()
        count += 1
        problems += check_blocks(root, document, text)
        problems += check_links(root, document, text)
    texts = set(documents(root)) | set(files(root, TEXT_AREAS, TEXT_SUFFIXES))
    texts |= {path for path in root.glob("CMake*") if path.is_file()}
    for path in sorted(texts):
        place = path.relative_to(root)
        if str(place) not in EXEMPT:
            problems += check_words(place, path.read_text(errors="replace"))
    return problems, f"{count} documents, {len(texts)} files of text"


if __name__ == "__main__":
    main(check)
