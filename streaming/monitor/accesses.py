"""Accesses held against requests: which of them had an allow, and which are still waiting for one."""

import itertools
from collections.abc import Iterator

import msgspec

from streaming.monitor.inputs import ACCESS_BYTES, Decided, Happened
from streaming.monitor_settings import Rules

Span = tuple[int, int]
"""First and last of moments (ms), each within a window of the one before: any moment between had one in its window."""


DENIALS_HELD = 20  # of one access, by their ids: one that names an older denial is matched like one that names none


class Asked(msgspec.Struct, array_like=True):
    """What was decided about one access lately: when it was allowed, and when not.

    `denial`: the newest decision that was no allow; `denials`: the newest of these.
    """

    allowed: list[Span] = []
    denied: list[Span] = []
    denial: str = ""
    denials: list[str] = []

    @property
    def newest(self) -> int:
        """The last moment of all, ms."""
        return max(last for _, last in (*self.allowed, *self.denied))

    def note(self, decided: Decided, window: int) -> None:
        """Remember a decision."""
        spans = self.allowed if decided.allowed else self.denied
        spans[:] = merged(spans, (decided.first, decided.last), window)
        if decided.ids:
            self.denial = decided.ids[-1]
            self.denials = list(dict.fromkeys((*self.denials, *decided.ids)))[-DENIALS_HELD:]

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

    def __post_init__(self) -> None:
        """After an upgrade: what an older version stored under other access ids matches nothing, so it is forgotten."""
        known = (*self.asked, *(happened.access for happened in self.waiting.values()))
        if any(len(access) != ACCESS_BYTES for access in itertools.islice(known, 1)):
            self.forgotten = max(self.forgotten, *(asked.newest for asked in self.asked.values()), -1)
            self.asked, self.waiting = {}, {}

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
        """The decision that denied an access, or None: the one that it names, else the newest."""
        asked = self.asked.get(happened.access)
        if asked is None or not within(asked.denied, happened.time, *_reach(rules)):
            return None
        return happened.decision if happened.decision in asked.denials else asked.denial

    def settle(self, now: int, rules: Rules) -> Iterator[Happened]:
        """Let go of those that were allowed, and yield those that were not. `now`: ms, ingestion time.

        Yielded are at once those that name a denial, and all others when their time is up.
        """
        for id_, happened in list(self.waiting.items()):
            if happened.decision is not None and self.denied(happened, rules) == happened.decision:
                del self.waiting[id_]
                yield happened
            elif self.allowed(happened, rules):
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
        if self.forgotten + rules.kept_ms < now:
            self.forgotten = -1
        excess = len(self.asked) - most
        if excess > 0:
            for access in sorted(self.asked, key=lambda known: self.asked[known].newest)[:excess]:
                self.forgotten = max(self.forgotten, self.asked.pop(access).newest)

    def timers(self, rules: Rules) -> Iterator[int]:
        """When something is to be done (ms, ingestion time)."""
        yield from (due_at(happened, rules) for happened in self.waiting.values())
        if self.forgotten >= 0:
            yield self.forgotten + rules.kept_ms + 1
        if self.asked:
            yield min(asked.newest for asked in self.asked.values()) + rules.kept_ms + 1


def _reach(rules: Rules) -> tuple[int, int]:
    """How long before and after an access its decision may have been given, ms: clocks differ a little."""
    return int(rules.window_seconds * 1000), int(rules.grace_seconds * 1000)


def due_at(happened: Happened, rules: Rules) -> int:
    """Until when its decision may still become known, ms."""
    return happened.known + int(rules.grace_seconds * 1000)
