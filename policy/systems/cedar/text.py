"""Cedar's text, cut into single policies: what the library has no positions for; and the bounds that it needs.

Cedar has no semicolon but the one that ends a policy, in strings and comments aside. So policies are cut there, and
each is parsed by itself (`policies.py`): where this reading and Cedar's could differ, a document is refused.

The library recurses over what it parses, and has no bound of its own: too deep, the process dies (SIGSEGV). Measured
with cedarpy 4.12 on a stack of 512 KiB, each level takes so much of it: brackets 14 KiB (records and types of a schema
4 KiB, ``Set<`` 1.3 KiB), ``if`` 2 KiB, a chained operator 0.6 KiB (when it is written as JSON; 64 bytes when parsed).
All bounds used up together take about 1.2 MiB. A thread has 8 MiB, or 2 MiB with `ulimit -s unlimited` (glibc).
Evaluation takes 4 KiB a level, and looks at the stack itself: where too little is left, the policy fails (CE-ERRORS).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n\r]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>::|&&|\|\||[=!<>]=|.)""",
    re.DOTALL,
)
LINE_END = re.compile(r"[\n\r]")
LINE_ENDS = {"\n": "\\n", "\r": "\\r"}
TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*")
RESERVED = frozenset({"true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar"})
EFFECTS = ("permit", "forbid")
OPEN, CLOSE = "([{", ")]}"
SCHEMA_OPEN, SCHEMA_CLOSE = f"{OPEN}<", f"{CLOSE}>"  # types of a schema nest in ``Set<…>``, too
OPERATOR_WORDS = frozenset({"has", "like", "in", "is", "if", "then", "else"})
NOT_OPERATORS = frozenset({"::", ":", "@"})
MAX_DEPTH = 32  # of brackets
MAX_IFS = 100  # of one policy, for they nest without brackets
MAX_CHAIN = 1000  # operators one below another: ``1 - 1 - 1`` nests without brackets, too
MAX_PATH = 16  # attributes of one ``has``: Cedar writes ``has a.b.c`` out as ``has a && … a has b && … a.b has c``
MAX_PATTERN = 1000  # characters behind ``like``: matching takes the product of this and of the text's length


class Unsplittable(Exception):
    """The text is no series of policies, or one of them is nested too deep."""


class Piece(NamedTuple):
    """One policy as it is written. ``in_conditions``: entities behind the scope, as they are written."""

    text: str
    line: int
    in_conditions: tuple[str, ...]


def is_type(text: str) -> bool:
    """Whether a text is an entity type, with its namespaces, as Cedar writes it."""
    return TYPE.fullmatch(text) is not None and RESERVED.isdisjoint(text.split("::"))


def split(text: str) -> list[Piece]:
    """The policies of a text; raises Unsplittable."""
    pieces, start, line = list[Piece](), 0, 1
    for end, tokens in _ended(text):
        own = text[start:end]
        first = line + own[: tokens[0].start() - start].count("\n")
        scope = _scope_end(tokens, first)
        pieces.append(Piece(own.strip(), first, tuple(_literals(tokens[scope:]))))
        start, line = end, line + own.count("\n")
    return pieces


def check_depth(text: str) -> None:
    """Raise Unsplittable when the brackets of a schema are nested too deep for a recursive parser."""
    depth = 0
    for token in TOKEN.finditer(text):
        if token.lastgroup == "mark":
            depth += (token[0] in SCHEMA_OPEN) - (token[0] in SCHEMA_CLOSE)
            if depth > MAX_DEPTH:
                raise Unsplittable(f"nested deeper than {MAX_DEPTH}")


def one_line(text: str) -> str:
    """A policy for people: without comments, each blank one space, and strings as they are written."""
    parts = list[str]()
    for token in TOKEN.finditer(text):
        if token.lastgroup != "blank":
            parts.append(LINE_END.sub(lambda end: LINE_ENDS[end[0]], token[0]))
        elif parts and parts[-1] != " ":
            parts.append(" ")
    return "".join(parts).strip()


