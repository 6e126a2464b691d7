"""`lockkeeper export kafka-acls` and `import kafka-acls`, with Kafka's own tool and a broker's ACLs between them."""

import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from policy import read_documents
from tests.brokers import TestBroker, run_kafka_tool
from tests.cli.lockkeeper import Command
from tests.java_archive import embedded_broker
from tests.policy.importers.running import DATA

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"  # what kafka-acls.sh runs


@pytest.fixture
def secured() -> Iterator[str]:
    """The address of a broker with Kafka's authorizer, on which its clients are super users."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with embedded_broker(config=authorizer) as found:
        yield found.bootstrap_servers


@pytest.mark.stream
@pytest.mark.long
def test_what_is_exported_is_imported_again_from_the_cluster_and_from_kafkas_list(
    lockkeeper: Command, secured: str, tmp_path: Path
) -> None:
    """Every document as it was."""
    first = tmp_path / "first"
    assert lockkeeper("import", "kafka-acls", str(DATA / "kafka-acls.json"), "--out", str(first)).code == 0
    exported = lockkeeper("export", "kafka-acls", str(first))
    assert exported.code == 0
    lines = (shlex.split(line) for line in exported.out.splitlines() if line.startswith("kafka-acls.sh"))
    with ThreadPoolExecutor() as added:  # each starts a Java
        assert list(added.map(lambda words: _kafka_acls(secured, *words[3:]), lines))
    listed = tmp_path / "acls.txt"
    listed.write_text(_kafka_acls(secured, "--list"), encoding="utf-8")
    for out, given in (("of-list", [str(listed)]), ("of-cluster", ["--bootstrap", secured])):
        imported = lockkeeper("import", "kafka-acls", *given, "--out", str(tmp_path / out))
        assert imported.code == 0, imported.err
        assert _documents(tmp_path / out) == _documents(first)


def _kafka_acls(broker: str, *arguments: str) -> str:
    return run_kafka_tool(ACL_COMMAND, "--bootstrap-server", broker, *arguments)


def _documents(folder: Path) -> list[object]:
    return [document.value for document in read_documents(folder)]


@pytest.mark.stream
def test_a_broker_without_an_authorizer_is_no_broker_without_acls(
    lockkeeper: Command, broker: TestBroker, tmp_path: Path
) -> None:
    """It allows everybody everything; policies of no ACLs would deny all, in place of those imported before."""
    before = tmp_path / "kafka-acls.yaml"
    before.write_text("as before")
    imported = lockkeeper("import", "kafka-acls", "--bootstrap", broker.bootstrap_servers, "--out", str(tmp_path))
    assert imported.code == 1
    assert "lists no ACLs. It has none, or no authorizer" in imported.err
    assert before.read_text() == "as before"


def test_other_sources_need_files(lockkeeper: Command, tmp_path: Path) -> None:
    found = lockkeeper("import", "cdap", "--out", str(tmp_path))
    assert (found.code, "give the FILEs to import" in found.err) == (2, True)


def test_an_unknown_target_is_misuse(lockkeeper: Command, tmp_path: Path) -> None:
    found = lockkeeper("export", "kafka-acl", str(tmp_path))
    assert (found.code, "did you mean kafka-acls?" in found.err) == (2, True)


def test_help_shows_the_targets(lockkeeper: Command) -> None:
    assert "\n  kafka-acls  a shell script of" in lockkeeper("export", "--help").out
