"""`lockkeeper broker` as a process of its own."""

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

pytestmark = pytest.mark.stream

BROKER = [sys.executable, "-m", "streaming.cli", "broker", "--port", "0"]


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def _topics(data: Path, make: str | None = None) -> set[str]:
    """The topics of a broker that is started, asked and told to stop."""
    with subprocess.Popen([*BROKER, "--data", str(data)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        admin = AdminClient({"bootstrap.servers": process.stdout.readline().strip()})
        if make:
            admin.create_topics([NewTopic(make, 1, 1)])[make].result(30)
        found = set(admin.list_topics(timeout=30).topics)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    return found


def test_it_runs_until_it_is_told_to_stop_and_keeps_its_data_where_it_is_told_to(tmp_path: Path) -> None:
    assert "kept" in _topics(tmp_path / "data", make="kept")
    assert processes_naming(str(tmp_path)) == []
    assert "kept" in _topics(tmp_path / "data")


def test_a_port_that_is_taken_is_told(lockkeeper: Command, elsewhere: int) -> None:
    told = lockkeeper("broker", "--port", str(elsewhere))
    assert told.code == 1
    assert f"somebody listens at 127.0.0.1:{elsewhere} already" in told.err
