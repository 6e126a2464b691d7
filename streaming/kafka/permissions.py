"""What a client is authorized to do on a cluster, queried beforehand.

Kafka's own errors name neither the principal nor the operation, and hide a topic that one may not describe. Here a
missing permission is named with its principal, operation and resource, and with the ACL that grants it.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from streaming.errors import JobStopped
from streaming.kafka.clients import admin_client, error_name, once_coordinated
from streaming.settings import Settings

SECONDS = 15.0
CLIENT_GROUP = "lockkeeper-client"  # librdkafka insists on a name; the client library never joins a group
OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
    "Create": AclOperation.CREATE,
}
OPTIONS = {"topic": "--topic", "group": "--group", "transactionalId": "--transactional-id", "cluster": "--cluster"}
RESOURCES = {
    "topic": "topic",
    "group": "consumer group",
    "transactionalId": "transactional id",
    "cluster": "cluster",
}
NOT_AUTHORIZED = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "transactionalId",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
}
"""Kafka's errors for a missing permission, and the type of the resource."""

NOT_THERE = frozenset({"UNKNOWN_TOPIC_OR_PART", "GROUP_ID_NOT_FOUND"})
REFUSED = re.compile(r"(?P<rdkafka>\w+)_AUTHORIZATION_FAILED|(?P<java>\w+)AuthorizationException")
"""The same in the text of an error, by the client that it is of."""
JAAS_USER = re.compile(r"\busername\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;]+))")

Allowed = frozenset[AclOperation] | None
"""The operations that are authorized; None: the resource is not there, or the broker does not say."""


class Permission(msgspec.Struct, frozen=True, order=True):
    """An operation on a resource, such as Read on a topic. `prefix`: on every resource whose name begins so.

    A cluster has no name.
    """

    type: str
    name: str
    operation: str
    prefix: bool = False

    def __str__(self) -> str:
        pattern = f" {self.name}…" if self.prefix else f" {self.name}"
        return f"{self.operation} {RESOURCES[self.type]}{pattern}".rstrip()


DESCRIBE_CLUSTER = Permission("cluster", "", "Describe")
"""What listing ACLs needs. librdkafka drops the error of a broker that refuses it: the list is empty then."""

CREATE_TOPICS = Permission("cluster", "", "Create")
"""What creating topics needs, where their names have no ACLs of their own."""


def described_acls(admin: AdminClient) -> list[dict[str, str]]:
    """All ACLs of a cluster, each a mapping of the fields of an entry, in Kafka's words. Raises KafkaException.

    The client names a resource type or an operation UNKNOWN that it is too old for.
    """
    every = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]  # any name, which the stub does not know
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return [
        {
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name,
            "permission": acl.permission_type.name,
            "resource_type": acl.restype.name,
            "pattern_type": acl.resource_pattern_type.name,
            "name": acl.name,
        }
        for acl in admin.describe_acls(every, request_timeout=SECONDS).result()
    ]


def by_resource(permissions: Iterable[Permission]) -> dict[tuple[str, str, bool], list[str]]:
    """The operations on each resource: its type, its name, and whether that is a prefix."""
    resources: dict[tuple[str, str, bool], list[str]] = {}
    for permission in permissions:
        resources.setdefault((permission.type, permission.name, permission.prefix), []).append(permission.operation)
    return resources


def topic_permissions(operation: str, topics: Iterable[str]) -> list[Permission]:
    """The same operation on several topics."""
    return [Permission("topic", topic, operation) for topic in topics]


def missing_permissions(admin: AdminClient, needed: Iterable[Permission], seconds: float = SECONDS) -> list[Permission]:
    """Those of the permissions that the principal of `admin` does not have.

    Of topics, groups and the cluster; for a transactional id Kafka has no such question, and its first use shows it. A
    resource that is not there misses no permission. Raises KafkaException and TimeoutError when the cluster does not
    answer.
    """
    needed = list(needed)
    allowed = {
        "topic": _on_topics(admin, _names(needed, "topic"), seconds),
        "group": {group: _on_group(admin, group, seconds) for group in _names(needed, "group")},
        "cluster": {name: _on_cluster(admin, seconds) for name in _names(needed, "cluster")},
    }
    return [permission for permission in needed if not _is_allowed(permission, allowed.get(permission.type, {}))]


def _names(needed: Iterable[Permission], type_: str) -> list[str]:
    return sorted({permission.name for permission in needed if permission.type == type_})


def _on_topics(admin: AdminClient, topics: list[str], seconds: float) -> dict[str, Allowed]:
    """All of them, queried at once."""
    if not topics:
        return {}
    request: Mapping[str, Any] = admin.describe_topics(
        TopicCollection(topics), include_authorized_operations=True, request_timeout=seconds
    )
    return {topic: _allowed(partial(future.result, seconds)) for topic, future in request.items()}


def _on_group(admin: AdminClient, group: str, seconds: float) -> Allowed:
    def describe() -> Any:
        request = admin.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=seconds)
        return request[group].result(seconds)

    return _allowed(partial(once_coordinated, describe))


