"""The layer of the facts topic, changed document by document, is what compiling all of them anew would give."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policy
from policy.core import fact_table as table_module
from policy.core.document import Key
from policy.core.fact_table import FactTable
from policy.core.model import Fact, Unanswerable
from policy.core.times import ALWAYS, Window
from policy.store.documents import DocumentStore
from policy.store.overlay import FactChange, FactOverlay, change_of, changes_of, layer_of
from policy.store.snapshot import Snapshot
from tests.examples import examples

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
    {
        "system": "cedar",
        "kind": "PolicySet",
        "name": "ops",
        "spec": {"policies": 'permit(principal in Group::"ops", action, resource);'},
    },
]


def _ops(*users: str) -> dict[str, Any]:
    group = {"type": "Group", "id": "ops"}
    return {"entities": [{"uid": {"type": "User", "id": user}, "parents": [group]} for user in users]}


SPECS: dict[tuple[str, str, str], list[dict[str, Any]]] = {
    ("streamsets", "Session", "dana"): [{"login_at": 1}, {"login_at": 5, "groups": ["g"]}, {"wrong": 1}],
    ("streamsets", "Session", "nora"): [{"login_at": 9, "groups": ["g"]}, {"login_at": -1}],
    ("cdap", "Entity", "namespace:n"): [{"parent": "instance:i"}, {"parent": None}, {"nothing": 1}],
    ("cedar", "Entities", "ops"): [_ops("dana"), _ops("nora"), _ops()],  # facts that are not named like their document
}
CHANGES = st.lists(
    st.sampled_from([(place, spec) for place, specs in SPECS.items() for spec in (*specs, None)]), max_size=12
)


def _requests() -> list[dict[str, Any]]:
    def ask(system: str, user: str, action: str, resource: str) -> dict[str, Any]:
        subject = {"type": "user", "id": user, "properties": {"groups": ["g"]}}
        kind = resource.partition(":")[0]
        fields = {"id": "r", "system": system, "action": {"name": action}, "time": 20}
        return {**fields, "subject": subject, "resource": {"type": kind, "id": resource}}

    asked = [ask("streamsets", user, verb, "pipeline:p") for user in ("dana", "nora") for verb in VERBS]
    in_cedar = [
        {
            "id": "r",
            "system": "cedar",
            "action": {"name": "view"},
            "subject": {"type": "User", "id": user},
            "resource": {"type": "Doc", "id": "d"},
            "time": 20,
        }
        for user in ("dana", "nora")
    ]
    return [*asked, *in_cedar, ask("cdap", "dana", "namespace.view", "namespace:n")]


VERBS = ("pipeline.view", "pipeline.design")


@settings(max_examples=examples(100), deadline=None)
@given(CHANGES)
def test_changes_one_by_one_are_the_same_as_all_at_once(changes: list[tuple[tuple[str, str, str], Any]]) -> None:
    """Good versions, refused ones and deletions, in any order."""
    policies, facts, overlay = DocumentStore(), DocumentStore(facts_only=True), FactOverlay()
    for document in POLICIES:
        assert policies.put(document) is None
    followed = Snapshot(policies).with_facts(overlay)
    for order, ((system, kind, name), spec) in enumerate(changes):
        key = Key(system, kind, name)
        if spec is None:
            facts.delete(key, order, order)
        else:
            facts.put({"system": system, "kind": kind, "name": name, "spec": spec}, order, order)
        overlay.apply(change_of(key, facts.histories.get(key)))
        facts.forget_before({})
    followed = followed.with_facts(overlay)
    compiled = Snapshot(policies, facts)
    for request in _requests():
        assert policy.decide(followed, request) == policy.decide(compiled, request)
    for system, policy_set in compiled.policy_sets.items():
        assert followed.policy_sets[system].broken == policy_set.broken


def test_a_refused_session_is_an_error_until_a_good_one_comes() -> None:
    policies, overlay = DocumentStore(), FactOverlay()
    for document in POLICIES:
        policies.put(document)
    facts, key = DocumentStore(facts_only=True), Key("streamsets", "Session", "dana")
    outcomes = []
    for order, spec in enumerate(({"wrong": 1}, {"login_at": 5})):
        facts.put({"system": key.system, "kind": key.kind, "name": key.name, "spec": spec}, order, order)
        overlay.apply(change_of(key, facts.histories[key]))
        outcomes.append(policy.decide(Snapshot(policies).with_facts(overlay), _requests()[0]).outcome)
    assert outcomes == ["error", "allow"]


def test_what_was_worked_out_of_the_policies_is_shared_whatever_the_facts_are() -> None:
    """Else each login would have it worked out anew."""
    snapshot = policy.compile_documents(POLICIES)
    policy_set, other = (some.policy_sets["streamsets"] for some in (snapshot, snapshot.with_facts(FactOverlay())))
    assert other.effective_principals(("user:dana",), 20) is policy_set.effective_principals(("user:dana",), 20)
    assert other.index is policy_set.index


@settings(max_examples=examples(100), deadline=None)
@given(CHANGES)
def test_a_snapshot_does_not_change_whatever_is_applied_to_the_layer_later(changes: list[tuple[Any, Any]]) -> None:
    """Facts, those that bind, what is refused and what is found by a key: all of it is as it was put together."""
    snapshot, facts, overlay = policy.compile_documents(POLICIES), DocumentStore(facts_only=True), FactOverlay()
    seen = []
    for order, (place, spec) in enumerate(changes):
        _put(facts, overlay, place, spec, order)
        together = snapshot.with_facts(overlay)
        seen.append((together, _everything(together)))
    for together, then in seen:
        assert _everything(together) == then


def test_what_is_refused_later_does_not_show_before_whom_it_binds_does() -> None:
    """The two used to come from the same layer at different times."""
    overlay, key = FactOverlay(), Key("streamsets", "Session", "dana")
    before = policy.compile_documents(POLICIES).with_facts(overlay)
    overlay.apply(FactChange(key, refused=(ALWAYS,), affected_principals=frozenset({"user:dana"}), at=5))
    after = before.with_facts(overlay)
    assert [policy.decide(each, _requests()[0]).outcome for each in (before, after)] == ["allow", "error"]
    assert [each.policy_sets["streamsets"].facts.broken("Session") for each in (before, after)] == [[], ["dana"]]
    assert [bool(each.policy_sets["streamsets"].broken) for each in (before, after)] == [False, True]


def _put(facts: DocumentStore, overlay: FactOverlay, place: tuple[str, str, str], spec: Any, order: int) -> None:
    key = Key(*place)
    if spec is None:
        facts.delete(key, order, order)
    else:
        facts.put({"system": key.system, "kind": key.kind, "name": key.name, "spec": spec}, order, order)
    overlay.apply(change_of(key, facts.histories.get(key)))
    facts.forget_before({})


def _everything(snapshot: Snapshot) -> Any:
    policy_sets = snapshot.policy_sets
    streamsets, cdap = policy_sets["streamsets"].facts, policy_sets["cdap"].facts
    answers = [policy.decide(snapshot, request) for request in _requests()]
    found = [cdap.find("Entity", "parent", "instance:i"), cdap.names("Entity"), cdap.broken("Entity")]
    logins = [streamsets.names("Session"), streamsets.broken("Session"), sorted(map(str, streamsets.bodies("Session")))]
    return answers, found, logins, [dict(policy_set.broken) for policy_set in policy_sets.values()]


KEY, PARENT = Key("cdap", "Entity", "dataset:n.d"), ("Entity", "parent")
OLD, NEW = Window(None, 1000), Window(1000, None)


def _entity(parent: str, at: int, name: str = KEY.name, **more: Any) -> FactChange:
    fact = Fact("Entity", name, parent, (("parent", parent),), **more)
    return FactChange(Key("cdap", "Entity", name), (fact,), at=at)


def _live(*changes: FactChange, loaded: int = 0, absent_since: int = 0) -> FactOverlay:
    """A layer that was loaded with the first few changes, and saw the others come."""
    overlay = FactOverlay(changes[:loaded])
    overlay.sees_all_from_now(absent_since)
    for change in changes[loaded:]:
        overlay.apply(change)
    return overlay


def test_a_moment_is_judged_by_the_facts_of_that_moment() -> None:
    overlay = _live(_entity("p", 10), _entity("q", 20), FactChange(KEY, at=30), _entity("r", 40))
    states = {5: None, 10: "p", 19: "p", 20: "q", 29: "q", 30: None, 39: None, 40: "r", 99: "r"}
    for moment, parent in states.items():
        table = overlay.table("cdap", moment)
        fact = table.get("Entity", KEY.name)
        assert (fact and fact.body) == parent
        found = {other for other in "pqr" if table.find(*PARENT, other)}
        assert found == ({parent} if parent else set())


def test_what_was_refused_at_a_moment_is_an_error_for_that_moment() -> None:
    refusal = FactChange(KEY, refused=(ALWAYS,), at=20)
    overlay = _live(_entity("p", 10), FactChange(KEY, at=15), refusal, _entity("r", 40))
    for moment, refused in {10: None, 15: None, 20: str(KEY), 39: str(KEY), 40: None}.items():
        table = overlay.table("cdap", moment)
        assert table.refusal("Entity", KEY.name) == refused
        assert table.refusals("Entity") == ([KEY.name] if refused else [])


def test_a_refused_fact_affects_principals_at_the_moments_alone_at_which_it_is_refused() -> None:
    """Of a kind that there is not, it may concern all: but not what they did before it, or after it was deleted."""
    key, facts, overlay = Key("cdap", "Entyti", "namespace:n"), DocumentStore(facts_only=True), _live()
    request = {**_requests()[-1], "action": {"name": "namespace.get"}}

    def outcome(moment: int | None, layer: FactOverlay) -> str:
        snapshot = policy.compile_documents(POLICIES).with_facts(layer, moment)
        return policy.decide(snapshot, {**request, "time": moment or 50}).outcome

    facts.put({"system": key.system, "kind": key.kind, "name": key.name, "spec": {}}, 20, 0)
    overlay.apply(change_of(key, facts.histories[key]))
    assert [outcome(moment, overlay) for moment in (19, 20, 29, None)] == ["allow", "error", "error", "error"]
    facts.delete(key, 30, 1)
    overlay.apply(change_of(key, facts.histories[key]))
    for layer in (overlay, overlay.copy(), pickle.loads(pickle.dumps(overlay))):
        outcomes = [outcome(moment, layer) for moment in (19, 20, 29, 30, None)]
        assert outcomes == ["allow", "error", "error", "allow", "allow"]
    restarted = _live(*changes_of(key, facts.histories[key], 2), loaded=2)
    outcomes = [outcome(moment, restarted) for moment in (19, 20, 30)]
    assert outcomes == ["error", "error", "allow"], "of before it is not known any more whether it was refused"


def test_an_event_counts_from_when_it_happened_not_from_when_it_was_published() -> None:
    """A login is reported some time after it. For requests it counts as soon as it is read (`facts_offset`)."""
    facts, overlay, key = DocumentStore(facts_only=True), _live(), Key("streamsets", "Session", "dana")
    for at in (20, 40):
        facts.put({"system": key.system, "kind": key.kind, "name": key.name, "spec": {"login_at": at - 5}}, at, at)
        overlay.apply(change_of(key, facts.histories[key]))
    logins = [_login(overlay.table("streamsets", at)) for at in (14, 15, 34, 35)]
    assert logins == [None, 15, 15, 35]
    assert overlay.table("streamsets").timeless
    assert _login(overlay.table("streamsets")) == 35


def _login(table: FactTable) -> int | None:
    session = table.get("Session", "dana")
    return None if session is None else session.body.login_at


def test_versions_of_a_document_count_one_after_the_other() -> None:
    """Those of files say themselves from when on they are in force."""
    facts = [Fact("Entity", KEY.name, p, (("parent", p),), window=w) for p, w in (("p", OLD), ("q", NEW))]
    table = _live(FactChange(KEY, tuple(facts), at=5)).table("cdap")
    assert not table.timeless
    assert table.edges() == {1000}
    for at, parent in ((999, "p"), (1000, "q")):
        fact = table.get("Entity", KEY.name, at)
        assert fact is not None
        assert fact.body == parent
        assert {other for other in "pq" if table.find(*PARENT, other, at)} == {parent}
    assert table.versions("Entity", KEY.name) == tuple(facts)


def test_a_document_from_a_file_that_is_refused_for_a_time_is_an_error_for_that_time() -> None:
    """Its earlier version may have been anything: it must not count as if there was no document."""
    facts, place = DocumentStore(facts_only=True), {"system": KEY.system, "kind": KEY.kind, "name": KEY.name}
    assert facts.put({**place, "spec": {"wrong": 1}}) is not None
    assert facts.put({**place, "spec": {"parent": "namespace:n"}, "effective_at": 1000}) is None
    table = layer_of(facts).table("cdap")
    assert [table.refusal(KEY.kind, KEY.name, at) for at in (999, 1000)] == [str(KEY), None]
    assert [table.get(KEY.kind, KEY.name, at) is None for at in (999, 1000)] == [True, False]
    assert (table.refusals(KEY.kind, 999), table.refusals(KEY.kind, 1000), table.edges()) == ([KEY.name], [], {1000})


@pytest.mark.parametrize("name", [KEY.name, "dataset:n.another"])
def test_after_a_restart_what_compaction_may_have_removed_is_no_longer_known(name: str) -> None:
    """Of one that was loaded there may have been older versions; one that was not had at least its deletion left."""
    overlay = _live(_entity("q", 20), _entity("r", 30, name="dataset:n.e"), loaded=1, absent_since=10)
    for moment in (19, 9):
        known = moment >= 10 and name != KEY.name
        if known:
            assert overlay.table("cdap", moment).get("Entity", name) is None
        else:
            with pytest.raises(Unanswerable) as unanswerable:
                overlay.table("cdap", moment).get("Entity", name)
            assert unanswerable.value.reason.code == "no-longer-known"
        with pytest.raises(Unanswerable):
            overlay.table("cdap", moment).find(*PARENT, "p")  # of a version that is not there any more
        with pytest.raises(Unanswerable):
            overlay.table("cdap", moment).refusals("Entity")
    table = overlay.table("cdap", 20)
    assert (table.find(*PARENT, "q"), table.find(*PARENT, "r")) == ({KEY.name}, frozenset())


def test_after_a_restart_what_is_younger_than_the_compaction_lag_is_known() -> None:
    """Of such a fact no version was removed: it was not there before its first one."""
    overlay = FactOverlay([_entity("q", 20), _entity("r", 12, name="dataset:n.e")], all_held_after=15)
    overlay.sees_all_from_now(15)
    assert overlay.table("cdap", 19).get("Entity", KEY.name) is None
    assert overlay.table("cdap", 19).find(*PARENT, "r") == {"dataset:n.e"}
    with pytest.raises(Unanswerable):
        overlay.table("cdap", 11).get("Entity", "dataset:n.e")


def test_versions_that_a_log_still_has_are_known_after_a_restart() -> None:
    facts = DocumentStore(facts_only=True)
    for at, spec in (
        (10, {"login_at": 5}),
        (20, {"wrong": 1}),
        (30, {"login_at": 25}),
        (40, None),
        (50, {"login_at": 45}),
    ):
        key = Key("streamsets", "Session", "dana")
        if spec is None:
            facts.delete(key, at, at)
        else:
            facts.put({"system": key.system, "kind": key.kind, "name": key.name, "spec": spec}, at, at)
    changes = list(changes_of(key, facts.histories[key], 5))
    overlay = _live(*changes, loaded=len(changes))
    bodies = [_login(overlay.table("streamsets", at)) for at in (10, 30, 39, 40, 50)]
    assert bodies == [5, 25, 25, None, 45]


def test_superseded_versions_are_held_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SUPERSEDED_KEPT", 3)
    overlay = _live(*(_entity(f"p{n}", n * 10, name=f"d{n % 2}") for n in range(1, 9)), FactChange(KEY, at=85))
    for moment, known in {25: False, 35: False, 45: True, 75: True, 80: True}.items():
        if known:
            assert overlay.table("cdap", moment).get("Entity", "d0") is not None
        else:
            with pytest.raises(Unanswerable):
                overlay.table("cdap", moment).get("Entity", "d0")


def test_what_was_deleted_long_ago_is_forgotten_and_known_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SUPERSEDED_KEPT", 1)
    overlay = _live(_entity("p", 10), FactChange(KEY, at=20), _entity("x", 30, name="e"), _entity("y", 40, name="e"))
    assert overlay.table("cdap", 35).get("Entity", KEY.name) is None
    with pytest.raises(Unanswerable):
        overlay.table("cdap", 15).get("Entity", KEY.name)
    assert overlay.known_from == 20, "of other systems' facts all is known"


def test_a_late_change_affects_all_lookups_of_the_versions_that_it_takes_the_place_of() -> None:
    overlay, key = FactOverlay(), Key("cdap", "Entity", "dataset:d")
    for at, found_by in ((3, "first"), (10, "second"), (20, "third")):
        overlay.apply(FactChange(key, (Fact("Entity", "dataset:d", at, (("parent", found_by),)),), at=at))
    changed = overlay.apply(FactChange(key, (Fact("Entity", "dataset:d", 5, (("parent", "late"),)),), at=5))
    assert {lookup[3] for lookup in changed if lookup[0] == "key"} == {"first", "second", "third", "late"}


@pytest.mark.parametrize(("kind", "name", "since"), [("ActiveJob", "job:j", 15), ("Session", "dana", 15)])
def test_a_deletion_that_says_since_when_it_holds_counts_from_then_on(kind: str, name: str, since: int) -> None:
    """The job deletes a run some time after it has stopped; it may have been started again since."""
    key, facts = Key("streamsets", kind, name), DocumentStore(facts_only=True)
    field = "started_at" if kind == "ActiveJob" else "login_at"
    for order, (recorded, begun) in enumerate([(11, 10), (30, None), (31, 20)]):
        if begun is None:
            facts.delete(key, recorded, order, since)
        else:
            facts.put({"system": key.system, "kind": kind, "name": name, "spec": {field: begun}}, recorded, order)
    overlay = _live(*changes_of(key, facts.histories[key], 3))
    found = {at: overlay.table("streamsets", at).get(kind, name) for at in (9, 10, 14, 15, 19, 20, 29, 30, 99)}
    assert {at: fact and getattr(fact.body, field) for at, fact in found.items()} == {
        **dict.fromkeys((9, 15, 19)),
        **dict.fromkeys((10, 14), 10),
        **dict.fromkeys((20, 29, 30, 99), 20),
    }


def test_a_deletion_of_a_fact_that_the_log_dates_holds_from_its_record_on() -> None:
    """Whatever it says of itself: only logins and runs have a time of their own."""
    overlay = _live(_entity("p", 10), FactChange(KEY, at=20, since=15))
    assert overlay.table("cdap", 19).get("Entity", KEY.name) is not None
    assert overlay.table("cdap", 20).get("Entity", KEY.name) is None


def test_versions_count_by_when_they_began_before_they_were_recorded_and_by_the_log_since() -> None:
    """A login that is reported late counts for its time; one that the log puts in the place of a later one counts."""
    key, facts = Key("streamsets", "Session", "dana"), DocumentStore(facts_only=True)
    for order, (recorded, begun) in enumerate([(11, 10), (31, 30), (40, 20), (50, 15), (50, 30)]):
        document = {"system": key.system, "kind": key.kind, "name": key.name, "spec": {"login_at": begun}}
        facts.put(document, recorded, order)
    changes = list(changes_of(key, facts.histories[key], 5))
    overlay = _live(*changes[:3])
    assert [_login(overlay.table("streamsets", at)) for at in (14, 24, 34, 39, 40, 99)] == [10, 20, 30, 30, 20, 20]
    for change in changes[3:]:
        overlay.apply(change)
    assert [_login(overlay.table("streamsets", at)) for at in (14, 17, 24, 34, 40, 50)] == [10, 15, 20, 30, 30, 30]
    assert _login(overlay.table("streamsets")) == 30


@pytest.mark.parametrize("held", [1, 2, 3, 9])
def test_of_versions_that_are_not_held_any_more_nothing_is_guessed(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever are dropped: what is answered is what all of them say."""
    key, facts = Key("streamsets", "Session", "dana"), DocumentStore(facts_only=True)
    for order, (recorded, begun) in enumerate([(11, 10), (31, 30), (40, 20), (50, 15), (50, 30), (60, 55)]):
        document = {"system": key.system, "kind": key.kind, "name": key.name, "spec": {"login_at": begun}}
        facts.put(document, recorded, order)
    changes = list(changes_of(key, facts.histories[key], 6))
    whole = _live(*changes)
    monkeypatch.setattr(table_module, "VERSIONS_KEPT", held)
    some = _live(*changes)
    for at in range(5, 70):
        try:
            found = _login(some.table("streamsets", at))
        except Unanswerable:
            continue
        assert found == _login(whole.table("streamsets", at)), at
    assert _login(some.table("streamsets", 60)) == 55
