"""What became of a request: where it was produced, whether it was decided, when, and by which record."""

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.commit.offsets import Committed
from streaming.decision_log.replay import find_by_id
from streaming.decision_log.request_fields import RequestFieldReader
from streaming.decision_log.search import Found
from streaming.decision_log.status import committed_of
from streaming.history.ranges import Topics
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import existing_topic_ids, last_stable_offsets, log_ends
from streaming.settings import Settings
from streaming.topics import dead_letters_of


class Traced(msgspec.Struct, frozen=True):
    """One request record, and what became of it.

    `committed`: of its partition by the job's group; None: nothing is. `end`: of its partition. `hung`: how many
    records of that an open transaction hides. `decision`, `dead_letter`: its answer, at most one of both.
    `answers_from`: answers before then (ms) may have been deleted by retention. `unreadable`: records that may be its
    decision, and are none.
    """

    record: ConsumerRecord
    committed: Committed | None
    end: int
    hung: int
    decision: Found | None = None
    dead_letter: ConsumerRecord | None = None
    answers_from: int | None = None
    unreadable: int = 0

    @property
    def decided(self) -> bool:
        """Whether the job has committed the record as decided."""
        return self.committed is not None and self.committed.offset > self.record.offset

    @property
    def lag(self) -> int:
        """Records of the partition that are not decided yet."""
        return self.end - (self.committed.offset if self.committed else 0)

    @property
    def ahead(self) -> int:
        """Records of the partition that are to be decided before this one."""
        return max(self.record.offset - (self.committed.offset if self.committed else 0), 0)


def trace(settings: Settings, admin: AdminClient, request_id: str, since: int) -> list[Traced]:
    """Every request record with an id from a moment (ms) on. Raises KafkaException and TimeoutError."""
    fields, records = RequestFieldReader(settings), Topics(settings, admin).since(settings.topics.asking, since)
    named = [record for record in records if fields.has_id(record.value, request_id)]
    return [_trace(settings, admin, record) for record in named]


def _trace(settings: Settings, admin: AdminClient, record: ConsumerRecord) -> Traced:
    partition = (record.topic, record.partition)
    committed = committed_of(settings, [partition]).get(partition)
    stable, end = last_stable_offsets(admin, [partition])[partition], log_ends(admin, [partition])[partition]
    topic_id = existing_topic_ids(admin, [record.topic]).get(record.topic)
    answer = find_by_id(settings, admin, f"{topic_id}-{record.partition}-{record.offset}")
    outputs = (settings.topics.decisions, dead_letters_of(record.topic))
    kept = Topics(settings, admin).deleted_before_by_topic(outputs, record.at).values()
    answers_from = max(kept, default=None)
    found = (answer.entry, answer.dead_letter, answers_from, answer.unreadable)
    return Traced(record, committed, end, end - stable, *found)
