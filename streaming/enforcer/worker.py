"""The part of a request's path that runs in Spark's Python workers: filter, decode, decide, encode, pack."""

import bisect
import collections
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.core.broadcast import Broadcast

from policy import Snapshot, all_systems
from streaming.commit.evaluation import SCHEMA, Decided, SideOutput, known_cell
from streaming.enforcer.answered import AnsweredEvaluator, EvaluatorAtOffsets
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EncodedEvaluator, EvaluationContext, Evaluator, Source
from streaming.enforcer.facts_at import FactsAt
from streaming.enforcer.pending_facts import FactReads, PendingFacts
from streaming.enforcer.process_cache import CACHE, HeldFacts, freeze_caches
from streaming.enforcer.ranges import Budget, Decide, Usage
from streaming.enforcer.source import Records
from streaming.kafka.clients import Partition
from streaming.ops.tally import DEAD, Counts, no_counts, tally
from streaming.records.avro import Reader
from streaming.records.dead_letter import Rejection, hashed_dead_letter
from streaming.records.formats import JSON_HEADERS, Formats, Headers, content_type
from streaming.records.packing import DECISIONS, ColumnarBatch, Outgoing, Packed, pack
from streaming.records.size_gate import TooLarge, fits, record_size
from streaming.settings import Limits
from streaming.snapshots.broadcasts import Facts, Segment
from streaming.snapshots.named_offsets import ResolvedOffsets

DRAINED_BYTES = 256 << 20  # of what a task does not decide; a worker that leaves more is not used again
OFFSETS_COUNTED = 10_000  # different ones that answers of an Arrow batch name, and no snapshot is held of …
OFFSETS_REPORTED = 256  # … and of these, those that most of them name
NO_FACTS = -2  # in place of an offset: the system has no facts
MOMENTS_REPORTED = 1000  # of an Arrow batch; when snapshots of these are there, others follow

_encode = msgspec.msgpack.Encoder().encode


class Outputs(msgspec.Struct, frozen=True):
    """The numbers of the outputs for the records of an input topic. `verdicts` None: they are requests.

    `answered`: they were answered elsewhere.
    """

    dead_letters: int
    verdicts: int | None = None
    answered: bool = False


class Task(msgspec.Struct, frozen=True):
    """What the workers of one batch need beside the snapshots. Plain data, the same for every worker.

    `topics`: the batch's output topics, by number. `outputs`: by input topic, the numbers of its own. `read`: the
    newest offset read of every documents' topic; `policy_offsets`: the same without the facts. `snapshots`: since when
    (ms) and until when each of the snapshots in the broadcasts was in force, and which of this run's it is, oldest
    first; the last one is in force. `segments`: how those of the present follow one another. `facts`: what is known
    beside the policies. `now`: the driver's clock, ms. `enforced`: whether clients must act on the decisions.
    `budgets`: of the tasks, by partition. `named`: the snapshots at the policy offsets that answered records name, by
    their JSON. `policy_topics`: by system. `facts_topic`: its name; "": there are no answered records. `answer_skew`:
    see `ANSWER_SKEW_MS`. `pending`: derived facts that are not on the facts topic yet; None: the monitor, which derives
    them, is off.
    """

    topics: Sequence[str]
    committed: Mapping[Partition, int]
    budgets: Mapping[Partition, Budget]
    topic_ids: Mapping[str, str]
    trust: Mapping[str, frozenset[str]]
    outputs: Mapping[str, "Outputs"]
    read: Mapping[str, Mapping[str, int]]
    policy_offsets: Mapping[str, Mapping[str, int]]
    facts_offset: int
    snapshots: tuple[tuple[int, int | None, int], ...]
    facts: Facts
    now: int
    limits: Limits
    formats: Formats
    enforced: bool
    segments: tuple[Segment, ...] = ()
    named: Mapping[bytes, ResolvedOffsets] = {}
    policy_topics: Mapping[str, str] = {}
    facts_topic: str = ""
    answer_skew: int = 0
    pending: PendingFacts | None = None


