"""What a policy topic holds now: the newest committed version of each document."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from confluent_kafka import Message

from policy import Key, Unreadable, read_value
from streaming.kafka.committed import committed_records
from streaming.settings import Settings


class Stored(msgspec.Struct, frozen=True):
    """A document as it stands in its topic. `error`: why it cannot be read; then `document` is None.

    `at`: the broker's timestamp, ms since the epoch.
    """

    key: str
    topic: str
    partition: int
    offset: int
    at: int
    document: Any = None
    error: str | None = None


def read_stored(settings: Settings, systems: Iterable[str]) -> list[Stored]:
    """The documents in the policy topics of `systems`, sorted by key, deleted ones left out.

    Raises KafkaException or TimeoutError when the cluster does not answer.
    """
    topics = settings.topics.policy_topics()
    by_topic = {topics[system]: system for system in systems}
    newest: dict[str, Message] = {}
    for message in committed_records(settings, by_topic):
        newest[_key(by_topic, message)] = message
    return sorted((_stored(key, message) for key, message in newest.items() if message.value()), key=lambda s: s.key)


def find_key(key: str) -> Key | None:
    """`system/kind/name` as a key, None when it is not one."""
    parts = key.split("/", 2)
    return Key(*parts) if len(parts) == 3 and all(parts) else None


def _key(by_topic: Mapping[str, str], message: Message) -> str:
    return f"{by_topic[message.topic() or '']}/{(message.key() or b'?').decode('utf-8', 'replace')}"


def _stored(key: str, message: Message) -> Stored:
    place = (key, message.topic() or "", message.partition() or 0, message.offset() or 0, message.timestamp()[1])
    try:
        return Stored(*place, read_value(message.value() or b""))
    except Unreadable as error:
        return Stored(*place, None, str(error))
