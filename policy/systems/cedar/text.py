"""Cedar's text, cut into single policies: what the library has no positions for.

Cedar has no semicolon but the one that ends a policy, in strings and comments aside. So policies are cut there, and
each is parsed by itself (`policies.py`): where this reading and Cedar's could differ, a document is refused.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n\r]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>::|.)""",
    re.DOTALL,
)
TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*")
RESERVED = frozenset({"true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar"})
EFFECTS = ("permit", "forbid")
OPEN, CLOSE = "([{", ")]}"
MAX_DEPTH = 32  # Cedar's parser is recursive: of a few hundred levels the process would die
MAX_IFS = 100  # of one policy, for they nest without brackets


class Unsplittable(Exception):
    """The text is no series of policies, or one of them is nested too deep."""


class Piece(NamedTuple):
    """One policy as it is written. ``head``: up to the end of its scope; ``literals``: entities as they are written,
    the last of them, ``in_conditions``, behind the scope.
    """

    text: str
    head: str
    line: int
    literals: tuple[str, ...]
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
        head = f"{text[start : tokens[scope].end()].strip()};"
        literals, in_conditions = tuple(_literals(tokens)), tuple(_literals(tokens[scope:]))
        pieces.append(Piece(own.strip(), head, first, literals, in_conditions))
        start, line = end, line + own.count("\n")
    return pieces


def check_depth(text: str) -> None:
    """Raise Unsplittable when brackets are nested too deep for a recursive parser."""
    depth = 0
    for token in TOKEN.finditer(text):
        if token.lastgroup == "mark":
            depth += (token[0] in OPEN) - (token[0] in CLOSE)
            if depth > MAX_DEPTH:
                raise Unsplittable(f"nested deeper than {MAX_DEPTH}")


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
    depth = ifs = 0
    for token in tokens:
        if token.lastgroup == "mark":
            depth += (token[0] in OPEN) - (token[0] in CLOSE)
        ifs += token[0] == "if"
        if depth > MAX_DEPTH or ifs > MAX_IFS:
            line = text.count("\n", 0, token.start()) + 1
            what = f"{ifs} times if in one policy" if ifs > MAX_IFS else f"nested deeper than {MAX_DEPTH}"
            raise Unsplittable(f"line {line}: {what}")


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
        parts, place = [token[0]], number - 1
        while place > 0 and tokens[place][0] == "::" and tokens[place - 1].lastgroup == "word":
            parts.append(tokens[place - 1][0])
            place -= 2
        if len(parts) > 1:
            yield "::".join(reversed(parts))
