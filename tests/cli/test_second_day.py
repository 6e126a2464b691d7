"""The README's steps on the days after: the broker and the job are stopped, and started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.brokers import free_port
from tests.cli.documents import readers_folder

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(900)]

LOCKKEEPER = [sys.executable, "-m", "streaming.cli"]
END_SECONDS = 90.0
ASK = ["request", "--system", "lenses6", "--action", "kafka:GetTopicDetails", "--subject", "user:dana", "--json"]
ORDERS = ["--resource", "kafka:topic:prod/main/orders", "--timeout", "240"]


class Machine:
    """Where a user works: a folder, and settings in the environment. The broker has the same port each day."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ports = folder, (free_port(), free_port())
        values = {"BOOTSTRAP_SERVERS": f"127.0.0.1:{self._ports[0]}", "METRICS_PORT": str(self._ports[1])}
        settings = {f"LOCKKEEPER_{name}": value for name, value in values.items()}
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        self._environment = {**os.environ, **settings, "XDG_DATA_HOME": str(folder / "data"), "PYTHONPATH": path}

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            [*LOCKKEEPER, *arguments], cwd=self._folder, env=self._environment, capture_output=True, text=True
        )

    @contextmanager
    def broker(self, *arguments: str) -> Iterator[None]:
        """The broker, until it is stopped."""
        command = [*LOCKKEEPER, "broker", "--port", str(self._ports[0]), *arguments]
        with subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline()
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(END_SECONDS)

    @contextmanager
    def job(self) -> Iterator[None]:
        """`lockkeeper run`, until it is stopped in order."""
        path = self._folder / "job.log"
        with path.open("wb") as log:
            job = subprocess.Popen(
                [*LOCKKEEPER, "run"], cwd=self._folder, env=self._environment, stdout=log, stderr=log
            )
            try:
                yield
                job.send_signal(signal.SIGTERM)
                assert job.wait(END_SECONDS) == 0, path.read_text()[-3000:]
            finally:
                job.kill()
                job.wait()

    def succeeds(self, *arguments: str) -> str:
        """What a command prints that must not fail."""
        done = self(*arguments)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout

    def begin(self, policies: Path) -> None:
        """Topics and policies of an empty broker."""
        self.succeeds("topics", "create")
        self.succeeds("policy", "apply", str(policies))

    def ask(self) -> str:
        """The outcome of a request that the policies allow."""
        outcome: str = json.loads(self.succeeds(*ASK, *ORDERS))["context"]["outcome"]
        return outcome


def test_the_job_goes_on_with_the_brokers_data_and_without_it_after_the_one_command_that_it_names(
    tmp_path: Path,
) -> None:
    machine, policies = Machine(tmp_path), readers_folder(tmp_path / "policies")
    with machine.broker():
        machine.begin(policies)
        with machine.job():
            assert machine.ask() == "allow"
    with machine.broker(), machine.job():
        assert machine.ask() == "allow"
        decided = machine.succeeds("tail", "decisions", "--from-beginning", "--count", "2", "--json").splitlines()
        assert len({json.loads(decision)["id"] for decision in decided}) == 2
    with machine.broker("--fresh"):
        machine.begin(policies)
        refused = machine("run")
        assert refused.returncode == 1
        assert "belongs to another Kafka cluster" in refused.stderr
        assert "`lockkeeper checkpoint archive`" in refused.stderr
        machine.succeeds("checkpoint", "archive")
        assert not [name for name in ("checkpoint", "checkpoint-monitor") if (tmp_path / name).exists()]
        with machine.job():
            assert machine.ask() == "allow"
