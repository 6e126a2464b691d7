"""What is the same name, in every system: compared by code point, and never written in two ways (docs, "Names")."""

import copy
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from policy import Snapshot, compile_documents, decide
from policy.core.names import fault
from policy.evaluation import reference
from policy.systems import all_systems

NAME = "josé"

LENSES6 = [
    {
        "system": "lenses6",
        "kind": "Role",
        "name": "all",
        "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]},
    },
    {
        "system": "lenses6",
        "kind": "Role",
        "name": "none",
        "spec": {
            "statements": [{"effect": "deny", "action": "kafka:ReadTopicData", "resource": "kafka:topic:prod/é/secret"}]
        },
    },
    {
        "system": "lenses6",
        "kind": "Group",
        "name": "staff",
        "spec": {"roles": ["all", "none"], "members": [f"user:{NAME}"]},
    },
]
LENSES5 = [
    {
        "system": "lenses5",
        "kind": "Group",
        "name": "staff",
        "spec": {
            "members": [NAME],
            "namespaces": [{"connection": "é", "type": "Kafka", "datasets": ["*"], "permissions": ["Show Topic"]}],
        },
    }
]
VERVERICA = [
    {
        "system": "ververica",
        "kind": "InitialAccess",
        "name": "main",
        "spec": {"initialAccess": [{"userId": NAME, "workspaceId": "é", "namespaceId": "n", "role": "EDITOR"}]},
    },
    {"system": "ververica", "kind": "ReservedKinds", "name": "main", "spec": {"kinds": ["ApiToken", "Clé"]}},
]
STREAMSETS = [
    {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
    {
        "system": "streamsets",
        "kind": "Object",
        "name": "subscription:é",
        "spec": {"type": "subscription", "owner": NAME},
    },
]
CDAP = [
    {
        "system": "cdap",
        "kind": "Grant",
        "name": "g",
        "spec": {"user": NAME, "entity": "dataset:*", "privileges": ["READ"]},
    }
]
KAFKA_ACLS = [
    {
        "system": "kafka-acls",
        "kind": "Acls",
        "name": "a",
        "spec": {
            "entries": [
                {"principal": f"User:{NAME}", "operation": "Read", "resource_type": "Group", "name": "é"},
                {"principal": "User:mona", "host": "h", "operation": "Read", "resource_type": "Group", "name": "é"},
            ]
        },
    }
]
CEDAR = [
    {
        "system": "cedar",
        "kind": "PolicySet",
        "name": "p",
        "spec": {"policies": f'permit (principal == user::"{NAME}", action == Action::"read", resource == doc::"é");'},
    }
]


def _request(system: str, who: str, action: str, resource: dict[str, Any]) -> dict[str, Any]:
    subject = {"type": "user", "id": who, "properties": {}}
    return {"id": "r", "system": system, "subject": subject, "action": {"name": action}, "resource": resource}


KNOWN: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "lenses6": (
        LENSES6,
        _request("lenses6", f"user:{NAME}", "kafka:ReadTopicData", {"type": "lrn", "id": "kafka:topic:prod/é/open"}),
    ),
    "lenses5": (
        LENSES5,
        _request(
            "lenses5",
            NAME,
            "kafka.topic.show",
            {"type": "topic", "id": "é", "properties": {"connection": "é", "dataset": "é"}},
        ),
    ),
    "ververica": (
        VERVERICA,
        _request(
            "ververica",
            NAME,
            "write",
            {"type": "Job", "id": "é", "properties": {"workspaceId": "é", "namespaceId": "n"}},
        ),
    ),
    "streamsets": (
        STREAMSETS,
        _request("streamsets", NAME, "subscription.view", {"type": "subscription", "id": "subscription:é"}),
    ),
    "kafka-acls": (KAFKA_ACLS, _request("kafka-acls", f"User:{NAME}", "Read", {"type": "Group", "id": "é"})),
    "cedar": (CEDAR, _request("cedar", NAME, "read", {"type": "doc", "id": "é"})),
    "cdap": (CDAP, _request("cdap", NAME, "dataset.read", {"type": "dataset", "id": "dataset:é.d"})),
}

