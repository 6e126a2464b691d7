"""Requests looked at again: who was denied what, and which statements decide when they are asked once more."""

import hashlib
import operator
from collections.abc import Collection, Iterable, Mapping

import msgspec

from policy import OUTCOMES, Batch, MalformedRequest, Outcome, Request, Snapshot, StatementId, decode_request
from policy.analysis import question_of, uses
from streaming.enforcer.answers import TIME
from streaming.enforcer.requests import with_time
from streaming.history.ranges import Range, widen
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import Partition
from streaming.records.answered import read_answer
from streaming.records.decision import DecisionRecord, Place
from streaming.report.untrusted import BoundedCounter, Ranking, shortened

CHUNK = 1 << 16  # offsets
MOST_CHUNKS = 1 << 10  # 64 MiB, for 67 million requests
MOST_ITEMS = 1_000_000  # evaluations of batches
BATCH = len(OUTCOMES) + 1
CODES: Mapping[Outcome, int] = {outcome: number for number, outcome in enumerate(OUTCOMES, 1)}


class AnswerIndex:
    """Remembers answers by the source (topic, partition, offset) of the request.

    ``topic_ids``: Kafka's ids of the request topics, which begin the ids of their decisions: offsets of a topic that
    was deleted and re-created since then, or of one that is no request topic any more, are not remembered.
    """

    def __init__(
        self, topic_ids: Mapping[str, str], most_chunks: int = MOST_CHUNKS, most_items: int = MOST_ITEMS
    ) -> None:
        self._topic_ids = topic_ids
        self._most_chunks, self._room = most_chunks, most_items
        self._chunks: dict[tuple[str, int, int], bytearray] = {}
        self._batches: dict[Place, bytes] = {}
        self._ranges: dict[Partition, Range] = {}

    def note(self, decision: DecisionRecord) -> None:
        """Remember how a request, or each evaluation of a batch, was answered."""
        source, items = decision.source, decision.evaluations
        code = BATCH if items else CODES[decision.context.outcome]
        topic_id = self._topic_ids.get(source.topic)
        if topic_id is None or not decision.id.startswith(f"{topic_id}-") or len(items) > self._room:
            return
        if (chunk := self._chunk(source)) is None:
            return
        chunk[source.offset % CHUNK] = code
        widen(self._ranges, source)
        if items:
            self._room -= len(items)
            self._batches[source] = bytes(CODES[item.context.outcome] for item in items)

    def _chunk(self, source: Place) -> bytearray | None:
        key = (source.topic, source.partition, source.offset // CHUNK)
        chunk = self._chunks.get(key)
        if chunk is None and len(self._chunks) < self._most_chunks:
            chunk = self._chunks[key] = bytearray(CHUNK)
        return chunk

    def of(self, source: Place) -> tuple[Outcome, ...]:
        """The answers to the request there: one, or those of a batch in order; none when there is no decision."""
        chunk = self._chunks.get((source.topic, source.partition, source.offset // CHUNK))
        code = chunk[source.offset % CHUNK] if chunk is not None else 0
        codes: Iterable[int] = self._batches.get(source, b"") if code == BATCH else (code,) if code else ()
        return tuple(OUTCOMES[number - 1] for number in codes)

    def ranges(self) -> dict[Partition, Range]:
        """Between which offsets the requests stand, by partition."""
        return dict(self._ranges)


RequestOrBatch = Request | Batch
MOST_COMBINATIONS = 20_000


class Combination(msgspec.Struct, frozen=True):
    """A subject, action and resource that was denied. ``first``: its first denial in the range, ms."""

    subject: str
    action: str
    resource: str
    count: int
    first: int


class DenialTotals(msgspec.Struct, frozen=True):
    """Who was denied most, and on what. ``answers``: how many denied ones were found among the requests.

    ``most``: the combinations of subject, action and resource that were denied most; ``newest``: those that were
    denied for the first time in the range most recently. ``combinations``: how many different ones, at most
    `MOST_COMBINATIONS`; ``uncounted``: denied answers beyond these.
    """

    answers: int
    subjects: Ranking
    resources: Ranking
    most: tuple[Combination, ...] = ()
    newest: tuple[Combination, ...] = ()
    combinations: int = 0
    uncounted: int = 0


class Combinations:
    """Denials by subject, action and resource: the first `MOST_COMBINATIONS` different ones, each with its count."""

    def __init__(self, most: int = MOST_COMBINATIONS) -> None:
        self._most = most
        self._found: dict[tuple[str, str, str], list[int]] = {}
        self._uncounted = 0

    def add(self, item: Request, at: int) -> None:
        """Count a denial of ``item``, whose record was written at ``at`` (ms)."""
        key = (shortened(item.subject.id), shortened(item.action.name), shortened(item.resource.id))
        if key not in self._found and len(self._found) >= self._most:
            self._uncounted += 1
            return
        counted = self._found.setdefault(key, [0, at])
        counted[0] += 1
        counted[1] = min(counted[1], at)

    def denied(self, answers: int, subjects: Ranking, resources: Ranking, top: int) -> DenialTotals:
        """The ``top`` most frequent and newest ones, with the two other rankings."""
        every = [Combination(*key, count, first) for key, (count, first) in self._found.items()]
        names = operator.attrgetter("subject", "action", "resource")
        most = sorted(every, key=lambda one: (-one.count, names(one)))[:top]
        newest = sorted(every, key=lambda one: (-one.first, names(one)))[:top]
        return DenialTotals(answers, subjects, resources, tuple(most), tuple(newest), len(every), self._uncounted)


class Replayed(msgspec.Struct, frozen=True):
    """How much was replayed: requests that are covered, of all that were decided; and different questions asked."""

    requests: int = 0
    covered: int = 0
    questions: int = 0

    @property
    def complete(self) -> bool:
        """Whether every decided request was asked again, or is the same as one that was."""
        return self.covered == self.requests


class Replay:
    """Asks decided requests once more, under the policies and facts in force now, the same question only once.

    ``most``: questions to ask at most; it bounds time (some 20 to 100 µs each) and memory (some 100 bytes each).
    ``matched``: every statement that decided one. ``alone``: those that once decided with no other beside them;
    ``beside``: for the others one that decided together with them.
    """

    def __init__(self, snapshot: Snapshot, most: int) -> None:
        self._snapshot, self._most = snapshot, most
        self._seen: set[bytes] = set()
        self._requests = self._covered = 0
        self.matched: set[StatementId] = set()
        self.alone: set[StatementId] = set()
        self.beside: dict[StatementId, StatementId] = {}

    def take(self, trust: frozenset[str], request: RequestOrBatch, at: int) -> None:
        """Ask a request again at a moment (ms) unless the same was asked, or too many were. ``trust``: what counts."""
        self._requests += 1
        query = self._query_hash(trust, request, at)
        if query not in self._seen:
            if len(self._seen) >= self._most:
                return
            self._seen.add(query)
            self._replay_request(with_time(request, at), trust)
        self._covered += 1

    def _query_hash(self, trust: frozenset[str], request: RequestOrBatch, at: int) -> bytes:
        """Everything that the answer depends on, as a hash."""
        policy_set = self._snapshot.policy_sets.get(request.system)
        epoch = policy_set.epoch(at) if policy_set is not None else 0
        semantic = request.semantic if isinstance(request, Batch) else ""
        items = [question_of(item, trust).key if isinstance(item, Request) else item.message for item in request.items]
        parts = (request.system, epoch, semantic, items)
        return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()

    def _replay_request(self, request: RequestOrBatch, trust: frozenset[str]) -> None:
        for use in uses(self._snapshot, request, trust | TIME):
            self.matched.update(use)
            if len(use) == 1:
                self.alone.update(use)
            else:
                first, second = use[:2]
                self.beside.setdefault(first, second)
                for statement_id in use[1:]:
                    self.beside.setdefault(statement_id, first)

    def result(self) -> Replayed:
        """How much was replayed."""
        return Replayed(self._requests, self._covered, len(self._seen))


class RequestAnalysis:
    """Takes the requests of the range one by one; those without a decision in the range are passed over.

    ``trust``: by request topic, what its producers may claim. ``answered``: the topics of requests that were answered
    elsewhere, each with the trust of its caller.
    """

    def __init__(
        self, answers: AnswerIndex, trust: Mapping[str, frozenset[str]], answered: Collection[str], replay: Replay
    ) -> None:
        self._answers, self._trust, self._answered, self._replay = answers, trust, frozenset(answered), replay
        self._subjects, self._resources = BoundedCounter(), BoundedCounter()
        self._combinations = Combinations()
        self._denied = 0

    def take(self, record: ConsumerRecord) -> None:
        """Look at one request record."""
        outcomes = self._answers.of(record.source)
        if not outcomes:
            return
        try:
            self._look(record, outcomes)
        except MalformedRequest:  # it was decided, so it was a request: of another encoding, or a re-created topic
            return

    def _look(self, record: ConsumerRecord, outcomes: tuple[Outcome, ...]) -> None:
        request = decode_request(record.value)
        trust, at = self._trust[record.topic], record.at
        if record.topic in self._answered:
            answer = read_answer(record.value)
            trust, at = answer.claims(trust), answer.decided_at(at)
        elif "time" in trust and request.time is not None:
            at = request.time
        self._replay.take(trust, request, at)
        if "deny" in outcomes:
            self._count(request, outcomes, record.at)

    def _count(self, request: RequestOrBatch, outcomes: tuple[Outcome, ...], at: int) -> None:
        for item, outcome in zip(request.items, outcomes, strict=False):  # a batch may have been answered in part
            if outcome == "deny" and isinstance(item, Request):
                self._denied += 1
                self._subjects.add(item.subject.id)
                self._resources.add(item.resource.id)
                self._combinations.add(item, at)

    def denied(self, top: int) -> DenialTotals:
        """Who was denied most, and on what."""
        rankings = (self._subjects.top(top), self._resources.top(top))
        return self._combinations.denied(self._denied, *rankings, top)
