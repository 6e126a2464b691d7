"""The endpoint: what it answers, when it is ready, and that it leaves its port."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from streaming.ops.health import SCRAPES, Health, serving
from streaming.settings import MetricsSettings, SettingsError
from tests.brokers import free_port
from tests.waiting import wait_until

BOUND = 30.0


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time, s."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time as the test sets it."""
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    """A job that has just started."""
    return Health(BOUND, clock)


@pytest.fixture
def port(health: Health) -> Iterator[int]:
    """An endpoint with one metric."""
    registry = CollectorRegistry()
    Gauge("one", "…", registry=registry).set(1)
    with serving(MetricsSettings(free_port()), registry, health) as port:
        yield port


def _get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_are_there_and_nothing_else_is(port: int) -> None:
    status, text = _get(port, "/metrics")
    assert (status, "one 1.0\n" in text) == (200, True)
    assert _get(port, "/")[0] == _get(port, "/metrics/x")[0] == 404


def test_it_is_alive_before_it_is_ready(port: int, health: Health) -> None:
    assert _get(port, "/healthz") == (200, "alive\n")
    status, text = _get(port, "/readyz")
    assert status == 503
    assert "the policies have not been read" in text
    assert "the query does not run" in text
    health.policies_read()
    health.running = True
    assert _get(port, "/readyz") == (200, "ready\n")


def test_while_it_waits_for_kafka_it_is_alive_and_not_ready_and_says_for_how_long(
    port: int, health: Health, clock: Clock
) -> None:
    health.policies_read()
    health.running = True
    health.waits_since = clock.now
    assert not health.stale()
    clock.now += BOUND
    status, text = _get(port, "/readyz")
    assert (status, "Kafka is unavailable; waiting for it since 30 s" in text) == (503, True)
    assert _get(port, "/healthz")[0] == 200
    assert (health.stale(), health.waited()) == (True, BOUND)
    health.waits_since = None
    assert _get(port, "/readyz") == (200, "ready\n")
    assert (health.stale(), health.waited()) == (False, 0.0)


def test_it_is_not_ready_while_the_policies_are_stale_and_says_which_way(
    port: int, health: Health, clock: Clock
) -> None:
    health.policies_read()
    health.running = True
    health.policies_unread(clock.now)
    assert _get(port, "/readyz")[0] == 200, "within the bound"
    clock.now += BOUND
    assert _get(port, "/readyz") == (503, "the policies could not be read for more than 30 s: does Kafka answer?\n")
    health.policies_read()
    assert _get(port, "/readyz")[0] == 200
    health.stuck = 2
    assert _get(port, "/readyz")[1].startswith("2 partitions of policies or facts cannot be read on")
    assert health.stale()


def test_a_long_batch_is_no_staleness(health: Health, clock: Clock) -> None:
    health.policies_read()
    clock.now += 10 * BOUND
    assert not health.stale()


def test_the_port_is_free_once_it_is_stopped(health: Health) -> None:
    settings = MetricsSettings(free_port())
    for _ in range(2):
        with serving(settings, CollectorRegistry(), health) as port:
            assert _get(port, "/healthz")[0] == 200
    with pytest.raises(urllib.error.URLError):
        _get(settings.port, "/healthz")


def test_a_port_that_is_taken_is_reported_with_what_to_do(port: int, health: Health) -> None:
    with (
        pytest.raises(
            SettingsError, match=rf"127\.0\.0\.1 port {port} cannot be listened on: .*LOCKKEEPER_METRICS_PORT"
        ),
        serving(MetricsSettings(port), CollectorRegistry(), health),
    ):
        pass


def test_an_address_of_version_6_is_one_too(health: Health) -> None:
    with contextlib.suppress(OSError):
        port = free_port("::1")
        with serving(MetricsSettings(port, "::1"), CollectorRegistry(), health):
            assert _get(port, "/healthz", "[::1]")[0] == 200
        return
    pytest.skip("this machine has no IPv6")


def test_port_0_serves_nothing(health: Health) -> None:
    with serving(MetricsSettings(), CollectorRegistry(), health) as port:
        assert port == 0


@pytest.mark.long
def test_connections_that_send_nothing_do_not_keep_others_out_and_have_few_threads(port: int) -> None:
    """Each has a thread; the oldest makes room."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(5 * SCRAPES)]
        assert _get(port, "/healthz") == (200, "alive\n")
        wait_until(lambda: threading.active_count() - before <= SCRAPES + 1, "the threads of the oldest end")
        assert silent[0].recv(1) == b""
