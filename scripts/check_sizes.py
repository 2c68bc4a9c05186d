#!/usr/bin/env python3
"""Caps on the lines of a file, the lines of a function and its parameters.

The medians and 90th percentiles are reported for people; only the caps fail.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from checklib import CPP_SUFFIXES, files, main, split_cpp

FILE_CAP = 600
FUNCTION_CAP = 60
KERNEL_CAP = 120  # in files whose name contains "kernel"
PARAMETER_CAP = 5  # more: an Options struct
FUNCTION_AREAS = ("include", "src", "tools", "python")
FILE_AREAS = (*FUNCTION_AREAS, "tests")

# A directive with its continued lines, or one token.
TOKEN = re.compile(
    r"^[ \t]*\#[ \t]*(?P<directive>\w*)(?:[^\n\\]|\\\n|\\.)*"
    r"|\w+|::|->|<=>|<=|>=|==|!=|\"\s*\"|[^\s\w]",
    re.MULTILINE,
)
NAME = re.compile(r"[A-Za-z_]\w*")
TYPE_WORDS = {"class", "struct", "union", "enum"}
# Words before a parenthesis that does not hold parameters.
NOT_A_FUNCTION = {"alignas", "decltype", "noexcept", "requires", "explicit", "throw", "catch",
                  "__attribute__", "asm"}
# Words between the parameters and the body.
AFTER_PARAMETERS = {"const", "volatile", "noexcept", "override", "final", "try", "requires",
                    "throw", "__attribute__"}


@dataclass
class Token:
    text: str  # of a group: "()", "[]", "<>" or "{}"
    line: int
    inside: list = field(default_factory=list)


@dataclass
class Function:
    name: str
    line: int
    parameters: int
    lines: int = 0


@dataclass
class Scope:
    """One pair of braces: `declarations` (namespace, class), `function`, `block`, or `part`, which
    is a part of a declaration (initialiser, requires-expression)."""

    kind: str
    function: Function | None = None
    head: list = field(default_factory=list)  # tokens since the last declaration or statement
    depth: int = 0  # of ( and [ in the head


def collapse(tokens):
    """Makes one token of each group. A < after a name opens one, unless a bracket closes first."""
    stack = [Token("", 0)]
    for token in tokens:
        inside = stack[-1].inside
        before = inside[-1].text if inside else ""
        if token.text in ("(", "[") or (
                token.text == "<" and NAME.fullmatch(before) and before != "operator"):
            stack.append(Token(token.text, token.line))
            continue
        if token.text in (")", "]"):
            while stack[-1].text == "<":
                less = stack.pop()
                stack[-1].inside += [Token("<", less.line), *less.inside]
        closes = {")": "(", "]": "[", ">": "<"}.get(token.text)
        if closes and stack[-1].text == closes:
            group = stack.pop()
            token = Token(closes + token.text, group.line, group.inside)
        stack[-1].inside.append(token)
    while len(stack) > 1:
        less = stack.pop()
        stack[-1].inside += [Token("<", less.line), *less.inside]
    return stack[0].inside


def parameters_at(texts):
    """The index of the declaration's list of parameters, or None."""
    found = None
    for at in range(1, len(texts)):
        before, after = texts[at - 1], (texts[at + 1 : at + 2] or [""])[0]
        if texts[at] != "()" or (before == "operator" and after == "()"):
            continue
        named = NAME.fullmatch(before) and before not in NOT_A_FUNCTION
        if not named and before != "<>" and "operator" not in texts[max(0, at - 4) : at]:
            continue
        if not NAME.fullmatch(after) or after in AFTER_PARAMETERS:
            return at
        if after not in TYPE_WORDS:
            found = found or at  # MACRO(x), unless nothing better follows
    return found


def count_parameters(inside):
    texts = [token.text for token in inside]
    return 0 if texts in ([], ["void"]) else 1 + texts.count(",")


