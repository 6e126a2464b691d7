"""A snapshot says what its documents say one by one, whatever changes made it of the empty one."""

import hashlib
import pickle
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import policy
from policy.core.document import Key
from policy.core.fact_table import FactTable
from policy.evaluation import reference
from policy.matching import grants
from policy.matching.grants import Grants
from policy.store import compiler as compiling
from policy.store.affected import UNREADABLE
from policy.store.compiler import Compiler
from policy.store.delta import SnapshotChange, together
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from tests.examples import examples
from tests.policy.test_answers import MOMENTS, UNHURRIED
from tests.policy.test_patterns import filed_in
from tests.policy.test_properties import WRITTEN, dated, documents_of, requests_of

SPEC = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}


@pytest.fixture(autouse=True)
def _always_by_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "WHOLE", 0)


def role(name: str, *statements: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    written = [{"effect": effect, "action": action, "resource": resource} for effect, action, resource in statements]
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": written}, **more}


def edits_of(system: str) -> st.SearchStrategy[list[Any]]:
    """What happens to a library: each edit is a name and what it takes."""
    names = documents_of(system).filter(bool).map(lambda documents: documents[-1])
    return st.lists(
        st.one_of(
            st.tuples(st.just("put"), dated(system)),
            st.tuples(st.just("spoil"), names),
            st.tuples(st.just("delete"), names),
            st.tuples(st.just("unreadable"), names),
            st.tuples(st.just("nameless"), st.sampled_from([{"system": system, "kind": "?"}, {"kind": "x"}])),
            st.tuples(st.just("forget"), st.sampled_from([None, 0, 3, 1_000])),
            st.tuples(st.just("lost"), names),
        ),
        min_size=1,
        max_size=6,
    )


def _key(document: dict[str, Any]) -> Key:
    return Key(document["system"], document["kind"], document["name"])


def _edit(store: DocumentStore, what: str, given_: Any, order: int, logged: bool) -> None:
    at = order if logged else None
    if what == "put":
        for document in given_:
            document = msgspec.json.decode(msgspec.json.encode(document))
            if logged:
                document.pop("effective_at", None)
            store.put(document, at, order if logged else 0)
    elif what == "spoil":
        store.put({**given_, "spec": {"wrong": 1}}, at, order if logged else 0)
    elif what == "delete":
        store.delete(_key(given_), order, order)
    elif what == "unreadable":
        store.refuse(_key(given_), ["not JSON"], order, order, UNREADABLE)
    elif what == "nameless":
        store.put(given_, at, order if logged else 0)
    elif what == "forget":
        store.forget_before(dict.fromkeys(all_systems(), given_))
    elif _key(given_) in store.histories:
        store.lost_before(order, _key(given_))


@pytest.mark.parametrize("system", WRITTEN)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data(), logged=st.booleans())
def test_after_every_edit_it_is_the_one_compiled_from_all(system: str, data: st.DataObject, logged: bool) -> None:
    """Also where decisions are made, which get what is different: one by one, and all of it at once."""
    store = DocumentStore()
    for order, document in enumerate(data.draw(dated(system))):
        _edit(store, "put", [document], order, logged)
    compiler, others = Compiler(store), data.draw(st.sampled_from(WRITTEN))
    base: bytes = pickle.dumps(compiler.snapshot.without_findings())
    remote, changes = pickle.loads(base), list[SnapshotChange]()
    older = [(compiler.snapshot, contents_of(Snapshot(store)))]
    assert said_by(compiler.snapshot) == said_one_by_one(store)
    requests = [data.draw(requests_of(system)) for _ in range(3)]
    for order, (what, given_) in enumerate([*data.draw(edits_of(system)), *data.draw(edits_of(others))], 10):
        event(what)
        _edit(store, what, given_, order, logged)
        if data.draw(st.booleans()):
            continue
        change = compiler.compile()
        assert change is not None
        changes.append(pickle.loads(pickle.dumps(change)))
        expected = Snapshot(store)
        assert said_by(compiler.snapshot) == said_by(expected) == said_one_by_one(store)
        _check(compiler.snapshot, expected, requests)
        assert compiler.newest == max(
            (document_history.newest.at for document_history in store.histories.values()), default=0
        )
        remote = remote.with_change(changes[-1])
        _check(remote, expected, requests)
        _check(pickle.loads(base).with_change(together(changes)), expected, requests)
        older.append((compiler.snapshot, contents_of(expected)))
    for snapshot, contents in older:
        assert contents_of(snapshot) == contents


