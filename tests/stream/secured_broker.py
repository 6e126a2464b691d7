"""A broker on which nobody may do anything but what the KafkaUser resources allow, as Strimzi sets one up."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streaming.runtime.broker import HOST, EmbeddedBroker

PASSWORD = "of-a-test"
TYPES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactionalId": ResourceType.TRANSACTIONAL_ID}
PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefix": ResourcePatternType.PREFIXED}
OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


@contextlib.contextmanager
def secured_broker() -> Iterator[tuple[AdminClient, str]]:
    """An administrator's client, and the address at which everybody else must log in."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind((HOST, 0))
        plain, secured, controller = (one.getsockname()[1] for one in sockets)
    with EmbeddedBroker(port=plain, config=_config(plain, secured, controller)) as broker:
        yield AdminClient({"bootstrap.servers": broker.bootstrap_servers}), f"{HOST}:{secured}"


def _config(plain: int, secured: int, controller: int) -> dict[str, str]:
    ours = f"PLAINTEXT://{HOST}:{plain},SECURED://{HOST}:{secured}"
    return {
        "listeners": f"{ours},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": ours,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secured.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the test's administrator, and the broker itself
    }


def apply(admin: AdminClient, resources: list[dict[str, Any]]) -> None:
    """Do what Strimzi's operators do with KafkaTopic and KafkaUser resources."""
    topics = [r["spec"] for r in resources if r["kind"] == "KafkaTopic"]
    users = [r for r in resources if r["kind"] == "KafkaUser"]
    made = [NewTopic(t["topicName"], t["partitions"], 1, config=t["config"]) for t in topics]
    logins = [UserScramCredentialUpsertion(u["metadata"]["name"], _credential(), PASSWORD.encode()) for u in users]
    rights = [acl for user in users for acl in _acls(user)]
    done = [
        *admin.create_topics(made, operation_timeout=30).values(),
        *admin.alter_user_scram_credentials(logins).values(),
        *admin.create_acls(rights).values(),
    ]
    for future in done:
        future.result(30)


def _credential() -> ScramCredentialInfo:
    return ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)


def _acls(user: dict[str, Any]) -> Iterator[AclBinding]:
    principal = f"User:{user['metadata']['name']}"
    for acl in user["spec"]["authorization"]["acls"]:
        told = acl["resource"]
        for operation in acl["operations"]:
            yield AclBinding(
                TYPES[told["type"]],
                told["name"],
                PATTERNS[told["patternType"]],
                principal,
                "*",
                OPERATIONS[operation],
                AclPermissionType.ALLOW,
            )
