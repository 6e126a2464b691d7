"""The benchmarks: the same traffic each time, engines that agree, figures that make the page. Nothing is timed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import policy
from docs import generate
from policy.core.request import CLAIMS
from policy.evaluation import reference
from policy.store.documents import DocumentStore
from streaming.kafka.authorship import Authorship
from streaming.records.formats import Result
from streaming.settings import DEFAULT_TRUST, Settings
from streaming.snapshots import policies
from streaming.snapshots.documents import DocumentRecord, Loader
from streaming.topics import TopicNames
from tests import bench
from tests.bench import changes_topic, evaluator, load, serve, stream, traffic
from tests.bench.engines import ENGINES, casbin, cedar_sliced, cedar_whole, decided, looped
from tests.brokers import TestBroker
from tests.waiting import wait_until

SETTINGS = Settings()
TOPICS = SETTINGS.topics.policy_topics()
ESCALATION: list[dict[str, Any]] = [
    {
        "system": "lenses6",
        "kind": "Role",
        "name": "admin",
        "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]},
    },
    {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["admin"], "members": ["user:dana"]}},
]
BESIDE = ("casbin", "cedarpy")  # packages of the group `bench`


@pytest.mark.parametrize("mix", [True, False], ids=["five systems", "Lenses 6"])
def test_the_same_seed_makes_the_same_traffic_and_another_another(mix: bool) -> None:
    first, again, other = (traffic.policies_and_requests(100, 50, seed, mix) for seed in (1, 1, 2))
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_the_mix_is_of_all_systems_with_facts_and_is_allowed_about_half_of_the_time() -> None:
    documents, requests = traffic.policies_and_requests(250, 1000)
    snapshot = policy.compile_documents(documents)
    assert not snapshot.rejected
    assert {request["system"] for request in requests} == set(traffic.SYSTEMS)
    assert any(map(traffic.is_fact, documents))
    for system in traffic.SYSTEMS:
        outcomes = [policy.decide(snapshot, request).outcome for request in requests if request["system"] == system]
        assert outcomes.count("error") == 0
        assert 0.2 < outcomes.count("allow") / len(outcomes) < 0.9, system


def test_the_mix_is_answered_as_by_the_reference() -> None:
    documents, requests = traffic.policies_and_requests(100, 300)
    snapshot = policy.compile_documents(documents)
    for request in requests:
        assert policy.decide(snapshot, request, trust=CLAIMS).outcome == reference.decide(snapshot, request)


def test_requests_are_records_as_the_client_sends_them() -> None:
    _, ask = traffic.policies(100)
    record, other = traffic.client_records("requests", ask, 2, timeout=60)
    request = json.loads(record.value)
    assert record.key == request["subject"]["id"].encode()
    assert request["id"] == record.id != other.id
    assert request["deadline"] > 0
    assert [name for name, _ in record.headers] == ["traceparent"]
    assert policy.parse_request(request).id == record.id
    assert {"groups", "facts"} <= DEFAULT_TRUST, "the requests claim groups"


def test_distinct_requests_come_again_with_other_ids_and_traces() -> None:
    _, ask = traffic.policies(100)
    records = list(traffic.client_records("requests", ask, 6, timeout=60, distinct=3))
    plain = [{**json.loads(record.value), "id": "", "deadline": 0} for record in records]
    assert plain[:3] == plain[3:]
    assert plain[0] != plain[1]
    assert len({record.id for record in records}) == len({str(record.headers) for record in records}) == 6


def test_requests_come_again_for_resources_that_are_new() -> None:
    _, ask = traffic.policies(100)
    records = traffic.client_records("requests", ask, 60, timeout=60, distinct=30, new_resources=True)
    asked = [json.loads(record.value) for record in records]
    for first, again in zip(asked[:30], asked[30:], strict=True):
        old, new = first.pop("resource"), again.pop("resource")
        assert new["id"].startswith(f"{old['id']}-")
        assert (new["id"] in new.get("properties", {}).values()) == (old["id"] in old.get("properties", {}).values())
        for changing in ("id", "deadline"):
            del first[changing], again[changing]
        assert first == again


def test_requests_of_services_in_other_languages_are_decided_alike() -> None:
    documents, ask = traffic.policies(100)
    snapshot = policy.compile_documents(documents)
    for by_client, by_other in zip(
        *(traffic.client_records("requests", ask, 40, timeout=60, by_others=others) for others in (False, True)),
        strict=True,
    ):
        asked, other = json.loads(by_client.value), json.loads(by_other.value)
        assert "ip" in other["context"]
        assert other["time"].endswith("Z")
        assert [name for name, _ in by_other.headers] == ["__TypeId__", "traceparent"]
        assert (
            policy.decide(snapshot, other).outcome == policy.decide(snapshot, {**asked, "time": other["time"]}).outcome
        )


@pytest.mark.parametrize("name", list(ENGINES))
def test_every_engine_gives_the_same_answers(name: str) -> None:
    if name.startswith(BESIDE):
        pytest.importorskip(name.partition(",")[0], reason="make bench-evaluator installs it")
    documents, requests = traffic.policies_and_requests(100, 200, mix=False)
    expected = evaluator.decide_all(decided(documents, requests), requests, 60).allowed
    answers = evaluator.decide_all(ENGINES[name](documents, requests), requests, 60).allowed
    assert len(answers) == len(requests)
    assert 0 < sum(expected) < len(requests)
    assert evaluator.differences(expected, [answers]) == 0


@pytest.mark.parametrize("shape", list(traffic.SHAPES))
def test_policies_of_each_shape_are_answered_as_by_the_plain_loop(shape: str) -> None:
    documents, requests = traffic.shaped(shape, 40, 60)
    expected = evaluator.decide_all(decided(documents, requests), requests, 60).allowed
    answers = evaluator.decide_all(ENGINES["plain loop"](documents, requests), requests, 60).allowed
    assert len(answers) == len(requests)
    assert 0 < sum(expected) < len(requests)
    assert evaluator.differences(expected, [answers]) == 0


def test_answers_that_differ_are_counted() -> None:
    assert evaluator.differences([True, False, True], [[True, True, True], [False, True]]) == 3


@pytest.mark.parametrize("engine", [decided, looped, cedar_sliced, cedar_whole, casbin])
@pytest.mark.parametrize(
    ("pattern", "resource", "allowed"),
    [
        ("kafka:topic:env-1*/main/orders", "kafka:topic:env-17/main/orders", True),
        ("kafka:topic:env-1*/main/orders", "kafka:topic:env-2/main/orders", False),
        ("kafka:topic:env-1/*/ord*", "kafka:topic:env-1/main/orders", True),
        ("kafka:topic:env-1/*", "kafka:topic:env-1/main/orders", True),
        ("kafka:topic:env-1/*", "kafka:topic:env-12/main/orders", False),
        ("kafka:*", "kafka:topic:a/b/c", True),
        ("*", "schemas:schema:a/b/c", True),
    ],
)
def test_engines_read_patterns_alike(
    engine: Callable[..., Callable[..., bool]], pattern: str, resource: str, allowed: bool
) -> None:
    if engine in (casbin, cedar_sliced, cedar_whole):
        pytest.importorskip("casbin" if engine is casbin else "cedarpy", reason="make bench-evaluator installs it")
    spec = {"statements": [{"effect": "allow", "action": ["kafka:Get*"], "resource": [pattern]}]}
    documents = [
        {"system": "lenses6", "kind": "Role", "name": "r", "spec": spec},
        {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["r"]}},
    ]
    request = {
        "id": "1",
        "system": "lenses6",
        "subject": {"type": "user", "id": "user:u", "properties": {"groups": ["g"]}},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": resource},
    }
    assert engine(documents, [request])(request) is allowed


def test_a_row_has_what_the_page_shows() -> None:
    """And the page shows each row: measured on one commit after another, they stand side by side."""
    found = evaluator.measure("policy.decide", 100, 20, 60, 1, False)
    row = {**evaluator._row("policy.decide", 100, found, found.passes[0].allowed), "commit": "c0ffee"}
    assert row["differences"] == 0
    shown = generate._engine_row(row)
    assert shown[:2] == ("policy.decide (c0ffee)", "100")
    assert len(shown) == 10


def test_the_performance_page_has_every_measured_row() -> None:
    page = generate.performance()
    for name, shown in (("evaluator.jsonl", generate._engine_name), ("stream.jsonl", generate._job_name)):
        for line in (generate.MEASURED / name).read_text().splitlines():
            row = json.loads(line)
            assert shown(row) in page
            assert f"{row['statements']:,}" in page
    for row in generate._measured("serve.jsonl"):
        assert f"{row['statements']:,} statements ({row['commit']})" in page
    for line in (generate.MEASURED / "cedar.jsonl").read_text().splitlines():
        for engine, rate in json.loads(line)["decisions_a_second"].items():
            assert f"| {engine} | 1,000 | 12,000 | {rate:,} |" in page
    assert "policy.decide" in page
    assert "<svg" in page


def test_the_performance_page_shows_what_a_run_of_the_job_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that left out latencies and policy changes."""
    latencies = {name: {"p50_ms": 200.0, "p99_ms": 500.0} for name in generate.LATENCIES}
    cold = {"start": 9.0, "first": 3.0}
    short = {
        "traffic": "mix",
        "statements": 1000,
        "decisions_a_second": 33_000,
        "copies_a_second": 100_000,
        "ratio": 0.33,
        "ratios": [0.33],
        "cold": {"decisions": cold, "copy": cold},
        "first_warm": {"decisions": 2.0, "copy": 1.0},
        "worker_memory_above_idle": 60.0,
        "at": "2026-11-23T00:00:00Z",
        "commit": "c0ffee",
        "machine": {"cores": 2, "memory_gib": 24, "cpu": "one", "load": 1.0},
    }
    whole = {
        **short,
        "latency": latencies,
        "change_latency": {"p50_ms": 100.0, "p99_ms": 300.0, "max_ms": 301, "count": 9},
    }
    (tmp_path / "stream.jsonl").write_text("\n".join(map(json.dumps, (short, whole))))
    for name in ("evaluator.jsonl", "cedar.jsonl"):
        (tmp_path / name).write_text((generate.MEASURED / name).read_text())
    monkeypatch.setattr(generate, "MEASURED", tmp_path)
    page = generate.performance()
    assert "| decisions a second, warm | 33,000 | 33,000 |" in page
    assert "| latency of decisions, p50 / p99 |  | 200 / 500 ms |" in page
    assert "| policy change in force, maximum and number of changes |  | 301 ms of 9 |" in page
    assert page.count("<svg") == 2


