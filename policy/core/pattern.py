"""Names, and patterns over names; `policy.matching.index` finds every pattern that matches a name.

A name is a tuple of text parts: ``("kafka", "topic", "prod", "main", "orders")``. A pattern has one
part pattern for each part of the name; an *open* pattern ignores whatever the name has beyond them.
All of it is plain data: it is hashed, pickled and compared, never called.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from policy.core.caching import Cache

Name = tuple[str, ...]


class Exact(msgspec.Struct, frozen=True, gc=False, tag="exact"):
    """Matches one text, compared code point by code point."""

    text: str


class Prefix(msgspec.Struct, frozen=True, gc=False, tag="prefix"):
    """Matches every text that starts with ``text``; the empty prefix matches everything."""

    text: str


class Glob(msgspec.Struct, frozen=True, gc=False, tag="glob"):
    """``*`` is any run of characters, also none; ``?`` is exactly one where ``single`` is set."""

    text: str
    single: bool = False


Part = Exact | Prefix | Glob
ANY = Prefix("")


class Pattern(msgspec.Struct, frozen=True, gc=False):
    """One part pattern for each part of a name; ``open``: what the name has beyond them is ignored."""

    parts: tuple[Part, ...]
    open: bool = False


EVERYTHING = Pattern((), open=True)


def exactly(name: Sequence[str]) -> Pattern:
    """The pattern that matches ``name`` and nothing else."""
    return Pattern(tuple(Exact(text) for text in name))


def wildcard(text: str, single: bool = False) -> Part:
    """The narrowest part pattern for ``text`` in which ``*`` (and ``?`` with ``single``) is special."""
    special = "*?" if single else "*"
    if not any(mark in text for mark in special):
        return Exact(text)
    head = text[:-1]
    if text.endswith("*") and not any(mark in head for mark in special):
        return Prefix(head)
    return Glob(text, single)


def part_text(part: Part) -> str:
    """A part pattern as it is written, with its wildcards."""
    if isinstance(part, Exact):
        return part.text
    return f"{part.text}*" if isinstance(part, Prefix) else part.text


def pattern_text(pattern: Pattern) -> str:
    """The parts with slashes between: ``kafka/topic/prod/red*``; ``/**`` for whatever may follow, ``*`` for all.

    In a part that another one follows, ``%2F`` stands for a slash and ``%25`` for a percent sign.
    """
    if pattern == EVERYTHING:
        return "*"
    *parts, last = [*map(part_text, pattern.parts), *(["**"] if pattern.open else [])]
    # Else an allow-list's `dataset/dev/*` would cover the connection `dev/prod`.
    return "/".join([*(part.replace("%", "%25").replace("/", "%2F") for part in parts), last])


def match_text(pattern: str, text: str) -> bool:
    """The string match of Lenses 6: a closing ``*`` makes the rest irrelevant (L6-MATCH-STRING)."""
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return text == pattern


class _Piece(NamedTuple):
    """What a glob has between two stars; ``size``: characters of the texts that it matches."""

    pattern: re.Pattern[str]
    size: int


_PIECES: Cache[Glob, tuple[_Piece, ...]] = Cache()
PIECE_BYTES, CHARACTER_BYTES = 1_000, 40  # of a compiled expression


def _pieces(glob: Glob) -> tuple[_Piece, ...]:
    pieces = _PIECES.get(glob)
    if pieces is None:
        pieces = _compiled(glob)
        _PIECES.hold(glob, pieces, PIECE_BYTES * len(pieces) + CHARACTER_BYTES * len(glob.text))
    return pieces


def _compiled(glob: Glob) -> tuple[_Piece, ...]:
    any_one = "." if glob.single else re.escape("?")
    return tuple(
        _Piece(
            re.compile("".join(any_one if mark == "?" else re.escape(mark) for mark in piece), re.DOTALL), len(piece)
        )
        for piece in glob.text.split("*")
    )


def _match_glob(glob: Glob, text: str) -> bool:
    """Each piece at the first place where it fits: later ones would leave less room for those behind it.

    As one regular expression it would try them all, for hours where untrusted clients choose the text.
    """
    first, *middle = _pieces(glob)
    if not middle:
        return first.pattern.fullmatch(text) is not None
    last = middle.pop()
    start, end = first.size, len(text) - last.size
    if start > end or not first.pattern.match(text) or not last.pattern.match(text, end):
        return False
    for piece in middle:
        match = piece.pattern.search(text, start, end)
        if match is None:
            return False
        start = match.end()
    return True


def match_part(part: Part, text: str) -> bool:
    """Whether one part pattern matches one part of a name."""
    if isinstance(part, Exact):
        return part.text == text
    if isinstance(part, Prefix):
        return text.startswith(part.text)
    return _match_glob(part, text)


def matches(pattern: Pattern, name: Name) -> bool:
    """Whether ``pattern`` matches ``name``, part by part."""
    if len(name) < len(pattern.parts) or (len(name) > len(pattern.parts) and not pattern.open):
        return False
    return all(match_part(part, text) for part, text in zip(pattern.parts, name, strict=False))


def part_overlaps(left: Part, right: Part) -> bool:
    """Whether some text matches both."""
    if isinstance(left, Exact):
        return match_part(right, left.text)
    if isinstance(right, Exact):
        return match_part(left, right.text)
    a, b = _marks(left), _marks(right)
    if len(a) == 1 or len(b) == 1:
        return _fits(a, b[0]) if len(b) == 1 else _fits(b, a[0])
    # Where both have a star, the stars of each take in what the other has between its own.
    return _alike(a[0], b[0]) and _alike(a[-1][::-1], b[-1][::-1])


_Mark = str | None
_Marks = tuple[_Mark, ...]  # characters, each None for any one
_RUN = "any run"  # stands for a star in what is to be covered; no character is equal to it
LONGEST = 10_000  # characters between two stars that are looked for: their masks take a bit for each pair of them


def _marks(part: Part) -> list[_Marks]:
    """What a part pattern has before, between and behind its stars."""
    if isinstance(part, Exact):
        return [tuple(part.text)]
    if isinstance(part, Prefix):
        return [tuple(part.text), ()]
    any_one = "?" if part.single else None
    return [tuple(None if mark == any_one else mark for mark in piece) for piece in part.text.split("*")]


def _alike(left: _Marks, right: _Marks, start: int = 0, within: bool = False) -> bool:
    """Whether both can stand for the same characters, ``left`` from ``start`` in ``right`` on, as far as both go.

    ``within``: whether ``left`` stands for all that ``right`` does.
    """
    others = (right[at] for at in range(start, len(right)))
    return all(
        mark == other or (mark is None and other != _RUN) or (other is None and not within)
        for mark, other in zip(left, others, strict=False)
    )


def _fits(pieces: list[_Marks], fixed: _Marks, within: bool = False) -> bool:
    """Whether some text of ``fixed``, or with ``within`` each of them, is matched by what has these pieces.

    Each piece is taken where it first fits. Where one is too long to be looked for, the texts may overlap, and are not
    known to be covered: that is the safe side of both for those who ask (see `covers`).
    """
    first, *middle = pieces
    if not middle:
        return len(first) == len(fixed) and _alike(first, fixed, within=within)
    last = middle.pop()
    start, end = len(first), len(fixed) - len(last)
    if start > end or not _alike(first, fixed, within=within) or not _alike(last, fixed, end, within):
        return False
    for piece in middle:
        if len(piece) > end - start:
            return False
        if len(piece) > LONGEST:
            return not within
        piece_end = _find(piece, fixed, start, end, within)
        if piece_end is None:
            return False
        start = piece_end
    return True


def _find(piece: _Marks, fixed: _Marks, start: int, end: int, within: bool) -> int | None:
    """Where ``piece`` ends where it first fits from ``start`` on; None: nowhere up to ``end``.

    By the shift-and algorithm, for all places at once: bit n of ``fitting`` says that the piece's first n + 1 marks fit
    up to here. One place after the other would take the product of both lengths.
    """
    if not piece:
        return start
    at_mark: dict[_Mark, int] = {}
    for number, mark in enumerate(piece):
        at_mark[mark] = at_mark.get(mark, 0) | 1 << number
    any_one, every = at_mark.pop(None, 0), (1 << len(piece)) - 1
    fits_at: dict[_Mark, int] = {mark: bits | any_one for mark, bits in at_mark.items()}
    fits_at.update({None: any_one if within else every, _RUN: 0})
    fitting, whole = 0, 1 << len(piece) - 1
    for at in range(start, end):
        fitting = (fitting << 1 | 1) & fits_at.get(fixed[at], any_one)
        if fitting & whole:
            return at + 1
    return None


def _part_covers(wide: Part, narrow: Part) -> bool:
    """Whether every text that matches ``narrow`` matches ``wide`` (never true wrongly)."""
    if isinstance(narrow, Exact):
        return match_part(wide, narrow.text)
    if isinstance(wide, Prefix) and isinstance(narrow, Prefix):
        return narrow.text.startswith(wide.text)
    first, *others = _marks(narrow)
    return _fits(_marks(wide), (*first, *(mark for piece in others for mark in (_RUN, *piece))), within=True)


def overlaps(left: Pattern, right: Pattern) -> bool:
    """Whether some name matches both patterns."""
    beyond = len(right.parts) - len(left.parts)
    if (beyond > 0 and not left.open) or (beyond < 0 and not right.open):
        return False
    return all(part_overlaps(a, b) for a, b in zip(left.parts, right.parts, strict=False))


def meet(left: Pattern, right: Pattern) -> Pattern | None:
    """What both match; None: no name. Of two globs, neither within the other, the second stands: too much."""
    if not overlaps(left, right):
        return None
    shorter, longer = sorted((left, right), key=lambda pattern: len(pattern.parts))
    alike = len(shorter.parts) == len(longer.parts)
    parts = tuple(a if _part_covers(b, a) else b for a, b in zip(left.parts, right.parts, strict=False))
    return Pattern(parts + longer.parts[len(parts) :], left.open and right.open if alike else longer.open)


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Whether every name that matches ``narrow`` matches ``wide``; false when that is not certain.

    False is the safe side: lint leaves a warning out, a diff and an escalation alert name what adds nothing.
    """
    if len(wide.parts) > len(narrow.parts) or (len(wide.parts) < len(narrow.parts) and not wide.open):
        return False
    if narrow.open and not wide.open:
        return False
    return all(_part_covers(a, b) for a, b in zip(wide.parts, narrow.parts, strict=False))


def example(pattern: Pattern) -> Name:
    """A name that a pattern matches: what does not match it does not cover the pattern."""
    return tuple(_example(part) for part in pattern.parts)


def _example(part: Part) -> str:
    if not isinstance(part, Glob):
        return part.text
    text = part.text.replace("*", "")
    return text.replace("?", "x") if part.single else text
