"""The OpenAPI document: it names the server's paths, and fits its answers."""

import hashlib
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator

from streaming.records.schemas import read, releases
from streaming.serve.authzen import EVALUATION, EVALUATIONS, SEARCH
from streaming.serve.connections import Connections
from streaming.settings import ServeSettings
from streaming.topics import DEFAULT_SYSTEMS
from tests.brokers import TestBroker
from tests.serve.local_server import Parts
from tests.serve.test_serve import ASKED, Running, serving
from tests.stream.world import SYSTEM, World, group, role

DOCUMENT: dict[str, Any] = yaml.safe_load(read("openapi.yaml"))
TOKEN = "fuzzer-" + "e5" * 20


def test_it_is_openapi_of_this_release_with_the_servers_paths() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == max(releases())
    endpoints = Parts(Connections(1, 1.0), search=True).app.endpoints.values()
    paths = {path: {*item} - {"parameters"} for path, item in DOCUMENT["paths"].items()}
    assert paths == {endpoint.template: {endpoint.method.lower()} for endpoint in endpoints}
    assert DOCUMENT["components"]["parameters"]["System"]["schema"]["enum"] == sorted(DEFAULT_SYSTEMS)


def test_every_operation_has_a_name_and_the_answers_of_its_kind() -> None:
    operations = [
        (path, item[method]) for path, item in DOCUMENT["paths"].items() for method in ("get", "post") if method in item
    ]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        statuses = {"200"} if operation.get("security") == [] else {"200", "400", "401", "403", "413", "415", "503"}
        assert operation["responses"].keys() == statuses | ({"404"} if "{system}" in path else set())


def test_its_schemas_are_schemas() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.fixture(scope="module")
def running(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with all systems, and one caller of them."""
    folder = tmp_path_factory.mktemp("openapi")
    world = World(broker, f"openapi-{uuid.uuid4().hex[:12]}", str(folder / "checkpoint"), systems=DEFAULT_SYSTEMS)
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    world.publish(group("readers", "user:dana"))
    caller = {"systems": [*DEFAULT_SYSTEMS], "search": True, "trust": ["groups", "roles", "token", "facts"]}
    tokens = [hashlib.sha256(TOKEN.encode()).hexdigest()]
    (folder / "callers.yaml").write_text(yaml.safe_dump({"callers": {"fuzzer": {**caller, "tokens": tokens}}}))
    serve = ServeSettings(port=0, record="none", default_system=SYSTEM, callers=str(folder / "callers.yaml"))
    with serving(msgspec.structs.replace(world.settings, serve=serve)) as found:
        yield found


@pytest.mark.stream
def test_the_document_fits_an_allow_and_an_error(running: Running) -> None:
    """So that the fuzzer's answers are not all refusals: these schemas hold for decisions too."""
    for path, schema, body in (
        (EVALUATION, "Decision", ASKED),
        (EVALUATIONS, "Decisions", {**ASKED, "evaluations": [{}, {"action": {"name": "nonesuch"}}]}),
        (f"{SEARCH}subject", "Found", {**ASKED, "subject": {"type": "user"}}),
        (f"{SEARCH}action", "Found", {"subject": ASKED["subject"], "resource": ASKED["resource"]}),
    ):
        status, found, _ = running.ask(path, body, authorization=f"Bearer {TOKEN}")
        assert status == 200
        wanted = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
        Draft202012Validator(wanted).validate(found)
        first = found.get("evaluations", found.get("results", [found]))[0]
        assert first.get("decision", True) is True
