"""Questions out, answers in: one thread that reads for all who wait.

Nothing is sent before the place in the answers' topics is known, so that no answer can be missed. Whatever goes wrong
becomes an answer too, and that is `error`.
"""

import contextlib
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Generic, TypeVar

import msgspec
from confluent_kafka import Message

from streaming.client.connection import Connection, IdempotentProducer, Lost, TopicConsumer
from streaming.client.consumers import read_dead_letter
from streaming.client.decision import Decision, NotReported, Unreadable, read_decision, undecided
from streaming.client.records import ProducerRecord
from streaming.records.avro import Undecodable
from streaming.records.decision import Place, glance
from streaming.records.formats import shorten_id
from streaming.records.registry import Deserializer, RegistryDown
from streaming.topics import dead_letters_of

RETRY_SECONDS = 0.5
CLOSE_SECONDS = 10.0
NEVER_SENT = -1
CLOSED = "the client is closed"
FORKED = "the client was made in the process that this one was forked from: make one in each process"

log = logging.getLogger("lockkeeper.client")


class Pending(msgspec.Struct):
    """A question on its way. Its future's result is a decision; it never raises."""

    ticket: int
    record: ProducerRecord
    future: "Future[Decision]"


class TakesRequests(ABC):
    """What decides requests for a client. For any number of threads.

    Raises ClientError for settings that librdkafka refuses. Kafka need not answer yet. `_ready`: requests are decided.
    """

    def __init__(self, connection: Connection) -> None:
        self._producer = IdempotentProducer(connection)
        self._ready, self._closing, self._process = threading.Event(), threading.Event(), os.getpid()

    @abstractmethod
    def send(self, record: ProducerRecord) -> Pending:
        """Begin to decide a request. Call `forget` when no caller waits."""

    @abstractmethod
    def forget(self, pending: Pending) -> None:
        """No caller waits for the answer any more."""

    @abstractmethod
    def late(self, pending: Pending, seconds: float) -> Decision:
        """The answer to a request that had none for so long."""

    @abstractmethod
    def close(self) -> None:
        """Answer all who wait with an error, wait for records on their way, and leave. May be called again."""

    def await_ready(self, seconds: float) -> bool:
        """Whether requests are decided; waits so long for it."""
        return not self._is_forked() and self._ready.wait(seconds) and not self._closing.is_set()

    def report(self, record: ProducerRecord) -> "Future[Place]":
        """Send a record that has no answer. The future's result is its place; it raises NotReported."""
        future: Future[Place] = Future()
        if self._is_forked() or self._closing.is_set():
            resolve(future, None, FORKED if self._is_forked() else CLOSED)
        else:
            self._producer.send(record, partial(resolve, future))
        return future

    def _is_forked(self) -> bool:
        return os.getpid() != self._process


