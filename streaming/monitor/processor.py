"""Spark's side of the monitor's state: one value and at most one timer for each bucket of keys, in the state store.

Spark's watermark runs on ingestion time: an hour behind that up to which every partition is read. No timer waits for
that hour, which checkpoints have had from the beginning: timers are set as much earlier.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from policy import to_text
from streaming.alert_kinds import MONITORED, AlertKind
from streaming.monitor import (
    EVERY_KEY,
    NO_BUCKET,
    AnsweredLagEvent,
    Fact,
    Input,
    UnreadEvent,
    decode_inputs,
    parse_key,
)
from streaming.monitor.intake import received_times
from streaming.monitor.rules import evidence_of
from streaming.monitor.state import Monitor, Raised, State
from streaming.records.alert import Alert, encode_alert
from streaming.records.formats import shorten_id
from streaming.settings.monitor import MonitorSettings

ALERT, FACT = "alert", "fact"
OUTPUT = "output string, key string, value binary, since long"  # `since`: of a deleted fact, ms
SKEW_MS = 60 * 60 * 1000


class Bucket(msgspec.Struct, array_like=True):
    """The states of a bucket's keys, each with when it is due (ms, ingestion time; -1: never), undecoded until needed.

    `timer`: when the bucket will be looked at, or -1. `unread`: when the newest decision was written that could not be
    read (ms, -1: none), for as long as decisions are remembered. `answered_lag`: answered records are left to decide,
    up to `caught_up` (ms; -1: not known yet). Older versions keep none of the last three.
    """

    timer: int = -1
    states: dict[str, tuple[int, msgspec.Raw]] = {}
    unread: int = -1
    answered_lag: bool = False
    caught_up: int = -1

    @classmethod
    def assuming_lag(cls, now: int, until: int) -> "Bucket":
        """Of a monitor that lost its state: answered records may be left, which is reported again by `until` (ms)."""
        return cls(answered_lag=True, caught_up=until) if now < until else cls()

    def due(self, now: int) -> list[str]:
        """The keys whose time has come."""
        return [key for key, (due, _) in self.states.items() if 0 <= due <= now]

    def next(self, unread_ms: int) -> int:
        """When the first key is due, `unread` is over, or answers are caught up with, or -1.

        `unread_ms`: for how long `unread` is kept.
        """
        dues = [due for due, _ in self.states.values() if due >= 0]
        unread = [self.unread + unread_ms + 1] if self.unread >= 0 else []
        return min([*dues, *unread, *([self.caught_up] if self.caught_up >= 0 else [])], default=-1)

    def note_unread(self, inputs: Iterable[Input]) -> None:
        """Remember when an unread decision was written."""
        self.unread = max([self.unread, *(input_.at for input_ in inputs if isinstance(input_, UnreadEvent))])

    def forget_unread(self, now: int, unread_ms: int) -> None:
        """Forget it once no access can need it: not before those that are due by `now` (ms, ingestion time) ended."""
        if self.unread + unread_ms < now:
            self.unread = -1

    def note_answered_lag(self, inputs: Iterable[Input], now: int) -> bool:
        """Remember whether answered records are left to decide; whether every key has to be looked at, as none is now.

        They are until time has come up to the report that says so: their decisions, which were written before it, may
        be read after it.
        """
        for event in sorted((input_ for input_ in inputs if isinstance(input_, AnsweredLagEvent)), key=_report_order):
            if event.lag:
                self.answered_lag, self.caught_up = True, -1
            elif self.answered_lag:
                self.caught_up = event.at
        ends = 0 <= self.caught_up <= now
        if ends:
            self.answered_lag, self.caught_up = False, -1
        return ends

    @property
    def empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not self.states and self.unread < 0 and not self.answered_lag


def _report_order(event: AnsweredLagEvent) -> tuple[int, bool]:
    return event.at, event.lag


_encode = msgspec.msgpack.Encoder().encode
_decode_bucket = msgspec.msgpack.Decoder(Bucket).decode
_decode_state = msgspec.msgpack.Decoder(State).decode


class Processor(StatefulProcessor):
    """Keeps the states of each bucket and yields alerts and facts. `lag_assumed_until`: see `Bucket.assuming_lag`."""

    def __init__(self, settings: MonitorSettings, lag_assumed_until: int = -1) -> None:
        self._settings, self._lag_assumed_until = settings, lag_assumed_until

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark in the worker, before anything else."""
        self._handle = handle
        self._cell = handle.getValueState("bucket", "cell binary")
        self._monitor = Monitor(self._settings)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        """Take the inputs of a bucket's keys in a batch."""
        by_key: dict[str, list[Input]] = {}
        for row in rows:
            for cell in row["inputs"]:
                for about, inputs in decode_inputs(bytes(cell)).items():
                    by_key.setdefault(about, []).extend(inputs)
        if key[0] != NO_BUCKET:
            yield from self._take(self._load(timerValues), by_key, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        """Look at a bucket again whose time has come."""
        bucket = self._load(timerValues)
        if bucket.timer == expiredTimerInfo.getExpiryTimeInMs() + SKEW_MS:
            bucket.timer = -1
        yield from self._take(bucket, {}, timerValues)

    def close(self) -> None:
        """Nothing to let go of."""

    def _take(self, bucket: Bucket, by_key: Mapping[str, list[Input]], times: TimerValues) -> Iterator[Row]:
        now, until = _now(times), received_times().until
        results: list[Row] = []
        of_every_key = by_key.get(str(EVERY_KEY), ())
        bucket.note_unread(of_every_key)
        due = list(bucket.states) if bucket.note_answered_lag(of_every_key, now) else bucket.due(now)
        for about in {**by_key, **dict.fromkeys(due)}:
            if about != str(EVERY_KEY):
                results += self._take_one(bucket, about, by_key.get(about, []), now, until)
        bucket.forget_unread(now, self._settings.longest_unread_ms)
        self._keep(bucket, now)
        yield from results

    def _take_one(self, bucket: Bucket, about: str, inputs: list[Input], now: int, until: float) -> list[Row]:
        encoded = bucket.states.get(about)
        state = State() if encoded is None else _decode_state(encoded[1])
        taken = self._monitor.take(parse_key(about), state, inputs, now, until, bucket.unread, bucket.answered_lag)
        rows = [_row(result) for result in taken]
        if state.empty:
            bucket.states.pop(about, None)
        else:
            bucket.states[about] = (state.due, msgspec.Raw(_encode(state)))
        return rows

    def _load(self, times: TimerValues) -> Bucket:
        row = self._cell.get()
        if row is None:
            return Bucket.assuming_lag(_now(times), self._lag_assumed_until)
        return _decode_bucket(bytes(row[0]))

    def _keep(self, bucket: Bucket, now: int) -> None:
        if bucket.empty and now >= self._lag_assumed_until:  # until then a new one would assume the lag again
            self._cell.clear()
            return
        # Beyond the watermark: what is due by now has been looked at. With SPARK-56400 and without SPARK-56566, Spark
        # finds no timer from before the last watermark.
        due = bucket.next(self._settings.longest_unread_ms)
        if due >= 0 and not 0 <= bucket.timer <= due:
            if bucket.timer >= 0:
                self._handle.deleteTimer(bucket.timer - SKEW_MS)
            self._handle.registerTimer(due - SKEW_MS)
            bucket.timer = due
        self._cell.update((_encode(bucket),))


def _now(times: TimerValues) -> int:
    """Ingestion time, ms."""
    return int(times.getCurrentWatermarkInMs()) + SKEW_MS


def _row(result: Raised | Fact) -> Row:
    if isinstance(result, Fact):
        since = result.since if result.spec is None else None
        return Row(output=FACT, key=result.key, value=result.to_value(), since=since)
    return Row(output=ALERT, key=shorten_id(result.key.name), value=encode_alert(alert_of(result)), since=None)


def alert_of(raised: Raised) -> Alert:
    """All alerts of one episode have one id; the newest is the most complete."""
    episode, key = raised.episode, raised.key
    sentence = MONITORED[AlertKind(raised.kind)].sentence
    return Alert(
        id=episode.id,
        kind=raised.kind,
        severity=episode.severity,
        time=to_text(episode.first),
        subject=key.name,
        message=sentence.format(name=key.name, count=episode.count, times=_times(episode.count)),
        evidence=evidence_of(episode, key.system),
    )


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"
