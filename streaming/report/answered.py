"""Which request records were answered how: a byte for each, so that requests can be joined to their decisions.

A decision names the offset of its request, but not who asked for what. So the decisions of a range are noted here by
their requests' offsets, and the requests are looked at afterwards.
"""

from collections.abc import Iterable, Mapping

import msgspec

from policy import Outcome
from streaming.client.decision import Place
from streaming.kafka.clients import Partition
from streaming.report.records import OUTCOMES, Decision

CHUNK = 1 << 16  # offsets
MOST_CHUNKS = 1 << 10  # 64 MiB, for 67 million requests
MOST_ITEMS = 1_000_000  # evaluations of batches
BATCH = len(OUTCOMES) + 1
CODES: Mapping[Outcome, int] = {outcome: number for number, outcome in enumerate(OUTCOMES, 1)}


class Range(msgspec.Struct, frozen=True):
    """Offsets of one partition from ``first`` up to, not including, ``end``."""

    first: int
    end: int


class Answered:
    """Remembers answers by the place of the request.

    ``topic_ids``: Kafka's ids of the request topics, which begin the ids of their decisions: offsets of a topic that
    was deleted and re-created since then, or of one that is no request topic any more, are not remembered.
    """

    def __init__(
        self, topic_ids: Mapping[str, str], most_chunks: int = MOST_CHUNKS, most_items: int = MOST_ITEMS
    ) -> None:
        self._topic_ids = topic_ids
        self._most_chunks, self._room = most_chunks, most_items
        self._chunks: dict[tuple[str, int, int], bytearray] = {}
        self._batches: dict[Place, bytes] = {}
        self._ranges: dict[Partition, Range] = {}

    def note(self, decision: Decision) -> None:
        """Remember how a request, or each evaluation of a batch, was answered."""
        place, items = decision.context.source, decision.evaluations
        code = BATCH if items else CODES[decision.context.outcome]
        topic_id = self._topic_ids.get(place.topic)
        if topic_id is None or not decision.id.startswith(f"{topic_id}-") or len(items) > self._room:
            return
        if (chunk := self._chunk(place)) is None:
            return
        chunk[place.offset % CHUNK] = code
        self._widen(place)
        if items:
            self._room -= len(items)
            self._batches[place] = bytes(CODES[item.context.outcome] for item in items)

    def _chunk(self, place: Place) -> bytearray | None:
        key = (place.topic, place.partition, place.offset // CHUNK)
        chunk = self._chunks.get(key)
        if chunk is None and len(self._chunks) < self._most_chunks:
            chunk = self._chunks[key] = bytearray(CHUNK)
        return chunk

    def _widen(self, place: Place) -> None:
        partition, offset = (place.topic, place.partition), place.offset
        known = self._ranges.get(partition)
        if known is None:
            self._ranges[partition] = Range(offset, offset + 1)
        elif not known.first <= offset < known.end:
            self._ranges[partition] = Range(min(known.first, offset), max(known.end, offset + 1))

    def of(self, place: Place) -> tuple[Outcome, ...]:
        """The answers to the request there: one, or those of a batch in order; none when there is no decision."""
        chunk = self._chunks.get((place.topic, place.partition, place.offset // CHUNK))
        code = chunk[place.offset % CHUNK] if chunk is not None else 0
        codes: Iterable[int] = self._batches.get(place, b"") if code == BATCH else (code,) if code else ()
        return tuple(OUTCOMES[number - 1] for number in codes)

    def ranges(self) -> dict[Partition, Range]:
        """Between which offsets the requests stand, by partition."""
        return dict(self._ranges)


def denials(decision: Decision) -> int:
    """How many answers of a decision are deny: each evaluation of a batch is one."""
    if not decision.evaluations:
        return int(decision.context.outcome == "deny")
    return sum(item.context.outcome == "deny" for item in decision.evaluations)
