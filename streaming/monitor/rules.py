"""Episodes: occurrences of one kind about one subject that belong together. One alert describes one episode."""

import bisect
import hashlib
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from policy import Severity, to_text
from streaming.alert_kinds import KindRule
from streaming.monitor import ACCESS_BYTES, DENIALS_HELD, AccessEvent, DecisionEvent
from streaming.settings.monitor import Rules

SAMPLES = 5  # occurrences that an alert shows
IDS_HELD = 1000  # by which duplicates are known; of a larger episode the count may hold some twice
GROWN = 10  # an episode is reported again when its count has grown by this factor


class Occurrence(msgspec.Struct, frozen=True, array_like=True):
    """Something that should not be. `time`: when it happened, `known`: when it became known, ms."""

    id: str
    time: int
    known: int
    what: str


class Episode(msgspec.Struct, array_like=True):
    """One episode so far. `known`: when its newest occurrence became known; `alerted_count`: in its newest alert."""

    id: str
    first: int
    last: int
    known: int
    count: int = 0
    alerted_count: int = 0
    severity: Severity = "info"
    samples: list[Occurrence] = []
    ids: set[str] = set()

    def add(self, occurrence: Occurrence) -> None:
        """Count an occurrence, unless it is counted already."""
        if occurrence.id in self.ids:
            return
        if len(self.ids) < IDS_HELD:
            self.ids.add(occurrence.id)
        self.count += 1
        self.first, self.last = min(self.first, occurrence.time), max(self.last, occurrence.time)
        self.known = max(self.known, occurrence.known)
        if len(self.samples) < SAMPLES:
            self.samples.append(occurrence)

    def is_news(self, rule: KindRule, over: bool) -> bool:
        """Whether there is news: it began, became more severe, grew much, or ended with a higher count than alerted."""
        if not self.alerted_count:
            return True
        more_severe = rule.severity_of(self.count) != self.severity
        return more_severe or self.count >= GROWN * self.alerted_count or (over and self.count > self.alerted_count)

    def alerted(self, rule: KindRule) -> None:
        """Note that an alert with the present count and severity is written."""
        self.alerted_count, self.severity = self.count, rule.severity_of(self.count)


def begin(kind: str, key: str, occurrences: Sequence[Occurrence]) -> Episode:
    """A new episode about `key`; its id comes from its first occurrence, so that the same input gives the same id."""
    first = occurrences[0]
    about = hashlib.blake2b(f"{key}{first.id}".encode(), digest_size=12).hexdigest()
    episode = Episode(f"{kind}-{about}", first.time, first.time, first.known)
    for occurrence in occurrences:
        episode.add(occurrence)
    return episode


def evidence_of(episode: Episode, system: str) -> list[dict[str, Any]]:
    """How often, from when to when, and the first few occurrences."""
    extent = {"count": episode.count, "first": to_text(episode.first), "last": to_text(episode.last)}
    samples = ({"time": to_text(o.time), "what": o.what} for o in episode.samples)
    return [{**({"system": system} if system else {}), **extent}, *samples]


