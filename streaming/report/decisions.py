"""Decisions summed up: by system and outcome over time, by reason, and which statements they name."""

from collections.abc import Iterable, Mapping

import msgspec

from policy import StatementId, all_systems
from streaming.report.answered import Answered, denials
from streaming.report.records import OUTCOMES, Decision, Reason, Record, read_decision
from streaming.report.span import Span
from streaming.report.untrusted import BoundedCounter, Ranking

OTHER = "other"  # systems that lockkeeper does not know: text of untrusted clients
TOP_REASONS = 15


class StoredVersion(msgspec.Struct, frozen=True):
    """Since when a document's version is in force: its topic, offset, and Kafka's timestamp (ms)."""

    topic: str
    offset: int
    at: int


class SystemTotals(msgspec.Struct, frozen=True):
    """Decisions of one system by outcome, in all and for each step of the range."""

    system: str
    allow: int
    deny: int
    error: int
    steps: tuple[tuple[int, int, int], ...]

    @property
    def total(self) -> int:
        """Of all outcomes."""
        return self.allow + self.deny + self.error


class DecisionTotals(msgspec.Struct, frozen=True):
    """Decision records in the range; a batch is one. ``denied_answers``: each denied evaluation of a batch counts.

    ``unreadable``: records in the decisions topic that are no decision in JSON.
    """

    total: int
    allow: int
    deny: int
    error: int
    denied_answers: int
    unreadable: int
    systems: tuple[SystemTotals, ...]
    reasons: Ranking


class Tally:
    """Takes decision records one by one. ``named``: how often each statement in force decided, by the reasons."""

    def __init__(self, span: Span, stored: Mapping[StatementId, StoredVersion], answered: Answered) -> None:
        self._span, self._stored, self._answered = span, stored, answered
        self._first, self._step = span.first, span.step
        self._known = frozenset(all_systems())
        self._steps: dict[str, list[list[int]]] = {}
        self._reasons = BoundedCounter()
        self._denied = self._unreadable = 0
        self.named: dict[StatementId, int] = {}

    def take(self, record: Record) -> None:
        """Count one record, unless its time lies outside of the range."""
        if not self._span.holds(record.at):
            return
        decision = read_decision(record.value)
        if decision is None:
            self._unreadable += 1
            return
        self._count(decision, (record.at - self._first) // self._step)
        self._answered.note(decision)
        for answer in [item.context for item in decision.evaluations] or [decision.context]:
            self._explain(answer.outcome, answer.reasons, decision.context.policy_offsets)

    def _count(self, decision: Decision, step: int) -> None:
        system = decision.system if decision.system in self._known else OTHER
        if system not in self._steps:
            self._steps[system] = [[0] * len(OUTCOMES) for _ in range(self._span.steps)]
        self._steps[system][step][OUTCOMES.index(decision.context.outcome)] += 1
        self._denied += denials(decision)

    def _explain(
        self, outcome: str, reasons: Iterable[Reason], policy_offsets: Mapping[str, Mapping[str, int]]
    ) -> None:
        for code in {reason.code for reason in reasons} if outcome != "allow" else ():
            self._reasons.add(f"{outcome}: {code}")
        for reason in reasons:
            if reason.document is not None:
                self._name(StatementId(reason.document, reason.statement), policy_offsets)

    def _name(self, statement_id: StatementId, policy_offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Count a statement if the decision was made under the version of its document that is in force now."""
        stored = self._stored.get(statement_id)
        if stored is not None and policy_offsets.get(stored.topic, {}).get("0", -1) >= stored.offset:
            self.named[statement_id] = self.named.get(statement_id, 0) + 1

    def totals(self) -> DecisionTotals:
        """What was counted."""
        systems = tuple(_totals(name, steps) for name, steps in sorted(self._steps.items()))
        allow, deny, error = (sum(getattr(system, outcome) for system in systems) for outcome in OUTCOMES)
        reasons = self._reasons.top(TOP_REASONS)
        total = allow + deny + error
        return DecisionTotals(total, allow, deny, error, self._denied, self._unreadable, systems, reasons)


def _totals(system: str, steps: list[list[int]]) -> SystemTotals:
    allow, deny, error = (sum(step[number] for step in steps) for number in range(len(OUTCOMES)))
    return SystemTotals(system, allow, deny, error, tuple((a, d, e) for a, d, e in steps))


def tally(
    records: Iterable[Record], span: Span, stored: Mapping[StatementId, StoredVersion], answered: Answered
) -> Tally:
    """All ``records`` counted. ``stored``: every statement in force, with its document's version."""
    made = Tally(span, stored, answered)
    for record in records:
        made.take(record)
    return made
