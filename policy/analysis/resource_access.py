"""Who may do what with a resource, and by which path: answered by deciding, principal by principal.

What is asked is a number of requests, each an action on the resource. Principals that a matching statement reaches are
evaluated first. All others that documents name follow: a condition may count for them, such as who owns the resource.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy.analysis.impact import (
    UNKNOWN_PRINCIPALS,
    USER,
    Who,
    document_names,
    engine_subjects,
    shared_properties,
    single_request,
    spellings,
)
from policy.analysis.named_in_documents import leaves
from policy.core.grouping import grouped
from policy.core.model import ALLOW, DENY, Condition, Effect, EngineResult, Expression, PermissionCheck, Unanswerable
from policy.core.request import CLAIMS, Request
from policy.evaluation.evaluate import conclude, evaluate_request, resolve
from policy.evaluation.explain import route
from policy.evaluation.trace import EvaluationTrace, ExpressionResult
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from policy.systems.kit.system import EVERYONE


class AccessPath(msgspec.Struct, frozen=True):
    """A determining statement, and how the principal has it. ``document`` "": ``route`` is the condition that holds."""

    document: str
    statement: int | None = None
    route: str = ""

    def __str__(self) -> str:
        return self.document if self.statement is None else f"{self.document} statement {self.statement}"


class ResourceAccess(msgspec.Struct, frozen=True):
    """What a principal may do with the resource, or is denied by a statement, all by the same paths.

    ``who`` None: any principal, also those that no document names.
    """

    who: Who | None
    effect: Effect
    actions: tuple[str, ...]
    paths: tuple[AccessPath, ...]


Row = tuple[Effect, str, tuple[AccessPath, ...]]
"""An effect on an action, and by which paths."""


class ResourceQuestion:
    """The requests that the system can answer, of those that were asked.

    ``requests``: each an action on the resource; of their subjects the properties count that others may have, too, as
    for `who_can`. ``why``: why there is no answer to one of the others; "": there is none. Raises MalformedRequest for
    a request that is none, or a batch.
    """

    def __init__(self, snapshot: Snapshot, system: str, requests: Iterable[Mapping[str, Any]]) -> None:
        self._snapshot, self._system = snapshot, system
        self._policy_set = snapshot.policy_sets[system]
        self._engine = engine_of(all_systems()[system])
        self._reads_facts = bool(self._policy_set.facts.kinds())
        self._requests: list[Request] = []
        self._checks: list[PermissionCheck] = []
        self._expressions: list[Expression] = []  # of a subject that no document names
        self.why = ""
        for request in requests:
            subject = {"type": USER, "id": UNKNOWN_PRINCIPALS[0], "properties": shared_properties(request)}
            self._take(single_request({**request, "subject": subject}))
        self._reached = frozenset(self._reaching())
        subjects = () if self._engine is None else engine_subjects(self._engine, self._policy_set.facts)
        self._subjects = grouped(subjects, lambda who: who.name)  # that an engine's documents name
        self._first, self._others = self._names(system)

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the actions that the system can answer for this resource."""
        return tuple(dict.fromkeys(request.action.name for request in self._requests))

    @property
    def reached(self) -> int:
        """How many names are evaluated first: those that a matching statement reaches."""
        return len(self._first)

    @property
    def principals(self) -> int:
        """How many names are evaluated, each with its spellings."""
        return len(self._first) + len(self._others)

    def _take(self, request: Request) -> None:
        """Note the request, and what it needs, unless no subject gets an answer."""
        if self._engine is not None:
            self._requests.append(request)
            return
        for name in UNKNOWN_PRINCIPALS:
            try:
                query = resolve(self._snapshot.policy_sets, _with_subject(request, Who(name)), CLAIMS).query
            except Unanswerable as unanswerable:
                self.why = unanswerable.reason.message
                continue
            self._requests.append(request)
            self._expressions.append(query.expression)
            self._checks += [leaf for leaf in leaves(query.expression) if isinstance(leaf, PermissionCheck)]
            return

    def _reaching(self) -> Iterator[str]:
        """The principals of statements that match what a request needs, allows and denies."""
        for name, checks in grouped(self._checks, lambda check: check.object).items():
            yield from self._policy_set.index.principals({check.permission: None for check in checks}, name)

    def _names(self, system: str) -> tuple[list[str], list[str]]:
        """Those that a matching statement reaches, and all others; sorted."""
        if self._engine is not None:
            return sorted(self._subjects), []
        reached = self._policy_set.membership_index.members(self._reached) - {EVERYONE}
        others = set(document_names(self._policy_set, system)) if self._requests else set[str]()
        return sorted(reached), sorted(others - reached - {EVERYONE})

    def _spellings(self, name: str) -> Iterable[Who]:
        """A name as subjects of requests are called, and as a claim."""
        return spellings(name, self._system, CLAIMS) if self._engine is None else self._subjects.get(name, ())

    def answers(self) -> Iterator[tuple[ResourceAccess, ...]]:
        """What holds of any principal, then what each name has beside that. Each step evaluates one name."""
        common = self._of_everyone()
        yield tuple(_grouped(None, common))
        of_everyone = {(effect, action) for effect, action, _ in common}
        seen = set[Who]()  # a name may be spelt as another one is
        for name in itertools.chain(self._first, self._others):
            whos = [who for who in self._spellings(name) if who not in seen]
            seen.update(whos)
            rows = {who: [row for row in self._evaluated(who) if row[:2] not in of_everyone] for who in whos}
            yield tuple(access for who, of_who in rows.items() for access in _grouped(who, of_who))

    def _of_everyone(self) -> list[Row]:
        """What is alike for subjects that no document names, of all types that subjects have here."""
        types = {who.type for subjects in self._subjects.values() for who in subjects} or {""}
        of_types = [self._of_unnamed(type_) for type_ in sorted(types)]
        common = set.intersection(*({row[:2] for row in rows} for rows in of_types))
        return [row for row in of_types[0] if row[:2] in common]

    def _of_unnamed(self, type_: str) -> list[Row]:
        """Not every system takes a bare name: an allow of one of both counts, as for `who_can`."""
        rows = [row for name in UNKNOWN_PRINCIPALS for row in self._evaluated(Who(name, "", type_))]
        allowed = {action for effect, action, _ in rows if effect == ALLOW}
        by_action = {row[:2]: row for row in reversed(rows) if row[0] == ALLOW or row[1] not in allowed}
        return list(by_action.values())

    def _evaluated(self, who: Who) -> list[Row]:
        """The effect of each action that is allowed, or that a statement denies. A claim counts for any subject."""
        by_action: dict[str, tuple[Effect, tuple[AccessPath, ...]]] = {}
        for subject in [Who(name, who.claim, who.type) for name in UNKNOWN_PRINCIPALS] if who.claim else [who]:
            for number, request in enumerate(self._requests):
                trace = self._trace(_with_subject(request, subject, who.name))
                if trace is None:
                    continue
                if self._has_nothing(trace, number):
                    if self._reads_facts:  # what another action needs may depend on the subject, as CDAP's `get` does
                        continue
                    break
                effect, action = _effect(trace), request.action.name
                if effect == ALLOW or (effect == DENY and action not in by_action):
                    by_action[action] = effect, _paths(trace)
        return [(effect, action, paths) for action, (effect, paths) in by_action.items()]

    def _trace(self, request: Request) -> EvaluationTrace | None:
        try:
            return evaluate_request(self._snapshot, request, CLAIMS)
        except Unanswerable:
            return None

    def _has_nothing(self, trace: EvaluationTrace, number: int) -> bool:
        """Whether a name has no more than those that no document names: most spellings of a name are nobody's."""
        if self._engine is not None or not self._reached.isdisjoint(trace.effective_principals.via):
            return False
        expression = trace.result.expression
        return expression == self._expressions[number] and not any(map(_is_beside_grants, leaves(expression)))