WAYS: dict[str, Callable[[str], str]] = {
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "a blank behind": lambda text: f"{text} ",
    "a blank before": lambda text: f" {text}",
    "a blank before the name": lambda text: text.replace(":", ": "),
    "a hard blank behind": lambda text: f"{text}\xa0",
    "a line end": lambda text: f"{text}\n",
    "a tabulator within": lambda text: f"{text[:1]}\t{text[1:]}",
    "a zero-width space": lambda text: f"{text}\u200b",
    "a soft hyphen": lambda text: f"{text[:1]}\xad{text[1:]}",
    "a NUL": lambda text: f"{text}\0",
}


PLACES = (("subject", "id"), ("action", "name"), ("resource", "type"), ("resource", "id"))


def _outcome(snapshot: Snapshot, request: dict[str, Any]) -> str:
    outcome = decide(snapshot, request).outcome
    assert outcome == reference.decide(snapshot, request)
    return outcome


def test_every_system_takes_part() -> None:
    assert set(KNOWN) == set(all_systems())


@pytest.mark.parametrize("system", KNOWN)
def test_a_name_is_compared_by_code_point(system: str) -> None:
    documents, request = KNOWN[system]
    assert _outcome(compile_documents(documents), request) == "allow"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("system", KNOWN)
def test_a_request_with_a_name_that_could_be_taken_for_another_is_an_error(
    system: str, way: Callable[[str], str]
) -> None:
    """Of the subject, the action, the resource, and each property that the system reads."""
    documents, request = KNOWN[system]
    snapshot = compile_documents(documents)
    for part, field in PLACES:
        changed = copy.deepcopy(request)
        changed[part][field] = way(request[part][field])
        if changed != request:
            assert _outcome(snapshot, changed) == "error", (part, field)
    for field, text in request["resource"].get("properties", {}).items():
        changed = copy.deepcopy(request)
        changed["resource"]["properties"][field] = way(text)
        if changed != request:
            assert _outcome(snapshot, changed) == "error", field


