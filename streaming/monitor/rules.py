"""Episodes: occurrences of one kind about one subject that belong together. One alert describes one episode."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from policy import to_text
from streaming.monitor_settings import KindRule, Rules, Severity

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
        """Whether there is news: it began, became graver, grew much, or ended with a higher count than alerted."""
        if not self.alerted_count:
            return True
        graver = rule.severity_of(self.count) != self.severity
        return graver or self.count >= GROWN * self.alerted_count or (over and self.count > self.alerted_count)

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
        if self._is_known(occurrence):
            return
        if self.episode is not None and _ends_at(self.episode, rules) <= occurrence.known:
            self._end()
        if self.episode is not None:
            self.episode.add(occurrence)
            return
        self.recent = sorted([*self.recent, occurrence], key=lambda known: (known.time, known.id))
        dense = self._dense(rule)
        if dense:
            self.episode = begin(kind, key, dense)
            self.recent = [known for known in self.recent if known not in dense]

    def _is_known(self, occurrence: Occurrence) -> bool:
        return any(occurrence.id in past.ids for past in self.past) or any(
            occurrence.id == known.id for known in self.recent
        )

    def _end(self) -> None:
        if self.episode is not None:
            self.past.append(self.episode)
            self.episode = None

    def _dense(self, rule: KindRule) -> list[Occurrence]:
        """The first occurrences, one more than are allowed, that lie within one window; empty: there are none."""
        least, window = rule.more_than + 1, int(rule.within_seconds * 1000)
        for start in range(len(self.recent) - least + 1):
            found = self.recent[start : start + least]
            if found[-1].time - found[0].time <= window:
                return found
        return []

    def alerts(self, now: int, rules: Rules, rule: KindRule) -> Iterator[Episode]:
        """The episodes that there is news of, and the end of what is old. `now`: ms, ingestion time."""
        if self.episode is not None and _ends_at(self.episode, rules) <= now:
            self._end()
        for episode in self.past:
            if episode.is_news(rule, over=True):
                episode.alerted(rule)
                yield episode
        if self.episode is not None and self.episode.is_news(rule, over=False):
            self.episode.alerted(rule)
            yield self.episode
        self.past = [past for past in self.past if _gone_at(past, rules) > now]
        self.recent = [known for known in self.recent if _forgotten_at(known, rules, rule) > now]

    def timers(self, rules: Rules, rule: KindRule) -> Iterator[int]:
        """When something is to be done (ms, ingestion time)."""
        if self.episode is not None:
            yield _ends_at(self.episode, rules)
        yield from (_gone_at(past, rules) for past in self.past)
        yield from (_forgotten_at(known, rules, rule) for known in self.recent)

    @property
    def empty(self) -> bool:
        """Whether nothing is watched any more."""
        return self.episode is None and not self.past and not self.recent


def _ends_at(episode: Episode, rules: Rules) -> int:
    return episode.known + int(rules.episode_seconds * 1000)


def _gone_at(episode: Episode, rules: Rules) -> int:
    return _ends_at(episode, rules) + int(rules.lateness_seconds * 1000)


def _forgotten_at(occurrence: Occurrence, rules: Rules, rule: KindRule) -> int:
    return occurrence.known + int((rule.within_seconds + rules.lateness_seconds) * 1000)
