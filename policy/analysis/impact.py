"""What may a subject do, and who may do something: the questions that people ask before they change a policy.

*Who* is answered by deciding: every subject that the documents name is evaluated, so the answer is always
that of `decide`. *What* is answered by the grants which a subject holds, each with the denies that meet it; of a system
with an engine of its own, which has none, by deciding too.
"""

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy.core.decision import Decision
from policy.core.facts import Facts
from policy.core.grouping import grouped
from policy.core.model import DENY, Grant, Unanswerable, in_force
from policy.core.pattern import Pattern, covers, overlaps
from policy.core.request import CLAIMS, MalformedRequest, Request, parse_request, usable_time
from policy.evaluation.authorize import decide
from policy.evaluation.evaluate import resolve
from policy.evaluation.explain import route
from policy.matching.index import PatternIndex
from policy.store.policy_set import EffectivePrincipals, PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import Engine, engine_of
from policy.systems.kit.system import UNTYPED, ListsActions, ListsResourceTypes

UNKNOWN_PRINCIPAL = "somebody-whom-no-document-names"
UNKNOWN_PRINCIPALS = (UNKNOWN_PRINCIPAL, f"user:{UNKNOWN_PRINCIPAL}")  # not every system takes a bare name
USER = "user"
REFUSED = "refused-document"  # the code of an error that is one for this reason
NO_SUBJECT = "no-subject"  # the answer to what is not written as subjects of the system are
MOST_PAIRS = 100_000  # of an action and a resource, each of which is decided by Cedar (docs, "Limits of the analysis")
CLAIMED = ("groups", "roles")
OF_ONE = (*CLAIMED, "token")  # properties that are one subject's own


class Undetermined(MalformedRequest):
    """What a subject may do cannot be said, though it is a subject of the system."""


class EffectivePermission(msgspec.Struct, frozen=True):
    """A grant that a subject holds, by which way, and the denies that take all of it or some of it away."""

    grant: Grant
    route: str
    cancelled_by: tuple[Grant, ...] = ()
    narrowed_by: tuple[Grant, ...] = ()


class Who(msgspec.Struct, frozen=True, order=True):
    """A subject by its id, or any principal that claims ``claim`` (``groups``, ``roles``) of that name.

    ``type``: the subject's, where it is not ``user``.
    """

    name: str
    claim: str = ""
    type: str = ""


class Reach(msgspec.Struct, frozen=True):
    """Who is allowed, subjects before claims.

    ``everyone``: also subjects that no document names; then ``but`` lists those who are denied, or answered ``error``
    though they are subjects, and ``allowed`` names no claims, which need not be made. ``complete``: False
    where a system evaluates by an engine of its own: subjects that its documents do not name may be allowed too, or
    denied.
    """

    allowed: tuple[Who, ...]
    everyone: bool = False
    but: tuple[Who, ...] = ()
    complete: bool = True


def who_can(
    snapshot: Snapshot, request: Mapping[str, Any], *, trust: frozenset[str] = CLAIMS, also: Iterable[str] = ()
) -> Reach:
    """Whom ``decide`` allows the request's action on its resource.

    Asked for are all names in grants, memberships and facts, and ``also``, each in the place of the request's subject:
    with its properties (an organization), but not with its groups, roles and token; in a system with an engine of its
    own, ``also`` are of the type of the request's subject. Raises MalformedRequest.
    """
    base = {**request, "subject": _subject(UNKNOWN_PRINCIPAL, shared_properties(request))}
    system = single_request(base).system
    if system not in snapshot.policy_sets:
        return Reach(())
    engine = engine_of(all_systems()[system])
    subject_type = _type_of_subject(request) if engine is not None else ""
    candidates = set(
        _candidates(snapshot.policy_sets[system], system, [Who(name, "", subject_type) for name in also], trust)
    )
    types = sorted({who.type for who in candidates}) if engine is not None and candidates else [subject_type]
    outcomes = {
        who: _outcomes(snapshot, base, who, trust)
        for who in sorted(candidates, key=lambda who: (who.claim, who.name, who.type))
    }
    allowed = tuple(who for who, answers in outcomes.items() if "allow" in answers)
    if not all(_allows_unknown(snapshot, base, type_, trust) for type_ in types):
        return Reach(allowed, complete=engine is None)
    subjects = tuple(who for who in allowed if not who.claim)
    named = (name.partition(":")[2] for name in snapshot.policy_sets[system].broken_at(None))
    affected = {Who(name) for name in named if name}
    outcomes |= {who: _outcomes(snapshot, base, who, trust) for who in sorted(affected - outcomes.keys())}
    but = tuple(who for who, answers in outcomes.items() if _is_refused(who, answers, system) and who not in allowed)
    return Reach(subjects, True, but, engine is None)


