"""Clients that decide within the application: they follow the policies on the topics, and record what they answer.

They have the interface of `Client` and `AsyncClient`, and need neither the job nor Spark for an answer. The job decides
each recorded answer again: `docs/pages/guides/client.md`.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import msgspec
import structlog
from confluent_kafka import KafkaException

from policy import Decision as Answer
from policy import decode_json, to_text
from streaming.client.base import BaseClient, checked_timeout
from streaming.client.clients import AsyncClient, Client
from streaming.client.connection import Connection, connection_to, describe
from streaming.client.decision import ClientError, Decision, read_decision, undecided
from streaming.client.exchange import CLOSED, FORKED, NEVER_SENT, Pending, TakesRequests, answered, settle
from streaming.client.records import ProducerRecord
from streaming.errors import CannotStart
from streaming.kafka.clients import admin_client, partition_numbers
from streaming.pdp.evaluation import evaluate
from streaming.pdp.follower import Follower
from streaming.pdp.reading import AnswerContext, Read, lacking, names_offsets, suspend_aware_clock, why_stale
from streaming.pdp.recording import NotRecorded, Recorder, answered_record
from streaming.records.answered import BY_CHARACTERS, FreshnessKind
from streaming.settings import DEFAULT_TRUST, RecordMode, ServeSettings, Settings

POLL_SECONDS = 0.1
CLOSE_SECONDS = 10.0
LIST_SECONDS = 3.0

log = structlog.get_logger()


class LocalOptions(msgspec.Struct, frozen=True):
    """How a local client decides. See `LocalClient`."""

    trust: frozenset[str] = DEFAULT_TRUST
    freshness: Literal["bounded", "full"] = "bounded"
    enforced: bool = True
    name: str = ""


class LocalExchange(TakesRequests):
    """Decides requests here. Whatever goes wrong becomes a decision, too, and that is `error`."""

    def __init__(self, connection: Connection, settings: Settings, options: LocalOptions) -> None:
        super().__init__(connection)  # first: it raises ClientError for settings that are refused
        self._settings, self._options, self._bound = settings, options, settings.serve.max_staleness_seconds
        self._recorder = Recorder(settings, options.name) if settings.records_answers else None
        self._lock, self._waiting = threading.Lock(), list[tuple[float, Pending, dict[str, Any]]]()
        self._unrecorded = "" if self._recorder is None else f"topic {self._recorder.topic} was not found yet"
        self._follower = Follower(settings, self._closing, self._on_read, self._on_failure)
        self._follower.start()
        self._thread = threading.Thread(target=self._run, name="lockkeeper-local", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(POLL_SECONDS)
            if self._unrecorded and self._recorder is not None:
                self._look_for(self._recorder.topic)
            if self._follower.read is not None and not self._unrecorded:
                self._ready.set()

    def _look_for(self, topic: str) -> None:
        try:
            there = partition_numbers(admin_client(self._settings), [topic], LIST_SECONDS)
        except KafkaException as error:
            self._unrecorded = f"Kafka does not answer: {describe(error)}"
            return
        self._unrecorded = "" if there else f"topic {topic} does not exist: run `lockkeeper topics create`"

    def send(self, record: ProducerRecord) -> Pending:
        """Decide a request now, or, where it needs newer policies, as soon as these are read."""
        if self._is_forked():
            return answered(record, "client-forked", FORKED)
        if self._closing.is_set():
            return answered(record, "client-closed", CLOSED)
        if self._unrecorded:
            return answered(record, "not-recorded", self._unrecorded)
        size, most = len(record.value) + len(record.key or b""), self._settings.limits.record_in
        if size > most:  # the job would make it a dead letter
            return answered(record, "malformed-request", f"not a request: {size} bytes; at most {most}")
        try:
            pending, body = Pending(NEVER_SENT, record, Future()), decode_json(record.value)
        except (ValueError, RecursionError) as error:  # a mapping may have the names 1 and "1", which are one in JSON
            return answered(record, "malformed-request", f"not a request: {error}")
        read = self._follower.read
        if not self._waits(pending, body, read):
            self._answer(pending, body, read)
        return pending

    def _waits(self, pending: Pending, body: dict[str, Any], read: Read | None) -> bool:
        """Have a request that needs newer policies wait for them, if there will be any."""
        if self._options.freshness != "full" and (read is None or lacking(body, read.all_offsets) is None):
            return False
        with self._lock:
            if self._follower.failure is not None:
                return False
            self._waiting.append((suspend_aware_clock(), pending, body))
        self._follower.ask()
        return True

    def _on_read(self, read: Read) -> None:
        """Decide what has waited for this reading; in the follower's thread."""
        with self._lock:
            due = [waiting for waiting in self._waiting if waiting[0] <= read.at]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > read.at]
        for _, pending, body in due:
            self._answer(pending, body, read)

    def _on_failure(self) -> None:
        log.error("policies cannot be followed any more; every request is an error", error=str(self._follower.failure))
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, pending, body in waiting:
            self._answer(pending, body, None)

    def _answer(self, pending: Pending, body: dict[str, Any], read: Read | None) -> None:
        try:
            self._decide(pending, body, read)
        except NotRecorded as unrecorded:
            settle(pending, undecided(pending.record.id, "not-recorded", str(unrecorded)))
        except Exception as failure:  # a bug must not allow anything, nor leave a caller waiting
            log.error("a request could not be decided; please report it", error=type(failure).__name__)
            settle(pending, undecided(pending.record.id, "evaluation-failed", "the request could not be decided"))

    def _decide(self, pending: Pending, body: dict[str, Any], read: Read | None) -> None:
        """Decide, record, and give the answer. Raises NotRecorded."""
        if (why := self._stale(read)) is not None:
            settle(pending, undecided(pending.record.id, "policies-stale", why))
            return
        assert read is not None, "else it is stale"
        named: FreshnessKind = "min_policy_offsets" if names_offsets(body) else "bounded"
        freshness: FreshnessKind = "full" if self._options.freshness == "full" else named
        answer_context = AnswerContext.of_now(read, freshness, self._bound, self._options.trust)
        answer = evaluate(body, answer_context)
        decision = self._typed(body, answer, answer_context)
        recorder, system = self._recorder, str(body.get("system", ""))
        malformed = not answer.evaluations and answer.reasons[0].code == "malformed-request"
        if recorder is None or malformed or not recorder.is_recorded(system, answer):
            settle(pending, decision)
            return
        value = answered_record(body, answer, answer_context, recorder.by)
        if recorder.awaits_delivery(system):
            recorder.send(body, value, partial(_give_recorded, pending, decision))
        else:
            recorder.send(body, value)
            settle(pending, decision)

    def _stale(self, read: Read | None) -> str | None:
        """Why nothing may be decided by a reading; None: it is new enough."""
        if self._follower.failure is not None:
            return f"the policies cannot be followed any more: {self._follower.failure}"
        return why_stale(read, self._bound, bool(self._follower.stuck))

    def _typed(self, body: Mapping[str, Any], answer: Answer, answer_context: AnswerContext) -> Decision:
        """The decision with what it rests on, as one that the job wrote."""
        record = answer.to_record()
        record["context"] |= answer_context.read.versions | ({} if self._options.enforced else {"enforced": False})
        named = {"request_id": str(body.get("id", "")), "system": str(body.get("system", ""))}
        return read_decision(msgspec.json.encode({**named, "time": to_text(answer_context.time), **record}))

    def forget(self, pending: Pending) -> None:
        if self._waiting and not self._is_forked():  # a thread that is not here may have had the lock
            with self._lock:
                self._waiting = [waiting for waiting in self._waiting if waiting[1] is not pending]

    def late(self, pending: Pending, seconds: float) -> Decision:
        message = f"neither newer policies nor the record's acknowledgement came within {seconds:g} s"
        return undecided(pending.record.id, "timeout", message)

    def close(self) -> None:
        if self._is_forked() or self._closing.is_set():
            return
        self._closing.set()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, pending, _ in waiting:
            settle(pending, undecided(pending.record.id, "client-closed", CLOSED))
        self._follower.close()
        self._thread.join()
        self._producer.close(CLOSE_SECONDS)
        if self._recorder is not None:
            self._recorder.close(CLOSE_SECONDS)


