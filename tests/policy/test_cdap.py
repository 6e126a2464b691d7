"""CDAP beyond its case file: the catalogue is sound, names and wildcards agree, limits hold."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import Snapshot, compile_documents, decide
from policy.patterns import Exact, Pattern, Prefix, matches, overlaps, wildcard
from policy.systems.cdap import SYSTEM
from policy.systems.cdap.catalogue import actions, catalogue, lineage
from policy.systems.cdap.grants import BELOW

RULES = Path(__file__).parent.parent.parent / "policy" / "systems" / "cdap" / "rules.yaml"
thorough = settings(max_examples=500, deadline=None)
QUESTIONS = [f"CD-Q{number}" for number in range(1, 14)]


def leaves(need: Mapping[str, Any], rule: str = "") -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every leaf of a need with the rule that is in force for it."""
    rule = need.get("rule", rule)
    inner = need.get("all", need.get("any"))
    if inner is None:
        yield need, rule
    for part in inner or ():
        yield from leaves(part, rule)


def grant(entity: str, *privileges: str, name: str = "g") -> dict[str, Any]:
    """A Grant to dana."""
    spec = {"user": "dana", "entity": entity, "privileges": list(privileges)}
    return {"system": "cdap", "kind": "Grant", "name": name, "spec": spec}


def entity(name: str, parent: str | None) -> dict[str, Any]:
    """An Entity document."""
    return {"system": "cdap", "kind": "Entity", "name": name, "spec": {"parent": parent}}


def outcome(snapshot: Snapshot, action: str, resource: str) -> tuple[str, str]:
    """The answer to dana, and the code of its first reason."""
    subject = {"type": "user", "id": "dana"}
    request = {"id": "r", "system": "cdap", "subject": subject, "action": {"name": action}}
    decision = decide(snapshot, {**request, "resource": {"type": "entity", "id": resource}})
    return decision.outcome, decision.reasons[0].code


@pytest.mark.parametrize("action", actions())
def test_every_leaf_names_what_exists(action: str) -> None:
    """A misspelt privilege, scope or rule in catalogue.yaml would only show when it is asked for."""
    rules = {rule["id"] for rule in yaml.safe_load(RULES.read_text())}
    scopes = {"entity", "backend", "application", *catalogue()["context"]}
    for leaf, rule in leaves(actions()[action]):
        assert rule in {*rules, *QUESTIONS}, leaf
        assert leaf.get("permission", "ANY") in {*catalogue()["privileges"], "ANY", "BACKEND"}, leaf
        assert leaf.get("of", leaf.get("known", "entity")) in scopes, leaf
        assert leaf.get("each", "removed") in {"removed", "streams"}, leaf
        assert leaf.get("some", "below") == "below", leaf
        assert leaf.get("by", "impersonate") in catalogue()["context"], leaf


@thorough
@given(st.text("ab.*?", min_size=1, max_size=7), st.text("ab", min_size=1, max_size=3))
def test_a_grant_counts_above_exactly_where_its_names_can_lie(text: str, namespace: str) -> None:
    """BELOW reaches a namespace if and only if the wildcard matches some name that begins with it and a dot."""
    snapshot = compile_documents([grant(f"dataset:{text}", "READ")])
    held = [g for g in snapshot.realms["cdap"].grants["user:dana"] if matches(g.permission, BELOW)]
    reached = any(matches(g.object, ("namespace", namespace)) for g in held)
    inside = [Prefix(f"{namespace}.{mark}") for mark in "ab."]
    assert reached is any(overlaps(Pattern((wildcard(text, single=True),)), Pattern((one,))) for one in inside)


@thorough
@given(st.text("ab.*?", min_size=1, max_size=7), st.text("ab", min_size=1, max_size=2), st.text("ab", max_size=2))
def test_the_same_for_applications_and_their_programs(text: str, namespace: str, app: str) -> None:
    """BELOW reaches an application if and only if the wildcard matches a program's name that begins with it."""
    snapshot = compile_documents([grant(f"program:{text}", "READ")])
    held = [g for g in snapshot.realms["cdap"].grants["user:dana"] if matches(g.permission, BELOW)]
    name = f"{namespace}.{app}"
    reached = any(matches(g.object, ("application", name)) for g in held)
    inside = [Prefix(f"{name}.{mark}") for mark in "ab."]
    assert reached is any(overlaps(Pattern((wildcard(text, single=True),)), Pattern((one,))) for one in inside)


def test_names_of_a_grant_never_reach_another_kind() -> None:
    """The kind of a grant's entity is exact, also above it."""
    snapshot = compile_documents([grant("program:*", "READ", "ADMIN")])
    kinds = {g.object.parts[0] for g in snapshot.realms["cdap"].grants["user:dana"]}
    assert kinds == {Exact("program"), *map(Exact, lineage("program"))}


def test_a_name_may_be_only_so_long() -> None:
    """Names of documents are bounded, because wildcards are worked out for every dot in them."""
    fits, too_long = grant("dataset:" + "?" * 492, "READ"), grant("dataset:" + "?" * 493, "READ")
    assert not compile_documents([fits]).rejected
    assert "longer than 500" in str(compile_documents([too_long]).rejected)


def test_more_entities_than_the_limit_are_an_error() -> None:
    """A namespace with more than 10,000 entities is neither dropped nor deleted; one at the limit is."""
    streams = [entity(f"stream:n.{number}", "namespace:n") for number in range(10_000)]
    documents = [grant("stream:*", "ADMIN", name="s"), grant("namespace:n", "ADMIN", name="n"), *streams]
    at_limit = compile_documents(documents)
    assert outcome(at_limit, "stream.drop-all", "namespace:n") == ("allow", "allowed")
    beyond = compile_documents([*documents, entity("stream:n.more", "namespace:n")])
    assert outcome(beyond, "stream.drop-all", "namespace:n") == ("error", "too-many-objects")
    assert outcome(beyond, "namespace.delete", "namespace:n") == ("error", "too-many-objects")
    assert outcome(beyond, "namespace.get", "namespace:n")[0] == "allow", "names tell, however many there are"


def test_a_refused_entity_binds_nobody() -> None:
    """It is missed only where entities are collected."""
    snapshot = compile_documents([entity("dataset:n.d", "dataset:n"), grant("dataset:n.d", "READ")])
    assert snapshot.rejected
    assert outcome(snapshot, "dataset.read", "dataset:n.d") == ("allow", "allowed")


def test_cdap_has_no_deny_and_never_looks_back() -> None:
    """Every grant allows, and no history is needed."""
    snapshot = compile_documents([grant("dataset:n.d", "READ", "WRITE", "EXECUTE", "ADMIN")])
    assert {g.effect for g in snapshot.realms["cdap"].grants["user:dana"]} == {"allow"}
    assert SYSTEM.horizon(snapshot.realms["cdap"].facts) is None
