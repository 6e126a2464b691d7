"""What a change widens, in the notation of its system: the `widenings` of `policy.analysis.analyse`."""

from typing import Any

import pytest

from policy import DocumentStore, Snapshot, Work, all_systems, compile_documents, identify
from policy.analysis import Edit, Widening, Widenings, analyse, said
from policy.analysis.diff import compare
from policy.analysis.wording import grant_words
from policy.systems.lenses6.grammar import action_pattern, resource_pattern
from tests.contracts import examples
from tests.policy.changes import Change

Documents = list[dict[str, Any]]


def role(name: str, resource: str, effect: str = "allow", action: str = "kafka:Get*") -> dict[str, Any]:
    """A role with one statement."""
    statement = {"effect": effect, "action": action, "resource": resource}
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": [statement]}}


def group(name: str, roles: list[str], *members: str) -> dict[str, Any]:
    """A group with roles."""
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": roles, "members": list(members)}}


def widened(before: Documents, after: Documents, steps: float = float("inf")) -> Widenings:
    """What the change from one list of documents to another widens."""
    old, new = DocumentStore(), DocumentStore()
    for store, documents in ((old, before), (new, after)):
        for document in documents:
            assert store.put(document) is None
    keys = sorted({identify(document) for document in (*before, *after)})
    edits = [Edit(str(key), said(old.histories.get(key)), said(new.histories.get(key))) for key in keys]
    system = all_systems()["lenses6"]
    return analyse(system, Snapshot(new).policy_sets["lenses6"], edits, 0, Work(steps)).widenings


def test_a_new_allow_is_named_as_the_document_writes_it() -> None:
    found = widened([], [role("r", "kafka:topic:prod/*")])
    assert found.found == (Widening("role:r", "kafka:Get*", "kafka:topic:prod/*", "lenses6/Role/r", 0),)
    assert found.complete


def test_what_was_allowed_before_or_is_denied_whole_widens_nothing() -> None:
    wide = role("r", "kafka:*")
    narrow = role("r", "kafka:topic:prod/*")
    assert widened([wide], [narrow]).found == ()
    assert widened([wide], [wide]).found == ()
    denied = {
        **wide,
        "spec": {"statements": [*wide["spec"]["statements"], *role("", "kafka:*", "deny")["spec"]["statements"]]},
    }
    assert widened([], [denied]).found == ()


def test_a_deny_that_is_gone_and_one_that_is_narrower_are_lifted() -> None:
    for after in ([], [role("r", "kafka:topic:prod/main/a*", "deny")]):
        [found] = widened([role("r", "kafka:topic:prod/*", "deny")], after).found
        assert (found.who, found.resource, found.kind) == ("role:r", "kafka:topic:prod/*", "deny-lifted")


def test_a_new_member_gains_what_the_memberships_lead_to_and_its_document_is_named() -> None:
    roles = [role("r", "kafka:topic:prod/*")]
    [found] = widened([*roles, group("g", ["r"], "user:a")], [*roles, group("g", ["r"], "user:a", "user:b")]).found
    assert (found.who, found.document, found.by) == ("user:b", "lenses6/Role/r", "lenses6/Group/g")


def test_work_that_is_not_enough_is_said() -> None:
    found = widened([], [role(f"r{n}", "kafka:topic:prod/*") for n in range(10)], 5)
    assert not found.complete
    assert len(found.found) < 10


@pytest.mark.parametrize("system", sorted(all_systems()))
def test_grants_of_all_systems_have_words_and_those_of_lenses6_are_read_back(system: str) -> None:
    documents = [put.document for put in examples.documents() if put.rejected is None]
    grants = [
        grant
        for document in documents
        if document["system"] == system
        for grants in compile_documents([document]).policy_sets[system].grants.values()
        for grant in grants
    ]
    for grant in grants:
        action, resource = grant_words(all_systems()[system], grant)
        assert action
        assert resource
        if system == "lenses6":
            assert (action_pattern(action), resource_pattern(resource)) == (grant.permission, grant.object)


REFUSED = {"system": "lenses6", "kind": "Role", "name": "bad", "spec": {"statements": [{"effect": "deny"}]}}


def changed(
    old: Documents, new: Documents, *gone: dict[str, Any], at: int = 0
) -> tuple[set[tuple[str, str, str]], bool]:
    """(who, document, by) of what a change in a log lifts, and whether `policy diff` says that it widens."""
    change = Change("lenses6", old, new, [identify(one) for one in gone])
    found = analyse(change.system, change.after.policy_sets["lenses6"], change.edits, at, Work()).widenings.found
    differs = any(one.widens for one in compare(change.before, change.after))
    return {(one.who, one.document, one.by) for one in found if one.kind == "deny-lifted"}, differs


def test_a_refused_document_that_goes_or_is_corrected_widens() -> None:
    """Whom it affects got errors: it may have held a deny."""
    old = [role("r", "kafka:topic:prod/*"), group("g", ["r", "bad"], "user:a"), REFUSED]
    lifted = {("*", "lenses6/Role/bad", "")}
    assert changed(old, [], REFUSED) == (lifted, True)
    assert changed(old, [role("bad", "kafka:topic:x/*", "deny")]) == (lifted, True)
    assert changed(old, [{**REFUSED, "spec": {"statements": 7}}]) == (set(), False)


def test_who_is_no_longer_a_member_of_what_a_refused_document_affects_is_named() -> None:
    old = [role("r", "kafka:topic:prod/*"), group("g", ["r", "bad"], "user:a"), REFUSED]
    assert changed(old, [group("g", ["r"], "user:a")]) == ({("group:g", "lenses6/Role/bad", "lenses6/Group/g")}, True)
    assert changed(old, [group("g", ["bad"], "user:a")]) == (set(), False)
    other = group("h", ["bad"], "user:a")
    assert changed([*old, other], [group("g", ["r", "bad"])]) == (set(), False), "errors remain, by the other group"
    over = {**group("h", ["bad"], "user:b"), "valid_until": 1}
    lifted, _ = changed([*old, over], [], over, at=1)
    assert not lifted, "it had ended before the change"


@pytest.mark.parametrize(("since", "opens"), [(1, False), (5, False), (6, True)])
def test_an_allow_that_had_begun_by_the_change_is_not_new_without_its_start(since: int, opens: bool) -> None:
    """Who tidies up a `valid_from` that has passed was accused of opening all that the document allows."""
    after = [role("r", "*", action="*")]
    change = Change("lenses6", [group("g", ["r"], "user:dana"), {**after[0], "valid_from": since}], after, at=5)
    analysis = analyse(change.system, change.after.policy_sets["lenses6"], change.edits, change.at, Work())
    assert bool(analysis.widenings.found) == opens
    assert bool(analysis.escalations) == opens


@pytest.mark.parametrize(("since", "opens"), [(1, False), (5, False), (6, True)])
def test_a_deny_that_begins_by_the_change_is_no_less_for_a_start(since: int, opens: bool) -> None:
    before = [role("r", "kafka:*", "deny")]
    change = Change("lenses6", before, [{**before[0], "valid_from": since}], at=5)
    analysis = analyse(change.system, change.after.policy_sets["lenses6"], change.edits, change.at, Work())
    assert bool(analysis.widenings.found) == opens
