"""The description of the topics against the topics, and against the parts of AsyncAPI 3.0 that tools insist on."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from streaming.enforcer.evaluator import CARRIED
from streaming.kafka.topics import EVENT_PARTITIONS, TopicSpec
from streaming.records import schemas
from streaming.records.dead_letter import Rejection, dead_letter
from streaming.records.formats import CONTENT_TYPES
from streaming.records.schemas import names, read
from streaming.settings import Limits
from streaming.snapshots.documents import AT, NEXT
from streaming.topics import TopicNames, topic_specs

SPECS = topic_specs(TopicNames())
RELEASED = Path(str(schemas.__file__)).parent / "released"
AVRO = "application/vnd.apache.avro+json;version=1.9.0"


@functools.cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(read("asyncapi.yaml"))
    return document


def _follow(value: Any) -> Any:
    """What references lead to: in the document, up to a place in a file beside it."""
    while isinstance(value, dict) and "$ref" in value:
        file, _, path = value["$ref"].partition("#/")
        assert not file or file in names(), value
        value = json.loads(read(file)) if file else _document()
        for step in filter(None, path.split("/")):
            value = value[step]
        if file:
            break
    return value


def _references(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and isinstance(value.get("$ref"), str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from _references(part)


def _channel(topic: str) -> dict[str, Any]:
    [found] = [channel for channel in _document()["channels"].values() if channel["address"] == topic]
    return dict(found)


def test_it_is_asyncapi_3_of_this_release() -> None:
    """The parts that the specification says are needed, and no others at the top."""
    document = _document()
    assert document["asyncapi"] == "3.0.0"
    newest = max(folder.name for folder in RELEASED.iterdir() if folder.is_dir())
    assert (document["info"]["title"], document["info"]["version"]) == ("lockkeeper", newest)
    allowed = {"asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components"}
    assert document.keys() <= allowed
    assert all({"host", "protocol"} <= server.keys() for server in document["servers"].values())


def test_every_reference_leads_somewhere() -> None:
    references = list(_references(_document()))
    for reference in references:
        assert isinstance(_follow(reference), dict), reference
    assert len(references) > 100


def test_the_topics_are_all_there_and_no_others() -> None:
    addresses = [channel["address"] for channel in _document()["channels"].values()]
    assert sorted(addresses) == sorted(spec.name for spec in SPECS)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_partitions_and_settings_are_those_of_a_new_topic(spec: TopicSpec) -> None:
    kafka, topic = _follow(_channel(spec.name)["bindings"])["kafka"], spec.new_topic(EVENT_PARTITIONS, -1)
    assert kafka["partitions"] == topic.num_partitions
    assert {name: _text(value) for name, value in kafka["topicConfiguration"].items()} == topic.config
    assert kafka["bindingVersion"] == "0.5.0"


def _text(value: Any) -> str:
    """A setting as Kafka has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)


def test_every_channel_is_sent_to_or_received_from() -> None:
    operations = _document()["operations"].values()
    used = {operation["channel"]["$ref"].rpartition("/")[2] for operation in operations}
    assert used == _document()["channels"].keys()
    assert {operation["action"] for operation in operations} == {"send", "receive"}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_message_has_a_key_a_payload_and_a_schema_that_is_one(spec: TopicSpec) -> None:
    for reference in _channel(spec.name)["messages"].values():
        message = _follow(reference)
        assert "key" in _follow(message["bindings"])["kafka"]
        payload = message["payload"]
        if "schemaFormat" in payload:
            assert payload["schemaFormat"] == AVRO
            assert _follow(payload["schema"])["type"] == "record"
            assert message["contentType"] in CONTENT_TYPES_OF_AVRO
        else:
            Draft202012Validator.check_schema(_follow(payload))


CONTENT_TYPES_OF_AVRO = {text.decode() for name, text in CONTENT_TYPES.items() if name != "json"}


@pytest.mark.parametrize("topic", ["authz.requests.v1", "authz.audit.v1", "authz.decisions.v1", "authz.alerts.v1"])
def test_what_may_be_avro_is_there_in_every_encoding(topic: str) -> None:
    messages = [_follow(reference) for reference in _channel(topic)["messages"].values()]
    assert [message["contentType"] for message in messages] == [text.decode() for text in CONTENT_TYPES.values()]


def _headers(name: str) -> dict[str, Any]:
    return dict(_document()["components"]["schemas"][name])


def test_headers_are_those_that_the_code_writes() -> None:
    letter = dead_letter(Rejection("t", 0, 1, ValueError("x")), b"k", b"v", None, Limits())[2]
    assert set(_headers("deadLetterHeaders")["required"]) == {name for name, _ in letter}
    assert _headers("decisionHeaders")["properties"].keys() == {*CARRIED, "content-type"}
    assert _headers("keptHeaders")["required"] == [AT, NEXT]
    names = _headers("decisionHeaders")["properties"]["content-type"]["enum"]
    assert names == [text.decode() for text in CONTENT_TYPES.values()]