@pytest.mark.parametrize("disguise", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize(("part", "field"), PLACES)
def test_one_such_name_among_plain_ones_is_an_error(part: str, field: str, disguise: Callable[[str], str]) -> None:
    """Here all is allowed, and a deny of the action that is meant would not match."""
    documents, request = KNOWN["lenses6"]
    staff = {**documents[2], "spec": {"roles": ["all"], "members": ["user:dana"]}}
    snapshot, resource = compile_documents([documents[0], staff]), {"type": "lrn", "id": "kafka:topic:prod/main/a"}
    asked = {**request, "subject": {"type": "user", "id": "user:dana"}, "resource": resource}
    assert _outcome(snapshot, asked) == "allow"
    changed = {**asked, part: {**asked[part], field: disguise(asked[part][field])}}
    assert _outcome(snapshot, changed) == ("allow" if changed == asked else "error")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_claimed_group_that_could_be_taken_for_another_is_an_error(way: Callable[[str], str]) -> None:
    documents, request = KNOWN["lenses6"]
    named = {**documents[2], "name": "bañ:ned"}
    asked = copy.deepcopy(request)
    asked["subject"]["properties"]["groups"] = [way("bañ:ned")]
    assert _outcome(compile_documents([*documents, named]), asked) == "error"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_document_with_such_a_name_is_refused_and_binds_whom_the_plain_name_means(way: Callable[[str], str]) -> None:
    """A member, a role that a group has, and the role's own name: no deny is lost on the way."""
    roles, none, group = LENSES6
    denied = copy.deepcopy(KNOWN["lenses6"][1]) | {"resource": {"type": "lrn", "id": "kafka:topic:prod/é/secret"}}
    only = {"system": "lenses6", "kind": "Group", "name": "o", "spec": {"roles": ["all"], "members": [f"user:{NAME}"]}}
    members = {**group, "spec": {"roles": ["none"], "members": [way(f"user:{NAME}")]}}
    named = [{**none, "name": way("né")}, {**group, "spec": {"roles": ["né"], "members": [f"user:{NAME}"]}}]
    for documents in ([roles, none, only, members], [roles, only, *named]):
        snapshot = compile_documents(documents)
        if way("né") == "né":
            continue
        assert len(snapshot.rejected) == 1
        assert _outcome(snapshot, denied) == "error"
    wanted = {**group, "spec": {"roles": [way("none")], "members": [f"user:{NAME}"]}}
    if way("none") != "none":
        assert len(compile_documents([roles, none, only, wanted]).rejected) == 1


REWRITTEN = (
    *("ApiToken ", " ApiToken", "APITOKEN", "apitoken", "ＡpiToken", "ApiToken\u200b"),
    *("Cle\u0301", "CLÉ", "CLE\u0301"),
)


@pytest.mark.parametrize("kind", REWRITTEN)
def test_a_reserved_kind_stays_reserved_however_it_is_written(kind: str) -> None:
    """In another Unicode form, with a blank, in another case: no editor writes it."""
    documents, request = KNOWN["ververica"]
    asked = copy.deepcopy(request)
    asked["resource"]["type"] = kind
    assert _outcome(compile_documents(documents), asked) in ("deny", "error")
    for written in (kind, kind.strip()):
        reserved = {**documents[1], "spec": {"kinds": [written]}}
        asked["resource"]["type"] = "Clé" if "l" in kind.casefold() and "c" in kind.casefold() else "ApiToken"
        assert _outcome(compile_documents([documents[0], reserved]), asked) in ("deny", "error")


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("kafka:readtopicdata", "kafka:topic:prod/é/secret"),
        ("Kafka:ReadTopicData", "kafka:topic:prod/é/secret"),
        ("kafka:ReadTopicData", "Kafka:topic:prod/é/secret"),
        ("kafka:ReadTopicData", "kafka:Topic:prod/é/secret"),
    ],
)
def test_a_catalogue_name_in_another_case_is_an_error(action: str, resource: str) -> None:
    """It is none of Lenses's names, and a deny of the right one must not be passed by it."""
    documents, request = KNOWN["lenses6"]
    asked = request | {"action": {"name": action}, "resource": {"type": "lrn", "id": resource}}
    assert _outcome(compile_documents(documents), asked) == "error"


@pytest.mark.parametrize("system", KNOWN)
def test_a_subject_of_a_type_that_the_system_does_not_have_is_an_error(system: str) -> None:
    documents, request = KNOWN[system]
    snapshot, known = compile_documents(documents), all_systems()[system].subject_types
    assert "user" in known or not known
    for type_ in ("group", "role", "User", "robot", "service", "user ", *known):
        asked = request | {"subject": {**request["subject"], "type": type_}}
        of_any = not known and type_.isalpha()  # a type like any other, that no policy allows
        expected = "allow" if type_ == "user" else "deny" if of_any else "error"
        assert _outcome(snapshot, asked) == expected, type_


@pytest.mark.parametrize("type_", ["user", "service-account", "service_account"])
def test_a_service_account_has_types_of_its_own_that_agree_with_its_id(type_: str) -> None:
    documents, request = KNOWN["lenses6"]
    group = {**documents[2], "spec": {"roles": ["all"], "members": ["service-account:ci"]}}
    asked = request | {"subject": {"type": type_, "id": "service-account:ci"}}
    assert _outcome(compile_documents([documents[0], group]), asked) == "allow"


@pytest.mark.parametrize("text", ["a", "a b", "é", "名前", "a:b/c", "", "😀", "group: padded"])
def test_a_plain_name_has_no_fault(text: str) -> None:
    """A blank within is one more character; so is any letter."""
    assert (fault(text) == "") is (": " not in text)
