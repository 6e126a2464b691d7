"""A schema registry of one's own: Apicurio, which speaks the API that Confluent's registry defines."""

import contextlib
import json
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from streaming.errors import RuntimeSetupError
from streaming.runtime.jars import cache_folder, ensure, read_lock
from streaming.runtime.java import find_java
from streaming.runtime.supervisor import Supervised
from tests.brokers import free_port
from tests.waiting import wait_until

LOCK = Path(__file__).with_name("registry.toml")
HOST = "127.0.0.1"
START_SECONDS = 150.0
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TYPE = "application/vnd.schemaregistry.v1+json"


def archive() -> Path:
    """The registry's archive, fetched once; where it cannot be had, the test is skipped, saying why."""
    try:
        return ensure(read_lock("registry", LOCK), cache_folder())[0]
    except RuntimeSetupError as error:
        pytest.skip(f"no schema registry to test against: {error}")


class Apicurio:
    """A registry in memory that lives as long as this object is open, and no longer than this process."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        packed = archive()
        self._folder = Path(tempfile.mkdtemp(prefix="lockkeeper-registry-"))
        with tarfile.open(packed) as files:
            if hasattr(tarfile, "data_filter"):
                files.extraction_filter = tarfile.data_filter  # Python 3.11.0 to 3.11.3 have none
            files.extractall(self._folder)
        [program] = self._folder.glob("*-runner.jar")
        options = [f"-Dquarkus.http.port={self.port}", f"-Dquarkus.http.host={HOST}", "-Dquarkus.log.level=WARN"]
        command = [str(find_java()), *JVM_OPTIONS, *options, "-jar", str(program)]
        self._log = self._folder / "registry.log"
        self._process = Supervised(
            {"commands": [command], "log": str(self._log), "folder": str(self._folder), "grace_seconds": 0.0}
        )
        try:
            wait_until(self._answers, "the schema registry answers", START_SECONDS)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.stop()

    def _answers(self) -> bool:
        if self._process.ended:
            raise AssertionError(f"the schema registry ended while starting: {self._log.read_text()[-2000:]}")
        with contextlib.suppress(OSError):
            self.ask("subjects")
            return True
        return False

    def register(self, subject: str, schema: str, references: list[dict[str, Any]] | None = None) -> int:
        """Register an Avro schema; its id."""
        answer = self.ask(f"subjects/{subject}/versions", {"schema": schema, "references": references or []})
        return int(answer["id"])

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What it answers to GET, or with a body to POST. By the standard library: not by what is tested."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": TYPE})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
