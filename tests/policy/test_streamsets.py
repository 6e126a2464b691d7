"""StreamSets: what a case file cannot say: trimmed and missing history, the horizon, the catalogue as data."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import policy
from policy.core.document import Key
from policy.core.facts import Facts
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from policy.systems import streamsets
from policy.systems.streamsets.catalogue import ANY_OBJECT, ORGANIZATION, catalogue, operations
from policy.systems.streamsets.checks import CHECKS
from policy.systems.streamsets.needs import ENGINES
from tests.policy.strategies.streamsets import GRANTED, REQUESTED, USERS, objects

PIPELINE = Key("streamsets", "Object", "pipeline:p")
RULES = Path(streamsets.__file__).parent / "rules.yaml"


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A StreamSets document."""
    return {"system": "streamsets", "kind": kind, "name": name, "spec": spec}


def pipeline(*readers: str, owner: str = "owner") -> dict[str, Any]:
    """A version of pipeline:p that ``readers`` may read."""
    acl = {f"user:{reader}": ["READ"] for reader in readers}
    return document("Object", "pipeline:p", {"type": "pipeline", "owner": owner, "acl": acl})


def policies(**versions: dict[str, Any]) -> DocumentStore:
    """A library with enforcement on and the versions of pipeline:p, named ``at_MOMENT``."""
    store = DocumentStore()
    store.put(document("Organization", "acme", {"enforcement": True}), at=0)
    for order, (name, version) in enumerate(versions.items()):
        assert store.put(version, at=int(name.removeprefix("at_")), order=order) is None
    return store


def logins(**moments: int) -> DocumentStore:
    """The facts layer with the users' last logins."""
    store = DocumentStore(facts_only=True)
    for user, moment in moments.items():
        assert store.put(document("Session", user, {"login_at": moment}), at=moment) is None
    return store


def may(store: DocumentStore, facts: DocumentStore, user: str, action: str = "pipeline.view") -> str:
    """The answer to ``user`` on pipeline:p."""
    request = {
        "id": "r",
        "system": "streamsets",
        "subject": {"type": "user", "id": user},
        "action": {"name": action},
        "resource": {"type": "pipeline", "id": "pipeline:p"},
    }
    return policy.decide(Snapshot(store, facts), request).outcome


def retention_floor(store: DocumentStore, facts: DocumentStore) -> int | None:
    """The horizon of the snapshot of both."""
    return streamsets.SYSTEM.retention_floor(Snapshot(store, facts).policy_sets["streamsets"].facts)


# ── missing history ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_login_before_what_is_known_is_allowed_by_every_known_version_or_not_at_all() -> None:
    """Of a trimmed document no version is taken for the first: neither creator nor share of one version is enough."""
    store = policies(at_100=pipeline("always", "early"), at_200=pipeline("always", "early"))
    store.put(pipeline("always", "late", owner="heir"), at=300, order=9)
    store.forget_before({"streamsets": 200})
    facts = logins(always=50, early=50, late=50, owner=50, heir=50)
    assert may(store, facts, "always") == "allow"
    assert [may(store, facts, user) for user in ("early", "late", "owner", "heir")] == ["deny"] * 4


def test_a_login_within_what_is_known_is_judged_by_its_version_alone() -> None:
    """Trimming takes nothing from users whose login it kept."""
    store = policies(at_100=pipeline(), at_200=pipeline("early"), at_300=pipeline("late"))
    store.forget_before({"streamsets": 250})
    facts = logins(early=250, late=250)
    assert (may(store, facts, "early"), may(store, facts, "late")) == ("allow", "deny")


def test_the_reader_of_a_compacted_log_can_tell_that_versions_are_missing() -> None:
    """Without the hint the first version known would be a creation, at once good for its owner."""
    store = policies(at_500=pipeline("reader", owner="now"))
    facts = logins(now=100, reader=100)
    assert (may(store, facts, "now"), may(store, facts, "reader")) == ("allow", "deny")
    store.lost_before(500, PIPELINE)
    assert may(store, facts, "reader") == "allow", "the one version known allows, and was perhaps not the first"
    store.put(pipeline("reader", owner="other"), at=600, order=9)
    assert (may(store, facts, "now"), may(store, facts, "reader")) == ("deny", "allow")
    assert may(store, logins(now=500), "now") == "allow", "from 500 on all is known"


