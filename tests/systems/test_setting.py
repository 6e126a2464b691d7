"""The setting `systems`: which of the installed systems have topics and answers."""

from collections.abc import Mapping
from typing import Any

import pytest

from policy import Compiler, DocumentStore, Snapshot, decide
from policy.systems import all_systems
from streaming.settings import Settings, SettingsError, check_settings, load_settings
from streaming.topics import DEFAULT_SYSTEMS, TopicNames, topic_specs

FIRST = min(all_systems())
"""Of the names of systems that a message lists."""

FIVE = ("cdap", "lenses5", "lenses6", "streamsets", "ververica")
ROLE = {"kind": "Role", "name": "all", "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}}
GROUP = {"kind": "Group", "name": "g", "spec": {"roles": ["all"], "members": ["user:dana"]}}
LENSES6 = [{"system": "lenses6", **ROLE}, {"system": "lenses6", **GROUP}]
CDAP = {
    "system": "cdap",
    "kind": "Grant",
    "name": "g",
    "spec": {"user": "d", "entity": "namespace:n", "privileges": []},
}


def request(system: str) -> dict[str, Any]:
    """Something that dana wants of a system."""
    return {
        "id": "r",
        "system": system,
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
    }


def put(store: DocumentStore, *documents: Mapping[str, Any]) -> DocumentStore:
    """The store with the documents in it."""
    for order, document in enumerate(documents):
        store.put(document, 0, order)
    return store


def test_the_default_is_the_five_whatever_else_is_installed() -> None:
    """Else an upgrade that brings another would ask for topics that no cluster has, and refuse to start."""
    assert DEFAULT_SYSTEMS == Settings().systems == FIVE
    assert set(Settings().topics.policy_topics()) == set(FIVE)


def test_only_systems_of_the_setting_have_topics() -> None:
    """Also where another is named under `topics.policies`."""
    given = {"systems": ["lenses6"], "topics": {"policies": {"cdap": "grants", "lenses6": "iam"}}}
    topics = check_settings(given).topics
    assert topics.policy_topics() == {"lenses6": "iam"}
    assert [spec.name for spec in topic_specs(topics) if "authz.policies." in spec.name or spec.name == "grants"] == []


def test_an_environment_variable_sets_it() -> None:
    assert load_settings(None, {"LOCKKEEPER_SYSTEMS": "[cdap]"}).systems == ("cdap",)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"systems": ["lenses7"]}, rf"systems: 'lenses7' is not installed.*lenses6.*; there are {FIRST}, "),
        ({"systems": []}, f"systems: must name at least one of {FIRST}"),
        ({"systems": ["cdap", "cdap"]}, "systems: 'cdap' is there twice"),
        ({"topics": {"systems": ["cdap"]}}, "topics.systems: is no setting; `systems` says"),
        (
            {"topics": {"policies": {"lense6": "iam"}}},
            rf"topics.policies: no system 'lense6' is installed.*lenses6.*; there are {FIRST}",
        ),
        (
            {"monitor": {"systems": {"lense6": {"grace_seconds": 1}}}},
            rf"monitor.systems: no system 'lense6' is installed.*lenses6.*; there are {FIRST}",
        ),
        (
            {"monitor": {"exempt": [{"subject": "a", "reason": "b", "until": 2**41, "systems": ["x"]}]}},
            rf"monitor.exempt: no system 'x' is installed.*; there are {FIRST}",
        ),
        (
            {"serve": {"record": {"lense6": "none"}}},
            rf"serve.record: no system 'lense6' is installed.*lenses6.*; there are {FIRST}",
        ),
    ],
)
def test_a_wrong_one_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        check_settings(given)


@pytest.mark.parametrize(
    ("topics", "uses"),
    [
        ({"facts": "authz.policies.lenses6.v1"}, "topics.policies.lenses6 and topics.facts"),
        ({"policies": {"lenses5": "iam", "lenses6": "iam"}}, "topics.policies.lenses5 and topics.policies.lenses6"),
        ({"requests": ["a"], "facts": "a"}, "topics.requests and topics.facts"),
        ({"requests": ["a"], "audit": ["a"]}, "topics.requests and topics.audit"),
        ({"answered": ["authz.requests.v1"]}, "topics.requests and topics.answered"),
        ({"requests": ["a", "a"]}, "topics.requests and topics.requests"),
        ({"requests": ["a", "a.dlq"]}, "topics.requests and the dead letters of a"),
        ({"decisions": "authz.audit.v1.dlq"}, r"topics.decisions and the dead letters of authz\.audit\.v1"),
        ({"changes": "authz.history.v1"}, "topics.history and topics.changes"),
        ({"access_changes": "authz.decisions.v1"}, "topics.decisions and topics.access_changes"),
    ],
)
def test_a_topic_has_one_use(topics: dict[str, Any], uses: str) -> None:
    """Who may write facts or requests could else write policies, which the same topic holds."""
    with pytest.raises(SettingsError, match=f"is both {uses}: give each"):
        check_settings({"topics": topics})


def test_a_system_that_is_not_in_it_is_unknown_and_never_denies_by_an_empty_set() -> None:
    """An answer of `deny` would say that its policies were read."""
    store = put(DocumentStore(systems=["lenses6"]), *LENSES6)
    for snapshot in (Snapshot(store), Compiler(store).snapshot):
        assert decide(snapshot, request("lenses6")).allowed
        answer = decide(snapshot, request("cdap"))
        assert (answer.outcome, answer.reasons[0].code) == ("error", "unknown-system")
        assert "is not one of lenses6" in answer.reasons[0].message


def test_its_documents_are_refused_and_concern_no_other_system() -> None:
    """Requests of the others are answered as before, also after a change."""
    store = put(DocumentStore(systems=["lenses6"]), *LENSES6)
    compiler = Compiler(store)
    rejected = store.put(CDAP, 1, 9)
    assert rejected is not None
    assert "add it to the setting `systems`" in rejected.errors[0]
    compiler.compile()
    assert decide(compiler.snapshot, request("lenses6")).allowed
    assert decide(Snapshot(store.copy()), request("lenses6")).allowed
    assert [one.key for one in compiler.snapshot.rejected] == ["cdap/Grant/g"]


def test_a_document_of_a_system_that_is_not_installed_still_stops_all_answers() -> None:
    """It may have denied anybody anything."""
    store = put(DocumentStore(systems=["lenses6"]), *LENSES6, {**CDAP, "system": "lenses7"})
    assert decide(Snapshot(store), request("lenses6")).outcome == "error"


def test_names_of_topics_alone_are_of_the_five() -> None:
    assert TopicNames().systems == FIVE
    assert set(FIVE) <= set(all_systems())
