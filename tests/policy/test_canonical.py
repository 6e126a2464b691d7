"""Which resources are one resource for a system, whatever else a request or an audit event says of them."""

from typing import Any

import msgspec
import pytest

from policy.core.request import Request
from policy.systems import all_systems
from policy.systems.kafka_acls.system import KafkaAcls
from policy.testing.casefile import full_request


def _canonical(system: str, action: str, resource: dict[str, Any]) -> Any:
    parts = {"subject": {"type": "user", "id": "dana"}, "action": {"name": action}, "resource": resource}
    return all_systems()[system].canonical_resource(msgspec.convert({"id": "r", "system": system, **parts}, Request))


def _resource(id_: str, type_: str = "x", **properties: Any) -> dict[str, Any]:
    return {"type": type_, "id": id_, "properties": properties}


ORDERS = _resource("orders", connection="kafka", dataset="orders")
OWN = {"workspaceId": "w", "namespaceId": "n"}

SAME = [
    ("lenses6", "kafka:ListTopic", _resource("kafka:topic:a/b/c"), _resource("kafka:topic:a/b/c", "lrn", note=1)),
    ("lenses6", "kafka:ListTopic", _resource("kafka:topic:a/b/c"), _resource("kafka:topic/a/b/c")),
    ("lenses6", "administration:GetSetting", _resource("admin:setting:a"), _resource("administration:setting/a")),
    ("lenses5", "kafka.topic.show", ORDERS, _resource("kafka/orders", "topic", connection="kafka", dataset="orders")),
    ("lenses5", "kafka-consumers.view", _resource("g"), _resource("g", consumer_group="g")),
    ("ververica", "read", _resource("d", "Deployment", **OWN), _resource("d", "deployment", **OWN, label="x")),
    ("streamsets", "job.start", _resource("job:j"), _resource("job:j", "job", statement_id="api")),
    (
        "streamsets",
        "object.share",
        _resource("several", objects=["job:a", "job:b"]),
        _resource("job:a", objects=["job:b", "job:a"]),
    ),
    ("cdap", "dataset.read", _resource("dataset:n.d"), _resource("dataset:n.d", "dataset", namespace="n")),
    ("kafka-acls", "Read", _resource("a", "Topic"), _resource("a", "Topic", partition=1)),
    ("cedar", "read", _resource("a", "Doc"), _resource("a", "Doc", owner="dana")),
    ("cdap", "no.such-action", _resource("dataset:n.d"), _resource("dataset:n.d", "dataset")),
]

OTHER = [
    ("lenses6", "kafka:ListTopic", _resource("kafka:topic:a/b/c"), _resource("kafka:topic:a/b/C")),
    ("lenses6", "kafka:ListTopic", _resource("kafka:topic:a/b/c"), _resource("kafka:topic:a:b/c")),
    ("lenses6", "kafka:ListTopic", _resource("kafka:topic:a/b"), _resource("kafka:topic:a/b/")),
    ("lenses5", "kafka.topic.show", ORDERS, _resource("orders", connection="dev", dataset="orders")),
    ("lenses5", "kafka.topic.show", ORDERS, _resource("orders")),
    ("lenses5", "admin.audit-log.manage-channels", _resource("lenses"), _resource("lenses", operation="edit")),
    ("ververica", "read", _resource("d", "Deployment", **OWN), _resource("d", "SessionCluster", **OWN)),
    ("ververica", "read", _resource("d", "D", **OWN), _resource("d", "D", workspaceId="w", namespaceId="m")),
    ("ververica", "read", _resource("d", "D", **OWN), _resource("e", "D", **OWN)),
    ("streamsets", "object.share", _resource("job:a"), _resource("job:a", objects=["job:b"])),
    ("cdap", "dataset.read", _resource("dataset:n.d"), _resource("stream:n.d")),
    ("cedar", "read", _resource("a", "Doc"), _resource("a", "doc")),
    ("kafka-acls", "Read", _resource("a", "Topic"), _resource("a", "Group")),
    ("kafka-acls", "Read", _resource("a", "Topic"), _resource("A", "Topic")),
]


@pytest.mark.parametrize(("system", "action", "one", "another"), SAME)
def test_what_a_system_does_not_read_makes_no_other_resource(
    system: str, action: str, one: dict[str, Any], another: dict[str, Any]
) -> None:
    assert _canonical(system, action, one) == _canonical(system, action, another)


@pytest.mark.parametrize(("system", "action", "one", "another"), OTHER)
def test_what_a_system_reads_makes_another_resource(
    system: str, action: str, one: dict[str, Any], another: dict[str, Any]
) -> None:
    assert _canonical(system, action, one) != _canonical(system, action, another)


@pytest.mark.parametrize("system", sorted(all_systems()))
@pytest.mark.parametrize("properties", [{}, {"connection": 1, "objects": 2, "workspaceId": [], "consumer_group": {}}])
def test_any_resource_has_a_canonical_form(system: str, properties: dict[str, Any]) -> None:
    """Also what no system can read: such a request is answered `error`, and what was done all the same is compared."""
    for action in ("read", "kafka.topic.show", "kafka:ListTopic", "job.start", "object.share", "no such action"):
        one, another = (_canonical(system, action, _resource("?", **properties)) for _ in range(2))
        assert msgspec.json.encode(one, order="deterministic") == msgspec.json.encode(another, order="deterministic")


@pytest.mark.parametrize(
    ("system", "action", "resource", "type_"),
    [
        ("lenses6", "kafka:ListTopic", "kafka:topic:a/b/c", "lrn"),
        ("lenses5", "kafka.topic.show", "orders", "topic"),
        ("lenses5", "kafka-consumers.view", "g", "consumer-group"),
        ("lenses5", "no.such-action", "g", "resource"),
        ("streamsets", "job.start", "job:j", "job"),
        ("cdap", "dataset.read", "dataset:n.d", "dataset"),
        ("ververica", "read", "Deployment:d", "Deployment"),
        ("ververica", "read", "d", "resource"),
        ("kafka-acls", "Alter", "kafka-cluster", "Cluster"),
        ("kafka-acls", "CreateTokens", "User:dana", "User"),
        ("kafka-acls", "Read", "orders", "Topic"),
        ("cedar", "read", "plan", "resource"),
        ("unheard-of", "read", "d", "resource"),
    ],
)
def test_each_system_has_one_documented_type_for_a_resource(
    system: str, action: str, resource: str, type_: str
) -> None:
    """As clients, `lockkeeper request` and case files write a resource that is given as text."""
    asked = full_request({"subject": "dana", "action": action, "resource": resource}, system)
    assert asked["resource"] == {"type": type_, "id": resource}
    items = full_request({"action": action, "evaluations": [{"subject": "dana", "resource": resource}]}, system)
    assert items["evaluations"][0]["resource"]["type"] == type_


@pytest.mark.parametrize(
    ("action", "canonical"),
    [("Read", "Read"), ("READ", "Read"), ("describe_configs", "DescribeConfigs"), ("All", "All"), ("Reed", "Reed")],
)
def test_an_operation_of_kafkas_is_the_same_in_any_letter_case(action: str, canonical: str) -> None:
    assert KafkaAcls().canonical_action(action) == canonical


def test_no_other_system_reads_an_action_in_several_spellings() -> None:
    spelled = {name for name, system in all_systems().items() if system.canonical_action("read") != "read"}
    assert spelled == {"kafka-acls"}
