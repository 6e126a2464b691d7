"""Episodes: occurrences of one kind about one subject that belong together. One alert describes one episode."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from policy import to_text
from streaming.monitor_settings import KindRule, Severity

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