def test_the_performance_page_shows_what_the_changes_topic_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the ratios of the rounds."""
    rounds = [{True: {"rate": rate}, False: {"rate": 1000}} for rate in (900, 950, 1010)]
    found = {"throughput": changes_topic._compared(rounds, "rate")}
    assert found["throughput"] == {"with": 950, "without": 1000, "ratio": 0.95, "ratios": [0.9, 0.95, 1.01]}
    for file in generate.MEASURED.glob("*.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    row = bench.stamped({"statements": 1000, "changes_topic": found})
    (tmp_path / "changes-topic.jsonl").write_text(json.dumps(row))
    monkeypatch.setattr(generate, "MEASURED", tmp_path)
    assert "| decisions a second | 1,000 | 950 | 1,000 | 0.95 |" in generate.performance()


def test_a_job_without_the_changes_topic_differs_in_that_topic_alone() -> None:
    """It writes the same alerts, but no change and nothing that a change widens."""
    written = {}
    for side in (True, False):
        with changes_topic._job(side):
            job = _Followed()
        written[side] = job.change()
    topics = SETTINGS.topics
    assert [topic for topic, *_ in written[True]] == [topics.changes, topics.alerts, topics.changes]
    assert written[False] == [written[True][1]]


class _Followed:
    """The classes that a job uses for its policy topics, with what they write of one change."""

    def __init__(self) -> None:
        committed = {(topic, 0): 0 for topic in TOPICS.values()}
        self._store = DocumentStore()
        self._log = policies.ChangeLog(SETTINGS, committed, "sha256:none")
        self._changes = policies.Changes(SETTINGS, {topic: system for system, topic in TOPICS.items()}, committed)

    def change(self) -> list[Result]:
        """A group gets a role with a lone `*`."""
        for offset, document in enumerate(ESCALATION):
            value = json.dumps(document).encode()
            key = f"{document['kind']}/{document['name']}".encode()
            record = DocumentRecord(TOPICS["lenses6"], key, value, offset, 1000 + offset)
            loader = Loader(self._store, "lenses6", 1 << 20)
            parsed = loader.key_of(record)
            assert parsed is not None
            id_ = self._log.note(parsed, record, Authorship("change"), self._store)
            self._changes.note(parsed, record, self._store, id_)
            loader.take(record)
            self._log.noted(parsed, False, self._store)
        snapshot = policy.Snapshot(self._store)
        self._changes.compare(self._store, snapshot)
        self._log.close(snapshot.version, {TOPICS["lenses6"]: {"0": 1}})
        wait_until(lambda: self._changes.is_idle, "the change is compared")
        found = [*self._log.pending(), *self._changes.pending()]
        self._changes.close()
        return found


SERVED = {"a_second": 4_000, "p50_ms": 0.512, "p99_ms": 3.4, "failed": 0}


def test_the_performance_page_shows_what_a_run_of_the_server_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one without vegeta and OPA."""
    short = {
        "statements": 1000,
        "rate": 1000.0,
        "change": {"p50_ms": 30.0, "p99_ms": 90.0, "max_ms": 91.0, "count": 60},
        "memory": {"statements": 100_000, "resident_mib": 429.4, "workers_proportional_mib": [349.1, 350.2]},
        "left_out": ["vegeta"],
        "at": "2026-11-25T00:00:00Z",
        "commit": "c0ffee",
        "machine": {"cores": 2, "memory_gib": 24, "cpu": "one", "load": 1.0},
    }
    beside = {"serve": SERVED, "opa": {**SERVED, "a_second": 900}, "ratio": 4.4, "ratios": [4.4, 4.5, 4.3]}
    latency = {"job stopped": SERVED, "job running": {**SERVED, "p99_ms": 16.0}}
    whole = {**short, "latency": latency, "single": beside, "batch": beside, "differences": 0}
    (tmp_path / "serve.jsonl").write_text("\n".join(map(json.dumps, (short, whole))))
    for name in ("evaluator.jsonl", "cedar.jsonl", "stream.jsonl"):
        (tmp_path / name).write_text((generate.MEASURED / name).read_text())
    monkeypatch.setattr(generate, "MEASURED", tmp_path)
    page = generate.performance()
    assert "| latency at 1,000 requests a second, job running, p50 / p99 |  | 0.51 / 16.0 ms |" in page
    assert "| single evaluations a second, OPA |  | 900 |" in page
    assert "| ratio of evaluations in batches, median (each round) |  | 4.4 (4.4, 4.5, 4.3) |" in page
    assert "| policy change to the first answer, p50 / p99 | 30 / 90 ms | 30 / 90 ms |" in page
    assert "| 429 MiB; two workers: 349 and 350 MiB; 100,000 statements |" in page