class Watch(msgspec.Struct, array_like=True):
    """`recent`: occurrences that are no burst yet, by time. `episode`: the present one. `past`: those just over.

    Past ones stay a while: by their ids, late duplicates are known.
    """

    recent: list[Occurrence] = []
    episode: Episode | None = None
    past: list[Episode] = []

    def add(self, kind: str, key: str, occurrence: Occurrence, rules: Rules, rule: KindRule) -> None:
        """Count an occurrence: to the episode, or towards one."""
        self._end_if_over(occurrence.known, rules)
        if self._is_known(occurrence):
            return
        if self.episode is not None:
            self.episode.add(occurrence)
            return
        index = bisect.bisect(self.recent, _by_time(occurrence), key=_by_time)
        self.recent.insert(index, occurrence)
        dense = self._dense(rule, index)
        if dense:
            self.episode = begin(kind, key, dense)
            self.recent = [recent for recent in self.recent if recent not in dense]

    def _is_known(self, occurrence: Occurrence) -> bool:
        return any(occurrence.id in past.ids for past in self.past) or occurrence.id in map(_id, self.recent)

    def _end_if_over(self, now: int, rules: Rules) -> None:
        if self.episode is not None and _ends_at(self.episode, rules) <= now:
            self.past.append(self.episode)
            self.episode = None

    def _dense(self, rule: KindRule, new: int) -> list[Occurrence]:
        """The first occurrences, one more than are allowed, that lie within one window; empty: there are none.

        ``new``: the index of the one that came last. Only it can have made others dense: where days are caught up with,
        thousands may be recent that are not.
        """
        least, window = rule.more_than + 1, int(rule.within_seconds * 1000)
        for start in range(max(new - least + 1, 0), min(new, len(self.recent) - least) + 1):
            occurrences = self.recent[start : start + least]
            if occurrences[-1].time - occurrences[0].time <= window:
                return occurrences
        return []

    def alerts(self, now: int, rules: Rules, rule: KindRule) -> Iterator[Episode]:
        """The episodes that there is news of, and the end of what is old. `now`: see `Accesses.settled_until`."""
        self._end_if_over(now, rules)
        for episode in self.past:
            if episode.is_news(rule, over=True):
                episode.alerted(rule)
                yield episode
        if self.episode is not None and self.episode.is_news(rule, over=False):
            self.episode.alerted(rule)
            yield self.episode
        self.past = [past for past in self.past if _gone_at(past, rules) > now]
        self.recent = [recent for recent in self.recent if _forgotten_at(recent, rules, rule) > now]

    def timers(self, rules: Rules, rule: KindRule) -> Iterator[int]:
        """When something is to be done (ms, ingestion time)."""
        if self.episode is not None:
            yield _ends_at(self.episode, rules)
        yield from (_gone_at(past, rules) for past in self.past)
        yield from (_forgotten_at(recent, rules, rule) for recent in self.recent)

    @property
    def empty(self) -> bool:
        """Whether nothing is watched any more."""
        return self.episode is None and not self.past and not self.recent


_id = operator.attrgetter("id")
_by_time = operator.attrgetter("time", "id")


def _ends_at(episode: Episode, rules: Rules) -> int:
    return episode.known + int(rules.episode_seconds * 1000)


def _gone_at(episode: Episode, rules: Rules) -> int:
    return _ends_at(episode, rules) + int(rules.lateness_seconds * 1000)


def _forgotten_at(occurrence: Occurrence, rules: Rules, rule: KindRule) -> int:
    return occurrence.known + int((rule.within_seconds + rules.lateness_seconds) * 1000)


Span = tuple[int, int]
"""First and last of moments (ms), each within a window of the one before: any moment between had one in its window."""


class AccessDecisions(msgspec.Struct, array_like=True):
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

    @property
    def retention_rank(self) -> tuple[bool, int]:
        """The larger, the longer it is remembered."""
        return bool(self.allowed), self.newest

    def note(self, decided: DecisionEvent, window: int) -> None:
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
    # Nearly always; of days that are caught up with there may be thousands.
    if spans and new[0] - spans[-1][1] > gap:
        return [*spans, new]
    united: list[Span] = []
    for first, last in sorted([*spans, new]):
        if united and first - united[-1][1] <= gap:
            united[-1] = (united[-1][0], max(last, united[-1][1]))
        else:
            united.append((first, last))
    return united


def within(spans: list[Span], moment: int, before: int, after: int) -> bool:
    """Whether a span has a moment between `before` (ms) before and `after` (ms) after a moment."""
    return any(first - after <= moment <= last + before for first, last in spans)


