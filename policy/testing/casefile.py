"""Case files: policies, requests and the answers expected of them, stage by stage, written as YAML.

A team tests its policies with the same format that specifies the systems themselves:

    system: lenses6
    cases:
    - case: readers may list topics
      rules: [L6-DECIDE-ALLOW]
      stages:
      - apply: [{kind: Group, name: readers, spec: {…}}, {kind: Role, name: topics, spec: {…}}]
        expect:
        - ask: {subject: user:dana, groups: [readers], action: kafka:ListTopic, resource: "kafka:topic:a/b/c"}
          answer: allow
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from policy.core.decision import Outcome
from policy.core.plain_data import Unreadable, decode_text
from policy.core.request import CLAIMS, PART_NAMES
from policy.core.times import to_ms
from policy.systems import all_systems
from policy.systems.kit.system import UNTYPED, System
from policy.testing.caseyaml import read_case_yaml

BESIDE_SUBJECT = ("groups", "roles", "token", "organization")
PARTS = ("subject", "action", "resource", "context", "properties", *BESIDE_SUBJECT)
OFFSETS = "min_policy_offsets"
ENVELOPE = ("id", "system", "time", "deadline", "options", "evaluations")


class CaseFileError(Exception):
    """A case file that cannot be run; the message says where and what is wrong."""


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request in its short form and what must be answered; of a batch, the answers in order.

    ``says``: part of a reason or missing message. ``document``, ``statement``: named by one reason.
    ``claims``: what the decision rests on. ``rules``: instead of the case's.
    """

    ask: dict[str, Any]
    answer: Outcome | list[Outcome]
    rules: list[str] | None = None
    says: str | None = None
    document: str | None = None
    statement: int | None = None
    claims: list[str] | None = None


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes, then expectations. ``at``: the moment of the changes and of the requests that say none; absent: that of
    the stage before. With one, documents come in the order of a log; in none, they may have ``effective_at``.

    ``refused`` and ``warns``: document → part of the error, or of a warning, that is expected of it; violations of a
    schema are warnings. A document of another system than the file's is named ``system/kind/name``.
    """

    at: int | str | None = None
    apply: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    delete: list[str] = []
    refused: dict[str, str] = {}
    warns: dict[str, str] = {}
    trust: list[str] | None = None
    expect: list[Expectation] = []

    @property
    def moment(self) -> int | None:
        """``at`` in ms."""
        return None if self.at is None else to_ms(self.at)

    @property
    def claims(self) -> frozenset[str]:
        """What requests may claim."""
        return CLAIMS if self.trust is None else frozenset(self.trust)

    @property
    def about_documents(self) -> bool:
        """Whether it is an expectation of its own that the documents are accepted."""
        return bool(self.refused or self.warns or (not self.expect and (self.apply or self.facts)))


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sentence saying what is shown, the rules it shows, and the stages that show it."""

    case: str
    stages: list[Stage]
    rules: list[str] = []


class CaseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``system``: default of documents and requests that name none."""

    cases: list[Case]
    system: str = ""


def load_cases(path: Path) -> CaseFile:
    """The case file at ``path``; raises CaseFileError."""
    try:
        return parse_cases(read_case_yaml(decode_text(path.read_bytes())))
    except OSError as error:
        raise CaseFileError(f"{path}: cannot be read: {error.strerror}") from error
    except Unreadable as error:
        raise CaseFileError(f"{path}: cannot be read: {error}") from error
    except CaseFileError as error:
        raise CaseFileError(f"{path}: {error}") from error


def parse_cases(value: object) -> CaseFile:
    """A case file from its data; raises CaseFileError naming the place, such as ``cases[2].stages[0]``."""
    try:
        file = msgspec.convert(value, CaseFile)
    except ValueError as error:  # of a text that is not Unicode, too
        raise CaseFileError(f"not a case file: {error}") from error
    if errors := list(_errors(file)):
        raise CaseFileError("; ".join(errors))
    return file


def _errors(file: CaseFile) -> Iterator[str]:
    if not file.cases:
        yield "cases: at least one is needed"
    for number, case in enumerate(file.cases):
        path = f"cases[{number}] ({case.case})"
        if not any(stage.expect or stage.about_documents for stage in case.stages):
            yield f"{path}: expects nothing, so it cannot fail; add `expect`, `refused` or `warns`"
        for at, stage in enumerate(case.stages):
            yield from (f"{path}.stages[{at}]: {error}" for error in _stage_errors(file.system, stage))


def _stage_errors(system: str, stage: Stage) -> Iterator[str]:
    try:
        _ = stage.moment
    except ValueError as error:
        yield f"at: {error}"
    if unknown := sorted(stage.claims - CLAIMS):
        yield f"trust: {', '.join(unknown)} not one of {', '.join(sorted(CLAIMS))}"
    for name in stage.delete:
        if full_key(system, name).count("/") < 2:
            yield f"delete: {name} is not kind/name of a document, or the file has no `system`"
    put = {document_key(system, document) for document in (*stage.apply, *stage.facts)}
    for name in (*stage.refused, *stage.warns):
        if full_key(system, name, put) not in put:
            yield f"refused, warns: {name} is not a document of this stage"
    for number, expectation in enumerate(stage.expect):
        try:
            refuse_ignored(full_request(expectation.ask, system))
        except CaseFileError as error:
            yield f"expect[{number}].ask: {error}"


def document_key(system: str, document: Mapping[str, Any]) -> str:
    """``system/kind/name`` of a document, ``?`` for what it does not say."""
    return "/".join(str({"system": system or "?", **document}.get(part, "?")) for part in ("system", "kind", "name"))


def full_key(system: str, name: str, documents: Collection[str] = ()) -> str:
    """``kind/name`` with the default system in front; ``name`` as it is without a default, or where it has a system.

    ``documents``: keys that may have a system which does not exist.
    """
    has_system = name in documents or name.partition("/")[0] in {system, *all_systems()}
    return name if not system or has_system else f"{system}/{name}"


def full_request(ask: Mapping[str, Any], system: str, at: int | None = None) -> dict[str, Any]:
    """A request in the form of the contracts from its short form; raises CaseFileError for unknown fields."""
    _refuse_unknown(ask, (*PARTS, *ENVELOPE))
    named = ask.get("system", system)
    request = {"id": "case", "system": system, **_question(ask, named, ask.get("action"))}
    if at is not None:
        request["time"] = at
    request |= {name: ask[name] for name in ENVELOPE if name in ask}
    if isinstance(ask.get("evaluations"), list):
        request["evaluations"] = [_item(item, ask, named) for item in ask["evaluations"]]
    return request


def _refuse_unknown(fields: Mapping[str, Any], known: Iterable[str], path: str = "") -> None:
    names = sorted(known)
    if unknown := sorted(str(name) for name in fields.keys() - set(names)):
        raise CaseFileError(f"{path}unknown field {', '.join(unknown)} (known: {', '.join(names)})")


def refuse_ignored(request: Mapping[str, Any]) -> None:
    """Raise CaseFileError for what an answer here would not heed.

    The job answers ``error`` behind ``min_policy_offsets``; documents in files have no offsets.
    """
    refuse_unknown_members(request)
    for value in _questions(request):
        context = value.get("context")
        if isinstance(context, Mapping) and context.get(OFFSETS, {}) != {}:
            raise CaseFileError(f"context.{OFFSETS}: nothing is compared with offsets here; leave it out")


def refuse_unknown_members(request: Mapping[str, Any]) -> None:
    """Raise CaseFileError for members of a subject, action or resource that requests do not have.

    The job ignores them: with ``{id, groups}`` for a subject any deny would hold.
    """
    for value in _questions(request):
        for part, names in PART_NAMES:
            if isinstance(members := value.get(part), Mapping):
                _refuse_unknown(members, names, f"{part}: ")


def _questions(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A request, and each evaluation of a batch."""
    items = request.get("evaluations")
    yield request
    yield from (item for item in (items if isinstance(items, list) else ()) if isinstance(item, Mapping))


def _item(item: Any, ask: Mapping[str, Any], system: str) -> Any:
    """An evaluation of a batch; the action that it leaves out is the batch's."""
    if not isinstance(item, Mapping):
        return item
    _refuse_unknown(item, PARTS)
    return _question(item, system, item.get("action", ask.get("action")))


def _question(ask: Mapping[str, Any], system: str, action: Any) -> dict[str, Any]:
    """Subject, action, resource and context, each written out where it is given."""
    claims = {name: ask[name] for name in BESIDE_SUBJECT if name in ask}
    for part, beside in (("subject", claims.keys()), ("resource", ask.keys() & {"properties"})):
        if beside and ask.get(part) is None:  # a batch's items replace whole objects, and so does what stands in them
            raise CaseFileError(f"{', '.join(sorted(beside))}: needs a {part} beside it, whose it is")
    subject = _written_out(ask.get("subject"), lambda text: _entity(system, text) or {"type": "user", "id": text})
    resource = _written_out(ask.get("resource"), lambda text: _resource(system, action, text))
    parts = {
        "subject": _with_properties(subject, claims),
        "action": _written_out(ask.get("action"), lambda text: {"name": text}),
        "resource": _with_properties(resource, _mapping(ask.get("properties") or {}, "properties")),
        "context": ask.get("context"),
    }
    return {name: value for name, value in parts.items() if value is not None}


def _written_out(value: Any, of_text: Callable[[str], Any]) -> Any:
    return of_text(value) if isinstance(value, str) else value


def _entity(system: Any, text: str) -> dict[str, Any] | None:
    """Type and id of what a system writes with both, such as Cedar's ``User::"dana"``; None: it is an id alone."""
    of_text = getattr(_system(system), "entity_of_text", None)
    try:
        entity = None if of_text is None else of_text(text)
    except ValueError as error:
        raise CaseFileError(str(error)) from None
    return None if entity is None else {"type": entity[0], "id": entity[1]}


def _system(name: Any) -> System | None:
    return all_systems().get(name) if isinstance(name, str) else None


def _resource(system: str, action: Any, text: str) -> dict[str, Any]:
    """The resource with the type that is documented for it."""
    if (entity := _entity(system, text)) is not None:
        return entity
    name = action.get("name") if isinstance(action, Mapping) else action
    translator = _system(system)
    return {"type": translator.resource_type(str(name), text) if translator else UNTYPED, "id": text}


def _with_properties(value: Any, properties: Mapping[str, Any]) -> Any:
    if not properties or not isinstance(value, Mapping):
        return value
    own = _mapping(value.get("properties", {}), "properties of a subject or resource")
    return {**value, "properties": {**own, **properties}}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CaseFileError(f"{what}: must be a mapping, not {type(value).__name__}")
    return value
