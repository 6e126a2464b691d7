"""Watching one kind of occurrence about one subject: from single ones over a burst to an episode."""

from collections.abc import Iterator

import msgspec

from streaming.monitor.rules import Episode, Occurrence, begin
from streaming.monitor_settings import KindRule, Rules


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