class Worker:
    """Called by Spark with the Arrow batches of one task, which all come from one partition of one topic."""

    def __init__(
        self,
        task: Task,
        snapshots: "Sequence[Broadcast[Snapshot]]",
        facts: "Sequence[Broadcast[Any]]",
        changes: "Sequence[Broadcast[tuple[bytes, ...]] | None]" = (),
        rebuilt: "Sequence[Broadcast[Snapshot]]" = (),
    ) -> None:
        self._task, self._rebuilt = task, tuple(rebuilt)
        self._snapshots, self._facts = tuple(snapshots), tuple(facts)
        self._changes = tuple(changes)
        self._lessons = b""  # of an Arrow batch, for Java
        self._moments: set[int] = set()  # of which no snapshot is held
        self._unknown: collections.Counter[bytes] = collections.Counter()  # offsets of which none is held
        self._since = [since for since, _, _ in task.snapshots]
        self._audited: dict[tuple[int, frozenset[str]], AuditAnswers] = {}  # by the index of the snapshot
        self._pending: PendingFacts | None = None  # with what this task passes on

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows for each Arrow batch that has any records to decide: packed columnar batches, and its side output.

        Until the task's budget is used up.
        """
        usage = None
        pending = self._task.pending
        self._pending = None if pending is None else pending.copy()
        for batch in batches:
            records = self._undecided(batch)
            if records is not None:
                usage = usage or self._begin(records)
                usage.resume()
                packed, side_output = self._evaluate(records, usage)
                ends = known_cell(side_output.decided, self._lessons)
                usage.pause()
                nothing = [None] * (len(packed) - 1)
                columns = (
                    pa.array(cells, pa.binary())
                    for cells in (packed, [*nothing, _encode(side_output)], [*nothing, ends])
                )
                yield pa.RecordBatch.from_arrays(list(columns), SCHEMA.fieldNames())
                if side_output.decided.stopped:
                    _drain(batches)
                    break
        freeze_caches()

    def _begin(self, records: Records) -> Usage:
        """The usage of the task's budget, from now on: without what the first task of a process has to prepare."""
        self._newest_evaluator()
        CACHE.snapshots.keep({number for _, _, number in self._task.snapshots})
        return Usage(self._task.budgets[records.topic, records.partition])

    def _undecided(self, batch: pa.RecordBatch) -> Records | None:
        """Exactly once, rule 2: a record is decided if and only if its offset is at or above the committed one."""
        if not batch.num_rows:
            return None
        records = Records(batch)
        undecided = records.offsets >= self._task.committed.get((records.topic, records.partition), 0)
        if undecided.all():
            return records
        return Records(batch.filter(pa.array(undecided))) if undecided.any() else None

    def _evaluate(self, records: Records, usage: Usage) -> tuple[list[bytes | None], SideOutput]:
        """The first of these, as far as the budget goes, as packed columnar batches, with their side output."""
        outputs, reader = self._task.outputs[records.topic], Reader(self._task.formats)
        self._moments.clear()
        self._unknown.clear()
        self._lessons = b""
        facts = None if self._pending is None else FactReads(self._pending)
        made, counts = self._make(records, reader, usage, facts)
        count = made.decided or 0
        counts[DEAD] += replace_too_large(made, records, outputs.dead_letters, self._task.limits.record_out)
        headers = itertools.islice(records.some_headers(), count)
        counted = tally(records.topic, self._task.now, counts, records.times[:count], headers)
        packed: list[bytes | None] = [self._pack(number, batch, records) for number, batch in made.batches()]
        usage.records += count
        usage.bytes += sum(len(batch_bytes or b"") for batch_bytes in packed[: len(made.columnar)])
        decided = _decided(records, count, usage)
        offsets = [text for text, _ in self._unknown.most_common(OFFSETS_REPORTED)]
        moments = sorted(self._moments)
        noted = ([], []) if facts is None else (list(facts.passed_on), list(facts.newest.items()))
        side_output = SideOutput(counted, sorted(reader.needed), moments, decided, offsets, *noted)
        return packed or [None], side_output

    def _make(self, records: Records, reader: Reader, usage: Usage, facts: FactReads | None) -> tuple[Packed, Counts]:
        """What is to be written for the first of these, as far as the budget goes, and its counts."""
        fitting = usage.fitting(records.sizes)
        if not fitting:
            return Packed([], [], None, 0), no_counts()
        topic, task, fitting_records = records.topic, self._task, records.head(fitting)
        outputs = task.outputs[topic]
        source = Source(topic, records.partition, task.topic_ids[topic], task.trust[topic], outputs.dead_letters)
        if outputs.answered:
            return self._decide_again(source, reader, fitting_records, usage)
        if outputs.verdicts is None:
            return self._decide(source, reader, fitting_records, usage)
        answers_at = functools.partial(self._answers_at, source.trust)
        evaluator = AuditEvaluator(source, outputs.verdicts, answers_at, task.limits, reader, facts)
        return _one_by_one(evaluator.decide, fitting_records, evaluator.counts, usage), evaluator.counts

    def _pack(self, number: int, batch: ColumnarBatch, records: Records) -> bytes:
        usual: Headers = [content_type(self._task.formats.output)] if number == DECISIONS else JSON_HEADERS
        return pack(self._task.topics[number], usual, batch, records.offsets)

    def _decide(self, source: Source, reader: Reader, records: Records, usage: Usage) -> tuple[Packed, Counts]:
        task, newest = self._task, self._newest_evaluator()
        evaluator = newest.for_partition(source, self._context(newest), reader)
        if task.formats.output == "json":
            outputs = evaluator.decide_all(records, usage)
            self._lessons = evaluator.lessons.encode()
            return outputs, evaluator.counts
        encoded = EncodedEvaluator(evaluator, source, task.limits, task.formats)
        return _one_by_one(encoded.decide, records, evaluator.counts, usage), evaluator.counts

    def _decide_again(self, source: Source, reader: Reader, records: Records, usage: Usage) -> tuple[Packed, Counts]:
        task, newest = self._task, self._newest_evaluator()
        facts_topic, skew = task.facts_topic, task.answer_skew
        again = AnsweredEvaluator(newest, self._at_offsets, source, self._context(newest), facts_topic, skew, reader)
        decide: Decide = again.decide
        if task.formats.output != "json":
            decide = EncodedEvaluator(again, source, task.limits, task.formats).decide
        return _one_by_one(decide, records, again.counts, usage), again.counts

    def _at_offsets(self, system: str, offsets: bytes, facts_offset: int) -> EvaluatorAtOffsets | None:
        """The evaluator of a system at these policy offsets (JSON) and this offset of the facts; None: not known."""
        named = self._task.named.get(offsets)
        if named is None:
            if len(self._unknown) < OFFSETS_COUNTED or offsets in self._unknown:
                self._unknown[offsets] += 1
            return None
        facts, definition = self._held_facts(), all_systems().get(system)
        assert facts.past is not None
        if facts_offset > self._task.facts_offset:
            return None
        has_facts = definition is not None and definition.has_facts
        change = facts.past.newest_of(system, facts_offset) if has_facts else NO_FACTS
        if change is None:
            return None
        evaluator = self._evaluator_at(system, offsets, named, change, facts)
        times = [named.superseded.get(self._task.policy_topics.get(system, ""))]
        times.append(facts.past.superseded(system, facts_offset) if has_facts else None)
        looks_back = definition is not None and any(kind.point_in_time for kind in definition.kinds.values())
        exact = named.number >= 0 or not looks_back
        return EvaluatorAtOffsets(evaluator, min((at for at in times if at is not None), default=None), exact)

    def _evaluator_at(
        self, system: str, offsets: bytes, named: ResolvedOffsets, change: int, facts: HeldFacts
    ) -> Evaluator:
        """The evaluator of the newest policies and facts as a rule, else one that is kept in this process."""
        task, past = self._task, facts.past
        assert past is not None
        newest = named.number == task.snapshots[-1][2]
        if newest and (change == NO_FACTS or change == past.newest_of(system, task.facts_offset)):
            return self._newest_evaluator()
        key = (offsets, system if change != NO_FACTS else "", change)
        return CACHE.evaluator_at(key, lambda: Evaluator(self._snapshot_at(named, change, past), task.limits))

    def _snapshot_at(self, named: ResolvedOffsets, change: int, past: FactsAt) -> Snapshot:
        snapshot = self._snapshot_of(named)
        return snapshot if change == NO_FACTS else snapshot.with_facts(past.at(change))

    def _snapshot_of(self, named: ResolvedOffsets) -> Snapshot:
        if named.number < 0:
            return self._rebuilt[named.rebuilt].value
        numbers = [number for _, _, number in self._task.snapshots]
        return self._policies(numbers.index(named.number))

    def _context(self, evaluator: Evaluator) -> EvaluationContext:
        task, version = self._task, evaluator.snapshot.version
        return EvaluationContext(version, task.policy_offsets, task.facts_offset, task.read, task.now, task.enforced)

    def _held_facts(self) -> HeldFacts:
        return CACHE.facts_of(self._task.facts, self._facts, keep=bool(self._task.facts_topic))

    def _newest_evaluator(self) -> Evaluator:
        index = len(self._snapshots) - 1
        number, policies = self._task.snapshots[index][2], functools.partial(self._policies, index)
        return CACHE.evaluator.get(number, self._held_facts(), policies, self._task.limits)

    def _policies(self, index: int) -> Snapshot:
        """A snapshot without facts; Broadcasts keep their value in this process once it was used."""
        segments, number = self._task.segments, self._task.snapshots[index][2]
        which = bisect.bisect_right(segments, number, key=lambda segment: segment.first) - 1
        if which < 0:
            return self._snapshots[index].value
        return CACHE.snapshots.get(number, segments[which], self._snapshots[index], self._changes[which])

    def _answers_at(self, trust: frozenset[str], at: int) -> AuditAnswers | None:
        """Those of the policies in force at a moment (ms), the newest as a rule; None: it is older than all held."""
        index = bisect.bisect_right(self._since, at) - 1
        until = self._task.snapshots[index][1]
        if index < 0 or (until is not None and at >= until):
            if len(self._moments) < MOMENTS_REPORTED:
                self._moments.add(at)
            return None
        answers = self._audited.get((index, trust))
        if answers is None:
            # By the policies of a span of time, with the facts that are known now.
            answers = CACHE.audit_answers(self._since, index, trust, self._policies(index), self._held_facts())
            self._audited[index, trust] = answers
        return answers


