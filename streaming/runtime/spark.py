"""Starts Spark with the Kafka connector, on whichever Java there is."""

import atexit
import contextlib
import fcntl
import functools
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from streaming.errors import SparkStartError
from streaming.runtime.environment import environment_settings, python_of_executors
from streaming.runtime.jars import classpath
from streaming.runtime.java import CONSOLE_LOG, find_java, java_home, pyspark_folder

VECTOR_MODULE = "jdk.incubator.vector"

_START_SECONDS = 180.0  # beside other programs on two cores it took more than 60
_POLL_SECONDS = 0.05
_REFUSAL = "--usage-error"
"""Part of a command that would only print how Spark is used; the reason is in the launcher's messages."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A JVM that waits for PySpark, and exits when `process.stdin` is closed, at the latest when we end."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str


def start_gateway(settings: Mapping[str, str]) -> Gateway:
    """Start the JVM with Spark settings and return when it can be connected to.

    Raises:
        SparkStartError: the launcher refused the settings, or the JVM did not start.
    """
    command = [part for part in _launcher_command(settings) if part != f"--add-modules={VECTOR_MODULE}"]
    with tempfile.TemporaryDirectory(prefix="lockkeeper-gateway-") as folder:
        connection = Path(folder) / "connection"
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                **_own_python_first(),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
                "SPARK_CONNECT_MODE": "0",
            },
            # Ctrl-C in a terminal reaches this process alone, which then stops the queries in order.
            start_new_session=True,
        )
        _await_file(connection, process)
        return Gateway(process, *_read_connection(connection.read_bytes()))


def _own_python_first() -> dict[str, str]:
    """A PATH on which `python3.11` is this one: Spark also runs a part of the monitor's query beside the driver, by the
    name that the interpreter has on the executors.
    """
    return {"PATH": os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))}


def _launcher_command(settings: Mapping[str, str]) -> list[str]:
    """Ask Spark's launcher how to start the JVM: it knows memory, options and spark-defaults.conf."""
    home = pyspark_folder()
    jars = str(home / "jars" / "*")
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    submit = ["org.apache.spark.deploy.SparkSubmit", *options, "pyspark-shell"]
    done = subprocess.run(
        [str(find_java()), "-cp", jars, "org.apache.spark.launcher.Main", *submit],
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": _scala_version(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # What Java prints, as with JAVA_TOOL_OPTIONS=-Xlog:gc, then NUL and an end of line, then the parts of the command,
    # each ended by NUL (SPARK-28525).
    command = done.stdout.partition("\0\n")[2].rstrip("\0").split("\0")
    if done.returncode != 0 or _REFUSAL in command:
        raise SparkStartError(f"Spark's launcher refuses the settings: {done.stderr.strip()}")
    return command


def _scala_version(home: Path) -> str:
    """Read the version out of a name such as `spark-launcher_2.13-4.2.0.jar`."""
    return next((home / "jars").glob("spark-launcher_*.jar")).name.partition("_")[2].partition("-")[0]


def _await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for the file in which the JVM writes its port; it appears as a whole."""
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists():
        try:
            code = process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                process.kill()
                raise SparkStartError(f"Spark's JVM did not start within {_START_SECONDS} s") from None
        else:
            raise SparkStartError(f"Spark's JVM ended with {code} while starting; see its messages above")


def _read_connection(content: bytes) -> tuple[int, str]:
    """Read the port and the secret: two numbers of four bytes, the second the secret's length."""
    port, length = struct.unpack_from("!ii", content)
    return port, content[8 : 8 + length].decode()


_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_GATEWAY_SECRET = "PYSPARK_GATEWAY_SECRET"

ENDING_SECONDS = 1.0  # from its closed sockets to its end

# Arrow's large buffers are humongous to G1, which then collects without end in Spark's default heap of 1 GiB.
# Spark plans every batch again, through code that a record never sees: to compile all of it as well as Java can took a
# third of its time for the first millions of records. What runs for each record gets there within a batch all the same.
MEMORY = "2g"
JAVA_OPTIONS = (
    "-XX:+UseParallelGC "
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=100000"
)
OF_EXECUTORS = {"spark.executor.memory": MEMORY, "spark.executor.extraJavaOptions": JAVA_OPTIONS}
"""As of the driver in local mode, where neither the settings nor spark-submit have others."""

STANDALONE = "spark://"  # of Spark's own cluster manager
_FIXED_AT_START = {"spark.master", "spark.jars", "spark.driver.memory", "spark.driver.extraJavaOptions"}


_gateways: list[Gateway] = []
"""Holds a JVM's standard input open: it exits when that closes. PySpark has one JVM a process."""


def start_session(app_name: str, settings: Mapping[str, str], master: str = "local[2]") -> SparkSession:
    """Start Spark, or return the session there is with these settings applied.

    The JVM ends with this process, even by `kill -9`. Python workers get a random hash seed for this run,
    as what they hash comes from untrusted clients; PySpark would give them the seed 0.

    Under `spark-submit`, which Kubernetes uses, the JVM runs already: its master, memory, Java options and jars stay
    what they were started with, and `master` and such settings here count for nothing.

    The executors of a standalone cluster get this Python environment, but for the interpreter: see
    `streaming.runtime.environment`.

    Args:
        app_name: the application's name.
        settings: Spark settings; they go before the defaults here. `spark.jars` and
            `spark.driver.extraJavaOptions` are added to what is needed here.
        master: Spark's master; of a local one the workers run this very Python.

    Raises:
        JavaNotFoundError: there is no Java to run it.
        JarError: the connector's jars could not be fetched.
        SparkStartError: the JVM did not start, or the executors' environment could not be packed.
    """
    submitted = _GATEWAY_PORT in os.environ
    here = {"spark.master": master, "spark.app.name": app_name, **settings}
    changeable = {key: value for key, value in settings.items() if key not in _FIXED_AT_START}
    everything = changeable if submitted else _with_defaults(here)
    in_force = {**here, **_submitted_settings()} if submitted else here
    everything |= {key: value for key, value in OF_EXECUTORS.items() if key not in in_force}
    if in_force["spark.master"].startswith(STANDALONE):
        everything |= environment_settings(in_force, job_folder())
    with _environment(_variables(in_force)), _gateway_if_needed(everything):
        builder = SparkSession.builder
        for key, value in everything.items():
            builder = builder.config(key, value)
        with _signal_handler_kept():
            session = builder.getOrCreate()
    if submitted:
        _pass_signals_on(session)
    # It would print a stack when Java ends. Any later call to Java fails too.
    session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return session


class _PassOn:
    """Lets this process know that Java was asked to end."""

    def handle(self, _signal: Any) -> None:
        """Java's name."""
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        """What it is in Java."""

        implements: ClassVar = ["sun.misc.SignalHandler"]


def _pass_signals_on(session: SparkSession) -> None:
    """Let SIGTERM and Ctrl-C stop this process, and Java end after it.

    Kubernetes, supervisors and terminals know the process `spark-submit`. Its Java would end at once, amid a batch.
    """
    gateway: Any = session.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    misc, handler = gateway.jvm.sun.misc, _PassOn()
    for name in ("TERM", "INT"):
        misc.Signal.handle(misc.Signal(name), handler)


@contextlib.contextmanager
def _signal_handler_kept() -> Iterator[None]:
    """Keep the handler of SIGINT: PySpark's raises KeyboardInterrupt wherever the main thread is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def java_has_ended() -> bool:
    """Whether Spark's JVM has, as far as it is this process's to know: under `spark-submit` it is not."""
    if not _gateways:
        return True
    try:
        _gateways[0].process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _with_defaults(settings: Mapping[str, str]) -> dict[str, str]:
    jars = ",".join(str(path) for path in classpath("spark"))
    # Spark's own files and the sockets of its workers lie in Java's temporary folder.
    java_options = f'-Dlog4j2.configurationFile={CONSOLE_LOG.as_uri()} "-Djava.io.tmpdir={job_folder()}"'
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **settings,
        "spark.jars": _joined(",", jars, settings.get("spark.jars")),
        "spark.driver.extraJavaOptions": _joined(" ", java_options, settings.get("spark.driver.extraJavaOptions")),
    }


def _joined(separator: str, first: str, second: str | None) -> str:
    return f"{first}{separator}{second}" if second else first


def _submitted_settings() -> dict[str, str]:
    """Those of `spark-submit`, which has started the JVM."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which to start: variables that Spark reads, and has no settings for."""
    common = {
        "JAVA_HOME": str(java_home(find_java())),
        "PYTHONHASHSEED": str(1 + secrets.randbelow(2**32 - 1)),
    }
    master, python = settings["spark.master"], os.environ.get("PYSPARK_PYTHON") or settings.get("spark.pyspark.python")
    if master.startswith(STANDALONE):
        return {**common, "PYSPARK_PYTHON": python or python_of_executors()}
    if _GATEWAY_PORT in os.environ:
        return {**common, "PYSPARK_PYTHON": python or sys.executable}
    if not master.startswith("local"):
        return {**common, **({"PYSPARK_PYTHON": python} if python else {})}
    return {**common, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _gateway_if_needed(settings: Mapping[str, str]) -> Iterator[None]:
    """Start the JVM here rather than let PySpark do so: see `streaming.runtime.spark`.

    Under `spark-submit` the JVM is there already.
    """
    if _GATEWAY_PORT in os.environ:
        yield
        return
    if not _gateways:
        _gateways.append(start_gateway(settings))
    gateway = _gateways[0]
    with _environment({_GATEWAY_PORT: str(gateway.port), _GATEWAY_SECRET: gateway.secret}):
        yield


PREFIX = "lockkeeper-job-"
_SHORT = "/tmp"
_LONGEST = 60
"""Of a folder for sockets, in bytes: with a socket's name of 42 below the 104 that macOS allows."""


@functools.cache
def job_folder() -> Path:
    """The folder of this process, which is removed when the process ends."""
    folder = make_folder(_temporary_folder())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def make_folder(parent: Path) -> Path:
    """A new folder, locked until this process ends, once those of dead processes of this user are removed."""
    for left in parent.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # stays open
        with contextlib.suppress(OSError):  # another start may have removed it just before it was locked
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), folder.stat()):
                return folder
        os.close(lock)


def _temporary_folder() -> Path:
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) + len(PREFIX) + 9 <= _LONGEST else _SHORT)


def _remove_if_left(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # of another user, no folder, or gone
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(opened).st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its process lives
        pass
    finally:
        os.close(opened)
