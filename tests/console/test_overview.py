"""The overview counts what is decided, by a sample where much is."""

import json
import threading
import time
from pathlib import Path

import pytest
import structlog
from confluent_kafka.admin import AdminClient

from policy import to_text
from streaming.console import pulse
from streaming.console.live import console
from streaming.console.pulse import Pulse
from streaming.errors import CannotStart
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import admin_client
from streaming.records.registry import RegistryDown
from streaming.settings import Settings
from tests.brokers import TestBroker
from tests.console.decided import (
    client_of,
)
from tests.stream.world import SYSTEM, World
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]


def test_the_overview_counts_what_is_decided_by_a_bounded_sample(broker: TestBroker, tmp_path: Path) -> None:
    """Over topics of its own: of many decisions, the newest of each second are read, and the rest is estimated."""
    world = World(broker, f"overview-{time.time_ns()}", (tmp_path / "checkpoint").as_uri())
    context = {"outcome": "allow", "policy_version": "sha256:1", "reasons": []}
    decision = {"id": "d", "request_id": "r", "system": SYSTEM, "time": "2026-11-21T10:00:00Z", "context": context}
    with console(world.settings, threading.Event()) as app:
        client = client_of(app)
        wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read")
        wait_until(lambda: "Not known yet" not in client.get("/overview").text, "the cluster was looked at")
        for _ in range(5 * pulse.SAMPLE):
            world.producer.produce(world.names.decisions, json.dumps(decision).encode(), partition=0)
        assert world.producer.flush(30) == 0
        wait_until(lambda: "Counted by a sample" in client.get("/overview").text, "the decisions are counted")
        page = client.get("/overview").text
    assert world.settings.job_name in page.split('id="instances"')[1]
    assert 'class="chart"' in page


def test_latencies_are_those_of_the_last_minutes_and_of_each_system() -> None:
    """They stood for hours after the last decision, and those of a busy system left none of another."""
    settings, now = Settings(systems=("lenses6", "cdap")), 1_795_258_800.0
    looking = Pulse(settings, admin_client(settings), threading.Event())

    def add_decision(system: str, ago: float, late: float) -> None:
        at = int((now - ago) * 1000)
        record = ConsumerRecord("decisions", 0, 0, at, b"", b"")
        looking._note(record, {"system": system, "time": to_text(at - int(late * 1000)), "context": {}})

    for ago, late in ((pulse.KEPT_SECONDS + 1, 9.0), (1, 0.25)):
        add_decision("cdap", ago, late)
    for _ in range(2 * pulse.LATENCIES):
        add_decision("lenses6", 1, 0.5)
    add_decision("a system that a client names", 1, 0.5)
    latencies = looking.recent_latencies(now)
    assert [late for system, late in latencies if system == "cdap"] == [0.25]
    assert {system for system, _ in latencies} == {"cdap", "lenses6"}
    assert len(latencies) == 1 + pulse.LATENCIES


def test_a_schema_registry_that_does_not_answer_ends_no_look_for_good() -> None:
    stop, looks = threading.Event(), list[int]()

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            stop.set()
        raise RegistryDown("it is away")

    pulse = Pulse(Settings(), AdminClient({}), stop)
    pulse._repeat(look, 0.0)
    assert (looks, pulse.look.unread) == ([0, 1], "the schema registry does not answer")


def test_a_job_whose_offsets_cannot_be_read_ends_no_look_for_good_and_the_other_look_does_not_hide_it() -> None:
    """As where its group may not be described: Kafka says so, and the broker here says no more."""
    stop = threading.Event()

    def refused() -> None:
        if pulse.look.unread:
            stop.set()
        raise CannotStart("committed offset of authz.requests.v1-0: not authorized")

    pulse = Pulse(Settings(), AdminClient({}), stop)
    pulse._repeat(refused, 0.0)
    assert pulse.look.unread
    assert pulse._why() == pulse.look.unread


def test_what_a_look_ends_with_after_the_console_was_closed_is_not_logged() -> None:
    """A call that closing did not wait for fails later: nobody looks any more, and Kafka may be there."""
    stop = threading.Event()

    def fail_after_closing() -> None:
        stop.set()
        raise TimeoutError

    pulse = Pulse(Settings(), AdminClient({}), stop)
    with structlog.testing.capture_logs() as logged:
        pulse._repeat(fail_after_closing, 0.0)
    assert (logged, pulse.look.unread) == ([], "")