def _ended(text: str) -> Iterator[tuple[int, list[re.Match[str]]]]:
    """Where each policy ends, and its tokens without blanks and comments."""
    tokens, line = list[re.Match[str]](), 1
    for token in TOKEN.finditer(text):
        if token.lastgroup == "blank":
            continue
        tokens.append(token)
        if token[0] == ";" and token.lastgroup == "mark":
            _check(tokens, text)
            yield token.end(), tokens
            tokens = []
    if tokens:
        line = text.count("\n", 0, tokens[0].start()) + 1
        raise Unsplittable(f"line {line}: a policy ends with a semicolon")


def _check(tokens: list[re.Match[str]], text: str) -> None:
    """Raise Unsplittable where a policy has more of something than Cedar's parser and evaluator are given."""
    ifs, nesting = 0, _Nesting()
    for number, token in enumerate(tokens):
        kind, written, fault = token.lastgroup, token[0], ""
        if kind == "mark":
            fault = nesting.fault_behind(written)
        elif kind == "word" and written in OPERATOR_WORDS:
            nesting.chained += 1
            ifs += written == "if"
            fault = f"{ifs} times if in one policy" if ifs > MAX_IFS else _fault_behind(written, tokens, number)
        if fault:
            raise Unsplittable(f"line {text.count(chr(10), 0, token.start()) + 1}: {fault}")


def _fault_behind(word: str, tokens: list[re.Match[str]], number: int) -> str:
    """What is too long behind a ``has`` or a ``like``; "": nothing."""
    if word == "has":
        path = tokens[number + 1 : number + 2 * MAX_PATH + 2]
        if len(path) > 2 * MAX_PATH and all(token[0] == "." for token in path[1::2]):
            return f"has with a path of more than {MAX_PATH} attributes"
    if word == "like" and len(tokens[number + 1][0] if number + 1 < len(tokens) else "") > MAX_PATTERN:
        return f"like with a pattern of more than {MAX_PATTERN} characters"
    return ""


class _Nesting:
    """How deep what Cedar makes of the tokens may be, from above: operators of a part between commas, one below
    another, and below the last of them the deepest group of brackets in this part.
    """

    def __init__(self) -> None:
        self.chained = self._below = self._deepest = 0
        self._outer = list[tuple[int, int, int]]()

    def fault_behind(self, mark: str) -> str:
        """Go on by one mark. Returns what is too deep; "": nothing."""
        if mark in OPEN:
            self._outer.append((self.chained + 1, self._below, self._deepest))  # ``a["b"]``, ``f(x)``, ``when {…}``
            self.chained = self._below = self._deepest = 0
            return f"nested deeper than {MAX_DEPTH}" if len(self._outer) > MAX_DEPTH else ""
        if mark in NOT_OPERATORS:
            return ""
        depth = self.chained + self._below
        if mark == "," or mark in CLOSE:
            self._deepest = max(self._deepest, depth)
            self.chained = self._below = 0
            if mark != "," and self._outer:
                inner = self._deepest
                self.chained, below, self._deepest = self._outer.pop()
                self._below = max(below, inner)
        elif mark != ";":
            self.chained += 1
        return f"operators nested deeper than {MAX_CHAIN}" if depth > MAX_CHAIN else ""


def _scope_end(tokens: list[re.Match[str]], line: int) -> int:
    """Which token closes the scope."""
    depth, before, effect = 0, "", False
    for number, token in enumerate(tokens):
        effect = effect or (token[0] in EFFECTS and depth == 0 and before != "@")
        depth += (token[0] in OPEN) - (token[0] in CLOSE) if token.lastgroup == "mark" else 0
        if effect and token[0] == ")" and depth == 0:
            return number
        before = token[0]
    raise Unsplittable(f"line {line}: a policy begins with permit(…) or forbid(…)")


def _literals(tokens: list[re.Match[str]]) -> Iterator[str]:
    """Entities such as ``App::User::"dana"``, each as it is written but for blanks."""
    for number, token in enumerate(tokens):
        if token.lastgroup != "text":
            continue
        parts, position = [token[0]], number - 1
        while position > 0 and tokens[position][0] == "::" and tokens[position - 1].lastgroup == "word":
            parts.append(tokens[position - 1][0])
            position -= 2
        if len(parts) > 1:
            yield "::".join(reversed(parts))
