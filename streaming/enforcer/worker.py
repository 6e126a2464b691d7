"""The part of a request's path that runs in Spark's Python workers: filter, decode, decide, encode, pack."""

import bisect
import collections
import functools
import gc
import itertools
import pickle
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.core.broadcast import Broadcast

from policy import FactChange, FactOverlay, Snapshot, all_systems, together
from policy.evaluation import Lookup
from streaming.commit.evaluation import SCHEMA, Decided, SideOutput, known_cell
from streaming.enforcer.answered import AnsweredEvaluator, EvaluatorAtOffsets
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EncodedEvaluator, EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.facts_at import FactsAt
from streaming.enforcer.pending_facts import FactReads, PendingFacts
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

ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000  # Python's 700 took half of the time of a batch
TASKS_BETWEEN_COLLECTIONS = 100
DRAINED_BYTES = 256 << 20  # of what a task does not decide; a worker that leaves more is not used again
LOOKUPS_HELD = 50_000  # of facts that have changed; an evaluator that is further behind starts with empty caches
OFFSETS_COUNTED = 10_000  # different ones that answers of an Arrow batch name, and no snapshot is held of …
OFFSETS_REPORTED = 256  # … and of these, those that most of them name
EVALUATORS_HELD = 8  # of policies and facts that are not the newest
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
        _set_caches_aside()

    def _begin(self, records: Records) -> Usage:
        """The usage of the task's budget, from now on: without what the first task of a process has to prepare."""
        self._newest_evaluator()
        _snapshots.keep({number for _, _, number in self._task.snapshots})
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
        return _one_by_one(evaluator.evaluate, fitting_records, evaluator.counts, usage), evaluator.counts

    def _pack(self, number: int, batch: ColumnarBatch, records: Records) -> bytes:
        usual: Headers = [content_type(self._task.formats.output)] if number == DECISIONS else JSON_HEADERS
        return pack(self._task.topics[number], usual, batch, records.offsets)

    def _decide(self, source: Source, reader: Reader, records: Records, usage: Usage) -> tuple[Packed, Counts]:
        task, evaluator = self._task, self._for_partition(self._newest_evaluator(), source, reader)
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
        self, system: str, offsets: bytes, named: ResolvedOffsets, change: int, facts: "HeldFacts"
    ) -> Evaluator:
        """The evaluator of the newest policies and facts as a rule, else one that is kept in this process."""
        task, past = self._task, facts.past
        assert past is not None
        newest = named.number == task.snapshots[-1][2]
        if newest and (change == NO_FACTS or change == past.newest_of(system, task.facts_offset)):
            return self._newest_evaluator()
        key = (offsets, system if change != NO_FACTS else "", change)
        evaluator = _at_offsets.get(key)
        if evaluator is None:
            snapshot = self._snapshot_of(named)
            if change != NO_FACTS:
                snapshot = snapshot.with_facts(past.at(change))
            evaluator = _at_offsets[key] = Evaluator(snapshot, task.limits)
        _at_offsets.move_to_end(key)
        while len(_at_offsets) > EVALUATORS_HELD:
            _at_offsets.popitem(last=False)
        return evaluator

    def _snapshot_of(self, named: ResolvedOffsets) -> Snapshot:
        if named.number < 0:
            return self._rebuilt[named.rebuilt].value
        numbers = [number for _, _, number in self._task.snapshots]
        return self._policies(numbers.index(named.number)).value

    def _for_partition(self, evaluator: Evaluator, source: Source, reader: Reader) -> PartitionEvaluator:
        return evaluator.for_partition(source, self._context(evaluator), reader)

    def _context(self, evaluator: Evaluator) -> EvaluationContext:
        task, version = self._task, evaluator.snapshot.version
        return EvaluationContext(version, task.policy_offsets, task.facts_offset, task.read, task.now, task.enforced)

    def _held_facts(self) -> "HeldFacts":
        return _facts_of(self._task.facts, self._facts, keep=bool(self._task.facts_topic))

    def _newest_evaluator(self) -> Evaluator:
        index = len(self._snapshots) - 1
        facts = self._held_facts()
        number = self._task.snapshots[index][2]
        return _evaluator_of(number, facts, self._policies(index), self._task.limits, _evaluators)

    def _policies(self, index: int) -> "HasSnapshot":
        """A snapshot without facts; Broadcasts keep their value in this process once it was used."""
        segments, number = self._task.segments, self._task.snapshots[index][2]
        which = bisect.bisect_right(segments, number, key=lambda segment: segment.first) - 1
        if which < 0:
            return self._snapshots[index]
        return HeldSnapshot(number, segments[which], self._snapshots[index], self._changes[which])

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
            answers = self._audited[index, trust] = self._answers_of(index, trust)
        return answers

    def _answers_of(self, index: int, trust: frozenset[str]) -> AuditAnswers:
        """Those of the policies of a span of time, with the facts that are known now; kept in this process."""
        for key in [key for key in _audited if key[0] not in self._since]:
            del _audited[key]
        facts, key = self._held_facts(), (self._since[index], trust)
        policies = self._policies(index).value  # the same object as long as this process holds the snapshot
        held = _audited.get(key)
        changed = facts.changed_since(held.applied) if held and held.base == facts.base else None
        if held is None or changed is None or held.policies is not policies:
            answers = AuditAnswers(policies, trust, facts=facts.overlay)
            held = _audited[key] = HeldAuditAnswers(answers, policies, facts.base, facts.applied)
        elif held.applied != facts.applied:
            held.answers.follow_facts(changed)
            held.applied = facts.applied
        return held.answers


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


