"""What is nearest to a request that is denied: grants that fall short in one thing, who has it, and denies against it.

Worked out for people who ask: it goes through all grants, and no decision of the stream does it.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from policy.analysis.impact import Who, document_names, who_among
from policy.analysis.wording import grant_text, membership_text, window_text
from policy.core.model import (
    ALLOW,
    DENY,
    All,
    AnyOf,
    Condition,
    EngineResult,
    Expression,
    Grant,
    Membership,
    PermissionCheck,
    Unanswerable,
)
from policy.core.pattern import EVERYTHING, Name, match_part, matches
from policy.core.request import CLAIMS, IncompleteItem, Request, parse_request, usable_time
from policy.evaluation.authorize import answer, evaluated_items
from policy.evaluation.evaluate import combine, evaluate_request
from policy.evaluation.explain import route, sentence
from policy.evaluation.trace import EvaluationTrace, ExpressionResult
from policy.store.memberships import Via, reachable_principals
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems.kit.engine import engine_of
from policy.systems.kit.system import EVERYONE

Lack = Literal["action", "resource", "validity", "condition"]
ORDER: tuple[Lack, ...] = ("condition", "validity", "action", "resource")
MOST_NEAR, MOST_PRINCIPALS, MOST_CHECKS, MOST_DECIDED = 3, 10, 5, 2000


class NearestGrant(msgspec.Struct, frozen=True):
    """A statement of the subject's that would allow what the request needs but for one thing, ``lacks``.

    ``text``: what it says; ``detail``: what falls short; ``route``: how the subject has it. ``suffices``: with that the
    request would be allowed; False: it needs more than that, or a deny stands against it, or that is not known.
    """

    document: str
    statement: int | None
    text: str
    lacks: Lack
    detail: str
    route: str = ""
    suffices: bool = True


class MatchingDeny(msgspec.Struct, frozen=True):
    """A deny that stands against the request: its statement, what it says, and how the subject has it."""

    document: str
    statement: int | None
    text: str
    route: str = ""


class Nearest(msgspec.Struct, frozen=True):
    """``near``: at most `MOST_NEAR` statements, the nearest first. ``notes``: what else is to be known.

    ``principals``: at most `MOST_PRINCIPALS` who are allowed the request; ``more``: whether there may be others.
    """

    denies: tuple[MatchingDeny, ...] = ()
    near: tuple[NearestGrant, ...] = ()
    principals: tuple[Who, ...] = ()
    more: bool = False
    notes: tuple[str, ...] = ()


def nearest_grants(
    snapshot: Snapshot, request: Mapping[str, Any], trust: frozenset[str] = CLAIMS
) -> list[Nearest | None]:
    """For a request, or each item of a batch that is evaluated; None: it is no deny. Raises MalformedRequest."""
    items = evaluated_items(snapshot, parse_request(request), trust)
    return [_nearest(snapshot, item, request, trust) for item in items]


def _nearest(
    snapshot: Snapshot, request: Request | IncompleteItem, fields: Mapping[str, Any], trust: frozenset[str]
) -> Nearest | None:
    if isinstance(request, IncompleteItem) or answer(snapshot, request, trust).outcome != "deny":
        return None
    try:
        trace = evaluate_request(snapshot, request, trust)
    except Unanswerable:
        return None
    policy_set, at = snapshot.policy_sets[request.system], usable_time(request, trust)
    engine = engine_of(trace.system)
    if engine is not None:
        return _of_engine(snapshot, request, fields, trust, trace)
    leaves = [leaf for leaf in trace.result.deciding() if isinstance(leaf.expression, PermissionCheck)]
    search = _Search(policy_set, trace, at)
    near = itertools.chain.from_iterable(search.near(leaf) for leaf in leaves[:MOST_CHECKS])
    # A statement may be several grants, as Read of Kafka brings Describe: it is named once for what it lacks.
    ranked: dict[tuple[str, int | None, str], NearestGrant] = {}
    for candidate in sorted((*_conditions(trace), *near), key=_rank):
        ranked.setdefault((candidate.document, candidate.statement, candidate.detail), candidate)
    reached = search.principals(leaves[:MOST_CHECKS])
    others = {*document_names(policy_set, request.system)} - reached - {EVERYONE}  # a condition may count for them
    names = [*sorted(reached), *sorted(others)]
    principals, more = _allowed_principals(snapshot, request, fields, trust, names)
    denies = tuple(search.denies(leaves))
    notes = tuple(search.but_for_the_denies(leaves)) if denies else ()
    return Nearest(denies, tuple(itertools.islice(ranked.values(), MOST_NEAR)), principals, more, notes)


def _rank(candidate: NearestGrant) -> tuple[bool, int]:
    return not candidate.suffices, ORDER.index(candidate.lacks)


def _conditions(trace: EvaluationTrace) -> Iterator[NearestGrant]:
    """Grants that match, where a condition beside them does not hold."""
    for whole in _alls(trace.result):
        wanting = [item for item in whole.items if isinstance(item.expression, Condition) and not item.held]
        if not wanting or not all(item.held or item in wanting for item in whole.items):
            continue
        detail = "; ".join(item.expression.message for item in wanting if isinstance(item.expression, Condition))
        suffices = _held_with(trace.result, {item.expression for item in wanting}) is True
        for item in whole.items:
            for grant in item.grants:
                if grant.effect == ALLOW:
                    path = route(trace.effective_principals.via, grant.principal)
                    yield _nearest_grant(trace, grant, "condition", detail, path, suffices)


def _held_with(result: ExpressionResult, held: Collection[Expression]) -> bool | None:
    """The value of an expression if these leaves of it held."""
    if isinstance(result.expression, All | AnyOf) and result.items:
        return combine(result.expression, [_held_with(item, held) for item in result.items])
    return True if result.expression in held and not result.denied else result.held


def _alls(result: ExpressionResult) -> Iterator[ExpressionResult]:
    if isinstance(result.expression, All):
        yield result
    for item in result.items:
        yield from _alls(item)


def _nearest_grant(
    trace: EvaluationTrace, grant: Grant, lacks: Lack, detail: str, path: str, suffices: bool
) -> NearestGrant:
    statement_id, text = grant.statement_id, grant_text(grant, trace.system)
    return NearestGrant(statement_id.document, statement_id.statement, text, lacks, detail, path, suffices)


class _Path(msgspec.Struct, frozen=True):
    """A principal, the membership on the way to it that is not valid now, and the whole way."""

    principal: str
    membership: Membership
    route: str


class _Search:
    """Looks for grants of one policy set, for the subject of one evaluation."""

    def __init__(self, policy_set: PolicySet, trace: EvaluationTrace, at: int | None) -> None:
        self._policy_set, self._trace, self._at = policy_set, trace, at
        self._via = trace.effective_principals.via

    def denies(self, leaves: Iterable[ExpressionResult]) -> Iterator[MatchingDeny]:
        """The denies that match what was requested."""
        denies = dict.fromkeys(grant for leaf in leaves for grant in leaf.grants if grant.effect == DENY)
        for grant in denies:
            statement_id, text = grant.statement_id, grant_text(grant, self._trace.system)
            yield MatchingDeny(statement_id.document, statement_id.statement, text, route(self._via, grant.principal))

    def but_for_the_denies(self, leaves: Iterable[ExpressionResult]) -> Iterator[str]:
        """The first allow that matches what is denied, of each check; or that there is none."""
        for leaf in leaves:
            check = leaf.expression
            assert isinstance(check, PermissionCheck)
            matching = (grant for grant in self._allows(self._via_of(check)) if _fits(grant, check))
            allows = (grant for grant in matching if grant.window.known_to_hold(self._at))
            first = min(allows, key=lambda grant: grant.statement_id.place, default=None)
            if leaf.denied:
                verdict = "no statement allows" if first is None else f"{first.statement_id} allows"
                yield f"but for the denies, {verdict} {sentence(check)}"

    def _via_of(self, check: PermissionCheck) -> Via:
        """Whose grants count for a check: the subject's, or those of others, such as whom it would act for."""
        if not check.principals:
            return self._via
        return self._policy_set.effective_principals(check.principals, self._at).via

    def _allows(self, via: Via) -> list[Grant]:
        grants = itertools.chain.from_iterable(self._policy_set.grants.get(principal, ()) for principal in via)
        return [grant for grant in grants if grant.effect == ALLOW]

    def near(self, leaf: ExpressionResult) -> Iterator[NearestGrant]:
        """Allows of the subject that match a check but for one thing; the nearest resources first."""
        check = leaf.expression
        assert isinstance(check, PermissionCheck)
        via, suffices = self._via_of(check), _held_with(self._trace.result, {check}) is True
        allows = self._allows(via)
        others = [grant for grant in allows if grant.window.known_to_hold(self._at)]

        def short(grant: Grant, lacks: Lack, detail: str, enough: bool = suffices) -> NearestGrant:
            return _nearest_grant(self._trace, grant, lacks, detail, route(via, grant.principal), enough)

        for grant in allows:
            if not grant.window.known_to_hold(self._at) and _fits(grant, check):
                enough = suffices and self._is_allowed_by(via, grant, grant.statement_id.document)
                yield short(grant, "validity", window_text(grant.window), enough)
        yield from self._by_paths_of_other_times(check, via, suffices)
        on_resource = (grant for grant in others if matches(grant.object, check.object))
        for grant in on_resource:
            if not matches(grant.permission, check.permission) and self._may_grant(grant, check.permission):
                yield short(grant, "action", f"not {check.permission_text}")
        permitting = (grant for grant in others if matches(grant.permission, check.permission))
        fitting = [grant for grant in permitting if not matches(grant.object, check.object)]
        for grant in sorted(fitting, key=lambda grant: -_alike(grant, check)):
            # A grant of everything elsewhere says nothing of the action, so nothing of it is near.
            if _alike(grant, check) or grant.permission != EVERYTHING:
                yield short(grant, "resource", f"not on {check.object_text}")

    def _may_grant(self, grant: Grant, permission: Name) -> bool:
        system = self._trace.system
        return system is None or system.may_grant(grant, permission)

    def _by_paths_of_other_times(self, check: PermissionCheck, via: Via, suffices: bool) -> Iterator[NearestGrant]:
        """Grants that match, by memberships that are not valid now."""
        for path in self._paths_of_other_times(via):
            for grant in self._policy_set.grants.get(path.principal, ()):
                if grant.effect == ALLOW and _fits(grant, check):
                    enough = suffices and self._is_allowed_by(via, grant, path.membership.statement_id.document)
                    detail = f"{membership_text(path.membership)} ({path.membership.statement_id})"
                    yield _nearest_grant(self._trace, grant, "validity", detail, path.route, enough)

    def _paths_of_other_times(self, via: Via) -> Iterator["_Path"]:
        """The principals that the subject is at another moment, each with the membership that is not valid now."""
        anytime = reachable_principals(via, self._policy_set.memberships, lambda _window: True)
        whole = {**anytime, **via}
        for principal, membership in anytime.items():
            while membership is not None and membership.member not in via:
                membership = anytime[membership.member]
            if membership is not None:
                yield _Path(principal, membership, route(whole, principal))

    def _is_allowed_by(self, via: Via, grant: Grant, document: str) -> bool:
        """Whether a grant would count if what a document says were valid now, and nothing would stand against it."""

        def counts(dated: Grant | Membership) -> bool:
            return dated.window.known_to_hold(self._at) or dated.statement_id.document == document

        reached = dict.fromkeys(via)
        todo = list(reached)
        for member in todo:  # grows meanwhile
            for membership in self._policy_set.memberships.get(member, ()):
                if membership.principal not in reached and counts(membership):
                    reached[membership.principal] = None
                    todo.append(membership.principal)
        grants = itertools.chain.from_iterable(self._policy_set.grants.get(principal, ()) for principal in reached)
        news = (new for new in grants if new.principal not in via or not new.window.known_to_hold(self._at))
        if any(new.effect == DENY and counts(new) for new in news):
            return False
        broken = self._policy_set.broken_at(self._at)
        return grant.principal in reached and counts(grant) and broken.keys().isdisjoint(reached.keys() - via.keys())

    def principals(self, leaves: Iterable[ExpressionResult]) -> set[str]:
        """Names of all that have what was requested by some grant: those of its principal, and who is one of these."""
        checks = [leaf.expression for leaf in leaves if isinstance(leaf.expression, PermissionCheck)]
        having = {
            principal
            for principal, grants in self._policy_set.grants.items()
            if any(grant.effect == ALLOW and any(_fits(grant, check) for check in checks) for grant in grants)
        }
        return self._policy_set.membership_index.members(having) - {EVERYONE}


