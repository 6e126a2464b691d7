"""What every decision had to know: policies and facts that were published before its request."""

import bisect
from collections.abc import Iterable, Iterator

from streaming.snapshots.documents import DocumentRecord


class Acknowledged:
    """Offsets of one topic, each with a moment (ms, the broker's clock) by which it could be read.

    A record is dated when it is appended. One that belongs to a transaction can be read when that is committed, and
    its marker leaves a gap in the offsets. So a record before a gap counts from the record after the gap on, which is
    younger than the marker, or from the first decision that named it (`name`). `end`: where the log ends.
    """

    def __init__(self, records: Iterable[DocumentRecord] = (), end: int = 0) -> None:
        self._by_append = _Steps()
        self._by_decision = _Steps()
        for offset, at in _readable(records, end):
            self._by_append.add(at, offset)

    def name(self, offset: int, at: int) -> None:
        """Note that a decision which was written at a moment names this offset."""
        self._by_decision.add(at, offset)

    def before(self, moment: int, clocks_ms: int, decisions_clock_ms: int) -> int:
        """The newest offset that could surely be read before a moment; -1: none is known.

        `clocks_ms`: by how much clocks of two brokers may differ; `decisions_clock_ms`: a broker's and the job's.
        """
        return max(self._by_append.before(moment - clocks_ms), self._by_decision.before(moment - decisions_clock_ms))


class _Steps:
    """Offsets that rise over time."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._offsets: list[int] = []

    def add(self, at: int, offset: int) -> None:
        if self._offsets and offset <= self._offsets[-1]:
            return
        self._times.append(max(at, self._times[-1]) if self._times else at)
        self._offsets.append(offset)

    def before(self, moment: int) -> int:
        index = bisect.bisect_left(self._times, moment)
        return self._offsets[index - 1] if index else -1


def _readable(records: Iterable[DocumentRecord], end: int) -> Iterator[tuple[int, int]]:
    """Each offset with the moment by which it could be read; those before a gap at the end are left out."""
    run: list[DocumentRecord] = []
    for record in records:
        if run and record.offset != run[-1].offset + 1:
            yield from ((one.offset, record.at) for one in run)
            run = []
        run.append(record)
    if run and run[-1].offset + 1 == end:
        yield from ((one.offset, one.at) for one in run)
