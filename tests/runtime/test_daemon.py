"""Workers load PySpark from where it is installed, not from the archive that Spark puts in front."""

import os
import socket
import struct
import subprocess
import sys
import tempfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from streaming.runtime.daemon import forget_archives, without_archives
from tests.processes import alive
from tests.waiting import wait_until

INSTALLED = Path(pyspark.__file__).parents[1]
ARCHIVES = [str(path) for path in (INSTALLED / "pyspark" / "python" / "lib").glob("*.zip")]


def test_archives_are_left_out_where_pyspark_is_installed() -> None:
    assert len(ARCHIVES) == 2
    assert without_archives(["", *ARCHIVES, *sys.path]) == ["", *(p for p in sys.path if not p.endswith(".zip"))]


def test_archives_stay_where_there_is_nothing_else() -> None:
    path = ["", *ARCHIVES, "/nowhere"]
    assert without_archives(path) == path


def test_what_python_keeps_of_archives_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, ARCHIVES[1]])
    monkeypatch.setattr(sys, "path_importer_cache", {path: zipimport.zipimporter(path) for path in ARCHIVES})
    forget_archives()
    assert list(sys.path_importer_cache) == [ARCHIVES[1]]


@pytest.fixture
def short_path() -> Iterator[str]:
    """A folder for sockets, whose paths have a hundred characters at most: those of `tmp_path` are longer."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_a_worker_that_spark_stops_ends_without_a_trace(short_path: str) -> None:
    """Spark closes the sockets of idle workers when it ends, as here; what they then cannot write, nobody reads.

    With the variables that Spark sets, and in its place at the other end of the pipe and of the socket.
    """
    variables = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": short_path,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "streaming.runtime.daemon", "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdout is not None
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as spark:
            spark.settimeout(30)
            spark.connect(daemon.stdout.read(length).decode())
            (worker,) = struct.unpack("!i", spark.recv(4, socket.MSG_WAITALL))
        wait_until(lambda: not alive({worker}), "the worker ends")
        _, written = daemon.communicate()
    assert written.decode() == ""
