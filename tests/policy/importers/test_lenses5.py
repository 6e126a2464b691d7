"""Lenses 5: code names, spellings and connections; what cannot be converted is left out."""

from typing import Any

import pytest

from tests.policy.importers.running import (
    allows,
    as_json,
    documents,
    findings_of_level,
    fixture,
    imported,
    places,
    snapshot,
)

NAMESPACE = {"wildcards": ["orders"], "permissions": ["ShowTopic"], "connection": "kafka"}


def group(**fields: Any) -> dict[str, Any]:
    """A group with a namespace."""
    return {"name": "g", "namespaces": [NAMESPACE], **fields}


def shows(at: Any, dataset: str, connection: str = "kafka", action: str = "kafka.topic.show") -> bool:
    """Whether a member of `analysts`, `searchers` or `old` may see a dataset."""
    where = {"connection": connection, "dataset": dataset}
    return allows(at, "lenses5", "dana", action, dataset, properties=where, groups=["analysts", "searchers", "old"])


def test_groups_mean_what_they_mean_on_the_platform() -> None:
    """Namespaces on their connection, code names as permissions, features beside them."""
    at = snapshot(imported("lenses5", fixture("lenses5.yaml"), fixture("lenses5.json")))
    assert shows(at, "orders-1")
    assert shows(at, "x-public", action="kafka.topic.view-data")
    assert not shows(at, "payments")
    assert not shows(at, "orders-1", action="kafka.topic.insert-data")
    assert not shows(at, "orders-1", connection="Dev")
    assert shows(at, "anything", connection="Dev", action="kafka.topic.insert-data")
    assert shows(at, "any", connection="elastic", action="elasticsearch.index.show")
    assert not shows(at, "any", connection="elastic", action="postgresql.table.show")
    assert allows(at, "lenses5", "dana", "admin.audit-log.view", "x", groups=["analysts"])
    assert not allows(at, "lenses5", "dana", "admin.audit-log.view", "x", groups=["old"])


def test_the_type_of_a_connection_is_determined_by_permissions_or_by_another_namespace() -> None:
    """Where nothing tells it, the namespace is left out."""
    found = imported("lenses5", fixture("lenses5.yaml"))
    types = {one["connection"]: one["type"] for spec in documents(found).values() for one in spec["namespaces"]}
    assert types == {"kafka": "Kafka", "elastic": "Elasticsearch"}
    unclear = {"wildcards": ["*"], "permissions": ["ViewSchema", "UpdateMetadata"], "connection": "pg"}
    found = imported("lenses5", as_json(group(namespaces=[unclear])))
    assert documents(found)["Group/g"]["namespaces"] == []
    assert "add `system`" in findings_of_level(found, "warning")[0].fix
    result = imported("lenses5", as_json(group(namespaces=[{**unclear, "system": "PostgreSQL"}])))
    assert documents(result)["Group/g"]["namespaces"][0]["permissions"] == ["Update Metadata", "View Schema"]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"adminPermissions": ["ViewEverything"]}, "adminPermissions"),
        (
            {"namespaces": [{**NAMESPACE, "permissions": ["ShowTopic", "ShowTable"], "system": "Kafka"}]},
            "namespaces[0].permissions",
        ),
        ({"namespaces": [{**NAMESPACE, "wildcards": ["a", 17]}]}, "namespaces[0].wildcards[1]"),
        ({"namespaces": [{**NAMESPACE, "system": "MongoDB"}]}, "namespaces[0]"),
        ({"namespaces": [{**NAMESPACE, "until": "Monday"}]}, "namespaces[0]"),
        ({"namespaces": [{"wildcards": ["*"], "permissions": ["ShowTopic"]}]}, "namespaces[0]"),
        ({"namespaces": "all"}, "namespaces"),
        ({"dataNamespaces": []}, "namespaces"),
        ({"scopedPermissions": {"View": 1}}, "scopedPermissions"),
        ({"denied": ["ShowTopic"]}, ""),
        ({"name": 17}, ""),
    ],
)
def test_what_cannot_be_converted_is_left_out_with_its_place(fields: dict[str, Any], place: str) -> None:
    """A part of a group where it can be separated, else the group."""
    found = imported("lenses5", as_json(group(**fields)))
    assert places(found, "warning")[0] == place
    assert not found.errors


def test_groups_of_one_name_that_differ_are_not_imported() -> None:
    """Adding them up would give more than either."""
    found = imported("lenses5", as_json([group(), group(namespaces=[]), group(name="h")]))
    assert [finding.place for finding in found.errors] == ["[0]", "[1]"]
    assert set(documents(found)) == {"Group/h"}
    assert not imported("lenses5", as_json([group(), group()])).findings


def test_a_group_that_is_left_out_counts_among_those_of_its_name() -> None:
    """The other one may be from an older export, before the field that restricts it."""
    translation = imported("lenses5", as_json([group(), group(disabled=True), group(name="h")]))
    assert [finding.place for finding in translation.errors] == ["[0]", "[1]"]
    assert set(documents(translation)) == {"Group/h"}
    assert not imported("lenses5", as_json([group(disabled=True)])).errors


def test_a_legacy_name_grants_nothing_and_is_only_noted() -> None:
    found = imported("lenses5", fixture("lenses5.json"))
    assert [(finding.level, finding.place) for finding in found.findings] == [("note", "[0].scopedPermissions")]
