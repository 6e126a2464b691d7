"""What a command says where Kafka refuses it: which permission is missing, and how to add it."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from streaming.cli.expected_errors import error_message
from streaming.kafka.permissions import DESCRIBE_CLUSTER, explain_lacking, is_not_authorized
from streaming.settings import Settings


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
