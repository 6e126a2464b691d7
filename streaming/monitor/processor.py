"""Spark's side of the monitor's state: one value and at most one timer for each key, in the state store.

The watermark runs on known time, an hour behind the newest: so long may one partition be read ahead of another
before Spark drops what it takes to be late. Nobody waits for that hour: timers are set as much earlier.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from streaming.monitor.alerts import encode_alert
from streaming.monitor.inputs import Input, Key, decode_inputs, parse_key
from streaming.monitor.intake import NOBODY
from streaming.monitor.rules import MonitorSettings
from streaming.monitor.sessions import Fact
from streaming.monitor.state import Monitor, Raised, State

ALERT, FACT = "alert", "fact"
OUTPUT = "output string, key string, value binary"
SKEW_MS = 60 * 60 * 1000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(State).decode


class Processor(StatefulProcessor):
    """Keeps a `State` for each key and yields alerts and facts."""

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark in the worker, before anything else."""
        self._handle = handle
        self._cell = handle.getValueState("state", "cell binary")
        self._monitor = Monitor(self._settings)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        """Take what one key is told in a batch."""
        about = parse_key(key[0])
        inputs = [told for row in rows for told in decode_inputs(bytes(row["inputs"]))]
        if about != NOBODY:
            yield from self._take(about, self._load(), inputs, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        """Look at a key again whose time has come."""
        state = self._load()
        if state.timer == expiredTimerInfo.getExpiryTimeInMs() + SKEW_MS:
            state.timer = -1
        yield from self._take(parse_key(key[0]), state, [], timerValues)

    def close(self) -> None:
        """Nothing to let go of."""

    def _take(self, key: Key, state: State, inputs: list[Input], times: TimerValues) -> Iterator[Row]:
        now = times.getCurrentWatermarkInMs() + SKEW_MS
        results = [_row(result) for result in self._monitor.take(key, state, inputs, now)]
        self._keep(state)
        yield from results

    def _load(self) -> State:
        found = self._cell.get()
        return State() if found is None else _decode(bytes(found[0]))

    def _keep(self, state: State) -> None:
        if state.empty:
            self._cell.clear()
            return
        if state.due >= 0 and not 0 <= state.timer <= state.due:
            if state.timer >= 0:
                self._handle.deleteTimer(state.timer - SKEW_MS)
            self._handle.registerTimer(state.due - SKEW_MS)
            state.timer = state.due
        self._cell.update((_encode(state),))


def _row(result: Raised | Fact) -> Row:
    if isinstance(result, Fact):
        return Row(output=FACT, key=result.key, value=result.to_value())
    return Row(output=ALERT, key=result.key.name, value=encode_alert(result))
