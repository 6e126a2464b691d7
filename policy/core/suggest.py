"""What a misspelt name may have been meant as."""

import difflib
import functools
import heapq
import re
from collections.abc import Iterable

from policy.core.caching import Cache

CUTOFF = 0.6  # of difflib's ratio
COMPARED = 24  # names at most, with a misspelt one, which clients choose
CLOSE = 5  # of the nearest names it is looked whether they are the same but for a misspelt word
SHORTEST = 3  # characters of a word that may be misspelt
WORD, DIGITS = re.compile(r"[^\W_]+"), re.compile(r"\d+")
CATALOGUES = 100  # of which the characters are counted once

_CLOSE: Cache[tuple[str, tuple[str, ...], int], tuple[str, ...]] = Cache()


def nearest(name: str, known: Iterable[str], prefix: str = "", most: int = 3, separator: str = " or ") -> str:
    """ "; did you mean …?", or nothing when nothing is near. `prefix`: what every name begins with says nothing.

    `most`: how many names; `separator`: between them.
    """
    written = name.removeprefix(prefix)
    close = _close_matches(written, tuple(other.removeprefix(prefix) for other in known), most)
    close = tuple(other for other in close if other != written)  # known, but not here: it is not misspelt
    return f"; did you mean {separator.join(prefix + other for other in close)}?" if close else ""


def misspelt(name: str, known: Iterable[str]) -> str:
    """ "; did you mean …?" for a known name that differs in one word, and in more than a number or a short word.

    For names of which others than the known ones may exist: ``orders-2`` is no misspelt ``orders-1``.
    """
    close = _close_matches(name, tuple(known), CLOSE)
    return next((f"; did you mean {other}?" for other in close if _is_misspelt(name, other)), "")


def _is_misspelt(name: str, other: str) -> bool:
    words, others = WORD.findall(name), WORD.findall(other)
    pairs = [(word, wanted) for word, wanted in zip(words, others, strict=False) if word != wanted]
    if len(words) != len(others) or len(pairs) > 1:
        return False
    if not pairs:
        return name != other  # but for what stands between the words
    word, wanted = (DIGITS.sub("", text) for text in pairs[0])
    if word == wanted or min(len(word), len(wanted)) < SHORTEST:
        return False
    return difflib.SequenceMatcher(None, word.casefold(), wanted.casefold()).ratio() >= CUTOFF


def _close_matches(name: str, known: tuple[str, ...], most: int) -> tuple[str, ...]:
    if len(name) * CUTOFF > max(map(len, known), default=0) * (2 - CUTOFF):
        return ()  # the ratio would be less, and names of any length are not kept
    close = _CLOSE.get((name, known, most))
    if close is None:
        close = tuple(_compare(name, known, most))
        _CLOSE.hold((name, known, most), close, 4 * len(name))
    return close


def _compare(name: str, known: tuple[str, ...], most: int) -> list[str]:
    """What `difflib.get_close_matches` finds among the few names that have most characters in common with this one."""
    characters = _multiset(name)
    bounds = (
        (2 * (characters & others).bit_count() / ((len(name) + len(text)) or 1), text)
        for text, others in _multisets(known)
    )
    close: list[tuple[float, str]] = []
    matcher = difflib.SequenceMatcher(b=name)
    for bound, text in heapq.nlargest(COMPARED, (bounded for bounded in bounds if bounded[0] >= CUTOFF)):
        if len(close) == most and bound < close[-1][0]:
            break
        matcher.set_seq1(text)
        if (ratio := matcher.ratio()) >= CUTOFF:
            close = sorted([*close, (ratio, text)], reverse=True)[:most]
    return [text for _, text in close]


@functools.lru_cache(CATALOGUES)
def _multisets(known: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((text, _multiset(text)) for text in dict.fromkeys(known))


def _multiset(text: str) -> int:
    """A bit for each character: those of two texts have at least as many in common as the texts have characters."""
    bits = 0
    for character in text:
        bit = 1 << ord(character) % 64
        while bits & bit:
            bit <<= 64
        bits |= bit
    return bits
