"""What a running job shows of itself: metrics, readiness, log and traces. One job for all, as it costs a start."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from streaming.settings import LogSettings, MetricsSettings
from streaming.settings.monitor import MonitorSettings
from tests.brokers import TestBroker, free_port
from tests.endpoint import get
from tests.stream.running import ROOT
from tests.stream.world import SHORT_LIVED, World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

START_SECONDS = 120.0  # of Spark, on a machine that may be busy
ALLOWED, DENIED = 12, 7
DEADLY = ("committed",)  # steps at which a run fails
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "s3cret-t0ken"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Observed:
    """A job process and its endpoint."""

    def __init__(self, world: World, log: Path, *deadly: str) -> None:
        self.world, self._log = world, log
        self.port = world.settings.metrics.port
        command = [sys.executable, "-m", "tests.stream.observed_process", msgspec.json.encode(world.settings).decode()]
        with log.open("wb") as stderr:
            self.process = subprocess.Popen([*command, *deadly], cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr)

    def get(self, path: str, port: int | str = 0) -> tuple[int, str]:
        """Status and text of a page; 0 while the port is closed."""
        status, text = get(port or self.port, path)
        assert status or self.process.poll() is None, self._log.read_text()[-3000:]
        return status, text

    def samples(self) -> Samples:
        """Every sample of /metrics."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    def value(self, name: str, **labels: str) -> float:
        """One sample."""
        return self.samples()[name, tuple(sorted(labels.items()))]

    def await_status(self, path: str, status: int) -> str:
        """Wait until a page has a status; its text then."""
        responses: list[tuple[int, str]] = []

        def is_it() -> bool:
            responses.append(self.get(path))
            return responses[-1][0] == status

        wait_until(is_it, f"{path} answers {status}", START_SECONDS)
        return responses[-1][1]

    def log(self) -> list[dict[str, Any]]:
        """The events it has logged: lines of JSON, between what Spark says."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def end(self) -> list[dict[str, Any]]:
        """Ask it to stop; its spans."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=START_SECONDS)
        assert self.process.returncode == 0, self._log.read_text()[-3000:]
        return [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world with two documents in force and one refused."""
    metrics = MetricsSettings(port=free_port())
    pages = {**SHORT_LIVED, "spark.ui.enabled": "true", "spark.ui.port": str(free_port())}
    log = LogSettings("debug")
    watched = {"monitor": MonitorSettings()}
    settings = {"metrics": metrics, "log": log, "policy_stale_seconds": 1.0, "spark": pages, **watched}
    made = World(broker, fresh_name("observed"), str(tmp_path / "checkpoint"), **settings)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    made.publish({**role("broken"), "spec": {"statments": []}})
    return made


@pytest.fixture
def observed(world: World, tmp_path: Path) -> Iterator[Observed]:
    """A job that fails once before it goes on: with its transaction committed, but not in Spark's log."""
    job = Observed(world, tmp_path / "job.log", *DEADLY)
    yield job
    job.process.kill()
    job.process.wait()


def _ask(world: World) -> None:
    """Requests, of which one is no request and one asks for a system that is none."""
    token = {"type": "user", "id": "user:dana", "properties": {"token": {"jti": SECRET}}}
    world.send([request(f"a-{n}", "dana", "orders", subject=token) for n in range(ALLOWED)])
    world.send([request(f"d-{n}", "dana", "payments") for n in range(DENIED)])
    world.send([request("strange", "dana", "orders", system="no-such-system")])
    login = {"id": "login", "system": "streamsets", "event": "login", "subject": {"type": "user", "id": "dana"}}
    world.send([login], topic=world.names.audit[0])
    world.send([b"no request"], headers=[("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())])


@contextlib.contextmanager
def _open_transaction(world: World) -> Iterator[None]:
    """A transaction on the policies, which hides what is published after it."""
    name = f"open-{world.settings.job_name}"
    producer = Producer({"bootstrap.servers": world.settings.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(world.policies, b"{}", b"Role/hidden")
    assert producer.flush(30) == 0
    yield
    producer.abort_transaction(30)


@pytest.mark.long
def test_a_job_shows_what_it_does(world: World, observed: Observed) -> None:
    """Each decision is counted once, also those of a batch that Spark runs again."""
    _ask(world)
    _shows_when_it_is_ready(world, observed)
    _counts_everything_once(world, observed)
    _logs_batches_without_secrets(world, observed)
    _shows_sparks_progress(observed)
    _shows_sparks_pages(world, observed)
    _traces_batches_and_their_steps(observed.end())
    assert observed.process.returncode == 0


def _shows_when_it_is_ready(world: World, observed: Observed) -> None:
    assert "the query does not run" in observed.await_status("/readyz", 503)
    assert observed.await_status("/healthz", 200) == "alive\n"
    wait_until(lambda: _starts(observed) == 1 + len(DEADLY), "the last run has begun", START_SECONDS)
    wait_until(lambda: observed.get("/readyz")[0] == 200 and _lag(observed) == 0, "all is decided")
    with _open_transaction(world):
        assert "a transaction on them is not ended" in observed.await_status("/readyz", 503)
        assert (
            observed.value("lockkeeper_policies_stale") == observed.value("lockkeeper_policies_stuck_partitions") == 1
        )
        assert observed.value("lockkeeper_ready") == 0
    assert observed.await_status("/readyz", 200) == "ready\n"


def _starts(observed: Observed) -> int:
    return [event["event"] for event in observed.log()].count("the query runs")


def _lag(observed: Observed) -> float | None:
    topic = observed.world.names.requests[0]
    return sum(
        value if dict(labels)["topic"] == topic else 0
        for (name, labels), value in observed.samples().items()
        if name == "lockkeeper_consumer_lag_records"
    )


def _counts_everything_once(world: World, observed: Observed) -> None:
    # The monitor starts on a thread of its own, after the first decisions.
    wait_until(lambda: observed.value("lockkeeper_monitor_running") == 1, "the monitor runs", START_SECONDS)
    found = observed.samples()

    def value(name: str, **labels: str) -> float:
        return found[f"lockkeeper_{name}", tuple(sorted(labels.items()))]

    decided = {labels: n for (name, labels), n in found.items() if name == "lockkeeper_decisions_total" and n}
    assert decided == {
        (("outcome", "allow"), ("system", "lenses6")): ALLOWED,
        (("outcome", "deny"), ("system", "lenses6")): DENIED,
        (("outcome", "error"), ("system", "other")): 1,
    }
    [info] = [dict(labels) for (name, labels), _ in found.items() if name == "lockkeeper_job_info"]
    assert info["cluster_id"] == world.admin.list_topics(timeout=30).cluster_id
    assert info["job_name"] == world.settings.job_name
    records = ALLOWED + DENIED + 2
    assert value("verdicts_total", system="streamsets", outcome="lifecycle") == 1
    assert value("dead_letters_total", topic=world.names.requests[0]) == 1
    assert value("dead_letters_total", topic=world.names.requests[1]) == 0
    assert value("decision_latency_seconds_count") == records
    assert 0 < value("decision_latency_seconds_sum") < records * START_SECONDS
    assert value("alerts_total", kind="policy-rejected") == 1
    assert value("alerts_total", kind="policy-stale") == 1
    assert value("documents_in_force", system="lenses6") == 2
    assert value("documents_refused", system="lenses6") == 1
    assert value("snapshot_grants", system="lenses6") > 0
    assert value("monitor_running") == 1
    assert value("snapshot_broadcasts_total") == 1 + len(DEADLY), "one a run: nothing changed"
    assert value("batch_step_duration_seconds_count", step="evaluated") == value("batch_duration_seconds_count")


def _logs_batches_without_secrets(world: World, observed: Observed) -> None:
    events = observed.log()
    refused = [event for event in events if event["event"] == "a document is refused"]
    assert {(event["level"], event["document"]) for event in refused} == {("warning", "lenses6/Role/broken")}
    assert refused[0]["error"] == "statements: required; must be a list"
    assert {event["job"] for event in events} == {world.settings.job_name}
    batches = [event for event in events if event["event"] == "batch decided"]
    assert all(event["policy_version"].startswith("sha256:") and event["batch"] >= 0 for event in batches)
    assert sum(batch["records"] for batch in batches) == ALLOWED + DENIED + 3
    assert SECRET not in json.dumps(events)


def _shows_sparks_progress(observed: Observed) -> None:
    """Of the enforcer's query in the log, and of the monitor's as metrics: Spark reports it a while after a batch."""
    job = observed.world.settings.job_name

    def logged() -> bool:
        return any(event["event"] == "progress" and event["query"] == job for event in observed.log())

    wait_until(logged, "a progress is logged", START_SECONDS)
    rows = "lockkeeper_monitor_state_rows"
    wait_until(lambda: observed.value(rows) > 0, "the monitor remembers something", START_SECONDS)


def _shows_sparks_pages(world: World, observed: Observed) -> None:
    """Switched on by settings of Spark alone."""
    status, page = observed.get("/StreamingQuery/", world.settings.spark["spark.ui.port"])
    assert (status, world.settings.job_name in page) == (200, True)


def _traces_batches_and_their_steps(spans: list[dict[str, Any]]) -> None:
    batches = {span["id"]: span for span in spans if span["parent"] is None}
    assert any(TRACE in span["links"] for span in batches.values())
    last = [span["name"] for span in spans if span["parent"] == list(batches)[-1]]
    assert last == ["range-fixed", "policies-read", "evaluated", "written", "committed"]
