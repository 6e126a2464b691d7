"""A broker on which users may only do what the KafkaUser resources allow, as Strimzi sets one up."""

import contextlib
import socket
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streaming.broker import HOST
from streaming.kafka.permissions import OPERATIONS, Permission
from streaming.settings import Settings
from tests.java_archive import embedded_broker
from tests.stream.certificates import Authority
from tests.waiting import wait_until

PASSWORD = "of-a-test"
SECONDS = 30
TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefix": ResourcePatternType.PREFIXED}
LISTENERS = {"PLAINTEXT": "PLAINTEXT", "SCRAM": "SASL_SSL", "MTLS": "SSL"}


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """`admin`: an administrator's client. `plain`: its address; all others must log in.

    `scram`: with SCRAM over TLS; `mtls`: with a client certificate.
    """

    admin: AdminClient
    authority: Authority
    plain: str
    scram: str
    mtls: str

    def kafka(self, user: str) -> dict[str, str]:
        """librdkafka's settings for a user who logs in with SCRAM over TLS."""
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": PASSWORD}
        return {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.authority.ca), **login}

    def kafka_by_certificate(self, user: str) -> dict[str, str]:
        """librdkafka's settings for a user with a client certificate."""
        pem = self.authority.issue(user)
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.ca),
            "ssl.certificate.location": str(pem.certificate),
            "ssl.key.location": str(pem.key),
        }

    def by_password(self, settings: Settings, user: str) -> Settings:
        """Settings of a job that logs in as a user with SCRAM."""
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required "
        source = {
            **self._trusting("SASL_SSL"),
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{login}username="{user}" password="{PASSWORD}";',
        }
        return msgspec.structs.replace(settings, bootstrap_servers=self.scram, kafka=self.kafka(user), source=source)

    def by_certificate(self, settings: Settings, user: str) -> Settings:
        """Settings of a job that logs in as a user with a client certificate."""
        keys = {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": str(self.authority.issue(user).both)}
        kafka, source = self.kafka_by_certificate(user), {**self._trusting("SSL"), **keys}
        return msgspec.structs.replace(settings, bootstrap_servers=self.mtls, kafka=kafka, source=source)

    def _trusting(self, protocol: str) -> dict[str, str]:
        ca = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(self.authority.ca)}
        return {"kafka.security.protocol": protocol, **ca}


@contextlib.contextmanager
def secured_broker() -> Iterator[SecuredBroker]:
    """A broker with a listener for each way to log in."""
    *ports, controller = broker_ports()
    with tempfile.TemporaryDirectory(prefix="lockkeeper-test-ca-") as folder:
        authority = Authority(Path(folder))
        with embedded_broker(port=ports[0], config=broker_config(authority, ports, controller)) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            yield SecuredBroker(admin, authority, *(f"{HOST}:{port}" for port in ports))


def broker_ports() -> list[int]:
    """Ports on which nobody listens: one for each listener, and the controller's."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(len(LISTENERS) + 1)]
        for listener in sockets:
            listener.bind((HOST, 0))
        return [listener.getsockname()[1] for listener in sockets]


def broker_config(authority: Authority, ports: list[int], controller: int) -> dict[str, str]:
    """Of a broker with a listener for each way to log in, at these ports."""
    ours = ",".join(f"{name}://{HOST}:{port}" for name, port in zip(LISTENERS, ports, strict=True))
    return {
        "listeners": f"{ours},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": ours,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        **security(authority),
    }


def security(authority: Authority) -> dict[str, str]:
    """What a broker is set to, so that users log in at its listeners and may do what ACLs allow."""
    protocols = ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())
    return {
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocols}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker").both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the test's administrator, and the brokers themselves
    }


def apply(admin: AdminClient, resources: list[dict[str, Any]]) -> None:
    """Do what Strimzi's operators do with KafkaTopic and KafkaUser resources."""
    topics = [r["spec"] for r in resources if r["kind"] == "KafkaTopic"]
    users = [r for r in resources if r["kind"] == "KafkaUser"]
    made = [NewTopic(t["topicName"], t["partitions"], 1, config=t["config"]) for t in topics]
    by_password = [user for user in users if user["spec"]["authentication"]["type"] == "scram-sha-512"]
    rights = [acl for user in users for acl in _acls(user)]
    if made:
        _done(admin.create_topics(made, operation_timeout=SECONDS).values())
    add_logins(admin, [user["metadata"]["name"] for user in by_password])
    _done(admin.create_acls(rights).values())
    wait_until(lambda: all(_is_granted(admin, acl) for acl in rights), "all ACLs are known")


def add_logins(admin: AdminClient, users: Iterable[str], password: str = PASSWORD) -> None:
    """Let users log in with a password, in place of the one that they had."""
    logins = [UserScramCredentialUpsertion(user, _credential(), password.encode()) for user in users]
    if logins:
        _done(admin.alter_user_scram_credentials(logins).values())


def _credential() -> ScramCredentialInfo:
    return ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)


def principal_of(user: dict[str, Any]) -> str:
    """The principal of a KafkaUser: with a client certificate, its subject."""
    name = user["metadata"]["name"]
    return f"User:CN={name}" if user["spec"]["authentication"]["type"] == "tls" else f"User:{name}"


def _acls(user: dict[str, Any]) -> Iterator[AclBinding]:
    for acl in user["spec"]["authorization"]["acls"]:
        pattern = acl["resource"]
        for operation in acl["operations"]:
            prefix = pattern["patternType"] == "prefix"
            yield binding(principal_of(user), Permission(pattern["type"], pattern["name"], operation, prefix))


def binding(principal: str, permission: Permission) -> AclBinding:
    """The ACL that grants a permission."""
    pattern = PATTERNS["prefix" if permission.prefix else "literal"]
    resource = TYPES[permission.type], permission.name, pattern
    return AclBinding(*resource, principal, "*", OPERATIONS[permission.operation], AclPermissionType.ALLOW)


@contextlib.contextmanager
def without(admin: AdminClient, principal: str, permission: Permission) -> Iterator[None]:
    """While it is open, the principal does not have the permission."""
    acl = binding(principal, permission)
    _done(admin.delete_acls([_filter(acl)]).values())
    wait_until(lambda: not _is_granted(admin, acl), f"{permission} is taken away")
    try:
        yield
    finally:
        grant(admin, principal, [permission])


def grant(admin: AdminClient, principal: str, permissions: Iterable[Permission]) -> None:
    """Grant permissions, and return once the broker knows them."""
    acls = [binding(principal, permission) for permission in permissions]
    _done(admin.create_acls(acls).values())
    wait_until(lambda: all(_is_granted(admin, acl) for acl in acls), f"{principal} is granted all")


def _is_granted(admin: AdminClient, acl: AclBinding) -> bool:
    return bool(admin.describe_acls(_filter(acl)).result(SECONDS))


def _filter(acl: AclBinding) -> AclBindingFilter:
    resource = acl.restype, acl.name, acl.resource_pattern_type
    return AclBindingFilter(*resource, acl.principal, acl.host, acl.operation, acl.permission_type)


def _done(futures: Iterable[Any]) -> None:
    for future in futures:
        future.result(SECONDS)
