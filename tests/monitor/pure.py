"""The monitor without Spark: the same intake and the same states, given records batch by batch."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policy.core.times import to_text
from streaming.monitor import EVERY_KEY, Fact, Input, Key
from streaming.monitor.intake import Intake, merge_decided
from streaming.monitor.processor import Bucket, alert_of
from streaming.monitor.state import Monitor, Raised, State
from streaming.records.alert import encode_alert
from streaming.records.audit import Heartbeat, encode_verdict
from streaming.settings.monitor import MonitorSettings

DECISIONS, VERDICTS, LETTERS = "decisions", "verdicts", "requests.dlq"
T0 = 1_795_000_000_000  # ms
Record = tuple[str, int, int, int, bytes]
"""Topic, partition, offset, when it became known (ms), value."""


class PureMonitor:
    """States by key; `alerts` by id, the newest; `reported`: all; `facts`: by key, the newest; `written`: all."""

    def __init__(self, settings: MonitorSettings, bucket: Bucket | None = None) -> None:
        self._intake = Intake(DECISIONS, VERDICTS, settings.narrowest_window_ms)
        self._window = settings.narrowest_window_ms
        self._monitor = Monitor(settings)
        self._unread_ms = settings.longest_unread_ms
        self._bucket = bucket or Bucket()  # of which all states are part
        self.states: dict[Key, State] = {}
        self.now = 0
        self._newest = self._read = 0
        self._until = math.inf
        self.reported: list[dict[str, Any]] = []
        self.facts: dict[str, bytes | None] = {}
        self.written: list[Fact] = []

    @property
    def alerts(self) -> dict[str, dict[str, Any]]:
        """The newest of each id."""
        return {alert["id"]: alert for alert in self.reported}

    def batch(self, records: Iterable[Record], until: int | None = None) -> None:
        """One micro-batch: time is what was known before it, as Spark's watermark is.

        `until`: up to when (ms) every partition is read with it; None: all to their ends.
        """
        self.now, self._until = self._newest, math.inf if until is None else until
        by_key: dict[Key, list[Input]] = {}
        for record in records:
            self._read = max(self._read, record[3])
            for key, input_ in self._intake.read(*record):
                by_key.setdefault(key, []).append(input_)
        self._newest = max(self._newest, int(min(self._read, self._until)))
        of_every_key = by_key.pop(EVERY_KEY, [])
        self._bucket.note_unread(of_every_key)
        self._note_answered_lag(of_every_key)
        for key, inputs in by_key.items():
            state = self.states.setdefault(key, State())
            self._results(key, state, merge_decided(inputs, self._window))
        self._timers()

    def pass_time(self, to: int) -> None:
        """Only heartbeats come until then (ms)."""
        self._newest, self._until = max(self._newest, to), math.inf
        while self.now < self._newest:
            self.now = self._newest
            self._note_answered_lag(())
            self._timers()

    def _note_answered_lag(self, inputs: Iterable[Input]) -> None:
        if self._bucket.note_answered_lag(inputs, self.now):
            for key, state in list(self.states.items()):
                self._results(key, state, [])

    def _timers(self) -> None:
        for key, state in list(self.states.items()):
            while 0 <= state.due <= self.now:
                before = state.due
                self._results(key, state, [])
                assert state.due != before, "a timer that is due again at once would fire for ever"
        self._bucket.forget_unread(self.now, self._unread_ms)

    def _results(self, key: Key, state: State, inputs: list[Input]) -> None:
        bucket = self._bucket
        for result in self._monitor.take(key, state, inputs, self.now, self._until, bucket.unread, bucket.answered_lag):
            if isinstance(result, Fact):
                self.facts[result.key] = result.to_value()
                self.written.append(result)
            else:
                assert isinstance(result, Raised)
                self.reported.append(msgspec.json.decode(encode_alert(alert_of(result))))
        if state.empty:
            self.states.pop(key, None)


def decision(
    id_: str,
    user: str,
    resource: str,
    outcome: str,
    at: int,
    known: int | None = None,
    system: str = "lenses6",
    **context: Any,
) -> Record:
    """A decision of a request that came at `at` (ms)."""
    answer = {"outcome": outcome, "reasons": [], "request": _request(user, resource), **context}
    named = {"id": id_, "request_id": id_, "system": system, "time": to_text(at)}
    record = {**named, "decision": outcome == "allow", "context": answer}
    return DECISIONS, 0, 0, at if known is None else known, json.dumps(record).encode()


def verdict(
    id_: str,
    user: str,
    resource: str,
    at: int,
    outcome: str = "allow",
    known: int | None = None,
    request: Mapping[str, Any] | None = None,
    **more: Any,
) -> Record:
    """An access that succeeded at `at` (ms), judged."""
    content: Mapping[str, Any] = {
        "kind": "access",
        "id": f"v-{id_}",
        "event_id": id_,
        "system": "lenses6",
        "time": at,
        "result": "success",
        "outcome": outcome,
        "reasons": [],
        "policy_version": "sha256:0",
        **(request or _request(user, resource)),
        **more,
    }
    return VERDICTS, 0, 0, at if known is None else known, json.dumps(content).encode()


def lifecycle(event: str, at: int, known: int | None = None, **more: Any) -> Record:
    """A login, or a job that starts or stops, at `at` (ms)."""
    content = {
        "kind": "lifecycle",
        "id": "v",
        "event_id": "e",
        "system": "streamsets",
        "event": event,
        "time": at,
        **more,
    }
    return VERDICTS, 0, 0, at if known is None else known, json.dumps(content).encode()


def answered_lag(at: int, lag: bool) -> Record:
    """The enforcer's report at `at` (ms) whether it has answered records left to decide."""
    return VERDICTS, 0, 0, at, encode_verdict(Heartbeat(time=at, answered_lag=lag))


def letter(offset: int, at: int) -> Record:
    """A dead letter."""
    return LETTERS, 0, offset, at, b"?"


def _request(user: str, resource: str) -> dict[str, Any]:
    return {
        "subject": {"type": "user", "id": user},
        "action": {"name": "kafka:ReadTopicData"},
        "resource": {"type": "lrn", "id": resource},
    }
