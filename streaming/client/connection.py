"""Where Kafka is, what the topics are called, and how to be let in."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from confluent_kafka import KafkaException

from streaming.client.decision import ClientError
from streaming.kafka.permissions import Permission, explain_missing, principal_of
from streaming.settings import MASK, SchemaRegistry, Settings, load_settings
from streaming.topics import TopicNames

T = TypeVar("T")

Setting = Any  # text, number, bool, or a function such as `oauth_cb`

SECRET = re.compile(r"password|secret|token|credential|jaas|oauthbearer|\.pem$|\.key$", re.IGNORECASE)
"""The settings whose values are taken out of what Kafka's clients say."""


@dataclass(frozen=True, repr=False)
class Connection:
    """How to reach a cluster. `kafka`: librdkafka's settings, as they are, security among them.

    `schema_registry`: needed where the job writes Avro in Confluent's wire format.

    What the client promises goes before `kafka`: it reads committed records alone, whatever is set there.
    """

    bootstrap_servers: str = "localhost:9092"
    topics: TopicNames = field(default_factory=TopicNames)
    kafka: Mapping[str, Setting] = field(default_factory=dict)
    schema_registry: SchemaRegistry = SchemaRegistry()  # noqa: RUF009 (it is frozen)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The connection that settings of the job describe."""
        return cls(settings.bootstrap_servers, settings.topics, dict(settings.kafka), settings.schema_registry)

    @classmethod
    def from_environment(cls) -> Self:
        """The connection that `LOCKKEEPER_…` variables describe, and the file that LOCKKEEPER_CONFIG names, if any.

        Raises SettingsError.
        """
        path = os.environ.get("LOCKKEEPER_CONFIG")
        return cls.of(load_settings(Path(path) if path else None))

    def __repr__(self) -> str:
        """With the names of the settings alone: there is no complete list of the secret ones."""
        return f"Connection({self.bootstrap_servers!r}, kafka={dict.fromkeys(self.kafka, MASK)})"

    def settings(self, **more: Any) -> Settings:
        """The same as settings of the job, for what takes those."""
        more.setdefault("schema_registry", self.schema_registry)
        return Settings(bootstrap_servers=self.bootstrap_servers, topics=self.topics, kafka=dict(self.kafka), **more)

    def make(self, kind: Callable[[dict[str, Any]], T], usual: Mapping[str, Any], fixed: Mapping[str, Any]) -> T:
        """One of Kafka's clients. `usual` gives way to the user's settings, and those to `fixed`.

        Raises ClientError for settings that librdkafka refuses.
        """
        servers = {"bootstrap.servers": self.bootstrap_servers}
        try:
            return kind({"log_level": "2", **usual, **self.kafka, **fixed, **servers})
        except (KafkaException, TypeError, ValueError) as error:
            raise ClientError(f"kafka settings: {self.scrub(describe(error))}") from None  # its cause may hold a secret

    def denied(self, missing: Iterable[Permission]) -> str:
        """Which permissions the principal lacks, and the ACLs that grant them."""
        return explain_missing(principal_of(self.kafka), self.bootstrap_servers, missing)

    def scrub(self, text: str) -> str:
        """The text without the values of secret settings."""
        secrets = (str(value) for name, value in self.kafka.items() if SECRET.search(name))
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


def connection_to(given: Connection | str) -> Connection:
    """A connection from itself, or from HOST:PORT alone."""
    return Connection(given) if isinstance(given, str) else given


def describe(error: Exception) -> str:
    """What an error of Kafka's clients says, for people."""
    inner = error.args[0] if error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(error) or type(error).__name__
