"""The history topic is read to its end at a start, however often a reading is cut short: without a broker."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.errors import Stopping
from streaming.kafka.reader import TopicLog
from streaming.settings import Settings
from streaming.snapshots import policies
from streaming.snapshots.at_offsets import DocumentLog
from streaming.snapshots.documents import History
from streaming.snapshots.policies import Policies
from tests.stream.world import SYSTEM, role

SETTINGS = Settings()
TOPIC = SETTINGS.topics.policy_topics()[SYSTEM]
HEADERS = [("at", b"1"), ("next", b"9"), ("topic-id", b"id")]


class Kept:
    """A record of the history topic: a version of a role."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def key(self) -> bytes:
        return f"{SYSTEM}/Role/r/{self._offset}".encode()

    def value(self) -> bytes:
        return json.dumps(role("r", "kafka:topic:a/b/c")).encode()

    def headers(self) -> list[tuple[str, bytes]]:
        return HEADERS


class Slow:
    """A reader that has one more record each time before it is cut short."""

    def __init__(self, records: int) -> None:
        self._left, self.closed = list(map(Kept, range(records))), False

    def read_to_end(self, _seconds: float) -> Iterator[Kept]:
        if self._left:
            yield self._left.pop(0)
            raise TimeoutError("the ends are not reached in time")

    def close(self) -> None:
        self.closed = True


def _policies(monkeypatch: pytest.MonkeyPatch, reader: Slow) -> Any:
    """As far as the history is read."""
    monkeypatch.setattr(policies, "TopicReader", lambda *_: reader)
    monkeypatch.setattr(policies, "HISTORY_PAUSE_SECONDS", 0.0)
    reading: Any = Policies.__new__(Policies)
    reading._settings = SETTINGS
    reading._history = History("history", {SYSTEM: TOPIC}, 1 << 20, {TOPIC: TopicLog("id")})
    reading.documents = DocumentLog(SETTINGS.topics, 1 << 20, 0)
    return reading


def test_a_large_history_is_read_in_as_many_readings_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Slow(3)
    kept = _policies(monkeypatch, reader)._read_history({TOPIC}, threading.Event())
    assert [record.offset for record in kept] == [0, 1, 2]
    assert reader.closed


def test_a_job_that_is_asked_to_stop_meanwhile_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, stop = _policies(monkeypatch, Slow(3)), threading.Event()
    stop.set()
    with pytest.raises(Stopping):
        reading._read_history({TOPIC}, stop)