_tasks = itertools.count(1)


def _set_caches_aside() -> None:
    """Spark collects garbage after each task, a quarter of the time, and the caches hold no cycles.

    What is there by then is left out of the search, but for one task of many: others may have left cycles.
    """
    if next(_tasks) % TASKS_BETWEEN_COLLECTIONS:
        gc.freeze()
    else:
        gc.unfreeze()


class HeldFacts:
    """The facts in this process: an overlay, and how many changes of it are applied.

    `changes`: the lookups whose answer they may change, the newest last, by system: see `changed_since`.
    `past`: the same facts at earlier offsets; None: no record names any.
    """

    def __init__(self, base: int, overlay: FactOverlay, past: FactsAt | None = None) -> None:
        self.base, self.overlay, self.applied, self.past = base, overlay, 0, past
        self._changes: collections.deque[tuple[int, str, Lookup]] = collections.deque()
        self._known_since = 0

    def follow(self, facts: Facts, parts: "Sequence[Broadcast[Any]]") -> None:
        """Apply the changes that are not applied yet; never back: an older batch is over."""
        for start, part in zip(facts.starts, parts[1:], strict=True):
            if start + len(part.value) > self.applied:
                self._apply(start, part.value)
        self._apply(facts.tail_start, facts.tail)

    def _apply(self, start: int, changes: Sequence[FactChange]) -> None:
        if self.past is not None:
            self.past.follow(start, changes)
        for number, change in enumerate(changes[max(self.applied - start, 0) :], max(self.applied, start)):
            self._changes.extend((number, change.key.system, lookup) for lookup in self.overlay.apply(change))
        self.applied = max(self.applied, start + len(changes))
        while len(self._changes) > LOOKUPS_HELD:
            self._known_since = self._changes.popleft()[0] + 1

    def changed_since(self, applied: int) -> list[tuple[str, Lookup]] | None:
        """The lookups that may have other answers than after so many changes; None: that is not known any more."""
        if applied < self._known_since:
            return None
        newer = itertools.takewhile(lambda change: change[0] >= applied, reversed(self._changes))
        return [(system, lookup) for _, system, lookup in newer]


class HasSnapshot(Protocol):
    """A snapshot without facts, on demand: a broadcast of it, or what it is built from."""

    @property
    def value(self) -> Snapshot:
        """The snapshot."""


class HeldSnapshots:
    """The snapshots of one run that this process has, by number."""

    def __init__(self) -> None:
        self._run = -1
        self._held: dict[int, Snapshot] = {}

    def keep(self, numbers: Container[int]) -> None:
        """Drop all but these, once the newest is there, which may be built from one that is no longer needed."""
        self._held = {number: snapshot for number, snapshot in self._held.items() if number in numbers}

    def nearest(self, segment: Segment, number: int) -> tuple[int, Snapshot] | None:
        """The newest that a later one of a segment can be built from."""
        if segment.run != self._run:
            self._run, self._held = segment.run, {}
        first = segment.first - (segment.bridge is not None)
        base = max((candidate for candidate in self._held if first <= candidate <= number), default=None)
        return None if base is None else (base, self._held[base])

    def put(self, number: int, snapshot: Snapshot) -> None:
        """Keep a snapshot."""
        self._held[number] = snapshot


