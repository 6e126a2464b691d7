"""A standalone cluster of Spark on loopback: a master and workers, each a process of its own, from PySpark's jars."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from streaming.runtime.java import find_java, java_home, pyspark_folder
from tests.brokers import free_port
from tests.processes import descendants, processes_naming

HOST = "127.0.0.1"
LOOPBACK = {"SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": "2.13"}
RECOVERY = ("-Dspark.deploy.recoveryMode=FILESYSTEM", "-Dspark.deploy.recoveryDirectory={folder}/recovery")
END_SECONDS = 60.0
PYTHON_WORKER = "streaming.runtime.daemon"
DRIVER = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
"""Settings of a job on such a cluster."""


class Standalone:
    """A master and workers, which have `cores` and `memory` each.

    `recovery`: the master recovers its applications; by Spark's default it forgets them. `options`: of the processes'
    JVMs. `bare`: the workers have a Spark home of their own, an empty virtual environment first on their PATH, and
    nothing of this process's environment; else they find what this Python has.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 1,
        cores: int = 2,
        memory: str = "1g",
        recovery: bool = False,
        options: tuple[str, ...] = (),
        bare: bool = False,
        python: str = sys.executable,
    ) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "recovery").mkdir()
        self.recovers = recovery
        self._options = [*options, *(option.format(folder=folder) for option in RECOVERY if recovery)]
        self._home = _bare_home(folder) if bare else pyspark_folder()
        self._variables = _bare_variables(folder, python) if bare else dict(os.environ)
        self._share = ["--cores", str(cores), "--memory", memory]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start_master()
        self.workers = [self._start_worker(number) for number in range(workers)]

    @property
    def url(self) -> str:
        """Of the master."""
        return f"spark://{HOST}:{self.port}"

    def start_master(self) -> None:
        """At the same address each time."""
        self.master = self._start("master.Master", "master", "--port", str(self.port))

    def start_worker(self, number: int) -> None:
        """In place of one that has ended."""
        self.workers[number] = self._start_worker(number)

    def restart_workers(self) -> None:
        """Those that have ended."""
        for number, process in enumerate(self.workers):
            if process.poll() is not None:
                self.start_worker(number)

    def _start_worker(self, number: int) -> "subprocess.Popen[bytes]":
        place = ["--work-dir", str(self.folder / f"work-{number}")]
        return self._start("worker.Worker", f"worker-{number}", *self._share, *place, self.url)

    def _start(self, name: str, log_name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        java, common = find_java(), ["--host", HOST, "--webui-port", "0"]
        classes = f"org.apache.spark.deploy.{name}"
        command = [java, "-Xmx256m", *self._options, "-cp", str(self._home / "jars" / "*"), classes, *common]
        variables = {**self._variables, "SPARK_HOME": str(self._home), "JAVA_HOME": str(java_home(java)), **LOOPBACK}
        with (self.folder / f"{log_name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments], env=variables, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def executors(self, number: int | None = None) -> set[int]:
        """The JVMs of the executors of one worker, or of all."""
        folder = str(self.folder / ("work-" if number is None else f"work-{number}"))
        pids = (int(line.split()[0]) for line in processes_naming("CoarseGrainedExecutorBackend"))
        return {pid for pid in pids if _works_in(pid, folder)}

    def python_workers(self, number: int) -> set[int]:
        """The Python processes of the executors of one worker, with the daemon that they are forked from."""
        daemons = {int(line.split()[0]) for line in processes_naming(PYTHON_WORKER)}
        return {pid for executor in self.executors(number) for pid in descendants(executor) if pid in daemons}

    def error_of_executors(self) -> str:
        """What the executors wrote to standard error."""
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("work-*/*/*/stderr")))

    def stop(self) -> None:
        """End all processes; workers end their executors."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes:
            process.wait(END_SECONDS)
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def end(process: "subprocess.Popen[bytes]") -> None:
    """By SIGKILL."""
    process.kill()
    process.wait(END_SECONDS)


def _works_in(pid: int, folder: str) -> bool:
    with contextlib.suppress(OSError):  # it has just ended
        return os.readlink(f"/proc/{pid}/cwd").startswith(folder)
    return False


def _bare_home(folder: Path) -> Path:
    """A Spark home with what Spark's distribution has, as far as executors need it."""
    home = folder / "spark"
    (home / "python").mkdir(parents=True)
    (home / "jars").symlink_to(pyspark_folder() / "jars")
    shutil.copytree(pyspark_folder() / "python" / "lib", home / "python" / "lib")
    return home


def _bare_variables(folder: Path, python: str) -> dict[str, str]:
    """A PATH that begins with a virtual environment without any package."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "python")], check=True)
    return {"PATH": os.pathsep.join((str(folder / "python" / "bin"), "/usr/bin", "/bin")), "HOME": str(folder)}
