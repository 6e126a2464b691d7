"""Dead letters by the record or the request id that they are of: why that was not decided."""

import collections
import itertools
from collections.abc import Callable

from confluent_kafka.admin import AdminClient

from streaming.decision_log.request_fields import RequestFieldReader
from streaming.history.ranges import Topics
from streaming.history.records import ConsumerRecord, record_of
from streaming.kafka.committed import committed_records
from streaming.records.dead_letter_headers import read_headers, source_of
from streaming.settings import Settings
from streaming.topics import dead_letters_of

NEWEST = 20_000  # of each partition, in which an id of a request is looked for
FEW = 5  # of one id
SeenSystem = Callable[[str], bool]
"""Whether what is of a system is shown; "": what names none."""


def dead_letter_of(
    settings: Settings, admin: AdminClient, request: ConsumerRecord, most: int | None, is_seen: SeenSystem
) -> ConsumerRecord | None:
    """The dead letter of a record, among the first `most` from its time on; None: there is none, or it is not seen.

    Raises KafkaException and TimeoutError.
    """
    fields = RequestFieldReader(settings)
    records = Topics(settings, admin).since([dead_letters_of(request.topic)], request.at)
    for record in itertools.islice(records, most):
        # By the request's own value: a dead letter that would be too large has hashes in place of it.
        is_of_request = source_of(read_headers(record.headers)) == request.source
        if is_of_request and is_seen(fields.field(request.value, "system")):
            return record  # one that is not seen is looked for as long as one that is not there
    return None


def dead_letters_by_request_id(settings: Settings, request_id: str, is_seen: SeenSystem) -> list[ConsumerRecord]:
    """A few of the newest dead letters whose record has an id, oldest first. Raises as `committed_records`."""
    fields, newest = RequestFieldReader(settings), collections.deque[ConsumerRecord](maxlen=FEW)
    for record in map(record_of, committed_records(settings, map(dead_letters_of, settings.topics.asking), NEWEST)):
        if fields.has_id(record.value, request_id) and is_seen(fields.field(record.value, "system")):
            newest.append(record)
    return list(newest)


def exception_message(dead_letter: ConsumerRecord) -> str:
    """The message of a dead letter, as its headers have it."""
    return read_headers(dead_letter.headers).get("exception.message", "no reason given")


def describe_dead_letter(dead_letter: ConsumerRecord) -> str:
    """Where a dead letter is, and why its record was refused."""
    return (
        f"{dead_letter.topic}-{dead_letter.partition} at offset {dead_letter.offset}: {exception_message(dead_letter)}"
    )
