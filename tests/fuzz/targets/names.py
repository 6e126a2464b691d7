"""Patterns and names: what matches, and what of the algebra of patterns must hold of it."""

import functools
import itertools
from random import Random
from typing import Any

from policy.core.model import Unanswerable
from policy.core.names import fault, fold, plain
from policy.core.pattern import Exact, Glob, Part, Pattern, Prefix, covers, match_text, matches, overlaps, wildcard
from policy.core.times import to_ms, to_text
from policy.matching.index import PatternIndex
from policy.systems.lenses6.grammar import action_name, action_pattern, resource_name, resource_pattern
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import FAULTY, LARGE, LARGEST, mutate_text
from tests.fuzz.samples import all_requests, words

ALPHABET = "ab*?/:A\u00e9\n"
LONGEST = 4000  # characters: the naive matcher takes their square
LONGEST_COMPARED = 200  # characters of patterns that are compared with each other: that is quadratic


class Patterns:
    """Patterns against names: the matcher, the index, and `covers` and `overlaps`, against a naive matcher."""

    name, share, records = "patterns", 130, 1

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """Some patterns, and a name that mostly almost matches the first."""
        patterns = [_pattern(dice, deep) for _ in range(dice.choice((1, 2, 4)))]
        parts = [_almost(dice, part["text"]) for part in patterns[0]["parts"]] or [""]
        if dice.random() < 0.2:
            parts.append(_word(dice, deep))
        return {"patterns": patterns, "name": parts}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        patterns, name = [_built(data) for data in given["patterns"]], tuple(given["name"])
        index: PatternIndex[list[int]] = PatternIndex()
        for number, pattern in enumerate(patterns):
            index.put(pattern, [*(index.get(pattern) or ()), number])
        found, again = (sorted(itertools.chain.from_iterable(index.find(name))) for _ in range(2))
        wanted = [number for number, pattern in enumerate(patterns) if _naive(pattern, name)]
        if found != wanted or again != wanted:
            raise Violation(f"match: the index finds {found}, then {again}, of {wanted}")
        if wanted != [number for number, pattern in enumerate(patterns) if matches(pattern, name)]:
            raise Violation(f"match: `matches` says otherwise than {wanted}")
        if (
            sum(len(part) for pattern in given["patterns"] for part in (p["text"] for p in pattern["parts"]))
            < LONGEST_COMPARED
        ):
            _check_algebra(patterns, wanted)
        for pattern in given["patterns"][0]["parts"][:1]:
            text = name[0]
            simple = pattern["text"]
            closed = simple.endswith("*")
            if match_text(simple, text) is not (text.startswith(simple[:-1]) if closed else text == simple):
                raise Violation("match: `match_text` says otherwise")
        return Execution(allows=len(wanted))


def _check_algebra(patterns: list[Pattern], matching: list[int]) -> None:
    for number, one in enumerate(patterns):
        for other in range(len(patterns)):
            if covers(one, patterns[other]) and other in matching and number not in matching:
                raise Violation(f"covers: {one} is said to cover {patterns[other]}")
            if number in matching and other in matching and not overlaps(one, patterns[other]):
                raise Violation(f"overlaps: {one} and {patterns[other]} share a name")


def _naive(pattern: Pattern, name: tuple[str, ...]) -> bool:
    if len(name) < len(pattern.parts) or (len(name) > len(pattern.parts) and not pattern.open):
        return False
    return all(_naive_part(part, text) for part, text in zip(pattern.parts, name, strict=False))


def _naive_part(part: Part, text: str) -> bool:
    if isinstance(part, Exact):
        return part.text == text
    if isinstance(part, Prefix):
        return text[: len(part.text)] == part.text
    ends = {0}  # of the beginnings of the text that the glob matches so far
    for mark in part.text:
        if mark == "*":
            ends = set(range(min(ends), len(text) + 1)) if ends else ends
        else:
            one = mark == "?" and part.single
            ends = {end + 1 for end in ends if end < len(text) and (one or text[end] == mark)}
    return len(text) in ends


