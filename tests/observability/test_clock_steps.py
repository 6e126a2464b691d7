"""A step of the machine's clock, as by NTP or after a VM was suspended, makes no wait longer or shorter."""

import json
import shutil
import subprocess
import sys
import threading
import time

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from policy.core.times import to_ms
from streaming.commit.transaction import Outage
from streaming.kafka.clients import login_failure
from streaming.ops.health import Health
from streaming.ops.watch import Watch
from streaming.settings import Settings
from streaming.snapshots.alerts import StaleWatch
from tests.observability.test_server import Clock

REFUSED = KafkaException(KafkaError(KafkaError._AUTHENTICATION))
POSITIONS = {("policies", 0): 7}


@pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["ahead", "back"])
def test_a_wait_that_has_just_begun_is_short(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is ready, does not end for a refused login, raises no alert, and logs how long it has waited."""
    watch, health = Watch(Settings()), Health(30.0)
    outage, stale = Outage(threading.Event(), watch), StaleWatch(AdminClient({}), Settings(), POSITIONS)
    outage.wait("an answer", REFUSED)
    health.executors(0)
    health.undecided_now()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + step)
    assert outage.since is not None
    assert all(0 < seconds < 60 for seconds in (watch.health.waited(), health.undecided(), health.without_executors()))
    assert not watch.health.stale()
    assert login_failure(REFUSED, outage.since) is None
    assert stale.unread(POSITIONS, outage.since, outage.cause) == []
    outage.wait("an answer", REFUSED)  # it may end by it
    with structlog.testing.capture_logs() as logged:
        outage.end()
    assert 0 < logged[0]["waited_seconds"] < 60


def test_an_alert_says_since_when_by_the_clock_of_its_reader() -> None:
    clock = Clock()
    stale = StaleWatch(AdminClient({}), Settings(), POSITIONS, clock)
    before = time.time()
    clock.now += 3600
    [(_, _, value, _)] = stale.unread(POSITIONS, clock.now - 3600, "no answer")
    assert before - 3601 < to_ms(json.loads(value or b"")["time"]) / 1000 <= time.time() - 3600


def test_policies_grow_old_while_the_machine_is_suspended() -> None:
    """In a namespace where an hour of suspension has passed, which CLOCK_MONOTONIC does not count."""
    suspended = ("unshare", "--time", "--boottime", "3600", "--fork")
    if shutil.which("unshare") is None or subprocess.run([*suspended, "true"], capture_output=True).returncode:
        pytest.skip("no namespace of clocks can be made here")
    code = "import time; from streaming.pdp import reading; print(reading.suspend_aware_clock() - time.monotonic())"
    printed = subprocess.run(
        [*suspended, sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert float(printed) > 3000
