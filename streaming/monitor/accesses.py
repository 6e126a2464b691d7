"""Accesses held against requests: which of them had an allow, and which are still waiting for one."""

from collections.abc import Iterator

import msgspec

from streaming.monitor.inputs import Decided, Happened
from streaming.monitor.rules import Rules

Span = tuple[int, int]
"""First and last of moments (ms), each within a window of the one before: any moment between had one in its window."""


class Asked(msgspec.Struct, array_like=True):
    """What was decided about one access lately: when it was allowed, and when not."""

    allowed: list[Span] = []
    denied: list[Span] = []
    denial: str = ""

    @property
    def newest(self) -> int:
        """The last moment of all, ms."""
        return max(last for _, last in (*self.allowed, *self.denied))

    def note(self, decided: Decided, window: int) -> None:
        """Remember a decision."""
        spans = self.allowed if decided.allowed else self.denied
        spans[:] = merged(spans, (decided.first, decided.last), window)
        if not decided.allowed:
            self.denial = decided.id

    def forget_before(self, moment: int) -> None:
        """Let go of spans that ended before a moment (ms)."""
        self.allowed = [span for span in self.allowed if span[1] >= moment]
        self.denied = [span for span in self.denied if span[1] >= moment]


def merged(spans: list[Span], new: Span, gap: int) -> list[Span]:
    """The spans with another one, those no further apart than `gap` (ms) made one; sorted."""
    found: list[Span] = []
    for first, last in sorted([*spans, new]):
        if found and first - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def within(spans: list[Span], moment: int, before: int, after: int) -> bool:
    """Whether a span has a moment between `before` (ms) before and `after` (ms) after a moment."""
    return any(first - after <= moment <= last + before for first, last in spans)


class Accesses(msgspec.Struct, array_like=True):
    """The accesses of one subject. `forgotten`: what was decided up to then (ms) may not be known any more."""

    asked: dict[bytes, Asked] = {}
    waiting: dict[str, Happened] = {}
    forgotten: int = -1

    def note(self, decided: Decided, rules: Rules) -> None:
        """Remember a decision."""
        asked = self.asked.setdefault(decided.access, Asked())
        asked.note(decided, int(rules.window_seconds * 1000))

    def await_allow(self, happened: Happened, rules: Rules) -> None:
        """Wait for an access's allow, unless nobody can tell any more; the same event waits once."""
        if happened.known - happened.time <= rules.lateness_seconds * 1000:
            self.waiting.setdefault(happened.id, happened)

    def allowed(self, happened: Happened, rules: Rules) -> bool:
        """Whether an access had an allow, or may have had one that is forgotten."""
        asked = self.asked.get(happened.access)
        if asked is not None and within(asked.allowed, happened.time, *_reach(rules)):
            return True
        return happened.time - rules.window_seconds * 1000 <= self.forgotten

    def denied(self, happened: Happened, rules: Rules) -> str | None:
        """The decision that denied an access, or None."""
        asked = self.asked.get(happened.access)
        return asked.denial if asked is not None and within(asked.denied, happened.time, *_reach(rules)) else None

    def settle(self, now: int, rules: Rules) -> Iterator[Happened]:
        """Let go of those that were allowed, and yield those whose time is up without. `now`: ms, known time."""
        for id_, happened in list(self.waiting.items()):
            if self.allowed(happened, rules):
                del self.waiting[id_]
            elif due_at(happened, rules) <= now:
                del self.waiting[id_]
                yield happened

    def tidy(self, now: int, most: int, rules: Rules) -> None:
        """Forget what no access can need any more, and the oldest beyond `most`."""
        for access, asked in list(self.asked.items()):
            asked.forget_before(now - rules.kept_ms)
            if not asked.allowed and not asked.denied:
                del self.asked[access]
        excess = len(self.asked) - most
        if excess > 0:
            for access in sorted(self.asked, key=lambda known: self.asked[known].newest)[:excess]:
                self.forgotten = max(self.forgotten, self.asked.pop(access).newest)

    def timers(self, rules: Rules) -> Iterator[int]:
        """When something is to be done (ms, known time)."""
        yield from (due_at(happened, rules) for happened in self.waiting.values())
        if self.asked:
            yield min(asked.newest for asked in self.asked.values()) + rules.kept_ms + 1


def _reach(rules: Rules) -> tuple[int, int]:
    """How long before and after an access its decision may have been given, ms: clocks differ a little."""
    return int(rules.window_seconds * 1000), int(rules.grace_seconds * 1000)


def due_at(happened: Happened, rules: Rules) -> int:
    """Until when its decision may still become known, ms."""
    return happened.known + int(rules.grace_seconds * 1000)
