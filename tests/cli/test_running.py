"""`lockkeeper run` as a process of its own, asked with `request` and watched with `tail`."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.cli.request import IS_IT_RUNNING
from streaming.kafka.clients import existing_topic_ids, group_consumer, log_ends, partitions_of
from streaming.settings import Settings, load_settings, monitor_settings
from tests.cli.documents import lines, readers_folder, request
from tests.cli.lockkeeper import Command
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.usefixtures("topics")]

LOCKKEEPER = [sys.executable, "-m", "streaming.cli"]
ASK = ["request", "--system", "lenses6", "--action", "kafka:GetTopicDetails"]
ORDERS = ["--resource", "kafka:topic:prod/main/orders"]


@pytest.fixture
def spark_config(config: Path, tmp_path: Path) -> Path:
    """The configuration, with a checkpoint of its own, and a monitor that begins at once."""
    settings = {
        **yaml.safe_load(config.read_text()),
        "checkpoint": (tmp_path / "checkpoint").as_uri(),
        "master": "local[1]",
        "monitor": {"rules": {"grace_seconds": 1.0}},
    }
    config.write_text(yaml.safe_dump(settings))
    return config


@pytest.fixture
def job(spark_config: Path, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`lockkeeper run`, started; its log is in `job.log`."""
    with (tmp_path / "job.log").open("wb") as log:
        running = subprocess.Popen([*LOCKKEEPER, "run", "--config", str(spark_config)], stdout=log, stderr=log)
        yield running
        running.kill()
        running.wait()


@pytest.mark.long
def test_a_running_job_is_asked_watched_and_stopped(
    lockkeeper: Command, spark_config: Path, job: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """One start of Spark for all that needs it: requests of each outcome, what tail shows, and SIGTERM."""
    with_config = ["--config", str(spark_config)]
    applied = lockkeeper("policy", "apply", str(readers_folder(tmp_path / "policies")), "--json", *with_config)
    demand = json.dumps({"min_policy_offsets": applied.records[0]})

    allowed = lockkeeper(*ASK, *ORDERS, "--subject", "user:dana", "--context", demand, "--timeout", "240", *with_config)
    assert allowed.code == 0, (tmp_path / "job.log").read_text()[-3000:]
    assert set(allowed.err.splitlines()) <= {f"waiting for the decision, up to 240 s. {IS_IT_RUNNING}"}, (
        "while it starts"
    )
    wait_until(
        lambda: "ready: deciding requests of" in (tmp_path / "job.log").read_text(), "the job says that it is ready"
    )
    assert allowed.lines[0].startswith("ALLOW  after ")
    assert "lenses6/Role/order-readers statement 0 allows kafka:GetTopicDetails" in allowed.lines[1]
    assert allowed.lines[1].endswith("[L6-DECIDE-ALLOW]")

    claimed = lockkeeper(
        *ASK, *ORDERS, "--subject", "user:eve", "--group", "readers", "--json", "--timeout", "120", *with_config
    )
    assert claimed.code == 0
    assert claimed.records[0]["context"]["claims"] == ["groups"]

    whole = tmp_path / "request.json"
    whole.write_text(json.dumps(request(id="mine", topic="payments")))
    denied = lockkeeper("request", "--file", str(whole), "--json", "--timeout", "120", *with_config)
    assert denied.code == 1
    assert (denied.records[0]["request_id"], denied.records[0]["context"]["outcome"]) == ("mine", "deny")

    dead = lockkeeper("request", "--file", "-", "--timeout", "120", *with_config, stdin=lines({"system": "lenses6"}))
    assert dead.code == 1
    assert dead.lines[0].startswith("DEAD LETTER  not a request")

    watched = lockkeeper("tail", "decisions", "--from-beginning", "--count", "3", "--json", *with_config)
    assert watched.code == 0
    assert sorted(_outcomes(watched.records)) == ["allow", "allow", "deny"]

    _await_monitor(load_settings(spark_config, {}))
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 0
    assert _noise((tmp_path / "job.log").read_text().splitlines()) == []


def _await_monitor(settings: Settings) -> None:
    """Until it has seen decisions: its Python workers have started then."""
    with contextlib.closing(group_consumer(monitor_settings(settings))) as group:
        decisions = [TopicPartition(settings.topics.decisions, partition) for partition in range(2)]
        wait_until(lambda: any(one.offset > 0 for one in group.committed(decisions, 10)), "the monitor runs", 120)


def _noise(printed: list[str]) -> list[str]:
    """What a job printed beside its own log, between its first and its last line."""
    first, *others, last = printed
    assert first.startswith("starting Spark for requests of ")
    assert last == "stopped"
    return [line for line in others if not line.startswith(("{", "ready: deciding requests of "))]


def _outcomes(records: list[Any]) -> list[str]:
    return [record["context"]["outcome"] for record in records]


def test_request_tells_when_nobody_answers(lockkeeper: Command, config: Path) -> None:
    shown = lockkeeper(*ASK, *ORDERS, "--subject", "user:dana", "--timeout", "3", "--config", str(config))
    assert shown.code == 1
    assert "no decision within 3 s for offset 0 of" in shown.err
    assert "Is `lockkeeper run` running" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "lenses6"], "--subject, --action, --resource: required; give a value for each, or use --file"),
        ([*ASK, *ORDERS, "--subject", "user:a", "--context", "[]"], "--context: must be a JSON object"),
        ([*ASK, *ORDERS, "--subject", "user:a", "--context", "{"], "--context: line 1: not JSON"),
        ([*ASK, *ORDERS, "--subject", "user:a", "--property", "x"], "--property x: write NAME=VALUE"),
        (
            [*ASK, *ORDERS, "--subject", "user:a", "--property", "x=1", "--property", "x=2"],
            "--property x=2: it is '1' already; leave one of them out",
        ),
        ([*ASK, *ORDERS, "--subject", "user:a", "--topic", "t"], "--topic t: not a request topic"),
        (["--file", "-", "--subject", "user:a"], "--file holds the whole request"),
        (["--file", "no-such-file"], "--file no-such-file: No such file or directory"),
    ],
)
def test_a_request_that_is_not_complete_is_wrong_usage(lockkeeper: Command, arguments: list[str], message: str) -> None:
    shown = lockkeeper(*(arguments if arguments[0] == "request" else ["request", *arguments]), stdin="{}")
    assert shown.code == 2
    assert message in shown.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_tail_shows_alerts_as_they_come_and_ends_in_order_when_asked_to(
    config: Path, settings: Settings, number: signal.Signals, tmp_path: Path
) -> None:
    """And what a stranger wrote cannot steer the terminal."""
    alert = {"id": "a", "kind": "policy-rejected", "severity": "high", "time": "2026-11-21T10:00:00Z"}
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as shown, err.open("wb") as remarks:
        linking = tmp_path / "linking.yaml"
        linking.write_text(f"{config.read_text()}\nconsole: {{url: 'https://console.example.com'}}\n")
        command = [*LOCKKEEPER, "tail", "alerts", "--from-beginning", "--config", str(linking)]
        tail = subprocess.Popen(command, stdout=shown, stderr=remarks)
        wait_until(lambda: b"following" in err.read_bytes(), "tail follows")
        _produce(settings, b"no JSON", json.dumps({**alert, "message": "a role \x1b[2J was refused"}).encode())
        wait_until(lambda: b"refused" in out.read_bytes(), "the alert is shown")
        tail.send_signal(number)
        assert tail.wait(20) == 0
    line = "2026-11-21T10:00:00Z      high      policy-rejected       a role \\u001b[2J was refused"
    line += "  https://console.example.com/alerts/a\n"
    assert out.read_text() == line
    assert f"of {settings.topics.alerts}, partition" in err.read_text()
    assert "is not one of the alerts: JSON is malformed" in err.read_text()