def _with_subject(request: Request, who: Who, claimed: str = "") -> Request:
    properties = {**request.subject.properties, **({who.claim: [claimed]} if who.claim else {})}
    subject = msgspec.structs.replace(request.subject, type=who.type or USER, id=who.name, properties=properties)
    return msgspec.structs.replace(request, subject=subject)


def _is_beside_grants(leaf: Expression) -> bool:
    """Whether it is no check of the subject's own grants."""
    return not isinstance(leaf, PermissionCheck) or bool(leaf.principals)


def _effect(trace: EvaluationTrace) -> Effect | None:
    """None: no statement allows or denies it, or there is no answer."""
    outcome = conclude(trace).outcome
    if outcome == "allow":
        return ALLOW
    return DENY if outcome == "deny" and trace.result.denied else None


def _paths(trace: EvaluationTrace) -> tuple[AccessPath, ...]:
    deciding = dict.fromkeys(trace.result.deciding(every=False))
    return tuple(path for leaf in deciding for path in _of_leaf(leaf, trace))


def _of_leaf(leaf: ExpressionResult, trace: EvaluationTrace) -> Iterator[AccessPath]:
    expression = leaf.expression
    if isinstance(expression, EngineResult):
        for reason in expression.reasons:
            yield AccessPath(reason.document or "", reason.statement, "" if reason.document else reason.message)
    elif leaf.grants:
        statement_id, principal = leaf.grants[0].statement_id, leaf.grants[0].principal
        path = route(trace.effective_principals.via, principal)
        yield AccessPath(statement_id.document, statement_id.statement, path)
    elif isinstance(expression, Condition):
        yield AccessPath("", None, expression.message)


def _grouped(who: Who | None, rows: Iterable[Row]) -> Iterator[ResourceAccess]:
    """The actions that have the same effect by the same paths together."""
    actions: dict[tuple[Effect, tuple[AccessPath, ...]], list[str]] = {}
    for effect, action, paths in rows:
        actions.setdefault((effect, tuple(dict.fromkeys(paths))), []).append(action)
    for (effect, paths), names in actions.items():
        yield ResourceAccess(who, effect, tuple(names), paths)
