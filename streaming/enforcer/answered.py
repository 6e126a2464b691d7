"""Decides again what was answered elsewhere, by the policies and facts that the answer names.

The decision is the job's own. Beside it stands the answer, and whether the two agree.
"""

from collections.abc import Callable

import msgspec

from policy import (
    NO_LONGER_KNOWN,
    Batch,
    Decision,
    Reason,
    Request,
    decode_request,
)
from streaming.enforcer.evaluator import (
    EvaluationContext,
    Evaluator,
    Given,
    PartitionEvaluator,
    RecordEvaluator,
    Source,
    given_of,
)
from streaming.ops.tally import AGREES, CONTRADICTS, UNVERIFIED, label
from streaming.records.answered import Answer, Findings, encode_findings, offsets_in, offsets_key, read_answer
from streaming.records.avro import Reader
from streaming.records.decision import to_json
from streaming.records.size_gate import check_size, record_size
from streaming.topics import Offsets

UNKNOWN = Reason(NO_LONGER_KNOWN, "the policies and facts at the offsets that the answer names are not known")


class EvaluatorAtOffsets(msgspec.Struct, frozen=True):
    """The evaluator of some offsets. `superseded`: when the first newer policy or fact of the system came, ms.

    `exact`: it knows all older versions of documents that the rules of the system may need.
    """

    evaluator: Evaluator
    superseded: int | None
    exact: bool


Find = Callable[[str, bytes, int], EvaluatorAtOffsets | None]
"""The evaluator for a system by the key of policy offsets and by the facts' offset; None: that is not known."""


class AnsweredEvaluator(RecordEvaluator):
    """Decides answered records of one partition in one batch. `newest`: the evaluator of the batch's other records.

    `context`: of the newest policies; `facts_topic`: its name; `skew`: how far an answer's time may lie from its
    record's, ms.
    """

    def __init__(
        self,
        newest: Evaluator,
        find: Find,
        source: Source,
        context: EvaluationContext,
        facts_topic: str,
        skew: int,
        reader: Reader,
    ) -> None:
        super().__init__(source, newest.limits)
        self._newest, self._find, self._reader = newest, find, reader
        self._facts_topic, self._skew, self._context = facts_topic, skew, msgspec.structs.replace(context, now=0)
        self._base = newest.for_partition(source, self._context, reader)
        self._partitions: dict[tuple[bytes, int, int, frozenset[str]], PartitionEvaluator] = {}
        self._offsets: dict[bytes, tuple[Offsets, bytes]] = {}

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        value = self._base.in_json(key, value)
        request = decode_request(value)
        answer = read_answer(value)
        claimed = answer.at
        misdated = abs(claimed - at) > self._skew
        moment = at if misdated else claimed
        partition, decision, findings = self._decided(request, value, answer, moment, misdated)
        record = _with_answer(partition, request, offset, moment, decision, answer, findings)
        if record_size(key, record) > self._limits.record_out:
            findings = Findings(verified=False, stale=findings.stale, misdated=findings.misdated)
            record = self._too_large(key, request, offset, moment, answer, findings)
        result = UNVERIFIED if not findings.verified else AGREES if findings.agrees else CONTRADICTS
        self.counts[label(request.system, result)] += 1
        return record

    def _decided(
        self, request: Request | Batch, value: bytes, answer: Answer, moment: int, misdated: bool
    ) -> tuple[PartitionEvaluator, Given, Findings]:
        """Which policies have decided the request, its decision, and what was found of the answer."""
        _, offsets = self._offsets_of(answer)  # raises what makes it a dead letter
        found = self._find(request.system, offsets, answer.facts_offset)
        stale = self._is_stale(answer, None if misdated or found is None else found.superseded)
        if found is None:
            return self._base, _unknown(request), Findings(verified=False, stale=stale, misdated=misdated)
        partition = self._partition(found.evaluator, answer)
        decision = partition.answer_at(request, value, moment)
        is_batch = isinstance(request, Batch)
        agrees = _is_same(answer, decision, is_batch)
        if not agrees and misdated:  # by its own time it may have been right
            agrees = _is_same(answer, partition.answer_at(request, value, answer.at), is_batch)
        if not agrees and not found.exact:
            return partition, decision, Findings(verified=False, stale=stale, misdated=misdated)
        return partition, decision, Findings(True, agrees, stale, misdated)

    def _is_stale(self, answer: Answer, superseded: int | None) -> bool:
        """Whether the policies were older than its freshness allows; an error rests on none."""
        freshness = answer.freshness
        if answer.outcome == "error":
            return False
        most = freshness.age_ms if freshness.kind == "full" else freshness.max_ms
        late = superseded is not None and superseded < answer.at - most - self._skew
        return late or freshness.age_ms > freshness.max_ms

    def _offsets_of(self, answer: Answer) -> tuple[Offsets, bytes]:
        text = bytes(answer.policy_offsets)
        parsed = self._offsets.get(text)
        if parsed is None:
            offsets = offsets_in(text)
            parsed = self._offsets[text] = offsets, offsets_key(offsets)
        return parsed

    def _partition(self, evaluator: Evaluator, answer: Answer) -> PartitionEvaluator:
        text, trust = bytes(answer.policy_offsets), answer.claims(self._source.trust)
        key = text, answer.facts_offset, id(evaluator), trust
        partition = self._partitions.get(key)
        if partition is None:
            offsets, _ = self._offsets_of(answer)
            context = msgspec.structs.replace(
                self._context,
                policy_version=evaluator.snapshot.version,
                policy_offsets=offsets,
                facts_offset=answer.facts_offset,
                read={**offsets, self._facts_topic: {"0": answer.facts_offset}},
            )
            source = msgspec.structs.replace(self._source, trust=trust)
            partition = self._partitions[key] = evaluator.for_partition(source, context, self._reader)
        return partition

    def _too_large(
        self, key: bytes | None, request: Request | Batch, offset: int, at: int, answer: Answer, findings: Findings
    ) -> bytes:
        """In place of a decision that is too large: `error`, with the answer but for its offsets and evaluations.

        Raises TooLarge where not even that can be written.
        """
        limit = self._limits.record_out
        reason = Reason("answer-too-large", f"the decision has more than {limit} bytes")
        decision = Given(to_json(Decision("error", (reason,))), b"", label(request.system, "error"))
        short = msgspec.structs.replace(answer, policy_offsets=msgspec.Raw(b"{}"), policy_version="", evaluations=())
        record = _with_answer(self._base, request, offset, at, decision, short, findings)
        check_size("the decision", record_size(key, record), limit)
        return record


def _with_answer(
    partition: PartitionEvaluator,
    request: Request | Batch,
    offset: int,
    at: int,
    given: Given,
    answer: Answer,
    findings: Findings,
) -> bytes:
    """The decision record."""
    return partition.assemble(
        request, offset, at, given, b'%b,"answered":%b' % (given.evaluations, encode_findings(answer, findings))
    )


def _unknown(request: Request | Batch) -> Given:
    """An error, of each item too: so that the record names the requests."""
    error = Decision("error", (UNKNOWN,))
    items = len(request.items) if isinstance(request, Batch) else 0
    return given_of(request, Decision("error", (UNKNOWN,), evaluations=(error,) * items))


def _is_same(answer: Answer, given: Given, is_batch: bool) -> bool:
    """Whether a decision has the outcome of an answer; of a batch, the outcomes of its evaluations, if it has them."""
    if given.outcome != answer.outcome:
        return False
    if not is_batch or not answer.evaluations:
        return True
    return given.items == tuple(item.outcome for item in answer.evaluations)
