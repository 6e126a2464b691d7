"""What a command says where Kafka refuses it: which permission is missing, and how to add it."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from streaming.cli.changes import warn_of_unread_documents
from streaming.cli.cluster import not_authorized
from streaming.cli.expected_errors import echo_error, error_message
from streaming.kafka.permissions import (
    DESCRIBE_CLUSTER,
    REFUSED,
    explain_lacking,
    is_not_authorized,
    topic_permissions,
)
from streaming.settings import Settings
from streaming.snapshots.logged import ChangeHistory


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ],
)
def test_a_refusal_that_nobody_expected_says_where_the_permissions_are_listed(code: int) -> None:
    said = error_message(KafkaException(KafkaError(code)))
    assert said is not None
    assert "authorization failed" in said.lower()
    assert "lockkeeper topics manifest --users" in said
    away = error_message(KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)))
    assert away is not None
    assert "permission" not in away


def test_what_listing_acls_needs_is_named_with_the_command_that_adds_it() -> None:
    assert is_not_authorized(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), DESCRIBE_CLUSTER.type)
    said = explain_lacking(Settings(bootstrap_servers="kafka:9092"), [DESCRIBE_CLUSTER])
    assert said.splitlines()[0] == "User:ANONYMOUS is not authorized to Describe cluster"
    assert said.endswith("--add --allow-principal 'User:ANONYMOUS' --operation Describe --cluster")


def test_each_missing_permission_and_each_command_that_adds_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """They came in one line, with \\n between: no command could be copied."""
    echo_error(not_authorized(Settings(bootstrap_servers="kafka:9092"), topic_permissions("Read", ["a", "b"])))
    first, second, _, *commands = capsys.readouterr().err.splitlines()
    assert first == "lockkeeper: User:ANONYMOUS is not authorized to Read topic a"
    assert second == "User:ANONYMOUS is not authorized to Read topic b"
    add = "  kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal 'User:ANONYMOUS' --operation Read"
    assert commands == [f"{add} --topic a", f"{add} --topic b"]


def test_the_log_of_changes_prints_what_it_may_not_read_as_lines_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(bootstrap_servers="kafka:9092")

    def connect_without_permission(*_: object) -> None:
        raise not_authorized(settings, topic_permissions("Read", ["a"]))

    monkeypatch.setattr("streaming.cli.changes.connect", connect_without_permission)
    warn_of_unread_documents(settings, ChangeHistory([]))
    first, *_, command = capsys.readouterr().err.splitlines()
    assert first.endswith(": User:ANONYMOUS is not authorized to Read topic a")
    assert command.startswith("  kafka-acls.sh")


@pytest.mark.parametrize(
    ("text", "is_java", "resource"),
    [
        ('KafkaError{code=TOPIC_AUTHORIZATION_FAILED,val=29,str="Broker: …"}', False, "TOPIC"),
        ("KafkaError{code=TRANSACTIONAL_ID_AUTHORIZATION_FAILED,val=53}", False, "TRANSACTIONAL_ID"),
        ("refused: org.apache.kafka.common.errors.GroupAuthorizationException: Not …", True, "Group"),
        ("org.apache.kafka.common.errors.TransactionalIdAuthorizationException: …", True, "TransactionalId"),
    ],
)
def test_a_refusal_is_recognized_in_the_text_of_either_client(text: str, is_java: bool, resource: str) -> None:
    refusal = REFUSED.search(text)
    assert refusal is not None
    assert refusal["java" if is_java else "rdkafka"] == resource
    assert refusal["rdkafka" if is_java else "java"] is None
