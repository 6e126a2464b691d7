"""The watchdog logs a step that takes long while it lasts, and records that wait while none is decided."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from streaming.ops import watchdog as module
from streaming.ops.health import HUNG_DEADLINES, Health
from streaming.ops.watchdog import LAG_SECONDS, SLOW_SECONDS, Watchdog
from tests.observability.test_server import Clock
from tests.waiting import wait_until

DEADLINE = 60.0
SLOW, ENDED, WAIT = "a step takes long", "a slow step has ended", "records wait, and none is decided"


@pytest.fixture
def clock() -> Clock:
    """One for the health and the watchdog, which stands until it is set."""
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    """Of a job that runs."""
    health = Health(30.0, clock, DEADLINE)
    health.policies_read()
    health.running = True
    return health


@pytest.fixture
def watchdog(health: Health, clock: Clock) -> Watchdog:
    """It looks when the test says so."""
    return Watchdog(health, clock)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """What is logged."""
    with structlog.testing.capture_logs() as entries:
        yield entries


def _look(watchdog: Watchdog) -> None:
    watchdog.look_at_steps()
    watchdog.look_at_records()


def _events(logged: list[Any]) -> list[str]:
    return [entry["event"] for entry in logged]


def test_a_step_that_takes_long_is_named_while_it_lasts_and_each_time_it_has_lasted_twice_as_long(
    watchdog: Watchdog, clock: Clock, logged: list[Any]
) -> None:
    with watchdog.during("decide a batch", batch=7), watchdog.during("commit the transaction", batch=7):
        for _ in range(int(4 * SLOW_SECONDS)):
            clock.now += 1
            _look(watchdog)
        assert _events(logged) == [SLOW] * 3, "after 10, 20 and 40 s"
    assert [entry["seconds"] for entry in logged[:3]] == [SLOW_SECONDS, 2 * SLOW_SECONDS, 4 * SLOW_SECONDS]
    assert (logged[0]["step"], logged[0]["batch"]) == ("commit the transaction", 7), "the innermost"
    assert logged[0]["load"] >= 0
    assert _events(logged[3:]) == [ENDED]
    assert (logged[3]["step"], logged[3]["seconds"]) == ("commit the transaction", 4 * SLOW_SECONDS)


def test_quick_steps_are_not_logged_and_are_forgotten_also_when_they_fail(
    watchdog: Watchdog, clock: Clock, logged: list[Any]
) -> None:
    def divide() -> None:
        with watchdog.during("divide"):
            clock.now += SLOW_SECONDS - 1
            _look(watchdog)
            raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            divide()
    clock.now += 10 * SLOW_SECONDS
    _look(watchdog)
    assert logged == []


def test_while_it_waits_for_kafka_which_the_log_says_nothing_more_is_logged(
    watchdog: Watchdog, health: Health, clock: Clock, logged: list[Any]
) -> None:
    watchdog.follow(lambda: 1, dict)
    health.waits_since = clock.now
    with watchdog.during("decide a batch"):
        for _ in range(100):
            clock.now += SLOW_SECONDS
            _look(watchdog)
    assert logged == []


def test_the_log_says_where_in_the_code_the_thread_stands(
    watchdog: Watchdog, clock: Clock, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OWN_CODE", __name__)
    began, over = threading.Event(), threading.Event()

    def hold() -> None:
        with watchdog.during("hold"):
            began.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    began.wait()
    clock.now += SLOW_SECONDS
    _look(watchdog)
    over.set()
    thread.join()
    assert logged[0]["at"].startswith(f"{__name__}.hold:")


def test_records_that_wait_while_none_is_decided_make_the_job_unready_and_at_last_hung(
    watchdog: Watchdog, health: Health, clock: Clock, logged: list[Any]
) -> None:
    watchdog.follow(lambda: 1300, lambda: {"tasks": ["stage 3: 0 running"]})
    with watchdog.during("evaluate the records in the workers"):
        for _ in range(int(DEADLINE + 2 * LAG_SECONDS)):
            clock.now += 1
            _look(watchdog)
        assert "records wait since" in health.problems()[0]
        [entry] = [entry for entry in logged if entry["event"] == WAIT]
        assert (entry["records"], entry["tasks"]) == (1300, ["stage 3: 0 running"])
        assert entry["steps"][0].startswith("evaluate the records in the workers (")
        assert not health.is_hung()
        clock.now += HUNG_DEADLINES * DEADLINE
        assert health.is_hung()
        health.waits_since = clock.now
        assert not health.is_hung(), "a restart brings no Kafka back"
        health.waits_since = None
        watchdog.decided()
    assert health.problems() == []


def test_an_idle_job_stays_ready_and_so_does_one_of_which_kafka_does_not_say_what_waits(
    watchdog: Watchdog, health: Health, clock: Clock, logged: list[Any]
) -> None:
    waiting: list[int | None] = [0, None]
    watchdog.follow(lambda: waiting[0], dict)
    for _ in range(2):
        for _ in range(int(10 * DEADLINE / LAG_SECONDS)):
            clock.now += LAG_SECONDS
            _look(watchdog)
        waiting.pop(0)
        waiting.append(None)
    assert (health.problems(), logged) == ([], [])


def test_one_request_after_an_idle_hour_has_the_whole_deadline(
    watchdog: Watchdog, health: Health, clock: Clock
) -> None:
    clock.now += 3600
    watchdog.follow(lambda: 1, dict)
    _look(watchdog)
    assert health.problems() == []


def test_a_java_that_does_not_answer_keeps_the_watchdog_from_nothing(
    watchdog: Watchdog, clock: Clock, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DESCRIBE_SECONDS", 0.05)
    over = threading.Event()
    watchdog.follow(lambda: None, lambda: {"spark": str(over.wait())})
    with watchdog.during("evaluate the records in the workers"):
        for _ in range(2):
            clock.now += 10 * SLOW_SECONDS
            _look(watchdog)
    over.set()
    assert ["does not answer" in entry["spark"] for entry in logged[:2]] == [True, True]


def test_it_looks_by_itself_and_a_failure_to_look_does_not_end_it(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "LAG_SECONDS", 0.0)
    asked: list[float] = []

    def fail() -> int:
        asked.append(time.monotonic())
        raise ZeroDivisionError

    watchdog = Watchdog(health)
    with watchdog.watched():
        watchdog.follow(fail, dict)
        wait_until(lambda: len(asked) > 2, "it goes on asking")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("watchdog-")]


def test_a_slow_step_is_logged_also_while_kafka_does_not_say_what_waits(
    watchdog: Watchdog, clock: Clock, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    asked, over = threading.Event(), threading.Event()

    def wait_for_kafka() -> None:
        asked.set()
        over.wait()

    watchdog.follow(wait_for_kafka, dict)
    clock.now += LAG_SECONDS
    with watchdog.watched(), watchdog.during("send the records to Kafka"):
        assert asked.wait(10)
        clock.now += SLOW_SECONDS
        try:
            wait_until(lambda: _events(logged) == [SLOW], "the step is logged")
        finally:
            over.set()
