"""CDAP beyond its case file: the catalogue is sound, names and wildcards agree, limits hold."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy import Snapshot, compile_documents, decide
from policy.core.pattern import Exact, Pattern, Prefix, matches, overlaps, wildcard
from policy.store.documents import DocumentStore
from policy.systems.cdap import SYSTEM
from policy.systems.cdap.catalogue import actions, catalogue, lineage
from policy.systems.cdap.grants import BELOW
from tests.examples import examples

RULES = Path(__file__).parent.parent.parent / "policy" / "systems" / "cdap" / "rules.yaml"
thorough = settings(max_examples=examples(500), deadline=None)
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
    held = [g for g in snapshot.policy_sets["cdap"].grants["user:dana"] if matches(g.permission, BELOW)]
    reached = any(matches(g.object, ("namespace", namespace)) for g in held)
    inside = [Prefix(f"{namespace}.{mark}") for mark in "ab."]
    assert reached is any(overlaps(Pattern((wildcard(text, single=True),)), Pattern((one,))) for one in inside)


@thorough
@given(st.text("ab.*?", min_size=1, max_size=7), st.text("ab", min_size=1, max_size=2), st.text("ab", max_size=2))
def test_the_same_for_applications_and_their_programs(text: str, namespace: str, app: str) -> None:
    """BELOW reaches an application if and only if the wildcard matches a program's name that begins with it."""
    snapshot = compile_documents([grant(f"program:{text}", "READ")])
    held = [g for g in snapshot.policy_sets["cdap"].grants["user:dana"] if matches(g.permission, BELOW)]
    name = f"{namespace}.{app}"
    reached = any(matches(g.object, ("application", name)) for g in held)
    inside = [Prefix(f"{name}.{mark}") for mark in "ab."]
    assert reached is any(overlaps(Pattern((wildcard(text, single=True),)), Pattern((one,))) for one in inside)


def test_names_of_a_grant_never_reach_another_kind() -> None:
    """The kind of a grant's entity is exact, also above it."""
    snapshot = compile_documents([grant("program:*", "READ", "ADMIN")])
    kinds = {g.object.parts[0] for g in snapshot.policy_sets["cdap"].grants["user:dana"]}
    assert kinds == {Exact("program"), *map(Exact, lineage("program"))}


def test_a_name_may_be_only_so_long() -> None:
    """Names of documents are bounded, because wildcards are worked out for every dot in them."""
    fits, too_long = grant("dataset:" + "?" * 492, "READ"), grant("dataset:" + "?" * 493, "READ")
    assert not compile_documents([fits]).rejected
    assert "longer than 500" in str(compile_documents([too_long]).rejected)


def test_more_entities_than_the_limit_are_an_error() -> None:
    """A namespace with more than 10,000 entities is neither dropped nor deleted; one at the limit is."""
    streams = [entity(f"stream:n.{number}", "namespace:n") for number in range(10_000)]
    namespace = {"system": "cdap", "kind": "Entity", "name": "namespace:n", "spec": {}}
    documents = [grant("stream:*", "ADMIN", name="s"), grant("namespace:n", "ADMIN", name="n"), namespace, *streams]
    at_limit = compile_documents(documents)
    assert outcome(at_limit, "stream.drop-all", "namespace:n") == ("allow", "allowed")
    beyond = compile_documents([*documents, entity("stream:n.more", "namespace:n")])
    assert outcome(beyond, "stream.drop-all", "namespace:n") == ("error", "too-many-objects")
    assert outcome(beyond, "namespace.delete", "namespace:n") == ("error", "too-many-objects")
    assert outcome(beyond, "namespace.get", "namespace:n")[0] == "allow", "names tell, however many there are"


def test_one_misnamed_entity_makes_no_namespace_too_large() -> None:
    """Beside it a grant counts by its name as before, however many entities there are."""
    streams = [entity(f"stream:n.{number}", "namespace:n") for number in range(10_001)]
    moved = [entity("stream:n.moved", "namespace:m"), grant("stream:n.moved", "READ", name="moved")]
    assert outcome(compile_documents([*streams, *moved]), "namespace.get", "namespace:n")[0] == "deny"
    for other in ("stream:n.7", "stream:n.new", "stream:n.1*"):
        snapshot = compile_documents([*streams, *moved, grant(other, "READ")])
        assert outcome(snapshot, "namespace.get", "namespace:n")[0] == "allow", other


