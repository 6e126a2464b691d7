"""Turns records of decisions, verdicts and dead letters into the inputs of each key. Runs in Spark's Python workers.

Each bucket has one row for many Arrow batches: each row costs Spark more than the record of a decision. In an Arrow
batch each key has one input list, and decisions of the same access that follow each other are one.
"""

import functools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import structlog
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql import SparkSession

from policy import Action, Outcome, Request, Resource, Subject, to_ms
from streaming.alert_kinds import AlertKind
from streaming.kafka.clients import Partition, first_offsets, last_stable_offsets
from streaming.kafka.timestamps import TimestampReader
from streaming.monitor import (
    BUCKETS,
    DENIALS_HELD,
    EVERY_KEY,
    JOB,
    NO_BUCKET,
    SERVER,
    SUBJECT,
    TOPIC,
    AccessEvent,
    AnsweredLagEvent,
    CountedEvent,
    DecisionEvent,
    Input,
    InputsByKey,
    JobEvent,
    Key,
    LoginEvent,
    UnreadEvent,
    access_event_id,
    access_id,
    bucket_of,
    encode_inputs,
)
from streaming.records.answered import ANSWER_SKEW_MS
from streaming.records.audit import (
    SESSION,
    AnyVerdict,
    Lifecycle,
    Verdict,
    decode_verdict,
    derived_fact,
)
from streaming.records.avro import CONFLUENT, Reader, Undecodable, UnknownSchema, is_avro
from streaming.records.decision import Answer, Answered, DecisionRecord, Requested, read_decision, requested
from streaming.records.formats import JSON_ALONE, Formats, shorten
from streaming.settings import Settings

SCHEMA = "bucket int, at timestamp, inputs array<binary>"
ROWS_BYTES = 16 << 20  # of encoded inputs, those of some 150,000 decisions, until their buckets get a row each
WHAT_CHARACTERS = 500  # of each text that an alert shows of an occurrence
# The job registers its schema before it writes, so that a later run reads by it. What a stray record names is never
# there, and would stop each run.
UNKNOWN_SCHEMA_MS = 5 * 60 * 1000

log = structlog.get_logger()

_to_ms = functools.lru_cache(1000)(to_ms)  # many decisions are of the same millisecond where there are many

KeyedInputs = Iterator[tuple[Key, Input]]