def who_among(
    snapshot: Snapshot, request: Mapping[str, Any], names: Iterable[str], trust: frozenset[str] = CLAIMS
) -> Iterator[Who]:
    """Those of ``names``, as documents have them, whom ``decide`` allows the request, in their order; of a system with
    an engine in that of its subjects. Raises MalformedRequest.
    """
    system = single_request(request).system
    base = {**request, "subject": _subject(UNKNOWN_PRINCIPAL, shared_properties(request))}
    engine = engine_of(all_systems()[system])
    wanted, seen = dict.fromkeys(names), set[Who]()
    if engine is not None:
        subjects = engine_subjects(engine, snapshot.policy_sets[system].facts)
        candidates = [who for who in subjects if who.name in wanted]
    else:
        candidates = [who for name in wanted for who in spellings(name, system, trust)]
    for who in candidates:
        if who not in seen and "allow" in _outcomes(snapshot, base, who, trust):
            seen.add(who)
            yield who


def engine_subjects(engine: Engine, facts: Facts) -> Iterator[Who]:
    """The subjects that the documents of a system with an engine name."""
    return (Who(name, "", "" if type_ == USER else type_) for type_, name in engine.subjects(facts))


def spellings(name: str, system: str, trust: frozenset[str]) -> Iterator[Who]:
    """A name of the documents as a subject, with and without its kind, and as a claim."""
    bare, claimed = name.partition(":")[2], all_systems()[system].claimed_name(name)
    yield from (Who(text) for text in (name, bare) if text)
    yield from (Who(claimed or name, claim) for claim in CLAIMED if claim in trust)


def _allows_unknown(snapshot: Snapshot, request: Mapping[str, Any], type_: str, trust: frozenset[str]) -> bool:
    """Whether a subject of a type is allowed that no document names."""
    return any("allow" in _outcomes(snapshot, request, Who(name, "", type_), trust) for name in UNKNOWN_PRINCIPALS)


def single_request(request: Mapping[str, Any]) -> Request:
    """A request that is no batch. Raises MalformedRequest."""
    parsed = parse_request(request)
    if not isinstance(parsed, Request):
        raise MalformedRequest("evaluations: ask for one action on one resource, not for a batch")
    return parsed


def _candidates(policy_set: PolicySet, system: str, also: Iterable[Who], trust: frozenset[str]) -> Iterator[Who]:
    engine = engine_of(all_systems()[system])
    if engine is not None:
        yield from (*engine_subjects(engine, policy_set.facts), *also)
        return
    for name in {*document_names(policy_set, system), *(who.name for who in also)}:
        yield from spellings(name, system, trust)


def document_names(policy_set: PolicySet, system: str) -> Iterator[str]:
    """Every name that may belong to a subject or to something it can claim."""
    yield from policy_set.grants
    yield from policy_set.memberships
    yield from (membership.principal for memberships in policy_set.memberships.values() for membership in memberships)
    for kind in all_systems()[system].kinds:
        yield from policy_set.facts.names(kind)


def _outcomes(snapshot: Snapshot, request: Mapping[str, Any], who: Who, trust: frozenset[str]) -> set[str]:
    """The answers; of a claim those for unknown principals of either form.

    `REFUSED`: error by a refused document; `NO_SUBJECT`: error by what the subject is called.
    """
    shared = request["subject"]["properties"]
    named = [_subject(name, {**shared, who.claim: [who.name]}) for name in UNKNOWN_PRINCIPALS]
    subjects = named if who.claim else [_subject(who.name, shared, who.type or USER)]
    decisions = (decide(snapshot, {**request, "subject": subject}, trust=trust) for subject in subjects)
    return set(map(_answer, decisions))


def _answer(decision: Decision) -> str:
    codes = {reason.code for reason in decision.reasons} if decision.outcome == "error" else set[str]()
    return REFUSED if REFUSED in codes else NO_SUBJECT if codes & OF_SUBJECTS else decision.outcome


