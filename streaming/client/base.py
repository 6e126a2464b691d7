"""What the two clients share: everything but the waiting."""

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Literal

import msgspec

from streaming.client.connection import Connection, connection_to
from streaming.client.decision import Decision, NotDecided, complete, undecided
from streaming.client.exchange import Exchange, Pending, TakesRequests, answered
from streaming.client.records import InvalidRequest, ProducerRecord, event_record, request_record
from streaming.pdp.deadlines import is_late
from streaming.records.decision import Place


class SentRequest(msgspec.Struct):
    """A request on its way: how long to wait for it, and since when."""

    pending: Pending
    timeout: float
    raise_on_error: bool
    began: float


class BaseClient:
    """Requests decisions over one connection. Use it for the life of a service; close it at the end.

    `requests`: the request topic; the first of the connection's when left out. `timeout`: seconds to wait for an
    answer, and how long after fields a request may still be decided. `raise_on_error`: raise NotDecided where the
    answer would be an error. Each of these is the default for all calls. `shadow`: what guards do while the job
    decides in shadow mode. With `pass` nothing but a decision that is enforced denies an access, not even a missing
    answer: for a service whose platform still guards it; by default what is not enforced is no allow.
    Raises ClientError for settings that librdkafka refuses; Kafka need not answer yet.
    """

    def __init__(
        self,
        connection: Connection | str = "localhost:9092",
        *,
        requests: str | None = None,
        timeout: float = 5.0,
        raise_on_error: bool = False,
        shadow: Literal["refuse", "pass"] = "refuse",
    ) -> None:
        self._connection = connection_to(connection)
        self._requests = requests or self._connection.topics.requests[0]
        self._timeout, self._raise_on_error = checked_timeout(timeout), raise_on_error
        self._shadow = shadow
        self._exchange: TakesRequests = Exchange(self._connection, self._requests)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection!r}, requests={self._requests!r})"

    def _send(self, request: Mapping[str, Any] | None, timeout: float | None, fields: Mapping[str, Any]) -> SentRequest:
        """Begin to send a request. What is no request is answered at once."""
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        raising = fields.get("raise_on_error", self._raise_on_error)
        began = time.monotonic()
        try:
            pending = self._exchange.send(request_record(self._requests, request, seconds, fields))
        except InvalidRequest as refusal:
            pending = answered(refusal.record, refusal.code, str(refusal))
        return SentRequest(pending, seconds, raising, began)

    def _concluded(self, request: SentRequest, decision: Decision) -> Decision:
        """The decision as it is handed out. Raises NotDecided where that is wanted of an error."""
        self._exchange.forget(request.pending)
        decision = complete(_in_time(decision, request.pending.record), request.pending.record.items)
        decision = msgspec.structs.replace(decision, seconds=time.monotonic() - request.began)
        if request.raise_on_error and decision.outcome == "error":
            raise NotDecided(decision)
        return decision

    def _guard(self, decision: Decision) -> Decision:
        """The decision, if it allows the access. Raises AccessDenied and NotDecided."""
        binding = decision.enforced and bool(decision.raw)
        return decision if self._shadow == "pass" and not binding else decision.or_raise()

    def _give_up(self, begun: Iterable[SentRequest]) -> None:
        """No caller waits for requests without a decision any more."""
        for request in begun:
            self._exchange.forget(request.pending)

    def _report(self, event: Mapping[str, Any], decision_id: str | None) -> "Future[Place]":
        return self._exchange.report(event_record(self._connection.topics.audit[0], event, decision_id))


def _in_time(decision: Decision, record: ProducerRecord) -> Decision:
    """The decision, an error where it would allow something after the request's deadline: it may come long after it
    was made.
    """
    allows = decision.allowed or any(item.allowed for item in decision.evaluations)
    if not allows or not is_late(record.deadline, time.time_ns() // 1_000_000):
        return decision
    late = "the answer came after the request's deadline"
    return undecided(record.id, "deadline-exceeded", late, decision.source)


def checked_timeout(timeout: float) -> float:
    if not (isinstance(timeout, int | float) and 0 < timeout <= threading.TIMEOUT_MAX):
        raise ValueError(f"timeout={timeout!r}: seconds, more than 0")
    return timeout
