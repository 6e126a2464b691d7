"""The layer of the facts topic, changed document by document, is what compiling all of them anew would give."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import policy
from policy.documents import Key
from policy.layer import FactLayer, change_of
from policy.library import Library
from policy.snapshot import Snapshot

POLICIES = [
    {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
    {
        "system": "streamsets",
        "kind": "Object",
        "name": "pipeline:p",
        "spec": {"type": "pipeline", "owner": "o", "acl": {"user:dana": ["READ"], "group:g": ["WRITE"]}},
    },
    {
        "system": "cdap",
        "kind": "Grant",
        "name": "g",
        "spec": {"user": "dana", "entity": "namespace:n", "privileges": ["READ"]},
    },
]
SPECS: dict[tuple[str, str, str], list[dict[str, Any]]] = {
    ("streamsets", "Session", "dana"): [{"login_at": 1}, {"login_at": 5, "groups": ["g"]}, {"wrong": 1}],
    ("streamsets", "Session", "nora"): [{"login_at": 9, "groups": ["g"]}, {"login_at": -1}],
    ("cdap", "Entity", "namespace:n"): [{"parent": "instance:i"}, {"parent": None}, {"nothing": 1}],
}
CHANGES = st.lists(
    st.sampled_from([(place, spec) for place, specs in SPECS.items() for spec in (*specs, None)]), max_size=12
)


def _requests() -> list[dict[str, Any]]:
    def ask(system: str, user: str, action: str, resource: str) -> dict[str, Any]:
        subject = {"type": "user", "id": user, "properties": {"groups": ["g"]}}
        kind = resource.partition(":")[0]
        told = {"id": "r", "system": system, "action": {"name": action}, "time": 20}
        return {**told, "subject": subject, "resource": {"type": kind, "id": resource}}

    asked = [ask("streamsets", user, verb, "pipeline:p") for user in ("dana", "nora") for verb in VERBS]
    return [*asked, ask("cdap", "dana", "namespace.view", "namespace:n")]


VERBS = ("pipeline.view", "pipeline.design")


@settings(max_examples=100, deadline=None)
@given(CHANGES)
def test_changes_one_by_one_are_the_same_as_all_at_once(changes: list[tuple[tuple[str, str, str], Any]]) -> None:
    """Good versions, refused ones and deletions, in any order; the snapshot is put together before them all."""
    policies, facts, layer = Library(), Library(facts_only=True), FactLayer()
    for document in POLICIES:
        assert policies.put(document) is None
    followed = Snapshot(policies).with_facts(layer)
    for order, ((system, kind, name), spec) in enumerate(changes):
        key = Key(system, kind, name)
        if spec is None:
            facts.delete(key, order, order)
        else:
            facts.put({"system": system, "kind": kind, "name": name, "spec": spec}, order, order)
        layer.apply(change_of(key, facts.shelves.get(key)))
        facts.forget_before({})
    followed = followed.with_facts(layer)
    compiled = Snapshot(policies, facts)
    for request in _requests():
        assert policy.decide(followed, request) == policy.decide(compiled, request)
    for system, realm in compiled.realms.items():
        assert followed.realms[system].broken == realm.broken


def test_a_refused_session_is_an_error_until_a_good_one_comes() -> None:
    policies, layer = Library(), FactLayer()
    for document in POLICIES:
        policies.put(document)
    facts, key = Library(facts_only=True), Key("streamsets", "Session", "dana")
    outcomes = []
    for order, spec in enumerate(({"wrong": 1}, {"login_at": 5})):
        facts.put({"system": key.system, "kind": key.kind, "name": key.name, "spec": spec}, order, order)
        layer.apply(change_of(key, facts.shelves[key]))
        outcomes.append(policy.decide(Snapshot(policies).with_facts(layer), _requests()[0]).outcome)
    assert outcomes == ["error", "allow"]


def test_what_was_worked_out_of_the_policies_is_shared_whatever_the_facts_are() -> None:
    """Else each login would have it worked out anew."""
    snapshot = policy.compile_documents(POLICIES)
    realm, other = (some.realms["streamsets"] for some in (snapshot, snapshot.with_facts(FactLayer())))
    assert other.standing(("user:dana",), 20) is realm.standing(("user:dana",), 20)
    assert other.objects is realm.objects
