"""What holds for all systems, whatever the documents and the request: each property over generated ones.

A system takes part by a module of its name in `strategies`, with `documents()` and `requests()`.
"""

import copy
import importlib
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st
from msgspec import structs

import policy
from policy.analysis.impact import Who, effective_permissions, subsumes, who_can
from policy.core.model import ALLOW, DENY, Grant, PermissionCheck, StatementId, Unanswerable
from policy.core.pattern import EVERYTHING, matches
from policy.core.request import CLAIMS, Request, parse_request
from policy.core.times import ALWAYS
from policy.evaluation import reference
from policy.evaluation.evaluate import evaluate_request
from policy.evaluation.trace import ExpressionResult
from policy.store.delta import PolicySetChange
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from tests.examples import examples

WRITTEN = sorted(path.stem.replace("_", "-") for path in (Path(__file__).parent / "strategies").glob("*.py"))
WITH_GRANTS = [name for name in WRITTEN if engine_of(all_systems()[name]) is None]
WITH_DENY = [name for name in WITH_GRANTS if all_systems()[name].deny_rule is not None]
WITHOUT_DENY = [name for name in WITH_GRANTS if name not in WITH_DENY]

trusts = st.one_of(st.just(CLAIMS), st.sets(st.sampled_from(sorted(CLAIMS))).map(frozenset))
UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much]
checked = settings(max_examples=examples(25), deadline=None, suppress_health_check=UNHURRIED)
fewer = settings(checked, max_examples=examples(15))