def _fits(grant: Grant, check: PermissionCheck) -> bool:
    return matches(grant.permission, check.permission) and matches(grant.object, check.object)


def _alike(grant: Grant, check: PermissionCheck) -> int:
    """How many parts of the resource match from the beginning on."""
    pairs = zip(grant.object.parts, check.object, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: match_part(pair[0], pair[1]), pairs))


def _allowed_principals(
    snapshot: Snapshot, request: Request, fields: Mapping[str, Any], trust: frozenset[str], names: Iterable[str]
) -> tuple[tuple[Who, ...], bool]:
    """Those of the names that are allowed the request, decided one by one: a deny may stand against some of them.

    And whether there may be others.
    """
    base = {name: value for name, value in fields.items() if name not in ("evaluations", "options", "deadline")}
    builtins = msgspec.to_builtins
    base |= {"id": request.id, "action": builtins(request.action), "context": request.context, "time": request.time}
    base |= {"resource": builtins(request.resource), "subject": builtins(request.subject)}
    asked = list(names)
    who = who_among(snapshot, base, asked[:MOST_DECIDED], trust)
    allowed = tuple(itertools.islice(who, MOST_PRINCIPALS + 1))
    return allowed[:MOST_PRINCIPALS], len(allowed) > MOST_PRINCIPALS or len(asked) > MOST_DECIDED


