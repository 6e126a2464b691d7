"""The processes of a scenario: a broker and a job that can be killed, suspended and started again."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from streaming.broker import EmbeddedBroker
from streaming.errors import BrokerError
from tests.brokers import run_kafka_tool
from tests.processes import descendants, processes_naming

LOCKKEEPER = (sys.executable, "-m", "streaming.cli")
ROOT = Path(__file__).parents[2]
PAUSE_SECONDS = 1.0  # between the end of a job and its next start
END_SECONDS = 90.0
BROKER_SECONDS = 180.0  # on a machine that may be busy
WORKER = "daemon"  # Spark forks the Python workers from a daemon, whose command line they keep


class Broker:
    """An embedded broker on a folder of data that survives it."""

    def __init__(self, embedded: EmbeddedBroker) -> None:
        self._embedded = embedded

    @property
    def bootstrap_servers(self) -> str:
        """The address, which stays the same over restarts."""
        return self._embedded.bootstrap_servers

    def kafka_tool(self, class_name: str, *arguments: str) -> str:
        """Run one of Kafka's command-line tools and return what it printed."""
        return run_kafka_tool(class_name, "--bootstrap-server", self.bootstrap_servers, *arguments)

    def kill(self) -> None:
        """Kill the process by SIGKILL. Data stays."""
        self._signal(signal.SIGKILL)
        self._embedded.stop()

    def stop(self) -> None:
        """Stop the broker in order, as for maintenance."""
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        self._embedded.stop()

    def start(self) -> None:
        """Start it, again on the same data and at the same address; returns when it answers."""
        self._embedded.start(BROKER_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._embedded.ended

    def end_of_log(self) -> str:
        """What it said last."""
        return self._embedded.end_of_log()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            os.kill(pid, number)

    def pids(self) -> set[int]:
        """Its Java."""
        try:
            properties = str(self._embedded.folder / "server.properties")
        except BrokerError as not_running:
            raise ProcessLookupError("the broker does not run") from not_running
        return {int(line.split()[0]) for line in processes_naming(properties) if "kafka.Kafka" in line}


class Job:
    """`lockkeeper run`, or `monitor`, as a process, started again whenever it ends, as Kubernetes or systemd do.

    `exits`: the exit codes of runs that ended by themselves or were killed. `restarts`: False to leave it ended.
    """

    def __init__(self, config: Path, log: Path, command: str = "run") -> None:
        self.exits: list[int] = []
        self.restarts = True
        self.log = log
        self._command = [*LOCKKEEPER, command, "--config", str(config)]
        self._stopping = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            if self._stopping.is_set():
                return
            self.exits.append(code)
            if not self.restarts or self._stopping.wait(PAUSE_SECONDS):
                return
            self._process = self._start()

    @property
    def pid(self) -> int:
        """The Python driver."""
        return self._process.pid

    def java(self) -> set[int]:
        """Spark's JVM."""
        return {pid for pid, line in self._below().items() if "SparkSubmit" in line}

    def workers(self) -> set[int]:
        """The Python workers, with the daemon that they are forked from."""
        return {pid for pid, line in self._below().items() if WORKER in line and "SparkSubmit" not in line}

    def everything(self) -> set[int]:
        """All processes of the job."""
        return {self.pid, *descendants(self.pid)}

    def _below(self) -> dict[int, str]:
        pids = descendants(self.pid)
        lines = {int(line.split()[0]): line for line in processes_naming("")}
        return {pid: lines[pid] for pid in pids if pid in lines}

    def kill(self) -> None:
        """SIGKILL to all of its processes at once, as when a container or a machine ends."""
        send(self.everything(), signal.SIGKILL)

    def running(self) -> bool:
        """Whether it runs now."""
        return self._process.poll() is None

    def stop(self) -> int | None:
        """SIGTERM, and no further restart; the exit code, or None where it had to be killed."""
        self._stopping.set()
        pids = self.everything()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            send(pids, signal.SIGKILL)
            self._keeper.join(END_SECONDS)


def send(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have ended meanwhile are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