class Exchange(TakesRequests):
    """Sends to one request topic and reads all decisions and the topic's dead letters."""

    def __init__(self, connection: Connection, requests: str) -> None:
        super().__init__(connection)
        self._connection, self._requests = connection, requests
        self._decisions, self._dead_letters = connection.topics.decisions, dead_letters_of(requests)
        self._consumer = TopicConsumer(connection, (self._decisions, self._dead_letters), (requests,))
        self._deserializer = Deserializer(connection.schema_registry)
        self._lock = threading.Lock()  # for what follows
        self._correlation: Correlation[Message] = Correlation()
        self._waiting: dict[int, Pending] = {}
        self._backlog: dict[int, Pending] = {}  # to be sent once the place is known
        self._trouble = "Kafka has not answered yet"
        self._thread = threading.Thread(target=self._run, name="lockkeeper-client", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many questions wait for their answers."""
        return len(self._waiting)

    def send(self, record: ProducerRecord) -> Pending:
        """Send a request now, or as soon as its answer cannot be missed."""
        if self._is_forked():  # before the lock, which may never be released
            return answered(record, "client-forked", FORKED)
        with self._lock:
            if self._closing.is_set():
                return answered(record, "client-closed", CLOSED)
            pending = Pending(self._correlation.open(record.id), record, Future())
            self._waiting[pending.ticket] = pending
            in_place = self._ready.is_set()
            if not in_place:
                self._backlog[pending.ticket] = pending
        if in_place:
            self._send(pending)
        return pending

    def _send(self, pending: Pending) -> None:
        self._producer.send(pending.record, partial(self._sent, pending))

    def forget(self, pending: Pending) -> None:
        if pending.ticket == NEVER_SENT:
            return
        with self._lock:
            self._correlation.forget(pending.ticket)
            self._waiting.pop(pending.ticket, None)
            self._backlog.pop(pending.ticket, None)

    def late(self, pending: Pending, seconds: float) -> Decision:
        with self._lock:
            source, trouble = self._correlation.place_of(pending.ticket), self._trouble
            unsent = pending.ticket in self._backlog
        if source is not None:
            message = f"no decision within {seconds:g} s for {source}. Is `lockkeeper run` running with these topics?"
        elif unsent:
            message = f"not sent within {seconds:g} s: {trouble}"
        else:
            message = f"not confirmed by {self._requests} within {seconds:g} s, and no decision"
        return undecided(pending.record.id, "timeout", message, source)

    def close(self) -> None:
        if not self._is_forked():
            self._closing.set()
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except Exception as defect:
            log.exception("the client's reader stopped: make a new client")
            self._fail(self._all_waiting(), "client-failed", f"the client's reader stopped: {type(defect).__name__}")
        finally:
            self._closing.set()
            self._fail(self._all_waiting(), "client-closed", "the client was closed before the answer came")
            self._producer.close(CLOSE_SECONDS / 2)
            self._consumer.close()

    def _turn(self) -> None:
        try:
            if not self._ready.is_set():
                self._consumer.seek_to_end()
                self._begin()
            messages = self._consumer.receive()
        except Lost as lost:
            self._lose(str(lost))
            self._producer.poll(RETRY_SECONDS)
            return
        self._producer.poll(0)  # reports before answers: fewer answers are held
        for message in messages:
            self._take(message)

    def _begin(self) -> None:
        with self._lock:
            unsent, self._backlog = list(self._backlog.values()), {}
            self._trouble = ""
            self._ready.set()
        for pending in unsent:
            self._send(pending)

    def _lose(self, why: str) -> None:
        """Requests whose answers may have been missed fail; those not sent yet go on waiting."""
        with self._lock:
            missed = list(self._waiting.values()) if self._ready.is_set() else []
            is_news, self._trouble = why != self._trouble, why
            self._ready.clear()
        if is_news:
            log.warning("no decisions can be read: %s", why)
        self._fail(missed, "answers-lost", f"answers may have been missed: {why}")

    def _sent(self, pending: Pending, source: Place | None, why: str) -> None:
        """The delivery report."""
        if source is None:
            self._answer(pending.ticket, undecided(pending.record.id, "not-sent", why))
            return
        with self._lock:
            answer = self._correlation.report(pending.ticket, source)
        if answer is not None:
            self._answer(pending.ticket, self._read(answer, pending.record, source))

    def _take(self, message: Message) -> None:
        named = self._whose(message)
        if named is None:
            return
        source, id_ = named
        with self._lock:
            ticket = self._correlation.answer(source, id_, message)
            pending = None if ticket is None else self._waiting.get(ticket)
        if pending is not None:
            self._answer(pending.ticket, self._read(message, pending.record, source))

    def _whose(self, message: Message) -> tuple[Place, str | None] | None:
        """The place of the request that a record answers, and the id it names; None: it answers none of ours."""
        if message.topic() == self._decisions:
            named: tuple[Place, str | None] | None = glance(self._in_json(message))
        else:
            dead_letter = read_dead_letter(message)
            named = None if dead_letter is None else (dead_letter.source, None)
        return named if named is not None and named[0].topic == self._requests else None

    def _in_json(self, message: Message) -> bytes:
        """A decision record as JSON; empty when it cannot be read: then it is no answer to a request of this client."""
        try:
            return self._deserializer.json("decision", message.value() or b"")
        except (Undecodable, RegistryDown) as error:
            log.warning("a decision cannot be read: %s", error)
            return b""

    def _read(self, message: Message, record: ProducerRecord, source: Place) -> Decision:
        if message.topic() != self._decisions:
            dead_letter = read_dead_letter(message)
            return undecided(record.id, "dead-letter", dead_letter.message if dead_letter else "", source)
        try:
            decision = read_decision(self._in_json(message))
        except Unreadable as error:
            return undecided(record.id, "unreadable-decision", str(error), source)
        # Offsets begin at 0 again when a topic is re-created.
        if record.id and decision.request_id not in (record.id, shorten_id(record.id)):
            message_ = f"{source} is answered for another request, {decision.request_id!r}"
            return undecided(record.id, "answers-lost", message_, source)
        return decision

    def _answer(self, ticket: int, decision: Decision) -> None:
        with self._lock:
            self._correlation.forget(ticket)
            pending = self._waiting.pop(ticket, None)
        if pending is not None:
            settle(pending, decision)

    def _fail(self, questions: Iterable[Pending], code: str, message: str) -> None:
        for pending in questions:
            self._answer(pending.ticket, undecided(pending.record.id, code, message))

    def _all_waiting(self) -> list[Pending]:
        with self._lock:
            return list(self._waiting.values())


def answered(record: ProducerRecord, code: str, message: str) -> Pending:
    """A question that is not sent: its answer is an error, and is there already."""
    pending = Pending(NEVER_SENT, record, Future())
    settle(pending, undecided(record.id, code, message))
    return pending


def settle(pending: Pending, decision: Decision) -> None:
    with contextlib.suppress(InvalidStateError):  # the waiting caller has just cancelled
        pending.future.set_result(decision)


def resolve(future: "Future[Place]", location: Place | None, why: str) -> None:
    with contextlib.suppress(InvalidStateError):
        if location is None:
            future.set_exception(NotReported(why))
        else:
            future.set_result(location)


A = TypeVar("A")


class Correlation(Generic[A]):
    """Open questions, by tickets that count up. A ticket is closed by its answer, or by `forget`."""

    def __init__(self) -> None:
        self._next = 0
        self._unreported: OrderedDict[int, str] = OrderedDict()  # ticket → the question's id, oldest first
        self._ids: Counter[str] = Counter()  # of those
        self._places: dict[int, Place] = {}
        self._reported: dict[Place, int] = {}
        self._early: OrderedDict[Place, tuple[int, A]] = OrderedDict()  # with the ticket that came next, in order

    def __len__(self) -> int:
        """How many questions are open."""
        return len(self._unreported) + len(self._reported)

    @property
    def held(self) -> int:
        """How many answers are held that may yet turn out to be ours."""
        return len(self._early)

    def open(self, id_: str) -> int:
        """A ticket for a question with an id, before it is sent."""
        ticket, self._next = self._next, self._next + 1
        self._unreported[ticket] = id_
        self._ids[id_] += 1
        return ticket

    def report(self, ticket: int, source: Place) -> A | None:
        """The question's record stands at `place`. Its answer, if that was read before; it is closed then."""
        if ticket not in self._unreported:
            return None  # forgotten
        self._leave_unreported(ticket)
        early = self._early.pop(source, None)
        self._drop_unmatched()
        if early is not None:
            return early[1]
        self._places[ticket], self._reported[source] = source, ticket
        return None

    def answer(self, source: Place, id_: str | None, answer: A) -> int | None:
        """An answer to the record at `place` was read. The ticket that it closes, if one is known to be there.

        `id_`: the id that the answer names; None when it names none.
        """
        ticket = self._reported.pop(source, None)
        if ticket is not None:
            del self._places[ticket]
        elif self._unreported and (id_ is None or self._ids[id_] > 0):
            self._early[source] = (self._next, answer)
        return ticket

    def forget(self, ticket: int) -> None:
        """Close a request without a waiting caller; closing twice is allowed."""
        if ticket in self._unreported:
            self._leave_unreported(ticket)
            self._drop_unmatched()
        elif (source := self._places.pop(ticket, None)) is not None:
            del self._reported[source]

    def place_of(self, ticket: int) -> Place | None:
        """Where an open question's record stands, once that is known."""
        return self._places.get(ticket)

    def _leave_unreported(self, ticket: int) -> None:
        id_ = self._unreported.pop(ticket)
        self._ids[id_] -= 1
        if not self._ids[id_]:
            del self._ids[id_]

    def _drop_unmatched(self) -> None:
        """An answer that was read before a request was sent does not answer it."""
        oldest = next(iter(self._unreported), self._next)
        while self._early and next(iter(self._early.values()))[0] <= oldest:
            self._early.popitem(last=False)