def opened_by(head):
    """The scope that a brace after `head` opens, where declarations stand."""
    tokens = collapse(head)
    texts = [token.text for token in tokens]
    if "namespace" in texts or texts[:1] == ["extern"] and len(texts) <= 2:
        return Scope("declarations")
    at = parameters_at(texts)
    if at is None:
        is_type = TYPE_WORDS & set(texts) and not {"=", "requires"} & set(texts[-1:])
        return Scope("declarations" if is_type else "part")
    before_name = texts[: texts.index("operator") if "operator" in texts[:at] else at]
    is_requires = texts[-1] == "requires" or texts[-2:] == ["requires", "()"]
    last_opens_body = texts[-1] in ("()", "{}", "try", ".")
    if "=" in before_name or is_requires or (":" in texts[at:] and not last_opens_body):
        return Scope("part")
    last_name = [text for text in texts[:at] if NAME.fullmatch(text)][-1:]
    name = "".join(texts[len(before_name) : at] or last_name)
    function = Function(name, tokens[at - 1].line, count_parameters(tokens[at].inside))
    return Scope("function", function)


class Reader:
    """Collects the functions of one file."""

    def __init__(self, text):
        self.functions = []
        self.scopes = [Scope("declarations")]
        self.branches = []  # the scopes as they were before each open #if
        code, _ = split_cpp(text)
        line, end = 1, 0
        for match in TOKEN.finditer(code):
            line += code.count("\n", end, match.start())
            end = match.start()
            if match["directive"] is not None:
                self.directive(match["directive"])
            else:
                self.token(match.group(), line)

    def directive(self, name):
        """Every branch of an #if starts from the same state; what follows goes on from the last."""
        if name in ("if", "ifdef", "ifndef"):
            self.branches.append(self.copy(self.scopes))
        elif name in ("else", "elif") and self.branches:
            self.scopes = self.copy(self.branches[-1])
        elif name == "endif" and self.branches:
            self.branches.pop()

    @staticmethod
    def copy(scopes):
        return [replace(scope, head=list(scope.head)) for scope in scopes]

    def token(self, text, line):
        scope = self.scopes[-1]
        if text == "{":
            self.scopes.append(self.opened(scope))
        elif text == "}":
            self.close(line)
        elif text == ";" and scope.depth == 0:
            scope.head.clear()
        elif text == ":" and [t.text for t in scope.head] in (["public"], ["protected"],
                                                              ["private"]):
            scope.head.clear()
        else:
            scope.depth += (text in "([") - (text in ")]")
            scope.head.append(Token(text, line))

    @staticmethod
    def opened(scope):
        if scope.kind == "declarations" and scope.depth == 0:
            return opened_by(scope.head)
        texts = [token.text for token in scope.head]
        is_local_type = TYPE_WORDS & set(texts[:1]) and "(" not in texts and "=" not in texts
        return Scope("declarations" if is_local_type else "block")

    def close(self, line):
        if len(self.scopes) == 1:
            return
        closed = self.scopes.pop()
        if closed.kind == "function":
            closed.function.lines = line - closed.function.line + 1
            self.functions.append(closed.function)
        scope = self.scopes[-1]
        if closed.kind == "part" or scope.depth > 0:
            scope.head.append(Token("{}", line))
        else:
            scope.head.clear()


def functions(text):
    return Reader(text).functions


def percentiles(values):
    """Median and 90th percentile, as "p50/p90"."""
    values = sorted(values) or [0]
    return f"{values[len(values) // 2]}/{values[len(values) * 9 // 10]}"


def check_function(place, function, cap):
    where = f"{place}:{function.line}: {function.name}"
    if function.lines > cap:
        yield f"{where} has {function.lines} lines, cap {cap}"
    if function.parameters > PARAMETER_CAP:
        yield f"{where} has {function.parameters} parameters, cap {PARAMETER_CAP}"


def check(root):
    root, problems, lengths, found = Path(root), [], [], []
    for path in files(root, FILE_AREAS, CPP_SUFFIXES):
        place, text = path.relative_to(root), path.read_text()
        lengths.append(text.count("\n"))
        if lengths[-1] > FILE_CAP:
            problems.append(f"{place}:1: the file has {lengths[-1]} lines, cap {FILE_CAP}")
        if place.parts[0] in FUNCTION_AREAS:
            cap = KERNEL_CAP if "kernel" in path.name else FUNCTION_CAP
            for function in functions(text):
                found.append(function)
                problems += check_function(place, function, cap)
    sizes = ", ".join((f"{len(lengths)} files {percentiles(lengths)}",
                       f"{len(found)} functions {percentiles([f.lines for f in found])}",
                       f"parameters {percentiles([f.parameters for f in found])}"))
    return problems, f"p50/p90 of {sizes}"


if __name__ == "__main__":
    main(check)
