"""Records what was answered: each request together with its answer, on a topic whose records the job decides again.

A record waits in the producer's queue until Kafka has it. What the queue holds is lost when the process is killed; that
is bounded by the size of the queue, and what is lost otherwise is counted.
"""

import asyncio
import functools
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from policy import REQUEST_NAMES, Decision, to_text
from streaming.errors import CannotStart
from streaming.kafka.clients import admin_client, partition_numbers
from streaming.kafka.idempotent import RenewedProducer
from streaming.pdp.reading import AnswerContext
from streaming.records.answered import Answer, ItemAnswer
from streaming.records.formats import key_of
from streaming.settings import Settings
from streaming.topics import ROOM

log = structlog.get_logger()

POLL_SECONDS = 0.05
WAIT_SECONDS = 2.0  # of a caller, for its record to be in Kafka, or for policies that are newer than its request
QUEUE = 10_000  # records that wait for Kafka, about 10 MB: beyond, answers are errors
FLUSH_SECONDS = 10.0
START_SECONDS = 15.0

Delivered = Callable[[bool], None]


class NotRecorded(Exception):
    """An answer could not be recorded, so it must not be given. The message says why."""


class RecordTooLarge(NotRecorded):
    """The request and its answer are larger than a record may be: asking again does not help."""


def answered_record(body: Mapping[str, Any], decision: Decision, answer_context: AnswerContext, by: str) -> bytes:
    """The record of a request with its answer, without fields that requests do not have: the job would make it a dead
    letter for an `Answered`, which the decision ignores. Raises NotRecorded for what JSON cannot hold.
    """
    read = answer_context.read
    answer = Answer(
        by,
        to_text(answer_context.time),
        decision.allowed,
        decision.outcome,
        read.snapshot.version,
        msgspec.Raw(msgspec.json.encode(read.policy_offsets)),
        read.facts_offset,
        answer_context.freshness,
        tuple(sorted(answer_context.trust)),
        tuple(ItemAnswer(item.allowed, item.outcome) for item in decision.evaluations),
    )
    try:
        request = {name: value for name, value in body.items() if name in REQUEST_NAMES}
        return msgspec.json.encode({**request, "answered": answer})
    except (TypeError, ValueError, RecursionError) as error:
        raise NotRecorded(f"the request cannot be written: {error}") from None


class Recorder:
    """Writes records with an idempotent producer. For any number of threads. `name`: of who answers; "": the machine's.

    `recorded`, `lost`: how many Kafka has, and how many it has not taken, or were left in the queue at the end.
    """

    def __init__(self, settings: Settings, name: str = "") -> None:
        self._settings, self.topic = settings, topic_of(settings)
        self.by = name or socket.gethostname()
        self._most_bytes = settings.limits.record_in
        self.recorded = self.lost = 0
        self._is_refused = False  # the newest record of which there was a report
        self._counting, self._stop = threading.Lock(), threading.Event()
        self._producer = RenewedProducer(functools.partial(_producer, settings))
        self._thread = threading.Thread(target=self._poll, name="recorder", daemon=True)
        self._thread.start()

    def awaits_delivery(self, system: str) -> bool:
        """Whether an answer is given once Kafka has its record: also while it refuses records, such as of a topic that
        was deleted. Else all answers would be given, and none recorded.
        """
        return self._is_refused or self._settings.serve.record_of(system) == "durable"

    def is_recorded(self, system: str, decision: Decision) -> bool:
        """Whether an answer is recorded: of a batch also where one evaluation is denied and another one permits it."""
        mode = self._settings.serve.record_of(system)
        if mode == "denials":
            return not all(answer.allowed for answer in (decision, *decision.evaluations))
        return mode in ("all", "durable")

    def send(self, body: Mapping[str, Any], value: bytes, delivered: Delivered | None = None) -> None:
        """Put a record in the queue. `delivered`: called once, in another thread, with whether Kafka has it.

        Raises NotRecorded for one that is too large, and where the queue is full.
        """
        key = key_of(body.get("subject"))
        if len(value) + len(key or b"") > self._most_bytes:
            raise RecordTooLarge(f"the request and its answer have more than {self._most_bytes} bytes")
        producer = self._producer.current
        try:
            producer.produce(self.topic, value, key, on_delivery=self._noting(producer, delivered))
        except (BufferError, KafkaException) as error:
            self._count(lost=1)
            self._producer.renew_after(error.args[0], producer)
            raise NotRecorded("the queue of records is full, or Kafka does not take them") from error

    def _noting(self, producer: Producer, delivered: Delivered | None) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, _message: Message) -> None:
            self._count(recorded=int(error is None), lost=int(error is not None))
            self._is_refused = error is not None
            if error is not None:
                log.error("an answer was not recorded", error=error.str())
                self._producer.renew_after(error, producer)
            if delivered is not None:
                delivered(error is None)

        return note

    def _count(self, recorded: int = 0, lost: int = 0) -> None:
        with self._counting:
            self.recorded += recorded
            self.lost += lost

    @property
    def queued(self) -> int:
        """How many records wait for Kafka: at most so many are lost when the process is killed."""
        return len(self._producer.current)

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(POLL_SECONDS)

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait for what is in the queue; what is left of it is lost."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(seconds)
        if left:
            self._count(lost=left)
            log.error("answers were not recorded: Kafka did not take them in time", records=left)

    async def durable(self, body: Mapping[str, Any], value: bytes) -> None:
        """Return once Kafka has a record. Raises NotRecorded, also after WAIT_SECONDS; then it may have it yet."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()

        def set_result(is_recorded: bool) -> None:
            if not future.done():
                future.set_result(is_recorded)

        def delivered(is_recorded: bool) -> None:
            loop.call_soon_threadsafe(set_result, is_recorded)

        self.send(body, value, delivered)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                is_recorded = await future
        except TimeoutError:
            raise NotRecorded(f"Kafka did not take the record within {WAIT_SECONDS:g} s") from None
        if not is_recorded:
            raise NotRecorded("Kafka did not take the record")


def _producer(settings: Settings) -> Producer:
    return Producer(
        {
            "log_level": "2",
            "linger.ms": "2",
            **settings.kafka,
            "bootstrap.servers": settings.bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": "0",  # what Kafka does not take for a while waits in the queue
            "message.max.bytes": settings.limits.record_in + ROOM,
            "queue.buffering.max.messages": QUEUE,
        }
    )


def topic_of(settings: Settings) -> str:
    """The topic to record on. Raises CannotStart where the settings name none."""
    topics = settings.topics.answered
    if not topics:
        raise CannotStart(
            "serve.record: answers are to be recorded, and topics.answered names no topic. Set "
            "topics.answered: [authz.answered.v1], for the job too, and run `lockkeeper topics create`; or set "
            "serve.record: none (LOCKKEEPER_SERVE_RECORD=none)"
        )
    return topics[0]


def open_recorder(settings: Settings) -> Recorder | None:
    """The recorder, or None where nothing is recorded. Raises CannotStart where the topic is missing."""
    if not settings.records_answers:
        return None
    topic = topic_of(settings)
    if not partition_numbers(admin_client(settings), [topic], START_SECONDS):
        raise CannotStart(
            f"serve.record: topic {topic}, where answers are recorded, does not exist, or may not be described. Run "
            "`lockkeeper topics create`, or set serve.record: none (LOCKKEEPER_SERVE_RECORD=none)"
        )
    return Recorder(settings)