def test_what_was_made_after_the_moment_from_which_all_is_known_is_a_creation() -> None:
    """Also for a login before that moment."""
    store = policies(at_500=pipeline("reader", owner="creator"))
    store.lost_before(400, PIPELINE)
    facts = logins(creator=100, reader=100)
    assert (may(store, facts, "creator"), may(store, facts, "reader")) == ("allow", "deny")


def running(started: int) -> DocumentStore:
    """The facts layer with job:j active since ``started``."""
    facts = DocumentStore(facts_only=True)
    assert facts.put(document("ActiveJob", "job:j", {"started_at": started}), at=started) is None
    return facts


def runnable(**versions: dict[str, Any]) -> DocumentStore:
    """As policies(), with a job and an engine for pipeline:p that the group ``all`` may read."""
    for version in versions.values():
        version["spec"] |= {"pipeline_kind": "dc", "connections": []}
    store = policies(**versions)
    shared = {"owner": "owner", "labels": [], "acl": {"group:all": ["READ"]}}
    for name, more in {"job:j": {"pipeline": "p"}, "engine:e": {"engine_kind": "dc"}}.items():
        spec = {"type": name.partition(":")[0], **shared, **more}
        assert store.put(document("Object", name, spec), at=10) is None
    return store


def monitors(store: DocumentStore, facts: DocumentStore, user: str) -> str:
    """The answer to ``user``, of the group ``all``, who wants to monitor job:j."""
    request = {
        "id": "r",
        "system": "streamsets",
        "subject": {"type": "user", "id": user, "properties": {"groups": ["all"]}},
        "action": {"name": "job.monitor"},
        "resource": {"type": "job", "id": "job:j"},
    }
    return policy.decide(Snapshot(store, facts), request).outcome


def test_a_run_that_began_before_what_is_known_is_judged_by_every_known_version() -> None:
    """A frozen pipeline whose versions at the start are gone allows what all that are left allow."""
    store = runnable(at_100=pipeline("both", "one"), at_200=pipeline("both"))
    store.lost_before(100, PIPELINE)
    assert (monitors(store, running(50), "both"), monitors(store, running(50), "one")) == ("allow", "deny")
    assert monitors(store, running(100), "one") == "allow", "the version of that very moment is known"
    begun = runnable(at_100=pipeline("both"), at_200={**pipeline("both"), "valid_from": 60, "valid_until": 10**6})
    begun.lost_before(100, PIPELINE)
    assert monitors(begun, running(50), "both") == "deny", "one of them had not begun to be valid at the start"


def test_a_run_cannot_have_begun_before_its_pipeline_was_made() -> None:
    """Then the documents contradict each other, and nothing is known of the pipeline at the start."""
    store = runnable(at_100=pipeline("reader"))
    assert monitors(store, running(50), "reader") == "error"
    store.lost_before(60, PIPELINE)
    assert monitors(store, running(50), "reader") == "error"


# ── trimming ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_horizon_is_the_oldest_login_or_start_of_a_run() -> None:
    """None without either: then the newest versions alone are needed."""
    store, facts = policies(at_100=pipeline()), logins(rita=300, miguel=200)
    assert retention_floor(store, DocumentStore(facts_only=True)) is None
    assert retention_floor(store, facts) == 200
    facts.put(document("ActiveJob", "job:j", {"started_at": 150}), at=150)
    assert retention_floor(store, facts) == 150


def test_a_login_that_a_refused_document_hides_is_in_the_horizon_all_the_same() -> None:
    """What the horizon is worked out from stops nothing, and may come to count again."""
    store = policies(at_100=pipeline())
    store.put(document("Session", "rita", {"login": 1}), at=400)
    assert retention_floor(store, logins(rita=300)) == 300


def test_history_is_held_as_long_as_it_is_needed_and_the_library_says_how_much() -> None:
    """The version in force at the horizon is the oldest kept; without a horizon only the newest is."""
    store = policies(at_100=pipeline("a"), at_200=pipeline("b"), at_300=pipeline("c"))
    assert store.history_held == 2
    dropped = store.forget_before({"streamsets": 250})
    assert [version.at for version in dropped[PIPELINE]] == [100]
    assert store.history_held == Snapshot(store).history_held == 1
    assert store.forget_before({"streamsets": 250}) == {}
    assert [version.at for version in store.forget_before({"streamsets": None})[PIPELINE]] == [200]
    assert store.history_held == 0


def test_systems_that_are_not_named_keep_everything() -> None:
    """A caller that trims one system trims no other."""
    store = policies(at_100=pipeline("a"), at_200=pipeline("b"))
    assert store.forget_before({"cdap": None}) == {}
    assert store.history_held == 1


