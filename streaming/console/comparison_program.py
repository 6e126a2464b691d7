"""The program of a process that decides past requests by the live policies and by a draft of them; see `sandbox`.

The live documents come with the first draft and stay for the next ones, until others are in force.
"""

import pickle
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from policy import (
    Compiler,
    Decision,
    DocumentHistory,
    DocumentStore,
    FactOverlay,
    Key,
    Reason,
    Snapshot,
    Unreadable,
    changes_of,
    decide,
    drafted,
    identify,
    read_document_text,
    read_value,
)
from policy.analysis import Concerned, review, widening_text
from policy.testing import CaseFileError, DraftPolicies, Problem
from streaming.console.draft_program import Result, run, unreadable

FILE = "documents.yaml"
MOST_DIFFERENCES = 100  # that are returned, and of what is opened
MOST_STATEMENTS = 20_000  # of more of them, who gains and loses when most are deleted takes too long


class LiveFact(msgspec.Struct, frozen=True):
    """A record of the facts topic; an empty value deletes. `since`: see `DocumentRecord`."""

    key: Key
    value: bytes
    at: int
    offset: int
    since: int | None = None


DatedRequest = tuple[dict[str, Any], frozenset[str]]
"""A request with the moment of its decision for its time (ms), and what its producers may claim."""


class LiveDocuments(msgspec.Struct, frozen=True):
    """What is in force of a system, and its facts with their past. `key`: equal for the same documents.

    `documents`: their histories, pickled: to read documents again takes five times as long.
    `since`: the key of what the process has already; then `documents` are those that are others since, `gone` those
    that are no more, and `facts` the records that came since. "": it is all of them. `facts_held_after`,
    `no_facts_before`: moments (ms), see `FactOverlay`.
    """

    key: str
    documents: tuple[bytes, ...]
    since: str = ""
    gone: tuple[Key, ...] = ()
    facts: tuple[LiveFact, ...] = ()
    facts_held_after: int = 0
    no_facts_before: int = 0


class ComparisonJob(msgspec.Struct, frozen=True):
    """`key`: of the live documents. `live`: these; None: they are what the process has under this key, or is asked for.

    `prune`: the draft is all that there would be. `documents` None: the live documents are to be taken in alone.
    `seconds`: to decide requests; each is finished.
    """

    key: str
    system: str
    documents: str | None
    requests: tuple[DatedRequest, ...] = ()
    prune: bool = False
    live: LiveDocuments | None = None
    seconds: float = 1.0


class Turned(msgspec.Struct, frozen=True):
    """A request, by its number in the job, whose outcome is another one by the draft; why is said of one of both.

    `evaluations`: of a batch those that turn; outcomes and reason are of the first of them.
    """

    number: int
    before: str
    after: str
    reason: Reason | None
    evaluations: tuple[int, ...] = ()


class Compared(msgspec.Struct, frozen=True):
    """`count`: of so many requests; `is_cut`: there was no time for all. `problems`: why the draft is not compared.

    `opens`: who is newly allowed what, or no longer denied it, in words.
    """

    problems: tuple[Problem, ...] = ()
    count: int = 0
    is_cut: bool = False
    turned: tuple[Turned, ...] = ()
    differences: tuple[Concerned, ...] = ()
    differences_count: int | None = None  # not worked out, nor what it opens
    opens: tuple[str, ...] = ()
    opens_count: int = 0


msgspec.json.Decoder(Compared)  # results are converted in several threads: see policy/core/conversion.py


class NeedsLive(msgspec.Struct, frozen=True):
    """The live documents are to be sent. `since`: the key of those that are there; "": there are none."""

    since: str
    needs_live: bool = True


class LiveFacts:
    """The facts of one system, now and in the past, as far as records of them are left."""

    def __init__(self, system: str, held_after: int) -> None:
        self._store = DocumentStore(facts_only=True, systems=(system,))
        self.layer = FactOverlay(all_held_after=held_after)

    def take(self, fact: LiveFact) -> None:
        """Take the next record of the topic."""
        self._put(fact)
        history = self._store.histories.get(fact.key)
        for change in changes_of(fact.key, history, 1) if history is not None else ():
            self.layer.apply(change)
        self._store.forget(fact.key)

    def _put(self, fact: LiveFact) -> None:
        if not fact.value:
            return self._store.delete(fact.key, fact.at, fact.offset, fact.since)
        value: Any = None
        try:
            value = read_value(fact.value)
            wrong = "" if _is_of(fact.key, value) else f"it is not {fact.key}"
        except Unreadable as error:
            wrong = str(error)
        if wrong:
            self._store.refuse(fact.key, [wrong], fact.at, fact.offset, value)
        else:
            self._store.put(value, fact.at, fact.offset)
        return None