def _give_recorded(pending: Pending, decision: Decision, is_recorded: bool) -> None:
    why = "Kafka did not take the record"
    settle(pending, decision if is_recorded else undecided(pending.record.id, "not-recorded", why))


class _Local(BaseClient):
    """What both local clients are made with."""

    def __init__(
        self,
        connection: Connection | str = "localhost:9092",
        *,
        answered: str = "",
        trust: frozenset[str] | set[str] = DEFAULT_TRUST,
        record: RecordMode = "all",
        freshness: Literal["bounded", "full"] = "bounded",
        max_staleness: float = 15.0,
        name: str = "",
        mode: Literal["enforce", "shadow"] | None = None,
        timeout: float = 5.0,
        raise_on_error: bool = False,
        shadow: Literal["refuse", "pass"] = "refuse",
    ) -> None:
        """As `Client`; a request topic is not needed.

        `answered`: the topic on which answers are recorded; "": the first of the connection's `topics.answered`.
        `record`: which answers; with `durable` they are given once Kafka has the record. `trust`: what requests may
        claim, as far as the topic is trusted with it. `freshness`: `full` reads the policies up to ends that are
        fetched after each request came. `max_staleness`: seconds; policies that could not be read for so long decide
        nothing. `name`: in records; "": the machine's. `mode`: `shadow` marks decisions as not enforced; None: the
        connection's. Raises ClientError for settings that cannot be used, also where answers are to be recorded and no
        topic is named.
        """
        self._connection, self._requests = connection_to(connection), answered
        self._timeout, self._raise_on_error, self._shadow = checked_timeout(timeout), raise_on_error, shadow
        if len(name) > BY_CHARACTERS:  # the job would make its records dead letters
            raise ClientError(f"name: has {len(name)} characters; at most {BY_CHARACTERS}")
        if unknown := set(trust) - DEFAULT_TRUST:
            raise ClientError(f"trust: {sorted(unknown)} are not among {sorted(DEFAULT_TRUST)}")
        serve = ServeSettings(record=record, max_staleness_seconds=checked_timeout(max_staleness))
        topics = self._connection.topics
        if answered:
            topics = msgspec.structs.replace(topics, answered=(answered,))
        settings = self._connection.settings(serve=serve, systems=topics.systems, topics=topics)
        enforced = (mode or settings.mode) == "enforce"
        options = LocalOptions(settings.trusted_in_answers(frozenset(trust)), freshness, enforced, name)
        try:
            self._exchange = LocalExchange(self._connection, settings, options)
        except CannotStart:
            raise ClientError(
                "answers are to be recorded, and no topic is named: give `answered`, such as authz.answered.v1, or "
                'record="none"'
            ) from None


class LocalClient(_Local, Client):
    """Decides within this process, for any number of threads. `AsyncLocalClient` is for asyncio."""


class AsyncLocalClient(_Local, AsyncClient):
    """Decides within this process; its methods are awaited as those of `AsyncClient`."""
