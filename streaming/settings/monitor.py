"""What the monitor looks for, as settings: thresholds, windows, severities, by kind and system, and exemptions."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from policy import to_ms
from streaming.alert_kinds import MONITORED, AlertKind, KindRule, Positive, Seconds


def _check_monitored(kinds: Iterable[AlertKind]) -> None:
    """Raise ValueError for a kind that the monitor does not raise."""
    for kind in kinds:
        if kind not in MONITORED:
            raise ValueError(f"{kind}: the monitor raises no such alerts, but {', '.join(MONITORED)}")


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What holds for one system.

    `window_seconds`: so long before an access its allow may have been given. `grace_seconds`: so long after an access
    became known its decision may still come. `lateness_seconds`: an access that became known later than so long after
    it happened is not matched with requests, which are no longer kept. `episode_seconds`: after so long
    without another occurrence an episode is over.
    """

    window_seconds: Seconds = 300.0
    grace_seconds: Seconds = 5.0
    lateness_seconds: Seconds = 600.0
    episode_seconds: Seconds = 300.0
    kinds: dict[AlertKind, KindRule] = {}

    def __post_init__(self) -> None:
        _check_monitored(self.kinds)

    def of(self, kind: str) -> KindRule:
        """The rule of an `AlertKind`."""
        return self.kinds.get(AlertKind(kind)) or MONITORED[AlertKind(kind)].rule

    @property
    def kept_ms(self) -> int:
        """How long a decision is remembered, and beyond that for as long as an access waits."""
        return int((self.window_seconds + self.lateness_seconds) * 1000)

    @property
    def longest_wait_ms(self) -> int:
        """How long an access waits for its decision at most: while answered records are left to decide."""
        return int(max(self.grace_seconds, self.lateness_seconds) * 1000)


class Exemption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subject that raises no alerts until a moment (RFC 3339 or ms), and why. No systems or kinds: all of them."""

    subject: Annotated[str, msgspec.Meta(min_length=1)]
    reason: Annotated[str, msgspec.Meta(min_length=1)]
    until: str | int
    systems: frozenset[str] = frozenset()
    kinds: frozenset[AlertKind] = frozenset()

    def __post_init__(self) -> None:
        to_ms(self.until)
        _check_monitored(self.kinds)

    def covers(self, system: str, kind: str, at: int) -> bool:
        """Whether it holds for what happened at `at` (ms) in a system; its subject is looked up beforehand."""
        named = (not self.systems or system in self.systems) and (not self.kinds or kind in self.kinds)
        return named and at < to_ms(self.until)


class MonitorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The monitor: `rules` of all systems, `systems` what is otherwise for one of them, `exempt`: who is left out.

    `mode`: `lockkeeper run` runs it (`job`), or `lockkeeper monitor` does, an application of its own (`separate`).
    `checkpoint`: "" for that of the job with `-monitor` after it. `partitions`: of its state, fixed with the first
    checkpoint.
    """

    mode: Literal["job", "separate", "none"] = "job"
    checkpoint: str = ""
    partitions: Positive = 2
    rules: Rules = Rules()
    systems: dict[str, dict[str, Any]] = {}
    exempt: tuple[Exemption, ...] = ()

    def __post_init__(self) -> None:
        for system in self.systems:
            self.rules_of(system)
        _rules_from(self.rules, {})

    @property
    def _all_rules(self) -> list[Rules]:
        return [self.rules, *map(self.rules_of, self.systems)]

    @property
    def _smallest_grace(self) -> float:
        return min(rules.grace_seconds for rules in self._all_rules)

    @property
    def narrowest_window_ms(self) -> int:
        """The smallest window of any system."""
        return int(min(rules.window_seconds for rules in self._all_rules) * 1000)

    @property
    def longest_kept_ms(self) -> int:
        """How long decisions are remembered, of whichever system it is longest."""
        return max(rules.kept_ms for rules in self._all_rules)

    @property
    def longest_unread_ms(self) -> int:
        """How long after a decision an access that it may have allowed can still wait."""
        return max(rules.kept_ms + rules.longest_wait_ms for rules in self._all_rules)

    @property
    def trigger_seconds(self) -> float:
        """How often it starts a batch: alerts wait for the grace in any case, and each batch costs files and memory."""
        return min(max(self._smallest_grace, 1.0), 5.0)

    @property
    def tick_seconds(self) -> float:
        """How often time alone makes a batch: no more often than anything may be due, since each costs a batch."""
        return max(self.trigger_seconds, self._smallest_grace)

    @property
    def longest_wait_seconds(self) -> float:
        """After so long without records no alert is due any more."""
        return max(rules.grace_seconds + rules.episode_seconds for rules in self._all_rules) + 3 * self.tick_seconds

    def rules_of(self, system: str) -> Rules:
        """The rules of a system; raises msgspec.ValidationError when `systems` says something that is none."""
        return _rules_from(self.rules, self.systems.get(system, {}))


def _rules_from(rules: Rules, other: dict[str, Any]) -> Rules:
    values = msgspec.to_builtins(rules)
    kinds = {kind: msgspec.to_builtins(rules.of(kind)) for kind in MONITORED}
    for kind, changed in {**other.get("kinds", {})}.items():
        kinds[kind] = {**kinds.get(kind, {}), **changed}
    return msgspec.convert({**values, **other, "kinds": kinds}, Rules)