@pytest.mark.stream
@pytest.mark.long
def test_the_server_is_measured_beside_opa_and_without_go_what_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = serve.Plan(
        statements=50, rounds=1, seconds=1, rate=100, connections=4, changes=2, memory_statements=0, job=False
    )
    if shutil.which("go"):
        found = serve.measure(plan)
        assert found["differences"] == 0
        assert found["latency"]["job stopped"]["failed"] == 0
        for beside in (found["single"], found["batch"]):
            assert beside["serve"]["a_second"] > beside["serve"]["failed"] == 0
            assert beside["opa"]["a_second"] > beside["opa"]["failed"] == 0
        assert found["recorded"] >= 2 * serve.COMPARED / serve.BATCH
    monkeypatch.setattr(load, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = serve.measure(plan)
    assert found.keys() == {"change", "left_out"}
    assert found["change"]["count"] == 2
    assert "vegeta v12.13.0 is left out: Go, which builds it, is not installed" in capsys.readouterr().err


def test_quantiles_are_of_what_was_found() -> None:
    assert stream.quantiles([0.001 * n for n in range(1, 101)]) == {
        "p50_ms": 51.0,
        "p90_ms": 91.0,
        "p99_ms": 100.0,
        "count": 100,
    }


@pytest.fixture
def settings(broker: TestBroker, fresh_name: Callable[[str], str]) -> Settings:
    topic = fresh_name("slow")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(15)
    topics = msgspec.structs.replace(TopicNames(), requests=(topic,))
    return Settings(bootstrap_servers=broker.bootstrap_servers, topics=topics)


@pytest.mark.stream
def test_load_ends_with_an_empty_queue_and_every_request_is_read_back(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    """librdkafka warns on standard error of what is left."""
    arrivals = stream.Arrivals(settings, settings.topics.requests[0])
    load = stream.Load(settings, traffic.policies(20)[1], rate=50)
    load.start()
    try:
        arrivals.wait(lambda: len(arrivals.at) > 3, 30, "the requests")
    finally:
        load.stop()
    arrivals.wait(lambda: load.sent.keys() <= arrivals.at.keys(), 30, "all requests")
    arrivals.close()
    assert all(arrivals.at[id_] >= at for id_, at in load.sent.items())
    assert "still in queue" not in capfd.readouterr().err


def test_private_memory_is_of_a_process_that_runs() -> None:
    assert bench.private_memory(os.getpid()) > 1
    assert bench.private_memory(1 << 30) == 0


def test_workers_are_what_was_forked_from_the_daemon_of_this_process(tmp_path: Path) -> None:
    """The daemon itself is none, nor is any other process that its command line names."""
    program = tmp_path / "streaming.runtime.daemon"
    program.write_text("import os, time\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\ntime.sleep(60)\n")
    daemon = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    worker = int(daemon.stdout.readline())
    try:
        assert list(bench.workers_below(os.getpid())) == [worker]
        assert not list(bench.workers_below(worker))
    finally:
        os.kill(worker, signal.SIGKILL)
        daemon.kill()
        daemon.communicate()
