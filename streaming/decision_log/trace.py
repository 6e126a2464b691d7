"""What became of a request: where it was produced, whether it was decided, when, and by which record."""

from collections.abc import Iterator

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.commit.offsets import Committed
from streaming.decision_log.request_texts import RequestTexts
from streaming.decision_log.search import Decoder, Found, json_text
from streaming.decision_log.status import committed_of
from streaming.history.ranges import Topics
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import existing_topic_ids, last_stable_offsets, log_ends
from streaming.records.dead_letter_headers import read_headers, source_of
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
    records = list(_requests(settings, admin, request_id, since))
    return [_trace(settings, admin, record) for record in records]


def _requests(settings: Settings, admin: AdminClient, request_id: str, since: int) -> Iterator[ConsumerRecord]:
    texts = RequestTexts(settings)
    for record in Topics(settings, admin).since(settings.topics.asking, since):
        if texts.has_id(record.value, request_id):
            yield record


def _trace(settings: Settings, admin: AdminClient, record: ConsumerRecord) -> Traced:
    partition = (record.topic, record.partition)
    committed = committed_of(settings, [partition]).get(partition)
    stable, end = last_stable_offsets(admin, [partition])[partition], log_ends(admin, [partition])[partition]
    traced = Traced(record, committed, end, end - stable)
    dead_letters = dead_letters_of(record.topic)
    decode = Decoder(settings)
    decision, dead_letter = _answer_to(settings, admin, record, dead_letters, decode)
    topics = Topics(settings, admin)
    kept = (topics.deleted_before(topic, record.at) for topic in (settings.topics.decisions, dead_letters))
    answers_from = max((moment for moment in kept if moment is not None), default=None)
    answer = {"decision": decision, "dead_letter": dead_letter, "answers_from": answers_from}
    return msgspec.structs.replace(traced, **answer, unreadable=decode.unreadable)


def _answer_to(
    settings: Settings, admin: AdminClient, request: ConsumerRecord, dead_letters: str, decode: Decoder
) -> tuple[Found | None, ConsumerRecord | None]:
    """The decision or the dead letter that names the record as its source."""
    source, topic_id = request.source, existing_topic_ids(admin, [request.topic]).get(request.topic)
    id_ = f"{topic_id}-{request.partition}-{request.offset}"  # where a topic was re-created, the place says less
    named = json_text(id_)
    for record in Topics(settings, admin).since([settings.topics.decisions, dead_letters], request.at):
        if record.topic == dead_letters:
            if source_of(read_headers(record.headers)) == source:
                return None, record
            continue
        decided = decode.fitting(
            record,
            lambda value: named in value,
            lambda decision: decision.get("id") == id_,
        )
        if decided is not None:
            return decided, None
    return None, None