def test_a_request_is_not_sent_where_no_decision_can_be_read(
    lockkeeper: Command, config: Path, settings: Settings, admin: AdminClient
) -> None:
    """It was sent, and its decision waited for in vain."""
    decisions = settings.topics.decisions
    admin.delete_topics([decisions])[decisions].result(30)
    wait_until(lambda: not existing_topic_ids(admin, [decisions]), "the topic is gone")
    asked = lockkeeper(*ASK, *ORDERS, "--subject", "user:dana", "--config", str(config))
    assert (asked.code, asked.out) == (1, "")
    assert f"{decisions}: no such topic at" in asked.err
    assert set(log_ends(admin, partitions_of(admin, settings.topics.requests)).values()) == {0}


@pytest.mark.long
def test_tail_whose_topic_is_deleted_names_it_and_what_creates_it(
    config: Path, settings: Settings, admin: AdminClient
) -> None:
    """It waited for good: librdkafka gives no error."""
    command = [*LOCKKEEPER, "tail", "alerts", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stderr is not None
        assert "following" in tail.stderr.readline()
        admin.delete_topics([settings.topics.alerts])[settings.topics.alerts].result(30)
        try:
            said = tail.communicate(timeout=60)[1]
        finally:
            tail.kill()
    assert tail.returncode == 1
    assert f"lockkeeper: {settings.topics.alerts}: deleted, or deleted and re-created" in said
    assert "`lockkeeper topics create`" in said


def _produce(settings: Settings, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for value in values:
        producer.produce(settings.topics.alerts, value, b"k")
    assert producer.flush(10) == 0