def _on_cluster(admin: AdminClient, seconds: float) -> Allowed:
    """Brokers name none of the operations to those who may not describe the cluster."""
    request = admin.describe_cluster(include_authorized_operations=True, request_timeout=seconds)
    return frozenset(request.result(seconds).authorized_operations or ())


def _allowed(answer: Callable[[], Any]) -> Allowed:
    try:
        operations = answer().authorized_operations
    except KafkaException as error:
        name = error_name(error)
        if name in NOT_AUTHORIZED:
            return frozenset()
        if name in NOT_THERE:
            return None
        raise
    return frozenset(operations) if operations else None  # older brokers do not say


def _is_allowed(permission: Permission, allowed: Mapping[str, Allowed]) -> bool:
    operations = allowed.get(permission.name)
    return operations is None or OPERATIONS[permission.operation] in operations


def principal_of(kafka: Mapping[str, Any]) -> str:
    """The principal that clients with these settings (librdkafka's) have on the broker, as far as settings say it."""
    if user := kafka.get("sasl.username") or kafka.get("sasl.kerberos.principal"):
        return f"User:{user}"
    if certificate := kafka.get("ssl.certificate.location") or kafka.get("ssl.keystore.location"):
        return f"the principal of the certificate {certificate}"
    if "ssl.certificate.pem" in kafka:
        return "the principal of the certificate in ssl.certificate.pem"
    return "the principal of this client" if "sasl.mechanism" in kafka else "User:ANONYMOUS"


def principal_of_java(source: Mapping[str, str], kafka: Mapping[str, Any]) -> str:
    """The same for the settings of Java's clients, `kafka.` before each; where they say nothing, as `kafka` does."""
    if login := JAAS_USER.search(source.get("kafka.sasl.jaas.config", "")):
        return f"User:{next(filter(None, login.groups()), '')}"
    if certificate := source.get("kafka.ssl.keystore.location"):
        return f"the principal of the certificate {certificate}"
    return principal_of(kafka)


def explain_missing(principal: str, servers: str, missing: Iterable[Permission]) -> str:
    """Which permissions a principal lacks, a line for each, and the ACLs that grant them."""
    missing = list(dict.fromkeys(missing))
    lacks = [f"{principal} is not authorized to {permission}" for permission in missing]
    commands = dict.fromkeys(_command(principal, servers, missing))
    return "\n".join(
        [
            *lacks,
            "Have an administrator of the cluster add the ACLs (`lockkeeper topics manifest --users` prints those of "
            "every user):",
            *(f"  {command}" for command in commands),
        ]
    )


def explain_lacking(settings: Settings, missing: Iterable[Permission]) -> str:
    """The same of librdkafka's clients by these settings."""
    return explain_missing(principal_of(settings.kafka), settings.bootstrap_servers, missing)


def explain_refused(settings: Settings, error: object, needed: Iterable[Permission]) -> str:
    """The text of an error; where it says that a permission is missing, also which of the needed ones, and the ACLs.

    For what runs: Kafka's errors name no operation, and often not the topic.
    """
    text, needed = str(error), list(needed)
    refused = REFUSED.search(text)
    if refused is None:
        return text
    try:
        missing = missing_permissions(admin_client(settings), needed)
    except (KafkaException, TimeoutError):
        return text
    if refused[0].lower().startswith("transactional"):  # which cannot be queried
        missing += [permission for permission in needed if permission.type == "transactionalId"]
    principal = principal_of_java(settings.source, settings.kafka) if refused["java"] else principal_of(settings.kafka)
    return f"{text}\n{explain_missing(principal, settings.bootstrap_servers, missing)}" if missing else text


@contextlib.contextmanager
def refusals_explained(settings: Settings, needed: Iterable[Permission]) -> Iterator[None]:
    """What ends a process whose permission is taken away names that: raised as JobStopped, or a subclass."""
    try:
        yield
    except (JobStopped, KafkaException) as error:
        message = explain_refused(settings, error, needed)
        if message == str(error):
            raise
        raise (type(error) if isinstance(error, JobStopped) else JobStopped)(message) from error


def _command(principal: str, servers: str, missing: Iterable[Permission]) -> Iterator[str]:
    """A command for each resource, with all operations that are missing on it."""
    named = principal if principal.startswith("User:") else "User:SUBJECT_OF_THE_CERTIFICATE"
    for (type_, name, prefix), operations in by_resource(missing).items():
        wanted = " ".join(f"--operation {operation}" for operation in operations)
        pattern = " --resource-pattern-type prefixed" if prefix else ""
        yield (
            f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal '{named}' {wanted} "
            f"{OPTIONS[type_]} {name}{pattern}".rstrip()
        )


def is_not_authorized(error: Any, type_: str) -> bool:
    """Whether an error of Kafka's clients says that a permission on such a resource is missing."""
    return isinstance(error, KafkaError) and NOT_AUTHORIZED.get(str(error.name())) == type_
