#!/usr/bin/env python3
"""Who may include whom: base < memory < {plan, protocol, fabric} < engine < api, and engine < sim.

Files outside src/ that users could write themselves (tools, python, examples) see <ubep/...> only;
nobody but tests sees tests/.
"""

import re
from pathlib import Path

from checklib import CPP_SUFFIXES, files, line_of, main, split_cpp

BELOW = {
    "base": {"base"},
    "memory": {"base", "memory"},
    "plan": {"base", "memory", "plan"},
    "protocol": {"base", "memory", "protocol"},
    "fabric": {"base", "memory", "fabric"},
    "engine": {"base", "memory", "plan", "protocol", "fabric", "engine"},
    "api": {"base", "memory", "plan", "protocol", "fabric", "engine", "api"},
    "sim": {"base", "memory", "plan", "protocol", "fabric", "engine", "sim"},
}
# The public headers that are vocabulary, not interface: every layer speaks it.
VOCABULARY = {
    "ubep/export.hpp",
    "ubep/types.hpp",
    "ubep/status.hpp",
    "ubep/trace.hpp",
    "ubep/version.hpp",
}
# What an operation takes, shows and tells.
OPERATIONS = {"ubep/dispatch.hpp", "ubep/combine.hpp", "ubep/stats.hpp"}
CLIENTS = ("tools", "python", "examples")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)


def includes(text):
    """(line, is quoted, name) of each include that is not in a comment."""
    code, _ = split_cpp(text)
    for match in INCLUDE.finditer(text):
        hash_at = text.index("#", match.start())
        if code[hash_at] == "#":
            yield line_of(text, hash_at), match[1] == '"', match[2]


def resolve(root, includer, is_quoted, name):
    """The included file as a path from the root, or None for one outside the tree."""
    folders = [root / "include", root / "src", root / "tests", root]
    if is_quoted:
        folders.insert(0, includer.parent)
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(root):
            return path.relative_to(root)
    return None


def allowed(source, target):
    """None, or why `source` may not include `target` (both paths from the root)."""
    area, target_area = source.parts[0], target.parts[0]
    public = "/".join(target.parts[1:]) if target_area == "include" else None
    if area == "tests":
        return None
    if target_area == "tests":
        return "only tests may include tests"
    if area == "bench":
        return None
    if area == "include":
        if public is None:
            return "a public header includes public headers only"
        if "/".join(source.parts[1:]) in VOCABULARY and public not in VOCABULARY:
            return "a vocabulary header includes vocabulary headers only"
        return None
    if area in CLIENTS:
        if area == "tools" and target.parts[:2] == ("src", "sim"):
            return None
        if public is None and target_area != area:
            return f"{area} includes <ubep/...> and its own files only"
        return None
    layer = source.parts[1]
    if public is not None:
        if layer == "api" or public in VOCABULARY:
            return None
        if layer in ("engine", "sim") and public in OPERATIONS:
            return None
        return f"only api includes {public}; other layers: {', '.join(sorted(VOCABULARY))}"
    if target_area != "src":
        return f"src includes nothing of {target_area}"
    if layer == "sim" and target.parts[:2] == ("src", "fabric") and len(target.parts) > 3:
        return "sim must not depend on a real fabric"
    if target.parts[1] not in BELOW[layer]:
        return f"{layer} must not depend on {target.parts[1]}"
    return None


def check(root):
    root, problems, count = Path(root).resolve(), [], 0
    sources = files(root, ["include", "src", "bench", *CLIENTS], CPP_SUFFIXES)
    for path in sources:
        source = path.relative_to(root)
        if source.parts[0] == "src" and (len(source.parts) < 3 or source.parts[1] not in BELOW):
            problems.append(f"{source}:1: not in a folder of a known layer")
            continue
        for line, is_quoted, name in includes(path.read_text()):
            count += 1
            target = resolve(root, path, is_quoted, name)
            if target is None:
                if is_quoted or name.startswith("ubep/"):
                    problems.append(f"{source}:{line}: {name} is not in the tree")
                continue
            reason = allowed(source, target)
            if reason:
                problems.append(f"{source}:{line}: includes {target}: {reason}")
    return problems, f"{count} includes in {len(sources)} files"


if __name__ == "__main__":
    main(check)