class HeldSnapshot:
    """A snapshot of a segment. It is built from the nearest one before it that this process has."""

    def __init__(
        self,
        number: int,
        segment: Segment,
        base: "Broadcast[Snapshot]",
        changes: "Broadcast[tuple[bytes, ...]] | None",
    ) -> None:
        self._number, self._segment, self._base, self._changes = number, segment, base, changes

    @property
    def value(self) -> Snapshot:
        """The snapshot."""
        start = _snapshots.nearest(self._segment, self._number)
        number, snapshot = start or (self._segment.first, self._base.value)
        changes = [pickle.loads(change) for change in self._between(number, self._number)]
        if changes:
            snapshot = snapshot.with_change(together(changes))
        _snapshots.put(self._number, snapshot)
        return snapshot

    def _between(self, number: int, last: int) -> Sequence[bytes]:
        """The changes after a snapshot up to the one with the number ``last``."""
        segment, first = self._segment, self._segment.first
        bridge = () if segment.bridge is None else (segment.bridge,)
        start, end = number - first + len(bridge), last - first + len(bridge)
        sent = () if self._changes is None or start == end else self._changes.value
        return (*bridge, *sent, *segment.tail)[start:end]


class HeldEvaluator(msgspec.Struct):
    """An evaluator, and how many changes of the facts it has applied."""

    evaluator: Evaluator
    applied: int


class HeldAuditAnswers(msgspec.Struct):
    """Answers to audit events by these policies, and how many changes of which facts they have seen."""

    answers: AuditAnswers
    policies: Snapshot
    base: int
    applied: int


_audited: dict[tuple[int, frozenset[str]], HeldAuditAnswers] = {}
"""By since when their policies were in force, and by the trust of the producers."""

_at_offsets: collections.OrderedDict[tuple[bytes, str, int], Evaluator] = collections.OrderedDict()
"""By the JSON of policy offsets, the system, and the offset of the newest of its facts."""

_facts: dict[int, HeldFacts] = {}
_snapshots = HeldSnapshots()
_evaluators: dict[tuple[int, int], HeldEvaluator] = {}
"""The evaluator of the newest policies that this process has seen, with its caches. At most one.

By the numbers of the snapshot and of the layer of facts.
"""


def _facts_of(facts: Facts, broadcasts: "Sequence[Broadcast[Any]]", keep: bool = False) -> HeldFacts:
    """`keep`: also what they were at earlier offsets of this layer."""
    overlay = _facts.get(facts.base)
    if overlay is None:
        _facts.clear()
        layer: FactOverlay = broadcasts[0].value
        past = FactsAt(layer.copy(), facts.since) if keep else None
        overlay = _facts[facts.base] = HeldFacts(facts.base, layer, past)
    overlay.follow(facts, broadcasts)
    return overlay


def _evaluator_of(
    number: int,
    facts: HeldFacts,
    snapshot: "HasSnapshot",
    limits: Limits,
    evaluators: dict[tuple[int, int], HeldEvaluator],
) -> Evaluator:
    """The evaluator of a snapshot with the current facts. It keeps the answers that no change of them affects."""
    entry = evaluators.get((number, facts.base))
    if entry is not None and entry.applied == facts.applied:
        return entry.evaluator
    now = snapshot.value.with_facts(facts.overlay)
    entry = entry or next((evaluator for (_, base), evaluator in evaluators.items() if base == facts.base), None)
    changed = facts.changed_since(entry.applied) if entry else None
    if entry is not None and changed is not None:
        evaluators.clear()
        entry.evaluator.follow(now, changed)
        entry.applied = facts.applied
        evaluators[number, facts.base] = entry
    else:
        evaluators.clear()
        entry = evaluators[number, facts.base] = HeldEvaluator(Evaluator(now, limits), facts.applied)
        # Snapshot and caches hold no cycles: to search them for some again and again takes half of the time.
        gc.freeze()
        gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    return entry.evaluator