def _of_engine(
    snapshot: Snapshot, request: Request, fields: Mapping[str, Any], trust: frozenset[str], trace: EvaluationTrace
) -> Nearest:
    """What an engine's statements say of themselves; who is allowed, of the subjects that documents name."""
    engine, policy_set = engine_of(trace.system), snapshot.policy_sets[request.system]
    assert engine is not None
    facts = policy_set.facts.at(usable_time(request, trust))
    result = trace.result.expression
    denies = result.reasons if isinstance(result, EngineResult) and result.denied else ()
    against = tuple(MatchingDeny(entry.document or "", entry.statement, entry.message) for entry in denies)
    near = [
        NearestGrant(
            statement_id.document, statement_id.statement, text, lacks, detail, suffices=suffices and not denies
        )
        for statement_id, text, lacks, detail, suffices in engine.near(facts, request, trust)
        if not (denies and lacks == "condition")  # it may be satisfied: the deny stands all the same
    ]
    ranked = sorted(near, key=_rank)
    principals, more = _allowed_principals(
        snapshot, request, fields, trust, sorted({name for _, name in engine.subjects(policy_set.facts)})
    )
    conditions = any(entry.lacks == "condition" for entry in near)
    notes = ("which part of a condition is not satisfied, the policy engine does not say",) if conditions else ()
    return Nearest(against, tuple(ranked[:MOST_NEAR]), principals, more, notes)