def documents_of(system: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """The system's documents."""
    found: st.SearchStrategy[list[dict[str, Any]]] = _strategies(system).documents()
    return found


def requests_of(system: str) -> st.SearchStrategy[dict[str, Any]]:
    """The system's requests."""
    found: st.SearchStrategy[dict[str, Any]] = _strategies(system).requests()
    return found


def _strategies(system: str) -> Any:
    return importlib.import_module(f"tests.policy.strategies.{system.replace('-', '_')}")


def outcome(snapshot: Snapshot, request: dict[str, Any], trust: frozenset[str] = CLAIMS) -> str:
    """The answer; an error that is a defect of ours fails. `--hypothesis-show-statistics` tells how often each came."""
    decision = policy.decide(snapshot, request, trust=trust)
    assert all(reason.code != "internal-error" for reason in decision.reasons), decision.reasons
    event(decision.outcome)
    return decision.outcome


class AllSeen(Exception):
    """Every outcome has come up: no more examples are needed."""


def test_every_system_takes_part() -> None:
    """No system goes without properties."""
    assert sorted(all_systems()) == WRITTEN


@pytest.mark.parametrize("system", WRITTEN)
def test_documents_and_requests_are_worth_generating(system: str) -> None:
    """Allows, denies and errors all come up, so that the properties below are about something."""
    seen: set[str] = set()

    @settings(max_examples=400, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(documents_of(system), requests_of(system))
    def look(documents: list[dict[str, Any]], request: dict[str, Any]) -> None:
        seen.add(policy.decide(policy.compile_documents(documents), request).outcome)
        if seen == {"allow", "deny", "error"}:
            raise AllSeen

    with pytest.raises(AllSeen):
        look()


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_the_fast_evaluator_is_the_slow_one(system: str, data: st.DataObject) -> None:
    """`decide` and `reference.decide` agree, under whatever trust, with a time or a deadline and without."""
    snapshot = policy.compile_documents(data.draw(dated(system)))
    request, trust = data.draw(requests_of(system)), data.draw(trusts)
    if data.draw(st.integers(0, 3)) == 0:
        request = {**request, "deadline": data.draw(st.integers(0, 5))}
    assert outcome(snapshot, request, trust) == reference.decide(snapshot, request, trust=trust)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data(), seed=st.integers(0, 9))
def test_order_changes_nothing(system: str, data: st.DataObject, seed: int) -> None:
    """That of documents and of what the subject claims changes nothing of a decision.

    That of lists inside documents changes none of its parts, but for where and how they are reported: the
    statements' numbers, and what is named first.
    """
    documents, request = data.draw(dated(system)), data.draw(requests_of(system))
    chance = random.Random(seed)
    snapshot = policy.compile_documents(documents)
    others = policy.compile_documents(chance.sample(documents, len(documents)))
    assert others.version == snapshot.version
    subject = {**request["subject"], "properties": shuffled(request["subject"].get("properties", {}), chance)}
    permuted, expected = {**request, "subject": subject}, policy.decide(snapshot, request)
    assert policy.decide(others, permuted) == expected
    assert outcome(snapshot, permuted) == expected.outcome
    inside = policy.compile_documents([{**d, "spec": shuffled(d["spec"], chance)} for d in documents])
    assert parts_of(policy.decide(inside, permuted)) == parts_of(expected)


def parts_of(decision: policy.Decision) -> Any:
    """A decision without the order of its parts, the numbers of statements, and texts that name them."""
    reasons = {(reason.code, reason.rule, reason.document) for reason in decision.reasons}
    missing = {(one.permission, one.object, one.rule) for one in decision.missing}
    return decision.outcome, decision.claims, reasons, missing


def shuffled(value: Any, chance: random.Random) -> Any:
    """``value`` with every list in it in another order."""
    if isinstance(value, dict):
        return {name: shuffled(part, chance) for name, part in value.items()}
    if isinstance(value, list):
        return [shuffled(part, chance) for part in chance.sample(value, len(value))]
    return value


@st.composite
def dated(draw: st.DrawFn, system: str) -> list[dict[str, Any]]:
    """Documents of which many begin at a moment of their own, and some have several versions."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for moments in (st.sampled_from((None, None, 0, 1)), st.integers(2, 4), st.integers(3, 5)):
        for document in draw(documents_of(system)) if not found or draw(st.booleans()) else ():
            at = document.get("effective_at", draw(moments))
            version = document if at is None else {**document, "effective_at": at}
            found.setdefault((document["kind"], document["name"], -1 if at is None else at), version)
    return list(found.values())


@pytest.mark.parametrize("system", WRITTEN)
@fewer
@given(data=st.data(), at=st.integers(0, 6))
def test_at_a_moment_there_are_only_the_versions_that_have_begun(system: str, data: st.DataObject, at: int) -> None:
    """What begins later changes nothing; where nothing looks back, each document is its newest version."""
    documents, request = data.draw(dated(system)), {**data.draw(requests_of(system)), "time": at}
    snapshot = policy.compile_documents(documents)
    decision = policy.decide(snapshot, request)
    begun = reference.in_force(documents, at)
    assert policy.decide(policy.compile_documents(begun), request) == decision
    assume(not snapshot.rejected)
    newest = {(one["kind"], one["name"]): without_moment(one) for one in begun if not ahead(one, at)}
    kept = [one for one in begun if all_systems()[system].kinds[one["kind"]].point_in_time]
    rest = [one for (kind, _), one in newest.items() if not all_systems()[system].kinds[kind].point_in_time]
    timeless = policy.compile_documents([*kept, *rest])
    assert reference.decide(timeless, request) == outcome(timeless, request) == decision.outcome


def without_moment(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document, in force since ever."""
    return {name: value for name, value in document.items() if name != "effective_at"}


def ahead(document: Mapping[str, Any], at: int) -> bool:
    """Whether it reports what happens later."""
    return any(document["spec"].get(field, 0) > at for field in ("login_at", "started_at"))


@pytest.mark.parametrize("system", WRITTEN)
@fewer
@given(data=st.data())
def test_an_answer_without_a_time_holds_at_every_moment(system: str, data: st.DataObject) -> None:
    """From the last login or start on, all of which have happened; where it depends on the time, it is an error."""
    documents, request = data.draw(dated(system)), data.draw(requests_of(system))
    snapshot = policy.compile_documents(documents)
    timeless = policy.decide(snapshot, {name: value for name, value in request.items() if name != "time"}).outcome
    assert timeless == outcome(snapshot, {**request, "time": 5}, CLAIMS - {"time"})
    happened = [one["spec"].get(field, 0) for one in documents for field in ("login_at", "started_at")]
    answers = {outcome(snapshot, {**request, "time": at}) for at in range(max(happened, default=0), 8)}
    assert timeless == "error" or answers == {timeless}


@pytest.mark.parametrize("system", WITH_DENY)
@checked
@given(data=st.data())
def test_adding_a_deny_never_adds_an_allow(system: str, data: st.DataObject) -> None:
    """Whatever is denied besides, nothing is allowed that was not."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    more = with_grant(snapshot, system, data.draw(new_grants(snapshot.policy_sets[system], DENY)))
    if outcome(more, request) == "allow":
        assert outcome(snapshot, request) == "allow"


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_adding_an_allow_never_removes_an_allow(system: str, data: st.DataObject) -> None:
    """Whatever is allowed besides, what was allowed still is."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    more = with_grant(snapshot, system, data.draw(new_grants(snapshot.policy_sets[system], ALLOW)))
    if outcome(snapshot, request) == "allow":
        assert outcome(more, request) == "allow"


@pytest.mark.parametrize("system", WITH_GRANTS)
@checked
@given(data=st.data())
def test_removing_an_allow_never_adds_an_allow(system: str, data: st.DataObject) -> None:
    """In systems without deny that is any grant at all."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    grants = all_grants(snapshot.policy_sets[system])
    assert system in WITH_DENY or all(grant.effect == ALLOW for grant in grants)
    allows = [grant for grant in grants if grant.effect == ALLOW]
    assume(allows)
    lost = data.draw(st.sampled_from(allows))
    assume(lost.window == ALWAYS or "time" in request)  # without a time, what is time-bound is answered with an error
    fewer = with_grants(snapshot, system, [grant for grant in grants if grant is not lost])
    if outcome(fewer, request) == "allow":
        assert outcome(snapshot, request) == "allow"


def all_grants(policy_set: PolicySet) -> list[Grant]:
    """The grants of all principals."""
    return [grant for grants in policy_set.grants.values() for grant in grants]


def new_grants(policy_set: PolicySet, effect: Any) -> st.SearchStrategy[Grant]:
    """Grants that mix the principals and patterns of the present ones, so that they matter."""
    known = all_grants(policy_set)
    principals = sorted({*policy_set.grants, *policy_set.memberships, "*"})
    permissions = st.sampled_from([EVERYTHING, *(grant.permission for grant in known)])
    objects = st.sampled_from([EVERYTHING, *(grant.object for grant in known)])
    return st.builds(
        Grant, st.sampled_from(principals), st.just(effect), permissions, objects, st.just(StatementId("new"))
    )


def with_grant(snapshot: Snapshot, system: str, grant: Grant) -> Snapshot:
    """The snapshot with one grant more."""
    return with_grants(snapshot, system, [*all_grants(snapshot.policy_sets[system]), grant])


def with_grants(snapshot: Snapshot, system: str, grants: list[Grant]) -> Snapshot:
    """The snapshot with these grants in place of the system's."""
    policy_set = snapshot.policy_sets[system]
    memberships = tuple(way for ways in policy_set.memberships.values() for way in ways)
    other = PolicySet().with_change(PolicySetChange(grants=grants, memberships=memberships))
    other.facts, other.broken = policy_set.facts, policy_set.broken
    changed = copy.copy(snapshot)
    changed.policy_sets = {**snapshot.policy_sets, system: other}
    return changed


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_a_pickled_snapshot_answers_alike(system: str, data: st.DataObject) -> None:
    """What workers get is what the driver has, before and after it was used."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    unused = pickle.loads(pickle.dumps(snapshot))
    expected = policy.decide(snapshot, request)
    used = pickle.loads(pickle.dumps(snapshot))
    assert policy.decide(unused, request) == policy.decide(used, request) == expected
    assert policy.decide(snapshot, request) == expected, "asked twice, answered alike"


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data(), at=st.integers(0, 5))
def test_a_document_counts_within_its_window_alone(system: str, data: st.DataObject, at: int) -> None:
    """At a moment, windows are the same as having just the documents in force, without windows."""
    documents, request = data.draw(documents_of(system)), {**data.draw(requests_of(system)), "time": at}
    snapshot = policy.compile_documents(documents)
    assume(not snapshot.rejected)
    now = [without_window(document) for document in documents if in_window(document, at)]
    assert outcome(policy.compile_documents(now), request) == outcome(snapshot, request)


def in_window(document: dict[str, Any], at: int) -> bool:
    """Whether the document grants at ``at``."""
    return bool(document.get("valid_from", 0) <= at < document.get("valid_until", at + 1))


def without_window(document: dict[str, Any]) -> dict[str, Any]:
    """The document, for ever."""
    return {name: value for name, value in document.items() if name not in ("valid_from", "valid_until")}


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(
    data=st.data(), field=st.sampled_from(["subject", "action", "resource"]), value=st.sampled_from([7, None, [], ""])
)
def test_what_errs_is_never_allowed(system: str, data: st.DataObject, field: str, value: Any) -> None:
    """A request with a broken part, a passed deadline or an unknown system is an error, both ways."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    inner = "name" if field == "action" else "id"
    for broken in (
        {**request, field: value},
        {**request, field: {**request[field], inner: value}},
        {**request, "time": 5, "deadline": 4},
        {**request, "system": "no-such-system"},
    ):
        assert outcome(snapshot, broken) == reference.decide(snapshot, broken) == "error"


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_who_can_names_exactly_those_who_are_allowed(system: str, data: st.DataObject) -> None:
    """Of every subject that requests come from: named if and only if `decide` allows it."""
    snapshot = policy.compile_documents(data.draw(documents_of(system)))
    request, others = data.draw(requests_of(system)), data.draw(st.lists(requests_of(system), max_size=5))
    subjects = {other["subject"]["id"] for other in (request, *others)}
    reach = who_can(snapshot, request, also=subjects)
    type_ = request["subject"]["type"] if system == "cedar" else "user"  # there ids of two types are two principals
    for name in subjects:
        alone = {**request, "subject": {"type": type_, "id": name}}
        listed = Who(name, "", "" if type_ == "user" else type_) in reach.allowed
        assert listed is (outcome(snapshot, alone) == "allow")


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_what_a_subject_holds_decides_every_atom(system: str, data: st.DataObject) -> None:
    """An atom holds if and only if a listed allow matches it and no listed deny does; a cancelled one never helps."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    asked = parse_request(request)
    assert isinstance(asked, Request)
    try:
        trace = evaluate_request(snapshot, asked)
        held = effective_permissions(trace.effective_principals, asked.time)
    except Unanswerable:
        return
    for leaf in leaves(trace.result):
        if isinstance(leaf.expression, PermissionCheck) and not leaf.expression.principals:
            name, object_ = leaf.expression.permission, leaf.expression.object
            meet = [h for h in held if matches(h.grant.permission, name) and matches(h.grant.object, object_)]
            effects = {h.grant.effect for h in meet}
            assert leaf.held is (effects == {ALLOW})
            assert not (leaf.held and all(h.cancelled_by for h in meet))


def leaves(evidence: ExpressionResult) -> list[ExpressionResult]:
    """The evidence of the atoms."""
    return [leaf for item in evidence.items for leaf in leaves(item)] if evidence.items else [evidence]


@pytest.mark.parametrize("system", WITH_GRANTS)
@checked
@given(data=st.data())
def test_a_grant_that_another_swallows_can_go(system: str, data: st.DataObject) -> None:
    """What `policy lint` calls covered changes no answer when it is taken away: also a grant beside a wider copy."""
    snapshot, request = policy.compile_documents(data.draw(documents_of(system))), data.draw(requests_of(system))
    grants = all_grants(snapshot.policy_sets[system])
    assume(grants)
    if data.draw(st.booleans()):
        grants = [*grants, structs.replace(data.draw(st.sampled_from(grants)), object=EVERYTHING)]
    covered = [g for g in grants if any(o is not g and alike(o, g) and subsumes(o, g) for o in grants)]
    assume(covered)
    lost = data.draw(st.sampled_from(covered))
    fewer = with_grants(snapshot, system, [grant for grant in grants if grant is not lost])
    assert outcome(fewer, request) == outcome(with_grants(snapshot, system, grants), request)


def alike(one: Grant, other: Grant) -> bool:
    """Same principal, effect and window."""
    return (one.principal, one.effect, one.window) == (other.principal, other.effect, other.window)
