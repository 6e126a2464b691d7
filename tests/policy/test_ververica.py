"""Ververica beyond its case file: the catalogue is sound, limits hold, refused documents bind whom they name."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy import DocumentStore, compile_documents, decide
from policy.core.document import Key
from policy.store.affected import affected
from policy.systems.kit.system import EVERYONE
from policy.systems.kit.validator import MAX_STATEMENTS
from policy.systems.ververica import SYSTEM
from policy.systems.ververica.catalogue import catalogue

RULES = Path(__file__).parent.parent.parent / "policy" / "systems" / "ververica" / "rules.yaml"


def leaves(need: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every leaf of a need."""
    if "any" not in need and "all" not in need:
        yield need
    for part in (*need.get("any", ()), *need.get("all", ())):
        yield from leaves(part)


def access(*entries: Any) -> dict[str, Any]:
    """An InitialAccess document."""
    return {"system": "ververica", "kind": "InitialAccess", "name": "a", "spec": {"initialAccess": list(entries)}}


def test_every_leaf_names_a_role_or_the_one_fact_and_its_rule() -> None:
    """A misspelt role or rule in catalogue.yaml would only show when it is asked for."""
    rules = {rule["id"] for rule in yaml.safe_load(RULES.read_text())} | {"VV-Q1"}
    found = [leaf for need in catalogue()["actions"].values() for leaf in leaves(need)]
    assert {leaf["permission"] for leaf in found if "permission" in leaf} == set(catalogue()["roles"])
    assert {leaf["fact"] for leaf in found if "fact" in leaf} == {"open to Editors"}
    assert {leaf.get("rule", "VV-ROLE-EDITOR") for leaf in found} <= rules


def test_a_document_may_have_only_so_many_entries() -> None:
    """At the limit it is accepted, beyond it refused as a whole."""
    entry = {"userId": "dana", "workspaceId": "w", "role": "ADMIN"}
    assert not compile_documents([access(*[entry] * MAX_STATEMENTS)]).rejected
    rejected = compile_documents([access(*[entry] * (MAX_STATEMENTS + 1))]).rejected
    assert rejected[0].errors == ("initialAccess: 10001 statements; at most 10000: split the document",)


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        ({}, set()),
        (
            {"initialAccess": [{"userId": 7}, {"userId": "dana"}, {"userId": "group:g"}]},
            {"user:7", "user:dana", "group:g"},
        ),
        ({"initialAccess": "all"}, {"user:all"}),
        ({"initialAccess": [{"userId": True}]}, {EVERYONE}),
        ([7.5], {EVERYONE}),
    ],
)
def test_a_refused_document_binds_whom_it_names(spec: Any, bound: set[str]) -> None:
    """As far as its entries can be read; those of one that cannot be read may name anybody."""
    found = affected(SYSTEM, Key("ververica", "InitialAccess", "a"), {"spec": spec})
    assert found >= bound
    assert EVERYONE in bound or not {EVERYONE, "user:erik", "user:mona"} & found


def test_settings_and_reserved_kinds_bind_nobody() -> None:
    """They are missed where they are needed, and only there."""
    for kind in ("Authentication", "ReservedKinds"):
        key = Key("ververica", kind, "a")
        assert affected(SYSTEM, key, {"spec": {"initialAccess": [{"userId": "dana"}]}}) == set()


SETTINGS = {
    "oidc": {"enabled": True, "groupsClaim": "groups"},
    "saml": {"enabled": True, "identity-provider": {"groups-attribute": "memberOf"}},
}
MAY_BE = (None, "bob", "mallory")  # None: left out
SHAPES = list(itertools.product(MAY_BE, MAY_BE, ([], ["admins"]), (None, {}, {"memberOf": ["admins"]})))


def token_of(*claims: Any) -> dict[str, Any]:
    """A token of these claims, in the order of `SHAPES`."""
    named = zip(("email", "NameId", "groups", "attributes"), claims, strict=True)
    return {name: claim for name, claim in named if claim is not None}


def answer_to(token: Any, enabled: tuple[str, ...]) -> str:
    """Whether bob may read as one of the admins."""
    assigned = access({"userId": "group:admins", "workspaceId": "w", "role": "ADMIN"})
    setup = {**assigned, "kind": "Authentication", "spec": {name: SETTINGS[name] for name in enabled}}
    subject = {"type": "user", "id": "bob", "properties": {"token": token}}
    place = {"type": "Job", "id": "j", "properties": {"workspaceId": "w", "namespaceId": "n"}}
    request = {"id": "r", "system": "ververica", "subject": subject, "action": {"name": "read"}, "resource": place}
    return decide(compile_documents([assigned, setup]), request).outcome


