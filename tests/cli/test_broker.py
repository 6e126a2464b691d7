"""`lockkeeper broker` as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cli.lockkeeper import Command
from tests.processes import processes_naming
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

BROKER = [sys.executable, "-m", "streaming.cli", "broker", "--port", "0"]


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def _found(data_home: Path, *arguments: str, make: str | None = None) -> tuple[str, set[str]]:
    """The cluster id and the topics of a broker that is started, asked and stopped."""
    environment = {**os.environ, "XDG_DATA_HOME": str(data_home)}
    environment.pop("PYTHONUNBUFFERED", None)  # its address comes at once all the same
    with subprocess.Popen([*BROKER, *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        admin = AdminClient({"bootstrap.servers": process.stdout.readline().strip()})
        if make:
            admin.create_topics([NewTopic(make, 1, 1)])[make].result(30)
            wait_until(lambda: make in admin.list_topics(timeout=30).topics, "the topic in the broker's metadata", 60)
        found = admin.list_topics(timeout=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    return str(found.cluster_id), set(found.topics)


@pytest.mark.long
def test_it_runs_until_it_is_asked_to_stop_and_keeps_its_data_and_its_cluster_id(tmp_path: Path) -> None:
    """In the folder that its help names, unless another one is given."""
    cluster, topics = _found(tmp_path, make="kept")
    assert "kept" in topics
    assert processes_naming(str(tmp_path)) == []
    assert _found(tmp_path / "another", "--data", str(tmp_path / "lockkeeper/kafka")) == (cluster, topics)


@pytest.mark.long
def test_a_fresh_broker_is_another_cluster_each_time_and_leaves_nothing(tmp_path: Path) -> None:
    first, _ = _found(tmp_path, "--fresh", make="gone")
    second, topics = _found(tmp_path, "--fresh")
    assert first != second
    assert topics == set()
    assert not list(tmp_path.iterdir())


def test_a_fresh_broker_has_no_folder_for_its_data(lockkeeper: Command, tmp_path: Path) -> None:
    shown = lockkeeper("broker", "--fresh", "--data", str(tmp_path))
    assert shown.code == 2
    assert "--fresh keeps no data" in shown.err


def test_a_port_that_is_taken_is_reported(lockkeeper: Command, elsewhere: int) -> None:
    shown = lockkeeper("broker", "--port", str(elsewhere))
    assert shown.code == 1
    assert f"another process listens at 127.0.0.1:{elsewhere}" in shown.err
