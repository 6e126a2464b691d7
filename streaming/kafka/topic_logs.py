"""Which log the offsets of a topic count in, and the errors for a topic that was re-created or shortened.

Kafka gives a topic that was deleted and re-created another topic id, and forgets the offsets that any group has
committed for it. What a job knows of the deleted topic, in memory or on the history topic, is void then.
"""

import json
from collections.abc import Collection, Iterable, Mapping

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.errors import JobStopped
from streaming.kafka.clients import first_offsets, topic_ids
from streaming.runtime.checkpoints import ARCHIVE
from streaming.settings import Settings
from streaming.topics import TopicNames

ACCEPT = "LOCKKEEPER_ACCEPTED_TOPIC_IDS"


class TopicLog(msgspec.Struct, frozen=True):
    """The log of a topic. `id`: Kafka's id of the topic; `start`: the log start offset, for documents' topics alone.

    Its text is `ID`, or `ID:START` where the log does not start at 0; `parse_log` reads it.
    """

    id: str
    start: int = 0

    def __str__(self) -> str:
        return f"{self.id}:{self.start}" if self.start else self.id

    def replaced_by(self, found: "TopicLog") -> bool:
        """Whether records of this log are gone: it is another topic, or records at its beginning were deleted.

        Compaction does not move the log start offset.
        """
        return found.id != self.id or found.start > self.start


def parse_log(text: str) -> TopicLog:
    """The reverse of `str`. Raises ValueError."""
    id_, _, start = text.partition(":")
    return TopicLog(id_, int(start or 0))


def find_logs(admin: AdminClient, documents: Iterable[str], others: Iterable[str] = ()) -> dict[str, TopicLog]:
    """The logs of topics as they are now; of `documents`, which have one partition, also where they start.

    Raises KafkaException and TimeoutError.
    """
    documents = tuple(documents)
    starts = first_offsets(admin, [(topic, 0) for topic in documents])
    ids = topic_ids(admin, (*documents, *others))
    return {topic: TopicLog(id_, starts.get((topic, 0), 0)) for topic, id_ in ids.items()}


def document_topics(names: TopicNames) -> tuple[str, ...]:
    """The topics of policies and facts, of one partition each."""
    return *names.policy_topics().values(), names.facts


def check_logs(
    settings: Settings,
    known: Mapping[str, TopicLog],
    found: Mapping[str, TopicLog],
    error: type[JobStopped],
    accepted: Collection[str] = (),
) -> None:
    """Raise `error`, with what fixes it, when records of a known log are gone and the log found is not accepted."""
    changed = {topic: log for topic, log in found.items() if topic in known and known[topic].replaced_by(log)}
    refused = {topic: log for topic, log in changed.items() if str(log) not in accepted}
    if refused:
        what = (
            f"{_what_happened(topic, known[topic], log)}. {_fix(settings, topic)}" for topic, log in refused.items()
        )
        raise error("\n".join([*what, _start(settings, refused)]))


def _start(settings: Settings, refused: Mapping[str, TopicLog]) -> str:
    new = {str(log) for topic, log in refused.items() if topic != settings.topics.history}
    ids = json.dumps(sorted(new.union(settings.accepted_topic_ids)))
    return f"Then start the job with {ACCEPT}='{ids}'" if new else "Then start the job again"


def _what_happened(topic: str, known: TopicLog, found: TopicLog) -> str:
    if found.id != known.id:
        return f"topic {topic} was deleted and re-created: its topic id was {known.id} and is {found.id}"
    return (
        f"the records of topic {topic} below offset {found.start} were deleted, by kafka-delete-records.sh or by a "
        f"cleanup.policy other than compact; its log start offset was {known.start}"
    )


def _fix(settings: Settings, topic: str) -> str:
    """What to do about a topic before the job is started again."""
    names = settings.topics
    if topic == names.history:
        return "What the policy topics still hold is written to the new one"
    if topic == names.facts:
        return "Have the platforms publish their facts again"
    if topic in names.policy_topics().values():
        return (
            "Documents that were in force are no longer on it, denies perhaps among them: publish all of its documents "
            "with `lockkeeper policy apply`"
        )
    return (
        "Requests on it that were not decided are lost. To read the new topic from its beginning, move the checkpoint "
        f"away with `{ARCHIVE} {settings.checkpoint}`"
    )
