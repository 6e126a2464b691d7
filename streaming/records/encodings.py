"""The encodings that the job reads and writes, as the driver knows them. It alone asks the schema registry.

A worker that meets an unknown schema id says so, and nothing of that evaluation is used: the driver asks the registry
and evaluates the batch once more. Ids that the registry does not have make dead letters. While the registry does not
answer the batch waits, and with it all that came after: a request must not be refused because of it. Schemas that were
read once are held, so a registry that is away stops nothing but what is written by a new schema.

Ids are claims of clients, who may invent any number of them, and each costs a question. So where many are unknown, the
schemas that are registered for the input topics (`<topic>-value`) are read first, whose number clients do not choose;
of the other ids some are asked for with each batch, the lowest first: registries count from 1. One that was not asked
for is refused for this batch alone.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from streaming.errors import CannotStart, Stopping
from streaming.records.avro import Unencodable, Writer
from streaming.records.avro_written import Unreadable, check_written
from streaming.records.formats import Formats, Result, content_type, with_content_type
from streaming.records.registry import Registry, RegistryDown, RegistryError, RegistryRefused
from streaming.records.schemas import Kind, read
from streaming.settings import Settings

log = structlog.get_logger()

READ: tuple[Kind, ...] = ("request", "audit-event")
ASKED_AT_ONCE = 100  # ids: a sender of random ones must not keep the job busy asking
SCHEMA_BYTES = 128 << 10  # of a schema with those that it refers to: every batch carries them to the workers
SCHEMAS_HELD = 200  # of our records alone; far more than there will be versions
UNUSABLE_SECONDS = 10.0  # after that an id that was not there is asked for again
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
NOT_ASKED = (
    f"more than {ASKED_AT_ONCE} unknown ids came at once, and it is not registered under the subject of its topic, "
    "<topic>-value: register it there, or send the record again later"
)

Answer = TypeVar("Answer")


class Encodings:
    """Raises RegistryError when the registry does not take the schemas of what is written, or does not answer."""

    def __init__(self, settings: Settings) -> None:
        self._registry = Registry(settings.schema_registry) if settings.schema_registry.url else None
        self._output, topics = settings.encoding, settings.topics
        self._input_topics = settings.topics.inputs
        beside: dict[Kind, str] = {
            "alert": topics.alerts,
            "change": topics.changes,
            "access-change": topics.access_changes,
        }
        self._ids = self._our_ids({"decision": topics.decisions, **beside})
        self._writers = {
            topic: Writer(kind, self._output, self._ids.get(kind, 0))
            for kind, topic in beside.items()
            if self._output != "json"
        }
        self._known: dict[int, tuple[str, ...]] = {}
        self._unusable: dict[int, tuple[float, str]] = {}
        self._not_asked: dict[int, str] = {}  # of the batch that is evaluated
        self._content_type = content_type(self._output)

    def _our_ids(self, topics: dict[Kind, str]) -> dict[Kind, int]:
        if self._registry is None or self._output != "avro-confluent":
            return {}
        registry = self._registry
        return {kind: registry.id_of(subject_of(topic), read(f"avro/{kind}.avsc")) for kind, topic in topics.items()}

    def formats(self) -> Formats:
        """What the workers need of it, now."""
        now = time.monotonic()
        self._unusable = {id_: (until, why) for id_, (until, why) in self._unusable.items() if until > now}
        unusable = {**self._not_asked, **{id_: why for id_, (_, why) in self._unusable.items()}}
        return Formats(self._output, self._ids, self._registry is not None, dict(self._known), unusable)

    def of_decisions(self, topic: str) -> Formats:
        """By which decisions of this job can be read, whatever release or setting wrote them. Raises RegistryError."""
        schemas: dict[int, tuple[str, ...]] = {}
        asked = True
        if self._registry is not None:
            try:
                schemas = self._registry.versions(subject_of(topic))
            except RegistryError as error:
                if self._output == "avro-confluent":
                    raise
                asked = isinstance(error, RegistryRefused)
        return Formats(registry=self._registry is not None, known=schemas, asked=asked)

    def learn(self, needed: Iterable[int], stop: threading.Event) -> bool:
        """Ask for schemas that workers met, however long it takes. False: there were none, the evaluation is complete.

        Raises Stopping when `stop` is set while the registry does not answer.
        """
        ids = set(needed)
        if len(ids) > ASKED_AT_ONCE:
            for topic in self._input_topics:
                self._learn_all(subject_of(topic), stop)
        others = sorted(ids - self._known.keys())
        refused = {id_: why for id_ in others[:ASKED_AT_ONCE] if (why := self._learn(id_, stop))}
        until = time.monotonic() + UNUSABLE_SECONDS
        self._unusable |= {id_: (until, why) for id_, why in refused.items()}
        self._not_asked = dict.fromkeys(others[ASKED_AT_ONCE:], NOT_ASKED)
        return bool(ids)

    def _learn(self, id_: int, stop: threading.Event) -> str:
        """Hold the schema, or say why it is of no use."""
        try:
            return self._hold(id_, self._await(lambda registry: registry.schema(id_), stop))
        except RegistryRefused as error:
            return str(error)

    def _learn_all(self, subject: str, stop: threading.Event) -> None:
        """Hold the schemas of a subject, if there is one."""
        try:
            schemas = self._await(lambda registry: registry.versions(subject), stop)
        except RegistryRefused:
            return
        for id_, texts in sorted(schemas.items(), reverse=True):  # the newest first: what is held is bounded
            self._hold(id_, texts)

    def _hold(self, id_: int, texts: tuple[str, ...]) -> str:
        """Hold a schema that can be read by, or say why it cannot."""
        if len(self._known) >= SCHEMAS_HELD:
            return f"{SCHEMAS_HELD} schemas are held already; start the job again to forget those not used any more"
        if (size := sum(map(len, texts))) > SCHEMA_BYTES:
            return f"it has {size} characters; at most {SCHEMA_BYTES}"
        try:
            check_written(READ, texts)
        except Unreadable as error:
            return str(error)
        self._known[id_] = texts
        return ""

    def _await(self, ask: Callable[[Registry], Answer], stop: threading.Event) -> Answer:
        """What the registry answers, once it does. Raises RegistryRefused, and Stopping as `learn` does."""
        assert self._registry is not None, "without a registry no worker needs a schema"
        pause = FIRST_PAUSE
        while True:
            try:
                return ask(self._registry)
            except RegistryDown as error:
                log.warning("requests wait for the schema registry", error=str(error))
                if stop.wait(pause):
                    raise Stopping("asked to stop while waiting for the schema registry") from error
                pause = min(2 * pause, LONGEST_PAUSE)

    def encoded(self, results: Iterable[Result]) -> Iterable[Result]:
        """The records written beside the decisions, alerts and changes in the encoding of the job."""
        return map(self._encode, results) if self._writers else results

    def _encode(self, result: Result) -> Result:
        topic, key, value, headers = result
        if topic not in self._writers or value is None:
            return result
        try:
            return topic, key, self._writers[topic].encode(value), with_content_type(headers, self._content_type)
        except Unencodable as error:  # a bug, which must neither stop the job nor keep the record back
            log.error("a record does not fit its Avro schema and is written as JSON", topic=topic, error=str(error))
            return result

    def close(self) -> None:
        """Let go of the registry."""
        if self._registry is not None:
            self._registry.close()


def open_encodings(settings: Settings) -> Encodings:
    """As `Encodings`, for a job that begins: raises CannotStart."""
    try:
        return Encodings(settings)
    except RegistryError as error:
        raise CannotStart(f"encoding {settings.encoding}: {error}") from error


def subject_of(topic: str) -> str:
    """Under which the schemas of a topic's values are registered, as is usual."""
    return f"{topic}-value"
