"""A draft: documents as somebody types them, requests with the answers that are wanted, and what comes of both.

What holds of a draft holds of the case file that it is saved as: both are played by `policy.testing.run`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policy.analysis.decision_tree import Node, draw_trees
from policy.analysis.lint import Finding, lint
from policy.analysis.nearest_grants import Nearest, nearest_grants
from policy.analysis.unknown_names import unknown_names
from policy.core.decision import Decision, Outcome
from policy.core.document import identify
from policy.core.model import DocumentRefused, Reason
from policy.core.plain_data import Unreadable, read_yaml
from policy.core.request import check_nesting
from policy.core.yaml_text import dump_yaml
from policy.evaluation.authorize import decide
from policy.store.positions import Positions
from policy.store.repository import Located, read_document_text
from policy.systems import all_systems
from policy.testing.casefile import (
    Case,
    CaseFile,
    CaseFileError,
    Expectation,
    Stage,
    full_request,
    parse_cases,
    refuse_ignored,
)
from policy.testing.caseyaml import read_case_yaml
from policy.testing.run import Scene, check_scene, scenes

FILE = "documents.yaml"
TITLE = "from the playground"
NAMED = {"subject": "id", "action": "name", "resource": "id"}
"""The parts of a request that a form names, and the member that has the name."""


class DraftRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request in the fields of a form, and the answer that is wanted.

    ``subject``, ``action``, ``resource``: an id or name, whatever it begins with. ``groups``: separated by commas.
    ``more``: YAML with the other fields of the short form, such as ``context``, and with what these three have beside
    the id or name, such as ``resource: {type: Topic}``.
    """

    subject: str = ""
    groups: str = ""
    action: str = ""
    resource: str = ""
    more: str = ""
    answer: Outcome = "allow"


class Draft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``documents``: YAML; those that name no system are of ``system``. ``at``: the moment of all of it; "": none."""

    system: str
    documents: str
    requests: tuple[DraftRequest, ...] = ()
    at: str = ""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, or perhaps not meant, in the documents. ``line``: from 1; None: it is about all of them."""

    level: str
    message: str
    line: int | None = None
    document: str = ""


class DraftAnswer(msgspec.Struct, frozen=True):
    """What a request gets. ``passed`` None: it cannot be evaluated. ``line``: of the determining statement."""

    passed: bool | None
    outcome: str
    message: str
    line: int | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """``answers``: in the order of the draft's requests."""

    problems: tuple[Problem, ...]
    answers: tuple[DraftAnswer, ...]


class Detail(msgspec.Struct, frozen=True):
    """Why a request is answered so. ``trees``, ``nearest``: one for each evaluation of a batch, else one.

    ``reasons``: each with the line of the statement that it names. ``names``: names that no document knows, a sentence
    each.
    """

    reasons: tuple[tuple[Reason, int | None], ...]
    trees: tuple[Node, ...]
    nearest: tuple[Nearest | None, ...]
    names: tuple[str, ...]