def _is_refused(who: Who, answers: set[str], system: str) -> bool:
    """Whether somebody is not allowed: denied, or an error, as where a moment is needed or a condition fails.

    A refused document names each of its texts with each prefix of the system's principals: subjects have none.
    """
    if "deny" in answers or "error" in answers:
        return True
    return REFUSED in answers and not who.name.startswith(tuple(all_systems()[system].subjects))


def shared_properties(request: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of the request's subject that others may have too."""
    subject = request.get("subject")
    properties = subject.get("properties") if isinstance(subject, Mapping) else None
    of_subject = properties if isinstance(properties, Mapping) else {}
    return {name: value for name, value in of_subject.items() if name not in OF_ONE}


def _type_of_subject(request: Mapping[str, Any]) -> str:
    """Of the request's subject, as `Who` has it: empty for a user, and where the request has none."""
    subject = request.get("subject")
    type_ = subject.get("type") if isinstance(subject, Mapping) else None
    return type_ if isinstance(type_, str) and type_ != USER else ""


def _subject(name: str, properties: Mapping[str, Any], type_: str = USER) -> dict[str, Any]:
    return {"type": type_, "id": name, "properties": dict(properties)}


class KnownNames(msgspec.Struct, frozen=True):
    """What the documents of a system with an engine name. ``subjects``, ``resources``: types and ids."""

    subjects: tuple[tuple[str, str], ...]
    resources: tuple[tuple[str, str], ...]
    actions: tuple[str, ...]


def known_names(policy_set: PolicySet, system: str) -> KnownNames | None:
    """What searches ask for where a system evaluates by an engine; None: it translates to grants."""
    engine = engine_of(all_systems()[system])
    if engine is None:
        return None
    facts = policy_set.facts
    return KnownNames(tuple(engine.subjects(facts)), tuple(engine.resources(facts)), tuple(engine.actions(facts)))


class Permitted(msgspec.Struct, frozen=True, order=True):
    """An action on a resource, by its type and id, that is allowed."""

    action: str
    type: str
    id: str


def what_is_permitted(
    snapshot: Snapshot, request: Mapping[str, Any], *, trust: frozenset[str] = CLAIMS
) -> tuple[Permitted, ...]:
    """What ``decide`` allows the request's subject of all that documents name; of a system with an engine alone.

    Each action on each resource is evaluated, with the request's context. It is never complete: actions and resources
    that no document names may be allowed too. Raises MalformedRequest, also for a system without an engine, and
    Undetermined for more than `MOST_PAIRS` pairs.
    """
    parsed = single_request(request)
    policy_set = snapshot.policy_sets.get(parsed.system)
    named = None if policy_set is None else known_names(policy_set, parsed.system)
    if named is None:
        raise MalformedRequest(f"{parsed.system} does not evaluate its policies by an engine: use what_can")
    if (pairs := len(named.actions) * len(named.resources)) > MOST_PAIRS:
        raise Undetermined(f"{pairs} pairs of an action and a resource; at most {MOST_PAIRS}")
    permitted = []
    for action, (type_, id_) in itertools.product(named.actions, named.resources):
        asked = {**request, "action": {"name": action}, "resource": {"type": type_, "id": id_}}
        if decide(snapshot, asked, trust=trust).outcome == "allow":
            permitted.append(Permitted(action, type_, id_))
    return tuple(sorted(permitted))


def what_can(
    snapshot: Snapshot, request: Mapping[str, Any], *, trust: frozenset[str] = CLAIMS
) -> tuple[EffectivePermission, ...]:
    """What the request's subject holds, at its time: allows and denies, by document.

    The action and resource must be ones that the system knows; they do not narrow the answer.
    Raises MalformedRequest, also where the system has an engine of its own and no grants; and Unanswerable.
    """
    parsed = single_request(request)
    if engine_of(all_systems().get(parsed.system)) is not None:
        message = f"{parsed.system} evaluates its policies by an engine and has no grants: use what_is_permitted"
        raise MalformedRequest(message)
    resolved, at = resolve(snapshot.policy_sets, parsed, trust), usable_time(parsed, trust)
    permissions = effective_permissions(resolved.effective_principals, at)
    counts = resolved.system.grants_that_count(parsed, resolved.policy_set.facts.at(at), trust)
    return tuple(permission for permission in permissions if counts is None or counts(permission.grant))


def effective_permissions(effective_principals: EffectivePrincipals, at: int | None) -> tuple[EffectivePermission, ...]:
    """The grants in force that a subject holds, each with the denies of its own that meet it."""
    grants = [grant for grant in effective_principals.grants() if in_force(grant.window, at)]
    denies: PatternIndex[list[tuple[int, Grant]]] = PatternIndex()
    numbered = enumerate(grant for grant in grants if grant.effect == DENY)
    for object_, of_object in grouped(numbered, lambda item: item[1].object).items():
        denies.put(object_, of_object)

    @functools.cache  # many roles say the same
    def meeting_denies(permission: Pattern, object_: Pattern) -> tuple[tuple[Grant, ...], tuple[Grant, ...]]:
        """The denies that cancel an allow, and those that narrow it."""
        on_object = sorted(itertools.chain.from_iterable(denies.meeting(object_)), key=operator.itemgetter(0))
        meeting = [deny for _, deny in on_object if overlaps(deny.permission, permission)]
        by_cover = grouped(meeting, lambda deny: covers(deny.permission, permission) and covers(deny.object, object_))
        return tuple(by_cover.get(True, ())), tuple(by_cover.get(False, ()))

    def effective_permission(grant: Grant) -> EffectivePermission:
        cancelling, narrowing = meeting_denies(grant.permission, grant.object) if grant.effect != DENY else ((), ())
        return EffectivePermission(grant, route(effective_principals.via, grant.principal), cancelling, narrowing)

    return tuple(map(effective_permission, sorted(grants, key=lambda grant: grant.statement_id.place)))


def subsumes(wide: Grant, narrow: Grant) -> bool:
    """Whether ``wide`` matches everything that ``narrow`` does; windows and principals left aside."""
    return covers(wide.permission, narrow.permission) and covers(wide.object, narrow.object)


def what_subject_can(
    snapshot: Snapshot,
    system: str,
    subject: Mapping[str, Any],
    at: int | None = None,
    trust: frozenset[str] = CLAIMS,
) -> tuple[EffectivePermission, ...] | tuple[Permitted, ...]:
    """What a subject may do, without an action or resource: its grants, each with the denies that meet it.

    Of a system with an engine of its own, which has no grants, each action on each resource that documents name and
    that is allowed. ``at``: the moment, ms. Raises MalformedRequest, also where the system does not know the subject.
    """
    policy_set = snapshot.policy_sets.get(system)
    if policy_set is None:
        raise MalformedRequest(f"system {system!r} is not one of {', '.join(snapshot.policy_sets)}")
    base = {"id": "what-can", "system": system, "subject": dict(subject), "time": at}
    trust |= {"time"}
    if engine_of(all_systems()[system]) is not None:
        named = {"action": {"name": "any"}, "resource": {"type": UNTYPED, "id": "any"}}
        return what_is_permitted(snapshot, base | named, trust=trust)
    why = ""
    for probe in probes(policy_set, system):
        try:
            return what_can(snapshot, base | probe, trust=trust)
        except Unanswerable as unanswerable:
            why = unanswerable.reason.message
            if unanswerable.reason.code == REFUSED:
                raise Undetermined(why) from unanswerable
            if unanswerable.reason.code in OF_SUBJECTS:
                break
    raise MalformedRequest(why)


OF_SUBJECTS = frozenset(
    {
        "ambiguous-authentication",
        "ambiguous-token",
        "malformed-claim",
        "malformed-name",
        "malformed-subject",
        "token-mismatch",
        "too-many-claims",
        "unknown-principal",
        "unknown-subject-type",
    }
)
"""Codes of what is wrong with a subject, whatever it asks for: other probes have the same answer, and Lenses 6 has
300,000 of them, which take ten seconds. Names in probes are of documents and catalogues, and have no fault.
"""


def probes(policy_set: PolicySet, system: str) -> Iterator[dict[str, Any]]:
    """Actions on resources, one of which at least the system knows: what a subject holds does not depend on them."""
    translator = all_systems()[system]
    actions = list(translator.actions()) if isinstance(translator, ListsActions) else []
    facts = [name for kind in translator.kinds for name in itertools.islice(policy_set.facts.names(kind), 1)]
    types = list(translator.resource_types()) if isinstance(translator, ListsResourceTypes) else []
    properties = dict.fromkeys(translator.needed_properties, "any")
    for action in actions:
        ids = [*facts, *(f"{type_}:any" for type_ in types), *(f"{type_}:any/any/any" for type_ in types), "any"]
        for id_, type_ in itertools.product(ids, [translator.resource_type(action, "any"), *types]):
            resource = {"type": type_, "id": id_, "properties": properties}
            yield {"action": {"name": action}, "resource": resource}
