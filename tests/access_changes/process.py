"""`lockkeeper access-changes` as tests and the benchmark run it, and when it has followed all that is published."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from streaming.commit.offsets import read_committed
from streaming.kafka.clients import group_observer, last_stable_offsets, partitions_of
from streaming.kafka.reader import document_topics
from streaming.settings import Settings, access_changes_settings
from streaming.topics import TopicNames
from tests.access_changes.traffic import Traffic
from tests.brokers import free_port
from tests.waiting import wait_until


class Process:
    """The command in a process of its own, which is killed and started again. `port`: of its metrics."""

    def __init__(self, settings: Settings, folder: Path, **variables: str) -> None:
        self.port, self._log = free_port(), folder / "access-changes.log"
        config = folder / "lockkeeper.yaml"
        topics = settings.topics
        policies = "".join(f"    {system}: {topic}\n" for system, topic in topics.policy_topics().items())
        single = ("facts", "history", "decisions", "verdicts", "alerts", "changes", "access_changes")
        config.write_text(
            f"job_name: {settings.job_name}\nbootstrap_servers: {settings.bootstrap_servers}\n"
            f"topics:\n  requests: [{topics.requests[0]}]\n  audit: [{topics.audit[0]}]\n  policies:\n{policies}"
            + "".join(f"  {name}: {getattr(topics, name)}\n" for name in single)
        )
        self._command = [sys.executable, "-m", "streaming.cli", "access-changes", "--config", str(config)]
        self._environment = {**os.environ, "LOCKKEEPER_METRICS_PORT": str(self.port), **variables}
        self._before = 0
        self.start()

    def start(self) -> None:
        self._before = len(self.log)
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, env=self._environment, stderr=log, stdout=log)

    @property
    def log(self) -> str:
        """What it has said so far, in all of its runs."""
        return self._log.read_text() if self._log.exists() else ""

    def await_ready(self, seconds: float = 60.0) -> None:
        wait_until(lambda: "ready: " in self.log[self._before :] or self.process.poll() is not None, "ready", seconds)
        assert self.process.poll() is None, self.log

    def metrics(self) -> dict[str, float]:
        """What it serves, by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as found:
            lines = [line for line in found.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name: str) -> float:
        """One of them, 0 if it is not there yet."""
        return self.metrics().get(name, 0.0)

    def decisions(self) -> float:
        """How many decisions it has read in this run."""
        found = self.metrics().items()
        return sum(value for name, value in found if name.startswith("lockkeeper_access_changes_decisions_total"))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@contextlib.contextmanager
def running(settings: Settings, folder: Path, **variables: str) -> Iterator[Process]:
    """The command, ready; it ends with the context."""
    process = Process(settings, folder, **variables)
    try:
        process.await_ready()
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait(30)


def await_followed(traffic: Traffic, seconds: float = 300.0) -> None:
    """Wait until all that was published is followed, by what the process has committed.

    Records and positions are committed together, so no record comes later. Time is followed up to the last change.
    """
    wait_until(lambda: time.time() > traffic.ends(), "what is bound in time has ended")
    traffic.publish_last()
    own, names = access_changes_settings(traffic.settings), traffic.settings.topics
    ends = last_stable_offsets(traffic.world.admin, partitions_of(traffic.world.admin, followed_topics(names)))

    with contextlib.closing(group_observer(own)) as observer:

        def is_followed() -> bool:
            committed = read_committed(observer, ends, 30)
            return all(one in committed and committed[one].offset >= end for one, end in ends.items())

        wait_until(is_followed, "all is followed", seconds)


def followed_topics(names: TopicNames) -> list[str]:
    return [*document_topics(names), names.decisions]
