"""What the check scripts share: walking the tree, reading C++, reporting.

A check is a function `check(root) -> (problems, summary)`; `main(check)` runs it.
"""

import re
import sys
from pathlib import Path

CPP_SUFFIXES = {".hpp", ".cpp", ".h", ".cc", ".inl"}
SKIPPED_FOLDERS = {"build", "dist", "node_modules", "__pycache__"}

# In this order: a raw string's body may look like any of the others, a comment may hold quotes.
_LEXEME = re.compile(
    r"""(?P<raw>\b(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    |(?P<comment>//(?:[^\\\n]|\\.)*|/\*.*?\*/)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>\b\d(?:'?[\w.])*)
    |(?P<char>'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL | re.VERBOSE,
)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def split_cpp(text):
    """Returns (code, comments): the text with comments and the insides of literals blanked, and
    the text with all but comments blanked. Both keep each character's line and column."""
    code, comments, end = [], [], 0
    for match in _LEXEME.finditer(text):
        before, lexeme = text[end : match.start()], match.group()
        end = match.end()
        code.append(before)
        comments.append(_blank(before))
        is_comment = match.lastgroup == "comment" or match.group("comment") is not None
        comments.append(lexeme if is_comment else _blank(lexeme))
        if is_comment:
            code.append(_blank(lexeme))
        elif match.group("number"):
            code.append(lexeme)
        else:
            code.append('"' + _blank(lexeme[1:-1]) + '"')
    code.append(text[end:])
    comments.append(_blank(text[end:]))
    return "".join(code), "".join(comments)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def files(root, folders, suffixes):
    """The files below root/<folder> with one of the suffixes, sorted; build folders left out."""
    found = []
    for folder in folders:
        for path in (Path(root) / folder).rglob("*"):
            parts = path.relative_to(root).parts
            skipped = any(part in SKIPPED_FOLDERS or part.startswith(".") for part in parts)
            if path.suffix in suffixes and path.is_file() and not skipped:
                found.append(path)
    return sorted(set(found))


def main(check):
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    problems, summary = check(root)
    for problem in problems:
        print(problem)
    name = Path(sys.argv[0]).stem.removeprefix("check_")
    print(f"{name}: {summary}, {len(problems)} problems")
    sys.exit(1 if problems else 0)