def test_a_change_that_adds_or_removes_moments_alone_ends_the_answers_of_all_epochs() -> None:
    """No grant changes, so the index is shared: it must keep nothing by the number of an epoch."""
    store = DocumentStore()
    store.put({**role("r", ("allow", "*", "*")), "valid_until": 100}, 0, 0)
    store.put(group("g", ["r"], ["user:erik"]), 1, 1)
    compiler = Compiler(store)
    dated_group = {**group("h", ["other"], ["user:dana"]), "valid_until": 50}
    for order in range(2, 6):
        _erik_is_allowed_until(100, compiler.snapshot)
        if order % 2:
            store.delete(_key(dated_group), order, order)
        else:
            store.put(dated_group, order, order)
        compiler.compile()
        _erik_is_allowed_until(100, compiler.snapshot)


def _erik_is_allowed_until(end: int, snapshot: Snapshot) -> None:
    asked = {
        "id": "1",
        "system": "lenses6",
        "subject": {"type": "user", "id": "user:erik"},
        "action": {"name": "kafka:ListTopics"},
        "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
    }
    moments = (10, 49, 50, 99, 100, 150)
    outcomes = [policy.decide(snapshot, {**asked, "time": at}).outcome for at in moments]
    assert outcomes == ["allow" if at < end else "deny" for at in moments]


def group(name: str, roles: list[str], members: list[str]) -> dict[str, Any]:
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": roles, "members": members}}


def _check(snapshot: Snapshot, expected: Snapshot, requests: list[dict[str, Any]]) -> None:
    assert contents_of(snapshot) == contents_of(expected)
    snapshots = [one.with_facts(FactOverlay()) for one in (snapshot, expected)]
    for request in requests:
        for at in (*MOMENTS, None):
            asked = {name: part for name, part in request.items() if name not in ("time", "deadline")}
            asked |= {} if at is None else {"time": at}
            given_, wanted = (policy.decide(one, asked) for one in snapshots)
            assert given_ == wanted
            assert given_.outcome == reference.decide(snapshots[0], asked)


def said_by(snapshot: Snapshot) -> Any:
    """All that the documents say, without an order on which nothing depends."""
    systems = {
        name: (
            {principal: Counter(grants) for principal, grants in policy_set.grants.items()},
            {member: Counter(memberships) for member, memberships in policy_set.memberships.items()},
            {
                (kind, name): policy_set.facts.versions(kind, name)
                for kind in policy_set.facts.kinds()
                for name in policy_set.facts.names(kind)
            },
            policy_set.refused_documents(),
        )
        for name, policy_set in snapshot.policy_sets.items()
    }
    return systems, snapshot.version, snapshot.history_held, snapshot.rejected, snapshot.warnings


def said_one_by_one(store: DocumentStore) -> Any:
    """The same, by going through the documents."""
    systems = {name: (dict[str, Any](), dict[str, Any](), dict[Any, Any](), dict[str, Any]()) for name in store.systems}
    for key, history in store.histories.items():
        (grants, memberships, facts, refused), compiled = systems[key.system], history.compiled()
        for grant in compiled.grants:
            grants.setdefault(grant.principal, Counter())[grant] += 1
        for membership in compiled.memberships:
            memberships.setdefault(membership.member, Counter())[membership] += 1
        for fact in compiled.facts:
            before = () if fact.timeless else facts.get((fact.kind, fact.name), ())
            facts[fact.kind, fact.name] = (*before, fact)
        for refusal in history.refusals():
            refused[str(key)] = refused.get(str(key), frozenset()) | refusal.affected_principals
    for rejected, names in store.nameless.items():
        for name in names:
            systems[name][3]["/".join([*rejected.key.split("/", 2), "?", "?"][:3])] = frozenset({"*"})
    histories = store.histories.values()
    lines = [*sorted(line for history in histories for line in history.version_lines())]
    lines += sorted(f"{rejected.key} {rejected.errors}" for rejected in store.nameless)
    version = "sha256:" + hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
    warnings = sorted((str(key), text) for key, of in store.histories.items() for text in of.compiled().warnings)
    return systems, version, sum(of.superseded for of in histories), store.rejected(), tuple(warnings)