def test_what_the_policy_topics_refuse_the_facts_topic_does_not_place() -> None:
    """A refused document of the policies may say where the entity is, whatever the facts topic says."""
    policies, facts = DocumentStore(), DocumentStore(facts_only=True)
    for document in (entity("dataset:d", "dataset:n"), grant("dataset:d", "READ")):
        policies.put(document)
    facts.put(entity("dataset:d", "namespace:n"))
    assert outcome(Snapshot(policies, facts), "namespace.get", "namespace:n")[0] == "error"


SEGMENTS = ("n", "m", "z")  # no document names z: it stands for whatever else there may be
DOTTED = [".".join(parts) for depth in (1, 2, 3) for parts in itertools.product(SEGMENTS, repeat=depth)]
DEEPER = [*DOTTED, *(".".join(parts) for parts in itertools.product(SEGMENTS, repeat=4))]  # `*` is for dots, too
PLACED = {"application": "namespace", "program": "application", "dataset": "namespace"}
documented = st.dictionaries(
    st.tuples(st.sampled_from(sorted(PLACED)), st.sampled_from([name for name in DOTTED if "z" not in name])),
    st.sampled_from([name for name in DOTTED if "z" not in name]),
    max_size=6,
)
GRANTED = [*DOTTED, "*", "n*", "n.*", "n.m.*", "?.m", "n?m", "n.?", "?.m.n", "n.m?n", "?.m.*", "*.m"]


def ancestors(kind: str, name: str, known: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
    """What an entity lies in: by its document, else by its dots."""
    if (kind, name) in known:
        parent = (PLACED[kind], known[kind, name])
        return [parent, *ancestors(*parent, known)]
    dots = name.split(".", 2 if kind == "program" else 1)
    if kind == "program" and len(dots) == 3:
        parent = ("application", ".".join(dots[:2]))
        return [parent, *ancestors(*parent, known)]
    return [("namespace", dots[0])] if len(dots) > 1 and kind != "namespace" else []


@thorough
@example({("program", "m.m.m"): "n"}, "program", "*.m", "m.m")
@example({("application", "n.m"): "m"}, "program", "n.m?n", "n")
@given(documented, st.sampled_from(["dataset", "program"]), st.sampled_from(GRANTED), st.sampled_from(DOTTED[:12]))
def test_an_entity_is_seen_if_something_granted_lies_below(
    known: Mapping[tuple[str, str], str], kind: str, pattern: str, asked: str
) -> None:
    """And only then: whether it exists or not, and wherever documents put it and what is around it (CD-LIST)."""
    target = ("application" if "." in asked else "namespace", asked)
    links = [entity(f"{of}:{name}", f"{PLACED[of]}:{parent}") for (of, name), parent in known.items()]
    glob = Pattern((wildcard(pattern, single=True),))
    names = [*DEEPER, pattern.replace("?", "z")]  # `?` is for a dot, and for a letter
    below = any(matches(glob, (name,)) and target in ancestors(kind, name, known) for name in names)
    seen = outcome(
        compile_documents([grant(f"{kind}:{pattern}", "READ"), *links]), f"{target[0]}.list", ":".join(target)
    )
    assert seen[0] == ("allow" if below else "deny")


def test_a_refused_entity_binds_nobody() -> None:
    """It is missed only where entities are collected."""
    snapshot = compile_documents([entity("dataset:n.d", "dataset:n"), grant("dataset:n.d", "READ")])
    assert snapshot.rejected
    assert outcome(snapshot, "dataset.read", "dataset:n.d") == ("allow", "allowed")


def test_cdap_has_no_deny_and_never_looks_back() -> None:
    """Every grant allows, and no history is needed."""
    snapshot = compile_documents([grant("dataset:n.d", "READ", "WRITE", "EXECUTE", "ADMIN")])
    assert {g.effect for g in snapshot.policy_sets["cdap"].grants["user:dana"]} == {"allow"}
    assert SYSTEM.retention_floor(snapshot.policy_sets["cdap"].facts) is None