class Intake:
    """Called by Spark with Arrow batches of `topic`, `partition`, `offset`, `at` (ms), `value`.

    `decisions`, `verdicts`: those topics; all others hold dead letters. `window`: ms. `formats`: of decisions.
    """

    def __init__(self, decisions: str, verdicts: str, window: int, formats: Formats = JSON_ALONE) -> None:
        self._decisions, self._verdicts, self._window = decisions, verdicts, window
        self._reader, self._formats, self._has_failed = Reader(formats), formats, False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the buckets with the inputs of their keys, see `bucket_rows`."""
        return self.bucket_rows(batches, received_times())

    def bucket_rows(self, batches: Iterable[pa.RecordBatch], times: "Times") -> Iterator[pa.RecordBatch]:
        """A row for each bucket, of all batches of records up to `ROWS_BYTES`."""
        newest, size = 0, 0
        cells: dict[int, list[bytes]] = {}
        for batch in batches:
            by_key, newest_of_batch = self._gather(batch)
            newest = max(newest, newest_of_batch)
            for bucket, inputs in _in_buckets(by_key, self._window).items():
                cell = encode_inputs(inputs)
                cells.setdefault(bucket, []).append(cell)
                size += len(cell)
            if size > ROWS_BYTES:
                yield _to_arrow(cells, times.reached(newest))
                cells, size = {}, 0
        if cells:
            yield _to_arrow(cells, times.reached(newest))

    def _gather(self, batch: pa.RecordBatch) -> tuple[dict[Key, list[Input]], int]:
        by_key: dict[Key, list[Input]] = {}
        newest = 0
        for record in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            newest = max(newest, record[3])
            for key, input_ in self.read(*record):
                by_key.setdefault(key, []).append(input_)
        return by_key, newest

    def read(self, topic: str, partition: int, offset: int, at: int, value: bytes | None) -> KeyedInputs:
        """The inputs in one record, with their keys. Records that the enforcer did not write give none.

        Decisions in Avro whose schema is not known may be the enforcer's, as of a newer version before a rollback. At
        first they raise UnknownSchema, later they are unread decisions, of whichever subject.
        """
        try:
            yield from self._inputs(topic, partition, offset, at, value)
        except UnknownSchema as error:
            if self._may_be_known_later(at, value or b""):
                raise UnknownSchema(f"{topic}-{partition}, offset {offset}: {error}") from None
            self._note(f"{topic}-{partition}", offset, error)
            yield EVERY_KEY, UnreadEvent(min(at, int(latest_time())))
        except (ValueError, RecursionError, Undecodable) as error:  # it would end every run of the monitor, for good
            self._note(f"{topic}-{partition}", offset, error)

    def _may_be_known_later(self, at: int, value: bytes) -> bool:
        """Whether to wait for the schema of a record, dated `at` (ms): the next run asks the registry again."""
        if not self._formats.asked and value.startswith(CONFLUENT):
            return True
        return abs(time.time_ns() // 1_000_000 - at) < UNKNOWN_SCHEMA_MS

    def _inputs(self, topic: str, partition: int, offset: int, at: int, value: bytes | None) -> KeyedInputs:
        if topic == self._verdicts:
            yield from _of_verdict(decode_verdict(value or b""), at)
        elif topic == self._decisions:
            yield from _of_decision(self._decision(value or b""), at)
        else:
            id_ = f"{topic}-{partition}-{offset}-{at}"  # its time, as a re-created topic has the same offsets again
            yield Key(TOPIC, "", topic), CountedEvent(AlertKind.MALFORMED_BURST, at, at, id_, f"offset {offset}")

    def _note(self, partition: str, offset: int, error: Exception) -> None:
        """Log the first of a task, without its text, which may hold what the record says."""
        if not self._has_failed:
            self._has_failed = True
            why = "a record is left out that the enforcer did not write; only the job may write this topic"
            if isinstance(error, UnknownSchema):
                why = "a decision is left out, as its schema is unknown; no access of its time is called unrequested"
            log.warning(why, partition=partition, offset=offset, error=type(error).__name__)

    def _decision(self, value: bytes) -> DecisionRecord:
        try:
            return read_decision(value)
        except msgspec.DecodeError:  # the check for Avro comes last, so JSON does not pay for it
            if not is_avro(value):
                raise
        return read_decision(self._reader.transcode("decision", value))


def _of_verdict(verdict: AnyVerdict, at: int) -> KeyedInputs:
    if isinstance(verdict, Verdict):
        if verdict.result == "success":
            yield Key(SUBJECT, verdict.system, verdict.subject.id), _happened(verdict, at)
    elif isinstance(verdict, Lifecycle):
        yield from _of_lifecycle(verdict, at)
    elif verdict.answered_lag is not None:
        yield EVERY_KEY, AnsweredLagEvent(at, verdict.answered_lag)


def _happened(verdict: Verdict, at: int) -> AccessEvent:
    access = _access(verdict.system, verdict)
    denied = verdict.outcome == "deny" and not verdict.by_oldest
    why = (verdict.reasons[0].message if verdict.reasons else "denied") if denied else ""
    what = _what(verdict)
    id_ = access_event_id(verdict.event_id, access, verdict.time)
    # Nothing happened after it was reported: where a clock is ahead, its accesses would not find their decisions.
    time = min(verdict.time, at)
    return AccessEvent(access, time, at, id_, what, denied, shorten(why, WHAT_CHARACTERS), verdict.decision_id)


def _access(system: str, request: Verdict | Requested) -> bytes:
    """The access id of what was requested or done."""
    subject, resource = request.subject, request.resource
    whole = Resource(resource.type, resource.id, resource.properties)
    return access_id(Request("", system, Subject(subject.type, subject.id), Action(request.action.name), whole))


def _of_lifecycle(event: Lifecycle, at: int) -> KeyedInputs:
    """Groups and roles that are not trusted are left out already."""
    fact = derived_fact(event)
    if fact is None:
        return
    system, kind, name = fact
    if kind == SESSION:
        yield Key(SUBJECT, system, name), LoginEvent(event.time, event.groups, event.roles)
    else:
        yield Key(JOB, system, name), JobEvent(event.time, event.event == "job.started", at)


def _of_decision(decision: DecisionRecord, at: int) -> KeyedInputs:
    time, answers = min(_to_ms(decision.time), at), decision.answers  # a time that is claimed may lie ahead
    first, last = _given_between(decision.answered, time, at)
    outcomes = _given(decision, answers)
    asked: list[tuple[int, Answer, Requested, bytes]] = []
    allowed: set[bytes] = set()
    for number, answer in enumerate(answers):
        request = requested(answer)
        if request is not None:
            access = _access(decision.system, request)
            asked.append((number, answer, request, access))
            if outcomes[number] == "allow":
                allowed.add(access)
    for number, answer, request, access in asked:
        id_ = decision.id if not decision.evaluations else f"{decision.id}/{number}"
        key = Key(SUBJECT, decision.system, request.subject.id)
        # An access that names a batch rests on the item that allowed it, if one did.
        denials = () if access in allowed else (decision.id,)
        yield key, DecisionEvent(access, outcomes[number] == "allow", first, last, denials)
        for occurred in _occurrences(id_, answer, request, time, at):
            yield key, occurred
    if decision.answered is not None:
        yield from _of_answer(decision, decision.answered, asked[0][2] if asked else None, time, at)


def _given(decision: DecisionRecord, answers: Sequence[Answer]) -> list[Outcome]:
    """The outcome that the subject got, of each part: of what was answered elsewhere, that answer.

    An allow counts only where the job, if it could verify the answer, allows the same; of a misdated answer, which it
    decides at the record's time, at the answer's.
    """
    answered, own = decision.answered, [answer.outcome for answer in answers]
    if answered is None:
        return own
    items = [item.outcome for item in answered.evaluations] if decision.evaluations else [answered.outcome]
    if not answered.verified or (answered.misdated and answered.agrees):
        return items if len(items) == len(own) else own
    if not items and answered.outcome != "error":
        return own  # the record says nothing of the items
    unanswered: list[Outcome] = ["error"] * (len(own) - len(items))
    return [mine if got == "allow" else got for mine, got in zip(own, items + unanswered, strict=False)]


def _given_between(answered: Answered | None, time: int, at: int) -> tuple[int, int]:
    """The moments (ms) between which the answer was given that is decided at `time`. `at`: of its record.

    Of the job: a request may have waited for it through a stop, and its subject acts when the answer is there. Of
    others: the record of a misdated one may have waited for Kafka, and its subject acted meanwhile.
    """
    if answered is None:
        return time, at
    if not answered.misdated or answered.time is None:
        return time, time
    return min(to_ms(answered.time), time), time


def _of_answer(
    decision: DecisionRecord, answered: Answered, request: Requested | None, time: int, at: int
) -> KeyedInputs:
    """What is wrong with an answer. It is about the server that gave it."""
    # An error protects: a server gives it where it cannot decide.
    contradicted = answered.verified and not answered.agrees and answered.outcome != "error"
    faults = (
        (AlertKind.ANSWER_CONTRADICTED, contradicted),
        (AlertKind.ANSWER_STALE, answered.stale),
        (AlertKind.ANSWER_MISDATED, answered.misdated),
    )
    about = _what(request) if request is not None else "a request"
    what = f"{about}: answered {answered.outcome}, decided {decision.context.outcome} (decision {decision.id})"
    for kind, holds in faults:
        if holds:
            yield Key(SERVER, decision.system, answered.by), CountedEvent(kind, time, at, decision.id, what)


def _occurrences(id_: str, answer: Answer, request: Requested, time: int, at: int) -> Iterator[CountedEvent]:
    what = _what(request)
    if answer.outcome == "deny":
        yield CountedEvent(AlertKind.DENIAL_BURST, time, at, id_, what)
    for reason in answer.reasons:
        if reason.code == AlertKind.FACT_CONTRADICTION:
            yield CountedEvent(
                AlertKind.FACT_CONTRADICTION, time, at, id_, f"{what}: {shorten(reason.message, WHAT_CHARACTERS)}"
            )


def _what(request: Verdict | Requested) -> str:
    """What was requested or done, for people; bounded, since the state holds it."""
    return f"{shorten(request.action.name, WHAT_CHARACTERS)} on {shorten(request.resource.id, WHAT_CHARACTERS)}"


def merge_decided(inputs: list[Input], window: int) -> list[Input]:
    """The inputs with decisions of the same access and outcome merged where they are within a window (ms)."""
    merged: dict[tuple[bytes, bool], DecisionEvent] = {}
    others: list[Input] = []
    for input_ in inputs:
        if not isinstance(input_, DecisionEvent):
            others.append(input_)
            continue
        earlier = merged.get((input_.access, input_.allowed))
        if earlier is not None and (input_.first - earlier.last > window or earlier.first - input_.last > window):
            others.append(earlier)
            earlier = None
        merged[input_.access, input_.allowed] = input_ if earlier is None else _one(earlier, input_)
    return [*merged.values(), *others]


def _one(earlier: DecisionEvent, later: DecisionEvent) -> DecisionEvent:
    first, last = min(earlier.first, later.first), max(earlier.last, later.last)
    ids = (earlier.ids + later.ids)[-DENIALS_HELD:]  # of 20,000 denials of one access all took two thirds of a second
    return DecisionEvent(earlier.access, earlier.allowed, first, last, ids)


def _in_buckets(by_key: dict[Key, list[Input]], window: int) -> dict[int, InputsByKey]:
    """The same by bucket, and an empty bucket by which the watermark advances."""
    buckets: dict[int, InputsByKey] = {NO_BUCKET: {}}
    events = by_key.pop(EVERY_KEY, [])
    unread = [event for event in events if isinstance(event, UnreadEvent)]
    if events:
        newest = [max(unread, key=lambda event: event.at)] if unread else []
        of_all_keys = [event for event in events if not isinstance(event, UnreadEvent)] + newest
        buckets |= {bucket: {str(EVERY_KEY): of_all_keys} for bucket in range(BUCKETS)}
    for key, inputs in by_key.items():
        buckets.setdefault(bucket_of(key), {})[str(key)] = merge_decided(inputs, window)
    return buckets


def _to_arrow(buckets: dict[int, list[bytes]], reached: int) -> pa.RecordBatch:
    numbers = pa.array(list(buckets), pa.int32())
    # How far time goes on by this batch, and no record's own: an older one might be late, and Spark would drop it.
    at = pa.array([reached * 1000] * len(buckets), pa.timestamp("us", "UTC"))
    cells = pa.array(list(buckets.values()), pa.list_(pa.binary()))
    return pa.RecordBatch.from_arrays([numbers, at, cells], ["bucket", "at", "inputs"])


TAIL = 20  # offsets, among which a partition's newest record is; many are markers of transactions
PROPERTY = "lockkeeper.monitor.times"  # of Spark's jobs, which pass it on to their tasks


class Times(NamedTuple):
    """The times of a batch, ms.

    `least`: time has advanced so far already, or does so in any case; `most`: every partition is read up to there with
    this batch. `until`: what became known later is held back. Infinite: every partition is read to its end.
    """

    least: int
    most: float
    until: float

    def reached(self, newest: int) -> int:
        """How far time advances by a batch whose newest record this is; never back, or Spark would drop records.

        Not beyond this machine's clock: a record that is dated ahead would end all waiting until then.
        """
        return max(int(min(newest, self.most, latest_time())), self.least)


def latest_time() -> float:
    """The latest time (ms) that a record may have by this machine's clock."""
    return time.time() * 1000 + ANSWER_SKEW_MS