def replace_too_large(outputs: Packed, records: Records, dead_letters: int, limit: int) -> int:
    """The last gate: in place of each record that is too large for Kafka a dead letter with hashes. Returns how many.

    Decisions in columns are never too large: requests and answers are bounded before.
    """
    sizes = [record_size(key, value, headers) for _, key, value, headers in outputs.others]
    beyond = [number for number, size in enumerate(sizes) if not fits(size, limit)]
    for number in beyond:
        position = number if outputs.positions is None else outputs.positions[number]
        [(key, value, _, offset, _)] = records.rows(np.array([position]))
        refusal = TooLarge("the record to write", sizes[number], limit)
        rejection = Rejection(records.topic, records.partition, offset, refusal)
        outputs.others[number] = (dead_letters, *hashed_dead_letter(rejection, key, value))
    return len(beyond)


def _one_by_one(decide: Decide, records: Records, counts: Counts, usage: Usage) -> Packed:
    outgoing: list[Outgoing] = []
    for row, size in zip(records.rows(), records.sizes.tolist(), strict=True):
        record = usage.decide(decide, row, size, counts, first=not outgoing)
        if record is None:
            break
        outgoing.append(record)
    return Packed([], outgoing, None, len(outgoing))


def _decided(records: Records, count: int, usage: Usage) -> Decided:
    """What a task has decided: the first ``count`` of these records."""
    stopped = count < len(records)
    end = int(records.offsets[count]) if stopped else int(records.offsets[-1]) + 1
    return Decided(records.partition, int(records.offsets[0]), end, stopped, usage.share)


def _drain(batches: Iterator[pa.RecordBatch]) -> None:
    """Read what is left of a task: a worker that has read its input to the end is used again, with all that it holds.

    What is far more costs longer than another worker.
    """
    read = 0
    for batch in batches:
        read += batch.nbytes
        if read > DRAINED_BYTES:
            return
