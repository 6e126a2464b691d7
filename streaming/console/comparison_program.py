"""The program of a process that decides past requests by the live policies and by a draft of them; see `sandbox`.

The live documents come with the first draft and stay for the next ones, until others are in force.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from policy import (
    Compiler,
    Decision,
    DocumentStore,
    Key,
    Reason,
    Snapshot,
    Unreadable,
    decide,
    drafted,
    identify,
    layer_of,
    read_document_text,
    read_value,
)
from policy.testing import CaseFileError, DraftPolicies, Problem
from streaming.console.differences import ShownDifference, differences_in
from streaming.console.draft_program import Result, run, unreadable

FILE = "documents.yaml"
SECONDS = 1.0  # to decide requests; each is finished
MOST_DIFFERENCES = 100  # that are returned
MOST_STATEMENTS = 20_000  # of more of them, who gains and loses takes too long


class LiveDocument(msgspec.Struct, frozen=True):
    """What a record of a policy topic says, or of the facts topic: `is_fact`. `at`, `offset`: of the record."""

    value: str
    at: int
    offset: int
    is_fact: bool = False


class PastRequest(msgspec.Struct, frozen=True):
    """A request at the moment of its decision. `trust`: what its producers may claim."""

    asked: dict[str, Any]
    trust: tuple[str, ...]


class ComparisonJob(msgspec.Struct, frozen=True):
    """`key`: of the live documents. `live`: these; None: they are what the process holds under this key, or is asked
    for. `prune`: the draft is all that there would be.
    """

    key: str
    system: str
    documents: str
    requests: tuple[PastRequest, ...]
    prune: bool = False
    live: tuple[LiveDocument, ...] | None = None


class Turned(msgspec.Struct, frozen=True):
    """A request, by its number in the job, whose outcome is another one by the draft; why is said of one of both."""

    number: int
    before: str
    after: str
    reason: Reason | None


class Compared(msgspec.Struct, frozen=True):
    """`count`: of so many requests; `is_cut`: there was no time for all. `problems`: why the draft is not compared."""

    problems: tuple[Problem, ...] = ()
    count: int = 0
    is_cut: bool = False
    turned: tuple[Turned, ...] = ()
    differences: tuple[ShownDifference, ...] = ()
    differences_count: int | None = None  # not worked out


class NeedsLive(msgspec.Struct, frozen=True):
    """The live documents are to be sent."""

    needs_live: bool = True


class Live:
    """The live documents of one system, compiled."""

    def __init__(self, job: ComparisonJob) -> None:
        assert job.live is not None
        self.key = job.key
        self.store = DocumentStore(systems=(job.system,))
        facts = DocumentStore(facts_only=True, systems=(job.system,))
        for document in job.live:
            store = facts if document.is_fact else self.store
            store.put(read_value(document.value.encode()), document.at, document.offset)
        self._facts, self._compiler = layer_of(facts), Compiler(self.store)
        self.snapshot = self._compiler.snapshot.with_facts(self._facts)
        self.statements = sum(map(len, self.snapshot.policy_sets[job.system].grants.values()))

    @contextlib.contextmanager
    def drafted(self, drafts: dict[Key, Any], prune: bool) -> Iterator[Snapshot]:
        """The policies with a draft in their place."""
        with drafted(self.store, self._compiler, drafts, prune) as snapshot:
            yield snapshot.with_facts(self._facts)


class Comparer:
    """Answers jobs, and holds the live documents of the last one."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def __call__(self, line: bytes) -> Result:
        """`{"result": …}`, or `{"problem": …}` where the draft is no YAML."""
        job = msgspec.json.decode(line, type=ComparisonJob)
        if job.live is not None:
            self._live = Live(job)
        if self._live is None or self._live.key != job.key:
            return {"result": msgspec.to_builtins(NeedsLive())}
        try:
            return {"result": msgspec.to_builtins(compare_draft(job, self._live))}
        except Unreadable as error:
            return {"problem": unreadable(job.documents, error)}
        except CaseFileError as error:
            return {"problem": msgspec.to_builtins(Problem("error", str(error)))}


def compare_draft(job: ComparisonJob, live: Live) -> Compared:
    """What a draft would change. Raises Unreadable and CaseFileError for one that is no documents."""
    problems = tuple(_problems(job))
    if problems:
        return Compared(problems)
    values = [{"system": job.system, **located.value} for located in read_document_text(job.documents, FILE)]
    drafts = {identify(value): value for value in values}
    with live.drafted(drafts, job.prune) as after:
        return _compared(job, live, after)


def _compared(job: ComparisonJob, live: Live, after: Snapshot) -> Compared:
    turned, count = list[Turned](), 0
    deadline = time.monotonic() + SECONDS
    for number, past in enumerate(job.requests):
        if time.monotonic() > deadline:
            break
        count += 1
        turned += _turned(number, past, live.snapshot, after)
    is_cut = count < len(job.requests)
    if live.statements > MOST_STATEMENTS:
        return Compared((), count, is_cut, tuple(turned))
    differences = differences_in(job.system, live.snapshot, after)
    shown = tuple(differences[:MOST_DIFFERENCES])
    return Compared((), count, is_cut, tuple(turned), shown, len(differences))


def _problems(job: ComparisonJob) -> Iterator[Problem]:
    """Why the documents cannot be applied: a version that is refused would not come into force."""
    policies = DraftPolicies(job.system, job.documents)
    yield from (problem for problem in policies.problems() if problem.level == "error")
    for located in read_document_text(job.documents, FILE):
        system = located.value.get("system", job.system) if isinstance(located.value, dict) else job.system
        if system != job.system:
            yield Problem("error", "a document of another language: compare one language at a time", located.place.line)


def _turned(number: int, past: PastRequest, before: Snapshot, after: Snapshot) -> Iterator[Turned]:
    trust = frozenset(past.trust) | {"time"}
    was, now = (decide(side, past.asked, trust=trust) for side in (before, after))
    if _outcomes(was) != _outcomes(now):
        yield Turned(number, was.outcome, now.outcome, _reason(was, now))


def _outcomes(decision: Decision) -> list[str]:
    return [decision.outcome, *(item.outcome for item in decision.evaluations)]


def _reason(before: Decision, after: Decision) -> Reason | None:
    """The statement that decides by the draft, else the one that did before, else what is missing."""
    placed = (reason for reason in (*after.reasons, *before.reasons) if reason.document is not None)
    return next(placed, None) or next(iter(after.reasons), None)


if __name__ == "__main__":
    run(Comparer())