class Accesses(msgspec.Struct, array_like=True):
    """The accesses of one subject. `forgotten`: what was decided up to then (ms) may not be known any more."""

    decided: dict[bytes, AccessDecisions] = {}
    waiting: dict[str, AccessEvent] = {}
    forgotten: int = -1

    def __post_init__(self) -> None:
        """After an upgrade: what an older version stored under other access ids matches nothing, so it is forgotten."""
        stored = (*self.decided, *(happened.access for happened in self.waiting.values()))
        if any(len(access) != ACCESS_BYTES for access in itertools.islice(stored, 1)):
            self.forgotten = max(self.forgotten, *(decisions.newest for decisions in self.decided.values()), -1)
            self.decided, self.waiting = {}, {}

    def note(self, decided: DecisionEvent, rules: Rules) -> None:
        """Remember a decision."""
        decisions = self.decided.setdefault(decided.access, AccessDecisions())
        decisions.note(decided, int(rules.window_seconds * 1000))

    def await_allow(self, happened: AccessEvent, rules: Rules) -> None:
        """Wait for an access's allow, unless it is no longer known whether there was one; the same event waits once."""
        if happened.known - happened.time <= rules.lateness_seconds * 1000:
            self.waiting.setdefault(happened.id, happened)

    def allowed(self, happened: AccessEvent, rules: Rules) -> bool:
        """Whether an access had an allow, or may have had one that is forgotten."""
        decisions = self.decided.get(happened.access)
        if decisions is not None and within(decisions.allowed, happened.time, *_reach(rules)):
            return True
        return happened.time - rules.window_seconds * 1000 <= self.forgotten

    def denied(self, happened: AccessEvent, rules: Rules) -> str | None:
        """The decision that denied an access, or None: the one that it names, whenever that was, else the newest."""
        decisions = self.decided.get(happened.access)
        if decisions is None:
            return None
        if happened.decision in decisions.denials:
            return happened.decision
        return decisions.denial if within(decisions.denied, happened.time, *_reach(rules)) else None

    def settle(self, now: int, rules: Rules, answered_lag: bool) -> Iterator[AccessEvent]:
        """Let go of those that were allowed, and yield those that were not. `now`: ms, ingestion time.

        Yielded are at once those that name a denial, and all others when their time is up.
        """
        for id_, happened in list(self.waiting.items()):
            if happened.decision and self.denied(happened, rules) == happened.decision:
                del self.waiting[id_]
                yield happened
            elif self.allowed(happened, rules):
                del self.waiting[id_]
            elif due_at(happened, rules, answered_lag) <= now:
                del self.waiting[id_]
                yield happened

    def settled_until(self, now: int) -> int:
        """Until when all that became known is settled, ms: no later than `now`, and not beyond what waits."""
        return min([now, *(happened.known for happened in self.waiting.values())])

    def tidy(self, now: int, most: int, rules: Rules) -> None:
        """Forget what no access can need any more, and the oldest beyond `most`, first those that were not allowed.

        `now`: see `settled_until`.
        """
        for access, decisions in list(self.decided.items()):
            decisions.forget_before(now - rules.kept_ms)
            if not decisions.allowed and not decisions.denied:
                del self.decided[access]
        if self.forgotten + rules.kept_ms < now:
            self.forgotten = -1
        excess = len(self.decided) - most
        if excess > 0:
            # A flood of denials must neither displace the allows nor excuse what was never allowed.
            by_rank = sorted(self.decided, key=lambda access: self.decided[access].retention_rank)
            for access in by_rank[:excess]:
                self.forgotten = max([self.forgotten, *(last for _, last in self.decided.pop(access).allowed)])

    def timers(self, rules: Rules, answered_lag: bool) -> Iterator[int]:
        """When something is to be done (ms, ingestion time)."""
        yield from (due_at(happened, rules, answered_lag) for happened in self.waiting.values())
        if self.forgotten >= 0:
            yield self.forgotten + rules.kept_ms + 1
        if self.decided:
            yield min(decisions.newest for decisions in self.decided.values()) + rules.kept_ms + 1


def _reach(rules: Rules) -> tuple[int, int]:
    """How long before and after an access its decision may have been given, ms: clocks differ a little."""
    return int(rules.window_seconds * 1000), int(rules.grace_seconds * 1000)


def due_at(happened: AccessEvent, rules: Rules, answered_lag: bool) -> int:
    """Until when its decision may still become known, ms.

    `answered_lag`: the enforcer has answered records left. One that the access rests on may be among them: after a
    stop, the audit topic is caught up with first where it has fewer records. A lag that never ends must not hide an
    access.
    """
    return happened.known + (rules.longest_wait_ms if answered_lag else int(rules.grace_seconds * 1000))
