"""The newest decisions first, read backwards from the ends of the topic: a page of them must not read a day.

Kafka reads forwards alone. So the last records of each partition are read, then up to four times as many before them,
as the time that is left allows, until enough fit. What is older than the oldest that every partition has been read to
is not shown.
"""

import time

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.decision_log.search import Decoder, Found, Query
from streaming.history.records import record_of
from streaming.kafka.clients import (
    Partition,
    first_offsets,
    last_stable_offsets,
    offsets_since,
    partitions_of,
)
from streaming.kafka.committed import records_between
from streaming.settings import Settings

TIES = 10  # times the limit: so many decisions of one moment (ms) are shown at most
FIRST_READ, GROWTH = 200, 4  # records of each partition, and how many times as many before them, at most
SURE = 0.5  # of the time that is left, what the next reading is likely to take: some come slower than others


class NewestDecisions(msgspec.Struct, frozen=True):
    """Newest first. ``read_from``: what is older than this moment (ms) was not looked at; None: there is no more."""

    found: tuple[Found, ...]
    read_from: int | None = None


def newest(settings: Settings, admin: AdminClient, query: Query, seconds: float = 2.0) -> NewestDecisions:
    """The newest decisions of the query's range that fit. Raises KafkaException and TimeoutError.

    ``seconds``: within which the last reading is likely to end; each reading is finished.
    """
    deadline, limit = time.monotonic() + seconds, query.limit
    reader = _Reading(settings, admin, query)
    while reader.ends:
        began = time.monotonic()
        reader.read_back()
        now = time.monotonic()
        growth = min(GROWTH, SURE * (deadline - now) / max(now - began, 1e-3))
        if reader.is_blind:  # an aborted batch has some ten thousand records
            growth = GROWTH
        elif len(reader.sure()) >= limit or growth < 1:
            break
        reader.grow(growth)
    entries = sorted(reader.sure(), key=lambda entry: (entry.record.at, entry.record.offset), reverse=True)
    if len(entries) <= limit:
        return NewestDecisions(tuple(entries), reader.reach)
    last = entries[limit - 1].record.at
    # The next page begins before this moment, so all that was decided in it is on this one.
    same = [entry for entry in entries[limit : limit * TIES] if entry.record.at == last]
    return NewestDecisions((*entries[:limit], *same), last)


class _Reading:
    """``ends``: of each partition, below which it is not read yet; those that are through are left out."""

    def __init__(self, settings: Settings, admin: AdminClient, query: Query) -> None:
        self._settings, self._query, self._decode = settings, query, Decoder(settings)
        partitions = partitions_of(admin, [settings.topics.decisions])
        ends, span = last_stable_offsets(admin, partitions), query.span
        ends = {**ends, **offsets_since(admin, ends, span.end)}
        self._starts = first_offsets(admin, ends)
        self.ends = {partition: end for partition, end in ends.items() if end > self._starts[partition]}
        self._found: list[Found] = []
        self._size = FIRST_READ
        self._oldest: dict[Partition, int] = {}  # the times (ms) of the oldest records that were read
        self.reach: int | None = None

    @property
    def is_blind(self) -> bool:
        """Whether of some partition no record was read yet: its newest offsets hold what was aborted."""
        return not self.ends.keys() <= self._oldest.keys()

    def sure(self) -> list[Found]:
        """Those of moments from which on every partition has been read."""
        if self.is_blind:
            return []
        return [entry for entry in self._found if self.reach is None or entry.record.at >= self.reach]

    def read_back(self) -> None:
        """Read what is before, of every partition that has any."""
        starts = {partition: max(self._starts[partition], end - self._size) for partition, end in self.ends.items()}
        oldest, span = dict[Partition, int](), self._query.span
        for message in records_between(self._settings, starts, self.ends):
            record = record_of(message)
            oldest.setdefault((record.topic, record.partition), record.at)
            if not span.start <= record.at < span.end:
                continue
            if (entry := self._decode.fitting(record, self._query.may_fit, self._query.fits)) is not None:
                self._found.append(entry)
        self.ends = {
            partition: at
            for partition, at in starts.items()
            if at > self._starts[partition] and oldest.get(partition, span.start) >= span.start
        }
        self._oldest |= oldest
        # Before the oldest record that was read, others of the same moment may stand.
        self.reach = max((at + 1 for partition, at in self._oldest.items() if partition in self.ends), default=None)

    def grow(self, times: float) -> None:
        """Read so many times as many the next time."""
        self._size = int(self._size * times)
