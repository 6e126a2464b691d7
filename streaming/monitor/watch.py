"""Watching one kind of occurrence about one subject: from single ones over a burst to an episode."""

from collections.abc import Iterator

import msgspec

from streaming.monitor.episodes import Episode, Occurrence, begin
from streaming.monitor.rules import KindRule, Rules


class Watch(msgspec.Struct, array_like=True):
    """`recent`: occurrences that are no burst yet, by time. `episode`: the present one, or one just over."""

    recent: list[Occurrence] = []
    episode: Episode | None = None
    over: bool = False

    def add(self, kind: str, key: str, occurrence: Occurrence, rule: KindRule) -> None:
        """Count an occurrence: to the episode, or towards one."""
        episode = self.episode
        if episode is not None and (occurrence.id in episode.ids or not self.over):
            episode.add(occurrence)
            return
        if occurrence.id in {known.id for known in self.recent}:
            return
        self.recent = sorted([*self.recent, occurrence], key=lambda known: (known.time, known.id))
        dense = self._dense(rule)
        if dense:
            self._begin(kind, key, dense)

    def _dense(self, rule: KindRule) -> list[Occurrence]:
        """The first occurrences, one more than are allowed, that lie within one window; empty: there are none."""
        least, window = rule.more_than + 1, int(rule.within_seconds * 1000)
        for start in range(len(self.recent) - least + 1):
            found = self.recent[start : start + least]
            if found[-1].time - found[0].time <= window:
                return found
        return []

    def _begin(self, kind: str, key: str, dense: list[Occurrence]) -> None:
        self.episode, self.over = begin(kind, key, dense[0]), False
        for occurrence in dense:
            self.episode.add(occurrence)
        self.recent = [known for known in self.recent if known not in dense]

    def tell(self, now: int, rules: Rules, rule: KindRule) -> Iterator[Episode]:
        """The episode when there is news of it, and the end of what is old. `now`: ms, known time."""
        episode = self.episode
        if episode is not None and not self.over:
            self.over = _ends_at(episode, rules) <= now
            if episode.to_tell(rule, self.over):
                episode.told_of(rule)
                yield episode
        # One that is over stays a while: by its ids, late duplicates are known.
        if episode is not None and self.over and _gone_at(episode, rules) <= now:
            self.episode = None
        self.recent = [known for known in self.recent if _forgotten_at(known, rules, rule) > now]

    def timers(self, rules: Rules, rule: KindRule) -> Iterator[int]:
        """When something is to be done (ms, known time)."""
        if self.episode is not None:
            yield _gone_at(self.episode, rules) if self.over else _ends_at(self.episode, rules)
        yield from (_forgotten_at(known, rules, rule) for known in self.recent[:1])

    @property
    def empty(self) -> bool:
        """Whether nothing is watched any more."""
        return self.episode is None and not self.recent


def _ends_at(episode: Episode, rules: Rules) -> int:
    return episode.known + int(rules.episode_seconds * 1000)


def _gone_at(episode: Episode, rules: Rules) -> int:
    return _ends_at(episode, rules) + int(rules.lateness_seconds * 1000)


def _forgotten_at(occurrence: Occurrence, rules: Rules, rule: KindRule) -> int:
    return occurrence.known + int((rule.within_seconds + rules.lateness_seconds) * 1000)
