"""Running case files: expected and actual outcomes, the statements that were determining, results as JUnit XML."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import msgspec

from policy.analysis.usage import statements as all_statements
from policy.analysis.usage import uses
from policy.core.decision import Decision
from policy.core.document import SINCE_EVER, Key
from policy.core.model import StatementId
from policy.core.request import MalformedRequest, parse_request
from policy.evaluation.authorize import decide
from policy.store.documents import DocumentStore
from policy.store.history import Rejected
from policy.store.publishable import engine_findings
from policy.store.snapshot import Snapshot
from policy.testing.casefile import (
    Case,
    CaseFile,
    CaseFileError,
    Expectation,
    Stage,
    document_key,
    full_key,
    full_request,
)

POSITIVE = frozenset({"allow", "accepted"})

Documents = Sequence[dict[str, Any]]


class Result(msgspec.Struct, frozen=True):
    """One expectation. ``stage``: counted from 0. ``why``: what went wrong; empty: nothing did."""

    case: str
    stage: int
    subject: str
    rules: tuple[str, ...]
    expected: tuple[str, ...]
    got: tuple[str, ...]
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether it came as expected."""
        return not self.why

    @property
    def signs(self) -> frozenset[bool]:
        """True for an expected allow or acceptance, False for an expected deny, error or refusal."""
        return frozenset(item in POSITIVE for item in self.expected)


class Scene(msgspec.Struct, frozen=True):
    """A stage as it is played: the snapshot after its changes, and what became of its documents."""

    system: str
    case: Case
    number: int
    stage: Stage
    at: int | None
    snapshot: Snapshot
    documents: tuple[Result, ...]

    def request(self, expectation: Expectation) -> dict[str, Any]:
        """The expectation's request, written out; a time that it is not trusted to claim gives way to the stage's."""
        request = full_request(expectation.ask, self.system, self.at)
        return request if self.at is None or "time" in self.stage.claims else {**request, "time": self.at}

    @property
    def trust(self) -> frozenset[str]:
        """What counts of it: also the stage's moment, which is no claim."""
        return self.stage.claims if self.at is None else self.stage.claims | {"time"}


class Coverage(msgspec.Struct, frozen=True):
    """The statements of all documents, and those that decided some request."""

    statements: frozenset[StatementId]
    decided: frozenset[StatementId]

    @property
    def percent(self) -> float:
        """How many of a hundred statements decided something; 100 where there are none."""
        return 100 * len(self.decided & self.statements) / len(self.statements) if self.statements else 100.0

    @property
    def idle(self) -> list[StatementId]:
        """Statements that decided nothing, sorted."""
        return sorted(self.statements - self.decided, key=lambda statement_id: statement_id.place)


def run_cases(file: CaseFile, given: Documents = ()) -> list[Result]:
    """Every expectation of ``file`` with what came. ``given``: documents in force before the first stage."""
    return [result for scene in scenes(file, given) for result in check_scene(scene)]


def scenes(file: CaseFile, given: Documents = ()) -> Iterator[Scene]:
    """Every stage of every case, played in order; see `run_cases`."""
    for case in file.cases:
        yield from _play(file.system, case, given)


def _play(system: str, case: Case, initial: Documents) -> Iterator[Scene]:
    histories = _Histories(system, initial)
    at: int | None = None
    for number, stage in enumerate(case.stages):
        at = at if stage.moment is None else stage.moment
        try:
            outcomes = histories.change(stage, at)
        except CaseFileError as error:
            raise CaseFileError(f"{case.case}, stage {number + 1}: {error}") from error
        snapshot = Snapshot(histories.policies, histories.facts)
        documents = _judge_documents(system, case, number, outcomes, snapshot)
        yield Scene(system, case, number, stage, at, snapshot, tuple(documents))


class _Histories:
    """The documents of a case, over its stages."""

    def __init__(self, system: str, initial: Documents) -> None:
        self.policies = DocumentStore()
        self.facts = DocumentStore(facts_only=True)
        self._system = system
        self._order = itertools.count()
        together = next(self._order)
        for document in initial:
            self.policies.put(document, order=together)

    def change(self, stage: Stage, at: int | None) -> dict[str, Rejected | None]:
        """Make the stage's changes; what became of each document by its key, None: accepted."""
        for name in stage.delete:
            self._delete(full_key(self._system, name), at)
        became: dict[str, Rejected | None] = {}
        together = next(self._order)  # without a moment, they say themselves from when on they are in force
        for store, documents in ((self.policies, stage.apply), (self.facts, stage.facts)):
            for document in documents:
                put = {"system": self._system, **document}
                key, order = document_key(self._system, put), together if at is None else next(self._order)
                became[key] = store.put(put, at, order) or became.get(key)
        return became

    def _delete(self, name: str, at: int | None) -> None:
        """From both layers, wherever it is; raises CaseFileError when it is nowhere."""
        key = Key(*name.split("/", 2))
        holding = [store for store in (self.policies, self.facts) if key in store.histories]
        if not holding:
            raise CaseFileError(f"delete: there is no {name} to delete")
        for store in holding:
            store.delete(key, SINCE_EVER if at is None else at, next(self._order))


