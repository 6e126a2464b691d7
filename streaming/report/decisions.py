"""Decisions summed up: by system and outcome over time, by reason, and which statements they name."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from policy import OUTCOMES, Grant, Reason, StatementId, all_systems, to_ms
from policy.analysis import Statement, grant_text
from streaming.history.records import ConsumerRecord
from streaming.history.span import DAY, MINUTE, MOST_STEPS, SECOND, Span
from streaming.records.decision import DecisionRecord
from streaming.report import read_decision
from streaming.report.requests import AnswerIndex, Replay, Replayed
from streaming.report.untrusted import BoundedCounter, Ranking
from streaming.topics import Offsets, newest_offset

OTHER = "other"  # systems that lockkeeper does not know: text of untrusted clients
TOP_REASONS = 15


class StoredVersion(msgspec.Struct, frozen=True):
    """Since when a document's version is in force: its topic, offset, and Kafka's timestamp (ms)."""

    topic: str
    offset: int
    at: int


class Latency(msgspec.Struct, frozen=True):
    """From the request's record to the decision's, by Kafka's timestamps, ms. ``count``: of how many decisions."""

    count: int
    p50: int
    p95: int


class SystemTotals(msgspec.Struct, frozen=True):
    """Decisions of one system by outcome, in all and for each step of the time axis."""

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

    ``unreadable``: records in the decisions topic that are no decision in JSON. ``axis``: from the first decision
    to the last, at least a minute.
    """

    total: int
    allow: int
    deny: int
    error: int
    denied_answers: int
    unreadable: int
    systems: tuple[SystemTotals, ...]
    reasons: Ranking
    axis: Span
    latency: Latency | None = None

    @property
    def denials_by_step(self) -> tuple[int, ...]:
        """Of all systems."""
        return tuple(sum(step[1] for step in steps) for steps in zip(*(s.steps for s in self.systems), strict=True))


class Bins:
    """Counts by system, moment and outcome, in as fine steps as a plot may need whatever the extent turns out to be.

    Each width divides the steps that `Span.step` gives for the extents at which it is in use, so a plot sums up whole
    bins; there are at most `MOST_STEPS` * 30 of them for each system.
    """

    WIDTHS = (SECOND, 10 * SECOND, MINUTE, 30 * MINUTE, DAY)

    def __init__(self) -> None:
        self._widths = iter(self.WIDTHS)
        self._width = next(self._widths)
        self._bins = Counter[tuple[str, int, int]]()  # by system, number of the bin and outcome
        self._first = self._last = -1

    def add(self, system: str, at: int, outcome: int) -> None:
        """Count an outcome at a moment, ms."""
        self._last = max(self._last, at)
        self._first = at if self._first < 0 else min(self._first, at)
        while (self._last - self._first) > MOST_STEPS * 30 * self._width and self._width < DAY:
            self._coarsen(next(self._widths))
        self._bins[system, at // self._width, outcome] += 1

    def _coarsen(self, width: int) -> None:
        bins, self._bins = self._bins, Counter()
        for (system, index, outcome), count in bins.items():
            self._bins[system, index * self._width // width, outcome] += count
        self._width = width

    def axis(self, span: Span) -> Span:
        """From the first moment to the last; at least a minute, and all of ``span`` without any."""
        return span if self._first < 0 else Span(self._first, max(self._last + 1, self._first + MINUTE))

    def totals(self, span: Span) -> tuple[SystemTotals, ...]:
        """Each system with its counts in the steps of ``axis``."""
        axis, systems = self.axis(span), dict[str, list[list[int]]]()
        for (system, index, outcome), count in self._bins.items():
            steps = systems.setdefault(system, [[0] * len(OUTCOMES) for _ in range(axis.steps)])
            steps[(index * self._width - axis.first) // axis.step][outcome] += count
        return tuple(_totals(system, steps) for system, steps in sorted(systems.items()))


class Latencies:
    """Latencies, ms: exact below a second, to 1 % above it, so that they need little memory."""

    LONGEST = DAY

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, ms: int) -> None:
        """Count one; a time that no clock of this range gives (negative, over a day) is left out."""
        if 0 <= ms <= self.LONGEST:
            digit = 10 ** max(0, len(str(ms)) - 3)
            self._counts[ms // digit * digit] += 1

    def result(self) -> Latency | None:
        """None without any."""
        count = self._counts.total()
        return Latency(count, self._at(count * 0.5), self._at(count * 0.95)) if count else None

    def _at(self, wanted: float) -> int:
        seen = 0
        for ms, count in sorted(self._counts.items()):
            seen += count
            if seen >= wanted:
                return ms
        return 0


class Tally:
    """Takes decision records one by one. ``named``: how often each statement in force decided, by the reasons.

    ``stored``: every statement in force, with its document's version. ``claimed``: request topics that may claim a
    request's time, so that it says nothing about a latency.
    """

    def __init__(
        self,
        span: Span,
        stored: Mapping[StatementId, StoredVersion],
        answered: AnswerIndex,
        claimed: frozenset[str] = frozenset(),
    ) -> None:
        self._span, self._stored, self._answered, self._claimed = span, stored, answered, claimed
        self._known = frozenset(all_systems())
        self._bins, self._latencies = Bins(), Latencies()
        self._reasons = BoundedCounter()
        self._denied = self._unreadable = 0
        self.named = Counter[StatementId]()

    def take(self, record: ConsumerRecord) -> None:
        """Count one record, unless its time lies outside of the range."""
        if not self._span.holds(record.at):
            return
        decision = read_decision(record.value)
        if decision is None:
            self._unreadable += 1
            return
        system = decision.system if decision.system in self._known else OTHER
        self._bins.add(system, record.at, OUTCOMES.index(decision.context.outcome))
        self._denied += sum(answer.outcome == "deny" for answer in decision.answers)
        self._time(decision, record.at)
        self._answered.note(decision)
        for answer in decision.answers:
            self._explain(answer.outcome, answer.reasons, decision.context.policy_offsets)

    def _time(self, decision: DecisionRecord, at: int) -> None:
        """A decision's time is the timestamp of its request's record, unless that may claim another."""
        if decision.time and decision.source.topic not in self._claimed:
            with contextlib.suppress(ValueError):
                self._latencies.add(at - to_ms(decision.time))

    def _explain(self, outcome: str, reasons: Iterable[Reason], policy_offsets: Offsets) -> None:
        for code in {reason.code for reason in reasons} if outcome != "allow" else ():
            self._reasons.add(f"{outcome}: {code}")
        for reason in reasons:
            if reason.document is not None:
                self._name(StatementId(reason.document, reason.statement), policy_offsets)

    def _name(self, statement_id: StatementId, policy_offsets: Offsets) -> None:
        """Count a statement if the decision was made under the version of its document that is in force now."""
        stored = self._stored.get(statement_id)
        if stored is not None and newest_offset(policy_offsets, stored.topic) >= stored.offset:
            self.named[statement_id] += 1

    def totals(self) -> DecisionTotals:
        """What was counted."""
        systems, axis = self._bins.totals(self._span), self._bins.axis(self._span)
        allow, deny, error = (sum(getattr(system, outcome) for system in systems) for outcome in OUTCOMES)
        reasons = self._reasons.top(TOP_REASONS)
        total = allow + deny + error
        counts = (total, allow, deny, error, self._denied, self._unreadable)
        return DecisionTotals(*counts, systems, reasons, axis, self._latencies.result())


def _totals(system: str, steps: list[list[int]]) -> SystemTotals:
    allow, deny, error = (sum(step[number] for step in steps) for number in range(len(OUTCOMES)))
    return SystemTotals(system, allow, deny, error, tuple((a, d, e) for a, d, e in steps))


class Candidate(msgspec.Struct, frozen=True):
    """A statement, or with ``whole`` a document and all of its statements. ``count``: how many statements it is.

    ``since``: when its version came into force (ms), if that was within the range: only from then on could it
    decide. ``beside``: for a redundant one, another statement that decided together with it.
    """

    document: str
    statement: int | None
    whole: bool
    count: int
    effect: str
    text: str
    since: int | None = None
    lapsed: bool = False
    beside: str = ""


class StatementTotals(msgspec.Struct, frozen=True):
    """Statements in force. ``unused``: no decision of the range names them, and no replayed request matches them.

    ``redundant``: replayed requests match them, but always together with others. ``younger``: came into force after
    the range, so nothing is said of them. ``unused_statements``: how many statements ``unused`` stands for.
    """

    in_force: int
    named: int
    younger: int
    unused_statements: int
    unused: tuple[Candidate, ...]
    redundant: tuple[Candidate, ...]
    replayed: Replayed


def find_unused(
    written: Mapping[StatementId, Sequence[Grant | Statement]],
    stored: Mapping[StatementId, StoredVersion],
    named: Mapping[StatementId, int],
    replay: Replay,
    span: Span,
) -> StatementTotals:
    """Which of the statements ``written`` are unused or redundant. All of these are of documents in force."""
    younger = {
        statement_id for statement_id in written if statement_id in stored and stored[statement_id].at >= span.end
    }
    examined = sorted(written.keys() - younger, key=lambda statement_id: statement_id.place)
    unused = [
        statement_id for statement_id in examined if statement_id not in named and statement_id not in replay.matched
    ]
    redundant = [
        statement_id for statement_id in examined if statement_id in replay.matched and statement_id not in replay.alone
    ]

    def candidate(statement_id: StatementId) -> Candidate:
        grants = written[statement_id]
        since = stored[statement_id].at if statement_id in stored else span.start
        more = f" (and {len(grants) - 1} more)" if len(grants) > 1 else ""
        return Candidate(
            *(statement_id.document, statement_id.statement, False, 1, grants[0].effect, grant_text(grants[0]) + more),
            since=since if since > span.start else None,
            lapsed=not any(_overlaps(grant, span) for grant in grants),
            beside=str(replay.beside.get(statement_id, "")),
        )

    return StatementTotals(
        len(written),
        len(named.keys() & written.keys()),
        len(younger),
        len(unused),
        _by_document([candidate(statement_id) for statement_id in unused], examined),
        tuple(candidate(statement_id) for statement_id in redundant),
        replay.result(),
    )


def _overlaps(grant: Grant | Statement, span: Span) -> bool:
    """Whether the grant was valid at some moment of the range."""
    start, end = grant.window.start, grant.window.end
    return (start is None or start < span.end) and (end is None or end > span.start)


def _by_document(unused: Sequence[Candidate], examined: Sequence[StatementId]) -> tuple[Candidate, ...]:
    """A document none of whose statements is used stands for all of them."""
    totals = Counter(statement_id.document for statement_id in examined)
    candidates: list[Candidate] = []
    for document, group in itertools.groupby(unused, key=lambda candidate: candidate.document):
        members = list(group)
        candidates += [_whole(members)] if len(members) == totals[document] else members
    return tuple(candidates)


def _whole(members: Sequence[Candidate]) -> Candidate:
    effects = "allow and deny" if len({candidate.effect for candidate in members}) > 1 else members[0].effect
    more = f" (and {len(members) - 1} more statements)" if len(members) > 1 else ""
    lapsed = all(candidate.lapsed for candidate in members)
    return msgspec.structs.replace(
        members[0],
        statement=None,
        whole=True,
        count=len(members),
        effect=effects,
        text=members[0].text + more,
        lapsed=lapsed,
    )