def _built(data: Any) -> Pattern:
    return Pattern(tuple(_part(part) for part in data["parts"]), data["open"])


def _part(data: Any) -> Part:
    kinds: dict[str, Any] = {"exact": Exact, "prefix": Prefix}
    if data["kind"] in kinds:
        part: Part = kinds[data["kind"]](data["text"])
        return part
    return Glob(data["text"], data["single"]) if data["kind"] == "glob" else wildcard(data["text"], data["single"])


def _pattern(dice: Random, deep: bool) -> Any:
    kinds = ("exact", "prefix", "glob", "glob", "wildcard")
    parts = [
        {"kind": dice.choice(kinds), "text": _word(dice, deep), "single": dice.random() < 0.5}
        for _ in range(dice.choice((1, 1, 2, 3)))
    ]
    return {"parts": parts, "open": dice.random() < 0.3}


def _word(dice: Random, deep: bool) -> str:
    if dice.randrange(5 * LARGE) == 0:
        return dice.choice(("ab", "a*", "a", "*", "?", "a*?")) * dice.choice((500, LONGEST // 4))
    if deep:
        return "".join(dice.choices(ALPHABET, k=dice.choice((0, 1, 2, 3, 5, 8))))
    return dice.choice(
        (dice.choice(FAULTY), dice.choice(words("cdap")), mutate_text(dice, dice.choice(words("lenses6")))[:LONGEST])
    )


def _almost(dice: Random, text: str) -> str:
    """A text that a pattern with this text nearly matches."""
    filled = "".join(_filler(dice) if mark == "*" else "a" if mark == "?" else mark for mark in text)
    return mutate_text(dice, filled)[: 2 * LONGEST] if dice.random() < 0.4 else filled


def _filler(dice: Random) -> str:
    return dice.choice(("", "a", "ab", "*", "b", "aa"))


class Names:
    """Texts as actions, resources, patterns and moments: only the documented errors."""

    name, share, records = "names", 290, 1

    def __init__(self, seed: str) -> None:
        self._texts = functools.cache(lambda: _lrns())

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A text that is much like an action, a resource or a moment."""
        text = dice.choice(self._texts())
        for _ in range(dice.choice((0, 1, 2)) if deep else 4):
            text = mutate_text(dice, text)
        return text if dice.randrange(LARGE) else (text or "a/") * (LARGEST // max(len(text), 2))

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        past = _reads(given)
        if not fault(given) and plain(given) != given:
            raise Violation("names: a name without fault is not plain")
        fold(given)
        if fault(plain(given)) and "\ud800" <= max(given, default="") <= "\udfff":
            raise Violation("names: what is plain has a fault")
        try:
            moment = to_ms(given)
        except ValueError:
            return Execution(past, not past)
        if to_ms(to_text(moment)) != moment:
            raise Violation("times: written once more it is another moment")
        return Execution()


def _reads(text: str) -> bool:
    """Whether it is anything; a resource without wildcards matches the pattern of the same text."""
    names: list[Any] = []
    for read, errors in (
        (action_name, Unanswerable),
        (resource_name, Unanswerable),
        (action_pattern, ValueError),
        (resource_pattern, ValueError),
    ):
        try:
            names.append(read(text))
        except errors:
            names.append(None)
    action, resource, of_actions, of_resources = names
    if "*" not in text:
        for name, pattern in ((action, of_actions), (resource, of_resources)):
            if name is not None and pattern is not None and not matches(pattern, name):
                raise Violation(f"names: {text!r} as a pattern does not match itself")
    return any(name is not None for name in names)


def _lrns() -> list[str]:
    found = {text for request in all_requests() for part in ("action", "resource") for text in _ids(request.get(part))}
    return sorted(found | {text for text in words("lenses6") if ":" in text} | set(FAULTY))


def _ids(part: Any) -> list[str]:
    return [part[name] for name in ("id", "name") if isinstance(part.get(name), str)] if isinstance(part, dict) else []