def _judge_documents(
    system: str, case: Case, number: int, became: dict[str, Rejected | None], snapshot: Snapshot
) -> Iterator[Result]:
    stage = case.stages[number]
    refused = {full_key(system, name, became.keys()): text for name, text in stage.refused.items()}
    warned = {full_key(system, name, became.keys()): text for name, text in stage.warns.items()}
    rules = tuple(case.rules) if stage.about_documents else ()
    for key, rejected in became.items():
        expected = "refused" if key in refused else "accepted"
        got = "accepted" if rejected is None else "refused"
        errors = "; ".join(rejected.errors) if rejected else ""
        why = _document_fault(expected, got, errors, refused.get(key, ""))
        yield Result(case.case, number, key, rules, (expected,), (got,), why or _silence(snapshot, key, warned))


def _document_fault(expected: str, got: str, errors: str, part: str) -> str:
    if expected != got:
        return f"must be {expected}, was {got}" + (f": {errors}" if errors else "")
    return "" if part in errors else f"refused, but no error says {part!r}: {errors}"


def _silence(snapshot: Snapshot, key: str, warned: dict[str, str]) -> str:
    if key not in warned:
        return ""
    texts = [text for document, text in snapshot.warnings if document == key]
    texts += [finding.message for finding in engine_findings(snapshot) if finding.document == key]
    if any(warned[key] in text for text in texts):
        return ""
    return f"no warning says {warned[key]!r}: {'; '.join(texts) or 'there is none'}"


def check_scene(scene: Scene) -> Iterator[Result]:
    """The results of one stage: its documents, then its requests."""
    yield from scene.documents
    for expectation in scene.stage.expect:
        yield _check(scene, expectation)


def _check(scene: Scene, expectation: Expectation) -> Result:
    request = scene.request(expectation)
    decision = decide(scene.snapshot, request, trust=scene.trust)
    expected = _listed(expectation.answer)
    got = tuple(item.outcome for item in decision.evaluations) or (decision.outcome,)
    why = "; ".join(_faults(scene.system, expectation, expected, got, decision))
    rules = scene.case.rules if expectation.rules is None else expectation.rules
    return Result(scene.case.case, scene.number, describe(request), tuple(rules), expected, got, why)


def _listed(answer: str | Sequence[str]) -> tuple[str, ...]:
    return (answer,) if isinstance(answer, str) else tuple(answer)


def _faults(
    system: str, wanted: Expectation, expected: tuple[str, ...], got: tuple[str, ...], decision: Decision
) -> Iterator[str]:
    parts = decision.evaluations or (decision,)
    reasons = [reason for part in parts for reason in part.reasons]
    messages = [reason.message for reason in reasons]
    answered = "; ".join(messages)
    if expected != got:
        yield f"must be {' '.join(expected)}, was {' '.join(got)}: {answered}"
    messages += [missing.message for part in parts for missing in part.missing]
    if wanted.says is not None and not any(wanted.says in message for message in messages):
        yield f"nothing says {wanted.says!r}: {'; '.join(messages)}"
    document = None if wanted.document is None else full_key(system, wanted.document)
    named = [reason for reason in reasons if document in (None, reason.document)]
    if (wanted.document is not None or wanted.statement is not None) and not any(
        wanted.statement in (None, reason.statement) for reason in named
    ):
        yield f"no reason names {document} statement {wanted.statement}: {answered}"
    if wanted.claims is not None and sorted(wanted.claims) != sorted(decision.claims):
        yield f"must rest on the claims {sorted(wanted.claims)}, rests on {sorted(decision.claims)}"


def describe(request: dict[str, Any]) -> str:
    """A request in a few words: who, what, on what."""
    if request.get("evaluations"):
        return f"batch of {len(request['evaluations'])}"
    words = ((request.get("subject"), "id"), (request.get("action"), "name"), (request.get("resource"), "id"))
    return " ".join(str(part.get(field, "?")) if isinstance(part, dict) else "?" for part, field in words)


def cover(file: CaseFile, given: Documents = ()) -> Coverage:
    """Which statements of the documents, ``given`` or of the file, decided some request of it."""
    statements: set[StatementId] = set()
    decided: set[StatementId] = set()
    for scene in scenes(file, given):
        statements.update(all_statements(scene.snapshot))
        for expectation in scene.stage.expect:
            decided.update(_decided_by(scene, scene.request(expectation)))
    return Coverage(frozenset(statements), frozenset(decided))


def _decided_by(scene: Scene, request: dict[str, Any]) -> Iterator[StatementId]:
    try:
        parsed = parse_request(request)
    except MalformedRequest:
        return
    for use in uses(scene.snapshot, parsed, scene.trust):
        yield from use


NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(suites: Mapping[str, Sequence[Result]]) -> str:
    """One suite for each case file, one test for each expectation."""
    root = ElementTree.Element("testsuites")
    for name, results in suites.items():
        failed = sum(not result.passed for result in results)
        counts = {"tests": str(len(results)), "failures": str(failed), "errors": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": _plain(name), **counts})
        for result in results:
            _add(suite, name, result)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, name: str, result: Result) -> None:
    title = f"{result.case}, stage {result.stage + 1}: {result.subject} is {' '.join(result.expected)}"
    test = ElementTree.SubElement(suite, "testcase", {"classname": _plain(name), "name": _plain(title)})
    if not result.passed:
        ElementTree.SubElement(test, "failure", {"message": _plain(result.why)})


def _plain(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return NOT_XML.sub("\ufffd", text)