def test_a_deletion_goes_when_nobody_looks_behind_it_any_more() -> None:
    """Else every object that ever was would stay for ever."""
    store = policies(at_100=pipeline("a"))
    store.delete(PIPELINE, at=200, order=5)
    store.forget_before({"streamsets": 150})
    assert [version.at for version in store.histories[PIPELINE].versions] == [100, 200]
    store.forget_before({"streamsets": 200})
    assert PIPELINE not in store.histories
    assert may(store, logins(a=150), "a") == "error"


@settings(max_examples=60, deadline=None)
@given(data=st.data(), login=st.integers(0, 9), started=st.integers(0, 9))
def test_trimming_changes_no_answer_that_its_horizon_covers(data: st.DataObject, login: int, started: int) -> None:
    """Versions and deletions at random, several at one moment: before and after, every request is answered alike."""
    store, facts = DocumentStore(), logins(**dict.fromkeys(USERS, login))
    facts.put(document("ActiveJob", "job:j", {"started_at": started}), at=0)
    store.put(document("Organization", "o", {"enforcement": True}), at=0)
    moments = sorted(data.draw(st.lists(st.integers(0, 9), min_size=5, max_size=20)))
    for order, at in enumerate(moments):
        name = data.draw(st.sampled_from(sorted({name for name, _ in REQUESTED if not name.startswith("org")})))
        if data.draw(st.integers(0, 5)):
            store.put(document("Object", name, data.draw(objects(name))), at=at, order=order)
        else:
            store.delete(Key("streamsets", "Object", name), at=at, order=order)
    before = answers(store, facts)
    store.forget_before({"streamsets": retention_floor(store, facts)})
    assert answers(store, facts) == before


def answers(store: DocumentStore, facts: DocumentStore) -> list[str]:
    """The outcomes of every user's every request."""
    snapshot = Snapshot(store, facts)
    return [
        policy.decide(
            snapshot,
            {
                "id": "r",
                "system": "streamsets",
                "subject": {"type": "user", "id": user, "properties": {"groups": ["north"]}},
                "action": {"name": action},
                "resource": {"type": "object", "id": name},
                "context": GRANTED,
            },
        ).outcome
        for user in USERS
        for name, action in REQUESTED
    ]


# ── the catalogue ────────────────────────────────────────────────────────────────────────────────────────────────


def leaves(need: dict[str, Any]) -> list[dict[str, Any]]:
    """The leaves of a need."""
    parts = need.get("all") or need.get("any")
    return [leaf for part in parts for leaf in leaves(part)] if parts else [need]


@pytest.mark.parametrize("action", sorted(operations()))
def test_every_operation_can_be_worked_out(action: str) -> None:
    """Its rules exist, its leaves are well-formed, its paths follow fields that the types have."""
    operation = operations()[action]
    rules = {rule["id"] for rule in yaml.safe_load(RULES.read_text())}
    for need in (operation.needs, *operation.via.values(), *operation.instead.values()):
        for leaf in leaves(need):
            named = {*operation.rules, *([leaf["rule"]] if "rule" in leaf else [])}
            assert all(rule in rules or rule.startswith("SS-Q") for rule in named)
            [what] = leaf.keys() & {"permission", "right", "fact"}
            assert leaf.keys() <= {what, "rule", *({"of", "frozen"} if what == "permission" else ())}
            assert what != "fact" or leaf["fact"] in CHECKS
            assert what != "right" or leaf["right"] in ("owner", "administrator", "auth-token-administrator")
            if what == "permission":
                assert leaf["permission"] in catalogue().types[end_of(leaf, operation.resource)].levels
                assert leaf.get("frozen", True) is True


def end_of(leaf: dict[str, Any], start: str) -> str:
    """The type of the objects that a leaf's path leads to; KeyError where a type has no such field."""
    assert start not in (ANY_OBJECT, ORGANIZATION), "a level is on objects of a known type"
    type_, path = start, leaf["of"].split(".") if "of" in leaf else []
    if path[:1] == ["context"]:
        return str(path[1])
    for field in path:
        fields = {**catalogue().types[type_].one, **catalogue().types[type_].many}
        type_ = "engine" if field in ENGINES else fields[field]
    return type_


def test_facts_that_are_not_there_leave_no_horizon() -> None:
    """An empty snapshot looks at the newest alone."""
    assert streamsets.SYSTEM.retention_floor(Facts()) is None
