"""The schema registry, by the API that Confluent's defines, and records as JSON by the schemas it has."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from streaming.records.avro import Reader, Undecodable, is_avro
from streaming.records.formats import Formats, shorten
from streaming.records.schemas import Kind
from streaming.settings import SchemaRegistry

SECONDS = 5.0  # a task that waits for a schema keeps its core
REFUSED = frozenset({401, 403})
TRANSIENT = frozenset({408, 429})
NOT_OF_A_REGISTRY = (None, -1, 404)
"""Error codes of answers without one, as of a gateway that has no route to it, and of a path that it does not have."""
MOST_REFERRED = 100  # schemas that a schema refers to: each costs a question, and its producer chooses how many
SHOWN = 200  # characters of what it says, which may be a page

Answer = TypeVar("Answer")


class RegistryError(Exception):
    """The registry cannot be used; the message says why and what would fix it."""


class RegistryDown(RegistryError):
    """It does not answer, is busy, or refuses the job: later it may say more, and until then nothing is known."""


class RegistryRefused(RegistryError):
    """It answers, and the answer is no: there is no such schema, or it does not take one."""


class Registry:
    """A client. All calls raise RegistryDown or RegistryRefused."""

    def __init__(self, settings: SchemaRegistry) -> None:
        self._url, self._register = settings.url, settings.register
        self._config: dict[str, Any] = {"url": settings.url, "timeout": SECONDS, "max.retries": 0}
        self._config |= {"basic.auth.user.info": f"{settings.user}:{settings.password}"} if settings.user else {}
        self._config |= {"ssl.ca.location": settings.ca} if settings.ca else {}
        self._client = self._make()

    def _make(self) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # slow to import, and few need it

        return SchemaRegistryClient(self._config)

    def schema(self, id_: int) -> tuple[str, ...]:
        """The Avro schema with an id; before it those that it refers to, in an order in which each can be read."""
        return self._texts(self._ask(lambda: self._client.get_schema(id_)))

    def id_of(self, subject: str, text: str) -> int:
        """The id of an Avro schema under a subject; it is registered if it is not there and the settings let us."""
        from confluent_kafka.schema_registry import Schema

        schema = Schema(text, "AVRO")
        id_: int | None
        if self._register:
            id_ = self._ask(lambda: self._client.register_schema(subject, schema))
        else:
            id_ = self._ask(lambda: self._client.lookup_schema(subject, schema)).schema_id
        if not isinstance(id_, int):
            raise RegistryDown(f"the schema registry at {self._url} gave an answer without an id; is it one?")
        return id_

    def versions(self, subject: str) -> dict[int, tuple[str, ...]]:
        """All schemas of a subject, by id; see `schema`."""
        numbers = self._ask(lambda: self._client.get_versions(subject))
        registered = [self._ask(partial(self._client.get_version, subject, number)) for number in numbers]
        return {int(version.schema_id or 0): self._texts(version.schema) for version in registered}

    def close(self) -> None:
        """Let go of its connections."""
        self._client.close()

    def _texts(self, schema: Any, referred: set[tuple[str, int]] | None = None) -> tuple[str, ...]:
        """`referred`: those that it refers to and that are there already, by subject and version."""
        if schema.schema_type not in (None, "AVRO"):
            raise RegistryRefused(f"it is not Avro but {schema.schema_type}")
        if not isinstance(schema.schema_str, str):
            self._client.clear_caches()  # they hold such an answer for ever
            raise RegistryDown(f"the schema registry at {self._url} gave an answer without a schema; is it one?")
        referred = set() if referred is None else referred
        before = list[str]()
        for reference in schema.references or ():
            named = reference.subject, reference.version
            if named not in referred:
                referred.add(named)
                if len(referred) > MOST_REFERRED:
                    raise RegistryRefused(f"it refers to more than {MOST_REFERRED} other schemas")
                version = self._ask(partial(self._client.get_version, *named))
                before += self._texts(version.schema, referred)
        return (*before, schema.schema_str)

    def _ask(self, query: Callable[[], Answer]) -> Answer:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        # The client's timeout is for each part of an answer: one of a byte at a time would hold the job as long.
        late = threading.Event()
        timer = threading.Timer(SECONDS, self._end, (late,))
        timer.start()
        try:
            return query()
        except SchemaRegistryError as error:
            raise self._failure(error.http_status_code, error.error_code, error.error_message) from error
        except Exception as error:  # no connection, a time-out, an answer that is none: each library has its own
            said = f"{type(error).__name__}: {error}"
            raise RegistryDown(
                f"the schema registry at {self._url} does not answer ({said}); is it running?"
            ) from error
        finally:
            timer.cancel()
            timer.join()
            if late.is_set():
                self._client = self._make()

    def _end(self, late: threading.Event) -> None:
        late.set()
        self._client.close()

    def _failure(self, status: int, code: int | None, message: str | None) -> RegistryError:
        said = shorten(str(message), SHOWN)
        if status in REFUSED:
            fix = "check schema_registry.user and schema_registry.password"
            return RegistryDown(f"the schema registry at {self._url} refuses this user (HTTP {status}); {fix}")
        if status in TRANSIENT or status >= 500:
            return RegistryDown(f"the schema registry at {self._url} cannot answer now (HTTP {status}): {said}")
        if code in NOT_OF_A_REGISTRY:
            return RegistryDown(
                f"what answers at {self._url} is no schema registry (HTTP {status}): {said}; check schema_registry.url"
            )
        return RegistryRefused(f"the schema registry says: {said} (HTTP {status})")


class Deserializer:
    """Records in any encoding as JSON. It keeps the schemas that it has read from the registry."""

    def __init__(self, settings: SchemaRegistry) -> None:
        self._settings = settings
        self._registry: Registry | None = None
        self._known: dict[int, tuple[str, ...]] = {}

    def json(self, kind: Kind, value: bytes) -> bytes:
        """The record as JSON; what is not Avro is returned as it is.

        Raises Undecodable, and RegistryDown when a schema is needed and the registry does not answer.
        """
        if not is_avro(value):
            return value
        reader = Reader(Formats(registry=bool(self._settings.url), known=self._known))
        try:
            return reader.transcode(kind, value)
        except Undecodable:
            if not reader.needed:
                raise
        self._learn(reader.needed.pop())
        return self.json(kind, value)

    def _learn(self, id_: int) -> None:
        self._registry = self._registry or Registry(self._settings)
        try:
            self._known[id_] = self._registry.schema(id_)
        except RegistryRefused as error:
            raise Undecodable(f"the Avro schema with id {id_} cannot be read by: {error}") from error