@pytest.mark.parametrize("enabled", [(), ("oidc",), ("saml",), ("oidc", "saml")], ids="-".join)
def test_a_token_counts_if_all_it_names_is_the_user_and_by_one_enabled_protocol(enabled: tuple[str, ...]) -> None:
    """Whatever else it has: every form of a token under all that may be enabled (VV-BIND-USER, VV-GROUP-SOURCE)."""
    for email, name_id, groups, attributes in SHAPES:
        named = {"oidc": email, "saml": name_id}
        claimed = {"oidc": groups, "saml": (attributes or {}).get("memberOf")}
        names = [protocol for protocol in named if named[protocol]] or ["oidc"]
        of = [protocol for protocol in names if protocol in enabled]
        sound = {email, name_id} <= {"bob", None} and len(of) < 2
        expected = ("allow" if any(claimed[protocol] for protocol in of) else "deny") if sound else "error"
        token = token_of(email, name_id, groups, attributes)
        assert answer_to(token, enabled) == expected, token


def test_ververica_has_no_facts_of_the_facts_topic_and_never_looks_back() -> None:
    """All its kinds are policies (VV-Q10)."""
    assert DocumentStore(facts_only=True).put(access()) is not None
    assert SYSTEM.retention_floor(compile_documents([]).policy_sets["ververica"].facts) is None


def request_claiming(groups: Any, by: str) -> dict[str, Any]:
    """A request of dana's whose groups are claimed: ``list`` or ``text`` in a token, or ``claim`` beside it."""
    written = ",".join(groups) if by == "text" else groups
    properties = {"groups": groups} if by == "claim" else {"token": {"email": "dana", "groups": written}}
    return {
        "id": "r",
        "system": "ververica",
        "subject": {"type": "user", "id": "dana", "properties": properties},
        "action": {"name": "read"},
        "resource": {"type": "Job", "id": "j", "properties": {"workspaceId": "w", "namespaceId": "n"}},
    }


TOKENS = {"system": "ververica", "kind": "Authentication", "name": "t", "spec": {"oidc": {"enabled": True}}}
TOKENS["spec"]["oidc"]["groupsClaim"] = "groups"


@pytest.mark.parametrize("by", ["claim", "list", "text"])
@pytest.mark.parametrize("group", ["e\u0301", "ops\u200b", "ops\n", "\tops", "o\x00ps"])
def test_a_group_that_may_be_taken_for_another_is_an_error_wherever_it_is_claimed(group: str, by: str) -> None:
    snapshot = compile_documents([TOKENS, access({"userId": "group:staff", "workspaceId": "w", "role": "ADMIN"})])
    assert decide(snapshot, request_claiming(["staff"], by)).outcome == "allow"
    answer = decide(snapshot, request_claiming(["staff", group], by))
    assert (answer.outcome, [reason.code for reason in answer.reasons]) == ("error", ["malformed-name"])


@pytest.mark.parametrize("by", ["claim", "list", "text"])
@pytest.mark.parametrize("group", ["ops ", " ops", "ops\xa0"])
def test_blanks_at_the_ends_of_a_group_are_significant_also_in_a_refused_document(group: str, by: str) -> None:
    """VV-Q11; a user's id has none."""
    entry = {"userId": f"group:{group}", "workspaceId": "w", "role": "ADMIN"}
    good, refused = (compile_documents([TOKENS, access({**entry, **more})]) for more in ({}, {"role": "OWNER"}))
    asked = [request_claiming([name], by) for name in (group, "ops")]
    assert [decide(good, request).outcome for request in asked] == ["allow", "deny"]
    assert [decide(refused, request).outcome for request in asked] == ["error", "error"]


@pytest.mark.parametrize("user", ["dana ", " dana", "dana\n", "group:ops\n", "group:\u200bops"])
def test_a_document_with_a_name_that_may_be_taken_for_another_is_refused(user: str) -> None:
    rejected = compile_documents([access({"userId": user, "workspaceId": "w", "role": "ADMIN"})]).rejected
    assert [document.key for document in rejected] == ["ververica/InitialAccess/a"]