def _is_of(key: Key, value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return (key.system, key.kind, key.name) == tuple(value.get(field) for field in ("system", "kind", "name"))


class Live:
    """The live documents of one system, compiled."""

    def __init__(self, system: str) -> None:
        self.key, self._system = "", system
        self._start(0)

    def _start(self, facts_held_after: int) -> None:
        self.store = DocumentStore(systems=(self._system,))
        self._facts, self._compiler = LiveFacts(self._system, facts_held_after), Compiler(self.store)
        self.snapshot, self.statements = self._compiler.snapshot, 0

    def take(self, live: LiveDocuments) -> None:
        """Bring them up to date."""
        assert live.since in ("", self.key)
        if not live.since:
            self._start(live.facts_held_after)
        for key in live.gone:
            self.store.replace(key, None)
        for packed in live.documents:
            history: DocumentHistory = pickle.loads(packed)
            self.store.replace(history.key, history)
        for fact in live.facts:
            self._facts.take(fact)
        if not live.since:
            self._facts.layer.sees_all_from_now(live.no_facts_before)
        self._compiler.compile()
        self.key, self.snapshot = live.key, self._compiler.snapshot
        self.statements = sum(map(len, self.snapshot.policy_sets[self._system].grants.values()))

    def drafted(self, drafts: dict[Key, Any], prune: bool) -> AbstractContextManager[Snapshot]:
        """The policies with a draft in their place, without facts."""
        return drafted(self.store, self._compiler, drafts, prune)

    def with_facts(self, policies: Snapshot, moment: int | None = None) -> Snapshot:
        """Policies with the facts of now, or of a moment (ms)."""
        return policies.with_facts(self._facts.layer, moment)


class Comparer:
    """Answers jobs, and holds the newest live documents of each system."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}

    def __call__(self, line: bytes) -> Result:
        """`{"result": …}`, or `{"problem": …}` where the draft is no YAML."""
        job = msgspec.json.decode(line, type=ComparisonJob)
        live = self._live.get(job.system) or Live(job.system)
        if job.live is not None:
            self._live.pop(job.system, None)  # it must not stay half of the one and half of the other
            live.take(job.live)
            self._live[job.system] = live
        if live.key != job.key:
            return {"result": msgspec.to_builtins(NeedsLive(live.key))}
        try:
            return {"result": msgspec.to_builtins(compare_draft(job, live))}
        except Unreadable as error:
            return {"problem": unreadable(job.documents or "", error)}
        except CaseFileError as error:
            return {"problem": msgspec.to_builtins(Problem("error", str(error)))}


def compare_draft(job: ComparisonJob, live: Live) -> Compared:
    """What a draft would change. Raises Unreadable and CaseFileError for one that is no documents."""
    if job.documents is None:
        return Compared()
    problems = tuple(_problems(job, job.documents))
    if problems:
        return Compared(problems)
    values = [{"system": job.system, **located.value} for located in read_document_text(job.documents, FILE)]
    if not values:  # also with `prune`, where a folder without documents deletes none
        raise CaseFileError("there are no documents, so nothing is compared")
    drafts = {identify(value): value for value in values}
    with live.drafted(drafts, job.prune) as after:
        return _compared(job, live, after)


def _compared(job: ComparisonJob, live: Live, after: Snapshot) -> Compared:
    turned, count = list[Turned](), 0
    deadline = time.monotonic() + job.seconds
    for number, (asked, trust) in enumerate(job.requests):
        if time.monotonic() > deadline:
            break
        count += 1
        before_then, after_then = (live.with_facts(policies, int(asked["time"])) for policies in (live.snapshot, after))
        turned += _turned(number, asked, trust | {"time"}, before_then, after_then)
    is_cut = count < len(job.requests)
    if job.prune and live.statements > MOST_STATEMENTS:
        return Compared((), count, is_cut, tuple(turned))
    reviewed = review(live.with_facts(live.snapshot), live.with_facts(after))
    opens = tuple(widening_text(widening) for widening, _ in reviewed.widenings[:MOST_DIFFERENCES])
    differences = reviewed.differences[:MOST_DIFFERENCES], len(reviewed.differences)
    return Compared((), count, is_cut, tuple(turned), *differences, opens, len(reviewed.widenings))


def _problems(job: ComparisonJob, documents: str) -> Iterator[Problem]:
    """Why the documents cannot be applied: a version that is refused would not come into force."""
    policies = DraftPolicies(job.system, documents)
    yield from (problem for problem in policies.problems() if problem.level == "error")
    for located in read_document_text(documents, FILE):
        system = located.value.get("system", job.system) if isinstance(located.value, dict) else job.system
        if system != job.system:
            yield Problem("error", "a document of another language: compare one language at a time", located.place.line)


def _turned(
    number: int, asked: dict[str, Any], trust: frozenset[str], before: Snapshot, after: Snapshot
) -> Iterator[Turned]:
    was, now = (decide(side, asked, trust=trust) for side in (before, after))
    turned = turned_evaluations(was, now)
    if turned:
        was, now = (decision.evaluations[turned[0]] for decision in (was, now))
    if was.outcome != now.outcome:
        yield Turned(number, was.outcome, now.outcome, _reason(was, now), turned)


def turned_evaluations(before: Decision, after: Decision) -> tuple[int, ...]:
    """The evaluations of a batch with another outcome: one that ends earlier than the other ends with such a one."""
    pairs = enumerate(zip(before.evaluations, after.evaluations, strict=False))
    return tuple(number for number, (was, now) in pairs if was.outcome != now.outcome)


def _reason(before: Decision, after: Decision) -> Reason | None:
    """The statement that decides by the draft, else the one that did before, else what is missing."""
    placed = (reason for reason in (*after.reasons, *before.reasons) if reason.document is not None)
    return next(placed, None) or next(iter(after.reasons), None)


if __name__ == "__main__":
    run(Comparer())
