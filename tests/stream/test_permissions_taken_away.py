"""Permissions that are taken away while a process runs: it says which, and ends, or waits and goes on with them."""

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import structlog
import yaml

from streaming.access_changes import running as access_changes
from streaming.kafka.manifests import partition_ids, permissions_of
from streaming.kafka.permissions import Permission
from streaming.settings import Settings, access_changes_settings
from tests.access_changes.traffic import Traffic
from tests.brokers import TestBroker
from tests.serve.test_serve import ASKED, PATH, serving, settings_of
from tests.stream.running import Job, running
from tests.stream.secured_broker import SecuredBroker, add_logins, grant, secured_broker, without
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

USER = "taken-from"
SECONDS = 60.0


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    """With a login that is granted nothing."""
    with secured_broker() as broker:
        add_logins(broker.admin, [USER])
        yield broker


@pytest.fixture
def world(secured: SecuredBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """On that broker, with a role that dana has."""
    made = World(TestBroker(secured.plain), fresh_name("taken"), str(tmp_path / "checkpoint"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


@contextlib.contextmanager
def _taken(secured: SecuredBroker, *permissions: Permission) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for permission in permissions:
            stack.enter_context(without(secured.admin, f"User:{USER}", permission))
        yield


def _names(said: str, permission: Permission) -> bool:
    """Whether it says who lacks what, and how to add it."""
    return f"User:{USER} is not authorized to {permission}" in said and "kafka-acls.sh" in said


def _on_topic(settings: Settings, user: str, topic: str) -> list[Permission]:
    return [permission for permission in permissions_of(settings, user) if permission.name == topic]


def _said(logs: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(str(entry.get("error")) for entry in list(logs))


def test_a_server_waits_for_policies_that_it_may_not_read_names_them_and_answers_again(
    secured: SecuredBroker, world: World
) -> None:
    user = f"{world.settings.job_name}-serve"
    grant(secured.admin, f"User:{USER}", permissions_of(world.settings, user))
    settings = secured.by_password(settings_of(world, max_staleness_seconds=1.0), USER)
    taken = _on_topic(settings, user, world.policies)
    with structlog.testing.capture_logs() as logs, serving(settings) as server:
        assert server.decision() is True
        with _taken(secured, *taken):
            world.publish(role("readers", "kafka:topic:prod/main/other"))
            wait_until(lambda: _names(_said(logs), Permission("topic", world.policies, "Read")), "it says so", SECONDS)
            wait_until(lambda: server.ask(PATH, ASKED)[0] == 503, "nothing is decided by stale policies", SECONDS)
        wait_until(lambda: server.ask(PATH, ASKED)[0] == 200, "it answers again", SECONDS)
        assert server.decision() is False
        assert server.failure == []


def test_tail_ends_and_names_the_topic_that_it_may_no_longer_read(
    secured: SecuredBroker, world: World, tmp_path: Path
) -> None:
    """So does every command: it said only that topic authorization failed."""
    topic, job = world.names.decisions, world.settings.job_name
    read = Permission("topic", topic, "Read")
    grant(secured.admin, f"User:{USER}", [read, Permission("group", job, "Describe")])
    config = tmp_path / "lockkeeper.yaml"
    reached = {"bootstrap_servers": secured.scram, "kafka": secured.kafka(USER)}
    config.write_text(yaml.safe_dump({**reached, "job_name": job, "topics": {"decisions": topic}}))
    command = [sys.executable, "-m", "streaming.cli", "tail", "decisions", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stderr is not None
        assert "following" in tail.stderr.readline()
        with _taken(secured, read):
            said = tail.communicate(timeout=SECONDS)[1]
    assert (tail.returncode, _names(said, read)) == (1, True), said


def _asked(world: World, first: int) -> list[dict[str, Any]]:
    asked = [request(f"r-{number}", "dana", "orders") for number in range(first, first + 20)]
    world.send(asked)
    return asked


def _decided(world: World) -> dict[str, bool]:
    """By request; each was decided once."""
    decisions = world.everything(world.names.decisions)
    decided = {decision["request_id"]: decision["decision"] for decision in decisions}
    assert len(decided) == len(decisions)
    return decided


def test_a_job_waits_for_policies_that_it_may_not_read_and_decides_by_the_newest(
    secured: SecuredBroker, world: World
) -> None:
    granted = permissions_of(world.settings, world.settings.job_name)
    grant(secured.admin, f"User:{USER}", granted)
    job = Job(secured.by_password(world.settings, USER))
    try:
        job.await_start()
        _asked(world, 0)
        wait_until(lambda: len(_decided(world)) == 20 or job.ended, "requests are decided", SECONDS)
        with _taken(secured, *_on_topic(world.settings, world.settings.job_name, world.policies)):
            world.publish(role("readers", "kafka:topic:prod/main/other"))
            _asked(world, 20)
            named = Permission("topic", world.policies, "Read")
            wait_until(lambda: _names("".join(job.logged), named) or job.ended, "it says so", SECONDS)
        wait_until(lambda: len(_decided(world)) == 40 or job.ended, "it goes on", SECONDS)
        assert job.end() == 0, job.why
        assert [_decided(world)[f"r-{number}"] for number in (0, 19, 20, 39)] == [True, True, False, False]
    finally:
        job.kill()


@pytest.mark.parametrize("kind", ["decisions", "group", "partitions"])
def test_a_job_that_may_not_write_ends_names_what_it_lacks_and_loses_and_doubles_nothing(
    kind: str, secured: SecuredBroker, world: World
) -> None:
    name = world.settings.job_name
    granted = permissions_of(world.settings, name)
    grant(secured.admin, f"User:{USER}", granted)
    named = {
        "decisions": Permission("topic", world.names.decisions, "Write"),
        "group": Permission("group", name, "Read"),
        "partitions": Permission("transactionalId", partition_ids(name), "Write", prefix=True),
    }[kind]
    job = Job(secured.by_password(world.settings, USER))
    try:
        job.await_start()
        _asked(world, 0)
        wait_until(lambda: len(_decided(world)) == 20 or job.ended, "requests are decided", SECONDS)
        resource = named.type, named.name, named.prefix
        with _taken(secured, *(p for p in granted if (p.type, p.name, p.prefix) == resource)):
            _asked(world, 20)
            assert job.await_end() == 1
        assert _names(job.why, named), job.why
    finally:
        job.kill()
    with running(world.settings):
        wait_until(lambda: len(_decided(world)) == 40, "the others are decided", SECONDS)
    assert set(_decided(world).values()) == {True}


@pytest.mark.parametrize("kind", ["policies", "access_changes", "transactionalId", "group"])
def test_access_changes_names_what_it_lacks_waits_or_ends_and_writes_each_record_once(
    kind: str, secured: SecuredBroker, fresh_name: Callable[[str], str]
) -> None:
    traffic = Traffic(TestBroker(secured.plain), fresh_name("taken"), seed=1, users=20, resources=4)
    settings, stop, ready = secured.by_password(traffic.settings, USER), Event(), Event()
    user = access_changes_settings(settings).job_name
    granted = permissions_of(settings, user)
    grant(secured.admin, f"User:{USER}", granted)
    names = settings.topics
    topic = {"policies": names.policy_topics()["lenses6"], "access_changes": names.access_changes}.get(kind, "")
    taken = [p for p in granted if p.name == topic or (p.type == kind and p.name == user)]
    named = next(p for p in taken if p.operation in ("Read", "Write"))
    with structlog.testing.capture_logs() as logs, ThreadPoolExecutor(1) as pool:
        followed = pool.submit(access_changes.run, settings, stop, ready.set)

        def said() -> str:
            return f"{_said(logs)}\n{followed.exception() if followed.done() else ''}"

        try:
            wait_until(lambda: ready.is_set() or followed.done(), "it is ready", SECONDS)
            traffic.ask(400)
            traffic.write_late()
            with _taken(secured, *taken):
                for _ in range(8):
                    traffic.change("revoke")
                wait_until(lambda: _names(said(), named) or followed.done(), "it says so", SECONDS)
            assert _names(said(), named), said()
            if followed.done():
                followed = pool.submit(access_changes.run, settings, stop)
            read = traffic.world.everything
            wait_until(lambda: bool(read(names.access_changes)) or followed.done(), "it goes on", SECONDS)
            records = Counter(record["id"] for record in read(names.access_changes))
            assert set(records.values()) == {1}, said()
        finally:
            stop.set()
        assert followed.exception(SECONDS) is None
    assert len(logs) < 50, "it does not repeat itself"