def contents_of(snapshot: Snapshot) -> Any:
    """All that a snapshot says, without an order on which nothing depends."""
    return (
        snapshot.version,
        snapshot.history_held,
        {name: _policy_set(policy_set) for name, policy_set in snapshot.policy_sets.items()},
    )


def _policy_set(policy_set: PolicySet) -> Any:
    broken = [policy_set.broken_at(at) for at in (None, *policy_set.edges)]
    return (
        {principal: Counter(held) for principal, held in policy_set.grants.items()},
        policy_set.memberships,
        policy_set.edges,
        policy_set.broken,
        broken,
        _facts(policy_set._policy_facts),
        _index(policy_set.index),
    )


def _facts(table: FactTable) -> Any:
    """The table by what is known of each thing, and how it is looked up; nothing of before is kept."""
    things = {(kind, name): of for kind, names in table._kinds.items() for name, of in names.items()}
    assert not any(of.older for of in things.values())
    assert len(table) == sum(bool(of.newest.facts) for of in things.values())
    assert set(table._refused) == {thing for thing, of in things.items() if of.newest.refusals}
    assert set(table._dated) == {thing for thing, of in things.items() if not of.newest.lasts}
    keys = {(kind, *key): key for (kind, _), of in things.items() for key in of.newest.keys}
    assert set(table._names._sets) == keys.keys()
    for kind, *key in keys:
        assert table.named(kind, *key) == {
            name for (other, name), of in things.items() if other == kind and tuple(key) in of.newest.keys
        }
    return {thing: (of.newest.facts, of.newest.refusals) for thing, of in things.items()}


def _index(index: Grants) -> Any:
    """The index by the grants that it finds, and how: the numbers of its permission patterns are its own."""
    permissions = {number: pattern for pattern, number in filed_in(index._permissions)}
    tables = {
        pattern: dict([table] if isinstance(table, tuple) else table) for pattern, table in filed_in(index._resources)
    }
    assert len(tables) == index._resources._size
    assert all(table and all(table.values()) for table in tables.values()), "what is empty is removed"
    pairs = [pair for table in tables.values() for entry in table.values() for pair in grants._pairs(entry)]
    assert Counter(number for number, _ in pairs) == Counter(dict(enumerate(index._uses)))
    assert permissions.keys() == {number for number, _ in pairs}
    return {
        pattern: {
            principal: (type(entry), Counter((permissions[number], grant) for number, grant in grants._pairs(entry)))
            for principal, entry in table.items()
        }
        for pattern, table in tables.items()
    }


def test_what_contradicts_counts_as_it_does_in_all_documents() -> None:
    """Two documents say something of one thing: the last one counts, and when it is gone the other one does."""
    documents = [
        {"system": "streamsets", "kind": kind, "name": "x:org", "spec": {"owner": owner}}
        for kind, owner in (("Pipeline", "a@org"), ("Connection", "b@org"))
    ]
    store = DocumentStore()
    for order, document in enumerate(documents):
        store.put(document, order, order)
    compiler = Compiler(store)
    for order, key in enumerate(map(_key, documents), 5):
        store.delete(key, order, order)
        compiler.compile()
        assert contents_of(compiler.snapshot) == contents_of(Snapshot(store))


def test_an_edit_shares_what_it_does_not_touch() -> None:
    store = DocumentStore()
    for order in range(50):
        store.put(role(f"r{order}", ("allow", f"kafka:Get{order}*", f"kafka:topic:e/c/n{order}")), order, order)
    compiler = Compiler(store)
    before = compiler.snapshot
    store.put(role("r7", ("deny", "kafka:Get7*", "kafka:topic:e/c/n7")), 99, 99)
    change = compiler.compile()
    assert change is not None
    assert (change.size, list(change.policy_sets)) == (2, ["lenses6"])
    after = compiler.snapshot
    assert [
        name for name in after.policy_sets if not after.policy_sets[name].says_the_same(before.policy_sets[name])
    ] == ["lenses6"]
    assert after.policy_sets["cdap"] is before.policy_sets["cdap"]
    assert after.policy_sets["lenses6"].grants["role:r8"] is before.policy_sets["lenses6"].grants["role:r8"]


def test_where_most_has_changed_all_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "WHOLE", 4)
    store = DocumentStore()
    compiler = Compiler(store)
    for order in range(4):
        store.put(role(f"r{order}", ("allow", "*", "*")), order, order)
    assert compiler.compile() is None
    assert contents_of(compiler.snapshot) == contents_of(Snapshot(store))
