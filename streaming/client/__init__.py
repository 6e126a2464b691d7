"""The client for services: request decisions, and report what was done. It needs no Spark.

>>> with Client("localhost:9092") as client, acting_as("user:dana"):
...     if client.authorize(system="lenses6", action="kafka:ReadTopicData", resource="kafka:topic:prod/main/orders"):
...         ...

Everything but an allow in time is no allow: a deny, an error, a dead letter, no answer, no Kafka.
"""

from typing import TYPE_CHECKING, Any

from streaming.client.clients import AsyncClient, Client
from streaming.client.connection import Connection
from streaming.client.consumers import (
    AccessChange,
    AccessChangeConsumer,
    AlertConsumer,
    DeadLetter,
    DecisionConsumer,
)
from streaming.client.decision import AccessDenied, ClientError, Decision, NotDecided, NotReported, Unreadable
from streaming.client.guarding import acting_as
from streaming.client.publisher import PolicyPublisher
from streaming.kafka.publish import PublishFailed
from streaming.records.alert import Alert
from streaming.records.decision import Place
from streaming.topics import TopicNames

if TYPE_CHECKING:
    from streaming.client.local import AsyncLocalClient, LocalClient

__all__ = [
    "AccessChange",
    "AccessChangeConsumer",
    "AccessDenied",
    "Alert",
    "AlertConsumer",
    "AsyncClient",
    "AsyncLocalClient",
    "Client",
    "ClientError",
    "Connection",
    "DeadLetter",
    "Decision",
    "DecisionConsumer",
    "LocalClient",
    "NotDecided",
    "NotReported",
    "Place",
    "PolicyPublisher",
    "PublishFailed",
    "TopicNames",
    "Unreadable",
    "acting_as",
]


def __getattr__(name: str) -> Any:
    """The local clients, whose evaluator is not loaded unless it is used."""
    if name in {"LocalClient", "AsyncLocalClient"}:
        from streaming.client import local

        return getattr(local, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
