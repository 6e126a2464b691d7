"""An allow that comes after the request's own deadline allows nothing, however long the caller would have waited."""

import asyncio
import json
import time
from concurrent.futures import Future
from typing import Any

import pytest

from streaming.client import AsyncClient, Client, Decision, connection
from streaming.client.base import BaseClient
from streaming.client.decision import read_decision
from streaming.client.exchange import NEVER_SENT, Pending
from streaming.client.records import ProducerRecord
from tests.client.test_decision import ALLOW

WHOLE: dict[str, Any] = {
    "id": "r-1",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:ListTopic"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
}
DENIED = {"decision": False, "context": {**ALLOW["context"], "outcome": "deny"}}
HOUR_MS = 3_600_000


class Answering:
    """Answers each request with one decision, where an exchange would ask the job."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def send(self, record: ProducerRecord) -> Pending:
        """The answer is there."""
        future: Future[Decision] = Future()
        future.set_result(self._decision)
        return Pending(NEVER_SENT, record, future)

    def forget(self, pending: Pending) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is closed waits for its question to the cluster, which has 3 s."""
    monkeypatch.setattr(connection, "SECONDS", 0.2)


def _answered(kind: type[BaseClient], record: dict[str, Any], deadline: Any) -> Decision:
    """A client's decision on a request with a deadline, where the job's record says something."""
    client = kind("localhost:1", timeout=60)
    client._exchange.close()
    client._exchange = Answering(read_decision(json.dumps(record).encode()))  # type: ignore[assignment]
    asked = {**WHOLE, "deadline": deadline, **({"evaluations": [{}, {}]} if "evaluations" in record else {})}
    if isinstance(client, Client):
        return client.authorize(asked)
    assert isinstance(client, AsyncClient)

    async def ask() -> Decision:
        return await client.authorize(asked)

    return asyncio.run(ask())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("deadline", [1, "2020-01-01T00:00:00Z"])
def test_an_allow_after_the_deadline_is_an_error(kind: type[BaseClient], deadline: Any) -> None:
    late = _answered(kind, ALLOW, deadline)
    assert (late.allowed, late.outcome, late.code) == (False, "error", "deadline-exceeded")
    batch = _answered(kind, {**ALLOW, **DENIED, "evaluations": [ALLOW, DENIED]}, deadline)
    assert [(item.allowed, item.code) for item in batch.evaluations] == [(False, "deadline-exceeded")] * 2


def test_what_is_in_time_or_no_allow_stays_as_it_is() -> None:
    assert _answered(Client, ALLOW, int(time.time() * 1000) + HOUR_MS).allowed
    assert _answered(Client, {**ALLOW, **DENIED}, 1).outcome == "deny"
