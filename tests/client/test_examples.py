"""The examples in deploy/examples run as they stand, against a running job."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.client import Client
from streaming.settings import variable
from tests.client.conftest import PATIENCE
from tests.stream.world import SYSTEM, World, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
KCAT = (EXAMPLES / "kcat.md").read_text(encoding="utf-8")
LINES = re.findall(r"^```sh\n(.+)\n```$", KCAT, re.MULTILINE)


@pytest.fixture
def environment(world: World) -> dict[str, str]:
    """The environment of an example: the address of Kafka and the names of the topics."""
    names = world.names
    fields = {"requests": list(names.requests), "audit": list(names.audit), "policies": names.policies}
    texts = {field: getattr(names, field) for field in ("facts", "history", "decisions", "verdicts", "alerts")}
    topics = {**{field: json.dumps(value) for field, value in fields.items()}, **texts}
    topic_variables = {variable(("topics", field)): value for field, value in topics.items()}
    servers = {variable(("bootstrap_servers",)): world.settings.bootstrap_servers}
    return {**os.environ, **servers, **topic_variables, "PYTHONPATH": str(ROOT)}


def _run(environment: dict[str, str], example: str, *arguments: str) -> list[str]:
    """What it printed, line by line. It must end well."""
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    shown = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, cwd=ROOT, check=False
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


def test_the_service_runs_what_is_allowed_and_nothing_else(
    world: World, environment: dict[str, str], user: str
) -> None:
    world.publish(role(user, "kafka:topic:prod/main/orders"))
    described, refused = _run(environment, "service.py", f"user:{user}")
    assert described == "orders: 6 partitions"
    assert refused.startswith("not deleted: deny: ")
    everything = role(user, "kafka:topic:prod/main/orders")
    everything["spec"]["statements"][0]["action"] = "*"
    world.publish(everything)
    assert _run(environment, "service.py", f"user:{user}") == ["orders: 6 partitions"]
    [event] = [one for one in world.everything(world.names.audit[0]) if one["subject"]["id"] == f"user:{user}"]
    assert (event["action"]["name"], event["outcome"]) == ("kafka:DeleteTopic", "success")
    assert event["decision_id"] in {decision["id"] for decision in world.everything(world.names.decisions)}


def test_the_asynchronous_service_asks_for_many_at_once(world: World, environment: dict[str, str], user: str) -> None:
    world.publish(role(user, "kafka:topic:prod/main/orders"))
    shown = _run(environment, "async_service.py", f"user:{user}", "orders", "payments")
    assert shown == ["visible: orders", "not deleted: deny", "not deleted: deny"]


def test_what_was_published_is_in_force_with_the_next_question(environment: dict[str, str], user: str) -> None:
    shown = _run(environment, "publish_then_ask.py", f"user:{user}")
    assert shown == ["allow published: allow", "deny published: deny"]


def test_the_log_of_decisions_tells_them_all_and_ends_in_order(
    client: Client, environment: dict[str, str], user: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    client.authorize({"id": f"bad-{user}", "system": "lenses6"})
    client.authorize(id=f"asked-{user}", system="lenses6", subject=user, action="a", resource="b")
    out = tmp_path / "out"
    with out.open("wb") as printed:
        command = [sys.executable, str(EXAMPLES / "decision_log.py"), fresh_name("group")]
        log = subprocess.Popen(command, env=environment, stdout=printed, cwd=ROOT)
        try:
            wait_until(lambda: f"asked-{user}" in out.read_text() and "dead letter" in out.read_text(), "both", 60)
            log.send_signal(signal.SIGTERM)
            assert log.wait(30) == 0
        finally:
            log.kill()
            log.wait()
    assert f"error asked-{user} sha256:" in out.read_text()


def _kcat(world: World, line: str) -> str:
    """Run one of the file's lines on this world's topics."""
    names = world.names
    ours = {
        "localhost:9092": world.settings.bootstrap_servers,
        "authz.requests.v1": names.requests[0],
        "authz.decisions.v1": names.decisions,
        f"authz.policies.{SYSTEM}.v1": names.policies[SYSTEM],
    }
    for theirs, name in ours.items():
        line = line.replace(theirs, name)
    shown = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat")
def test_the_lines_for_kcat_work_in_the_order_they_are_listed(world: World, client: Client) -> None:
    send, decisions, publish, policies, delete, letters = LINES
    _kcat(world, send)
    seen: list[dict[str, Any]] = []
    wait_until(lambda: bool(seen.extend(_decided(_kcat(world, decisions), "r-1")) or seen), "the decision", PATIENCE)
    assert seen[0]["context"]["outcome"] == "deny"
    _kcat(world, publish)
    [(_, key, document)] = [one for one in _documents(_kcat(world, policies)) if one[1] == "Role/kcat-readers"]
    parsed = json.loads(document)
    assert f"{parsed['kind']}/{parsed['name']}" == key
    _kcat(world, delete)
    newest = [one for one in _documents(_kcat(world, policies)) if one[1] == "Role/kcat-readers"][-1]
    assert newest[2] == ""
    client.authorize({"id": "bad", "system": "lenses6"})
    assert "__connect.errors.exception.message=not a request" in _kcat(world, letters)


def _decided(printed: str, id_: str) -> list[dict[str, Any]]:
    return [record for record in map(json.loads, printed.splitlines()) if record["request_id"] == id_]


def _documents(printed: str) -> list[tuple[str, str, str]]:
    """Offset, key and document of each record."""
    found = re.findall(r"^(\d+) (\S+) (.*?)(?=^\d+ |\Z)", printed, re.MULTILINE | re.DOTALL)
    return [(offset, key, document.strip()) for offset, key, document in found]


def test_every_line_for_kcat_names_default_topics_and_files_that_exist() -> None:
    from streaming.settings import Settings
    from streaming.topics import topic_specs

    known = {spec.name for spec in topic_specs(Settings().topics)}
    assert len(LINES) == KCAT.count("```sh")
    for line in LINES:
        assert set(re.findall(r" -t (\S+)", line)) <= known
        assert all((ROOT / file).exists() for file in re.findall(r"deploy/\S+", line))
