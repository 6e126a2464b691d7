"""One request through the stream: sent, and its answer awaited."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from streaming.enforcer.kafka import admin_client, log_reader, partitions_of, stable_ends
from streaming.settings import Settings
from streaming.topics import dead_letters_of

POLL_SECONDS = 0.05
SEND_SECONDS = 15.0
DEAD_LETTER = "__connect.errors."


class Place(msgspec.Struct, frozen=True):
    """Where a request record stands."""

    topic: str
    partition: int
    offset: int


class Answer(msgspec.Struct, frozen=True):
    """A decision record, or why the request became a dead letter; `seconds` from sending to reading."""

    place: Place
    seconds: float
    decision: dict[str, Any] | None = None
    dead_letter: str | None = None


def ask(settings: Settings, topic: str, request: Mapping[str, Any], seconds: float) -> Answer:
    """Send `request` to a request topic and wait up to `seconds` for what becomes of it.

    Raises TimeoutError, and KafkaException when the cluster does not answer or a topic is missing.
    """
    admin = admin_client(settings)
    answers = partitions_of(admin, (settings.topics.decisions, dead_letters_of(topic)))
    ends = stable_ends(admin, answers)  # before sending, so that no answer is missed
    consumer = log_reader(settings)
    try:
        consumer.assign([TopicPartition(*partition, offset) for partition, offset in ends.items()])
        began = time.monotonic()
        place = _send(settings, topic, request)
        return _wait(consumer, place, began, seconds)
    finally:
        consumer.close()


def _send(settings: Settings, topic: str, request: Mapping[str, Any]) -> Place:
    producer = Producer({"log_level": "2", **settings.kafka, "bootstrap.servers": settings.bootstrap_servers})
    delivered: list[tuple[KafkaError | None, Message]] = []
    value = json.dumps(request, ensure_ascii=False).encode()
    producer.produce(topic, value, _key(request), on_delivery=lambda *report: delivered.append(report))
    producer.flush(SEND_SECONDS)
    if not delivered:
        raise TimeoutError(f"{topic} did not take the request within {SEND_SECONDS:.0f} s")
    error, message = delivered[0]
    if error is not None:
        raise KafkaException(error)
    return Place(topic, message.partition() or 0, message.offset() or 0)


def _key(request: Mapping[str, Any]) -> bytes | None:
    """The subject's id, so that one subject's requests stay in order."""
    subject = request.get("subject")
    name = subject.get("id") if isinstance(subject, Mapping) else None
    return name.encode() if isinstance(name, str) else None


def _wait(consumer: Consumer, place: Place, began: float, seconds: float) -> Answer:
    for message in _until(consumer, began + seconds):
        waited = time.monotonic() - began
        if (decision := _decision(message, place)) is not None:
            return Answer(place, waited, decision=decision)
        if (reason := _dead_letter(message, place)) is not None:
            return Answer(place, waited, dead_letter=reason)
    raise TimeoutError(
        f"no decision within {seconds:g} s for offset {place.offset} of {place.topic}, partition {place.partition}. "
        "Does `lockkeeper run` run, with this cluster and these topics?"
    )


def _until(consumer: Consumer, deadline: float) -> Iterator[Message]:
    while time.monotonic() < deadline:
        for message in consumer.consume(100, POLL_SECONDS):
            if message.error() is not None:
                raise KafkaException(message.error())
            yield message


def _decision(message: Message, place: Place) -> dict[str, Any] | None:
    """The decision in `message`, when it is that for the request at `place`."""
    try:
        record = msgspec.json.decode(message.value() or b"")
        source = msgspec.convert(record["context"]["source"], Place)
    except (ValueError, TypeError, KeyError):
        return None  # a dead letter, or another encoding
    return record if source == place else None


def _dead_letter(message: Message, place: Place) -> str | None:
    """Why the request at `place` was refused, when `message` is its dead letter."""
    headers = dict(message.headers() or [])
    told = [_text(headers.get(DEAD_LETTER + field)) for field in ("topic", "partition", "offset")]
    if told != [place.topic, str(place.partition), str(place.offset)]:
        return None
    return _text(headers.get(f"{DEAD_LETTER}exception.message"))


def _text(header: str | bytes | None) -> str:
    return header if isinstance(header, str) else (header or b"").decode("utf-8", "replace")
