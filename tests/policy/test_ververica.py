"""Ververica beyond its case file: the catalogue is sound, limits hold, refused documents bind whom they name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy import Library, compile_documents
from policy.documents import Document, Key
from policy.forms import MAX_STATEMENTS
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
    assert rejected[0].errors == ("initialAccess: 10001 statements; at most 10000",)


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        ({}, set()),
        ({"initialAccess": "all"}, set()),
        ({"initialAccess": [7, {"userId": 7}, {"userId": "dana"}, {"userId": "group:g"}]}, {"user:dana", "group:g"}),
    ],
)
def test_a_refused_document_binds_whom_it_names(spec: dict[str, Any], bound: set[str]) -> None:
    """As far as its entries can be read."""
    assert SYSTEM.binds(Document(Key("ververica", "InitialAccess", "a"), spec)) == bound


def test_settings_and_reserved_kinds_bind_nobody() -> None:
    """They are missed where they are needed, and only there."""
    for kind in ("Authentication", "ReservedKinds"):
        assert SYSTEM.binds(Document(Key("ververica", kind, "a"), {"initialAccess": [{"userId": "dana"}]})) == set()


def test_ververica_has_no_facts_of_the_facts_topic_and_never_looks_back() -> None:
    """All its kinds are policies (VV-Q10)."""
    assert Library(facts_only=True).put(access()) is not None
    assert SYSTEM.horizon(compile_documents([]).realms["ververica"].facts) is None