def send_times(spark: SparkSession, times: Times) -> None:
    """Have the tasks of the jobs that this thread starts receive them."""
    spark.sparkContext.setLocalProperty(PROPERTY, " ".join(map(str, times)))


def received_times() -> Times:
    """What was sent, in a task of such a job."""
    context = TaskContext.get()
    least, most, until = str(context and context.getLocalProperty(PROPERTY)).split()
    return Times(int(least), float(most), float(until))


class Alignment:
    """Looks beyond the ends of batches."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._admin = admin
        self._timestamps = TimestampReader(settings)
        self._behind = True  # not known yet

    def times(self, ends: Mapping[Partition, int]) -> Times:
        """How far every partition is read by a batch with these ends. Raises KafkaException and TimeoutError."""
        stable = last_stable_offsets(self._admin, ends)
        unread = {partition: end for partition, end in ends.items() if end < stable[partition]}
        until = min(self._timestamps.read(unread), default=math.inf) - 1
        was_behind, self._behind = self._behind, until < math.inf
        caught_up = was_behind and not self._behind
        return Times(int(min(self._newest(ends), latest_time())) if caught_up else 0, until, until)

    def _newest(self, ends: Mapping[Partition, int]) -> int:
        """The newest time below the ends: a batch before may have read it ahead of others."""
        first = first_offsets(self._admin, ends)
        starts = {partition: max(end - TAIL, first[partition]) for partition, end in ends.items()}
        return max(self._timestamps.read(starts, ends), default=0)

    def close(self) -> None:
        """Leave Kafka."""
        self._timestamps.close()