class DraftPolicies:
    """The documents of a draft, read and compiled once for many requests.

    Raises Unreadable for a text that is no YAML, CaseFileError for a moment that is none.
    """

    def __init__(self, system: str, documents: str, at: str = "") -> None:
        self._system = system
        located = read_document_text(documents, FILE)
        self._positions = Positions({FILE: documents})
        self._misplaced = tuple(_misplaced(located))
        named = [
            Located(item.place, {"system": system, **item.value}) for item in located if isinstance(item.value, Mapping)
        ]
        self._by_key = dict(_by_key(named))
        self._documents = [item.value for item in named]
        case = Case(TITLE, [Stage(at=_moment(at), apply=self._documents)])
        self._scene = next(scenes(CaseFile([case], system)))
        self._findings: tuple[Problem, ...] | None = None

    def problems(self) -> tuple[Problem, ...]:
        """What the documents are refused for, and what is suspicious in them."""
        if self._findings is None:
            self._findings = (*self._misplaced, *map(self._problem, lint(self._documents)))
        return self._findings

    def _problem(self, finding: Finding) -> Problem:
        line = self.line_of(finding.document, finding.statement, finding.message)
        return Problem(finding.level, finding.message, line, finding.document)

    def line_of(self, document: str | None, statement: int | None, message: str = "") -> int | None:
        """The line of what a message names in a document (``system/kind/name``), or of a statement."""
        located = self._by_key.get(document or "")
        return None if located is None else self._positions.find(located, message, statement).line

    def answer(self, asked: DraftRequest) -> DraftAnswer:
        """What a request gets, beside what is wanted."""
        try:
            scene = self._asking(asked)
        except CaseFileError as error:
            return DraftAnswer(None, "", str(error))
        decision, result = self._decide(scene), list(check_scene(scene))[-1]
        first = next(iter(decision.reasons), None)
        line = None if first is None else self.line_of(first.document, first.statement)
        return DraftAnswer(result.passed, " ".join(result.got), "" if first is None else first.message, line)

    def _asking(self, asked: DraftRequest) -> Scene:
        """The scene with one expectation. Raises CaseFileError."""
        ask = short_form_of(asked)
        refuse_ignored(full_request(ask, self._system))
        stage = msgspec.structs.replace(self._scene.stage, expect=[Expectation(ask, asked.answer)])
        return msgspec.structs.replace(self._scene, stage=stage)

    def _decide(self, scene: Scene) -> Decision:
        return decide(scene.snapshot, scene.request(scene.stage.expect[0]), trust=scene.trust)

    def detail(self, asked: DraftRequest) -> Detail:
        """Why a request is answered so. Raises CaseFileError and MalformedRequest for one that is none."""
        scene = self._asking(asked)
        request, decision = scene.request(scene.stage.expect[0]), self._decide(scene)
        reasons = tuple((reason, self.line_of(reason.document, reason.statement)) for reason in decision.reasons)
        trees = tuple(draw_trees(scene.snapshot, request, scene.trust))
        names = unknown_names(scene.snapshot, request, scene.trust)
        nearest = nearest_grants(scene.snapshot, request, scene.trust)
        return Detail(reasons, trees, tuple(nearest), tuple(map(str, names)))

    def case_file(self, requests: tuple[DraftRequest, ...]) -> str:
        """The draft as a case file, YAML. Raises CaseFileError where it is none."""
        if self._misplaced:
            raise CaseFileError(self._misplaced[0].message)
        expect = [{"ask": short_form_of(request), "answer": request.answer} for request in requests]
        at = self._scene.stage.at
        stage = {**({} if at is None else {"at": at}), "apply": self._documents, "expect": expect}
        value = {"system": self._system, "cases": [{"case": TITLE, "stages": [stage]}]}
        parse_cases(value)
        text = dump_yaml(value)
        if read_case_yaml(text) != value:
            raise CaseFileError("holds a key or number that a case file would read as something else")
        return text


def evaluate_draft(draft: Draft, policies: DraftPolicies) -> Evaluation:
    """What comes of every request of a draft."""
    return Evaluation(policies.problems(), tuple(map(policies.answer, draft.requests)))


def short_form_of(asked: DraftRequest) -> dict[str, Any]:
    """The request as a case file has it. Raises CaseFileError, which names the field."""
    more = _mapping("more", asked.more)
    groups = [name.strip() for name in asked.groups.split(",") if name.strip()]
    if groups and more.setdefault("groups", groups) != groups:
        raise CaseFileError("groups: more has others: write all of them in one of the two fields")
    for part, member in NAMED.items():
        if text := getattr(asked, part):
            more[part] = _with_name(part, member, text, more.get(part, text))
    return {name: more[name] for name in (*NAMED, "groups") if name in more} | more


def _with_name(part: str, member: str, text: str, more: Any) -> Any:
    """A part of a request with the name of its field. A name is taken as it is: with a blank at an end it is another
    one, or refused.
    """
    name = more.setdefault(member, text) if isinstance(more, dict) else more
    if name != text:
        raise CaseFileError(f"{part}: more has another {member}: write it in one of the two fields")
    return more


def actions_of(system: str) -> list[str]:
    """The names of a system's actions, sorted; none where no catalogue lists them."""
    listed = getattr(all_systems().get(system), "actions", None)
    return [] if listed is None else sorted(listed())


def _mapping(field: str, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        parts = read_yaml(text)
    except Unreadable as error:
        raise CaseFileError(f"{field}: {error.message}") from None
    value = parts[0].value if len(parts) == 1 else None
    if not isinstance(value, dict):
        raise CaseFileError(f"{field}: must be a mapping, such as context: {{ip: 10.0.0.1}}")
    try:
        check_nesting(value)
    except ValueError as error:
        raise CaseFileError(f"{field}: {error}") from None
    return value


def _moment(at: str) -> int | str | None:
    text = at.strip()
    if not text:
        return None
    moment = int(text) if text.isdecimal() and len(text) < len("9" * 19) else text
    try:
        _ = Stage(at=moment).moment
    except ValueError as error:
        raise CaseFileError(f"moment: {error}") from None
    return moment


def _misplaced(located: list[Located]) -> Iterator[Problem]:
    for item in located:
        if not isinstance(item.value, Mapping):
            kind = type(item.value).__name__
            yield Problem("error", f"a document is a mapping with kind, name and spec, not a {kind}", item.place.line)


def _by_key(located: list[Located]) -> Iterator[tuple[str, Located]]:
    for item in located:
        try:
            yield str(identify(item.value)), item
        except DocumentRefused:
            continue
