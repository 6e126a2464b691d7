"""Reaching the cluster: that it answers, has the topics, and grants what a command needs, before it waits for more."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from streaming.cli.failure import Failure
from streaming.cli.output import echo_err_after

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.kafka.permissions import Permission
    from streaming.settings import Settings

SECONDS = 5.0
HINT_SECONDS = 2.0

_connected: ContextVar[list[Callable[[], object]]] = ContextVar("connected")
"""Calls that connect again as the command that runs has."""


@contextlib.contextmanager
def failures_explained() -> Iterator[None]:
    """While a command runs: where Kafka fails it, connecting again names what has been taken away since it began.

    Kafka's errors name neither the operation nor, mostly, the topic, and nothing that would help. Raises Failure.
    """
    connected: list[Callable[[], object]] = []
    before = _connected.set(connected)
    try:
        yield
    except Exception as error:
        if connected:
            from confluent_kafka import KafkaException

            if isinstance(error, KafkaException | TimeoutError):
                for connect_again in connected:
                    connect_again()
        raise
    finally:
        _connected.reset(before)


def connect(
    settings: "Settings",
    *read: str,
    documents: Sequence[str] = (),
    written: Sequence[str] = (),
    described: Sequence[str] = (),
    permissions: Iterable["Permission"] = (),
    wait: float = SECONDS,
) -> "AdminClient":
    """A client of a cluster that answers, has the topics, and lets them be read and written. Raises Failure.

    `documents`: topics of policies and facts, which are read as well, and for how long they keep deletions.
    `described`: topics of which no record is read, but how many there are. `permissions`: what is needed beside that.
    Consumers that read topics name the job's group. `wait`: seconds for the cluster to answer.
    """
    needed = functools.partial(_connect, settings, read, documents, written, described, tuple(permissions), wait)
    admin = needed()
    _connected.get([]).append(needed)
    return admin


def _connect(
    settings: "Settings",
    read: Sequence[str],
    documents: Sequence[str],
    written: Sequence[str],
    described: Sequence[str],
    permissions: Iterable["Permission"],
    wait: float,
) -> "AdminClient":
    import structlog
    from confluent_kafka import KafkaException

    from streaming.kafka.clients import LoginErrors, check_reachable, is_login_refused, partition_numbers
    from streaming.kafka.permissions import (
        Permission,
        missing_permissions,
        topic_permissions,
    )
    from streaming.ops.logs import log_warnings_only

    if not structlog.is_configured():  # of a job it is; results on standard output are not mixed with what is logged
        log_warnings_only(sys.stderr)
    read = (*read, *documents)
    groups = [Permission("group", settings.job_name, "Describe")] if read else []
    topics = {"Read": read, "DescribeConfigs": documents, "Write": written, "Describe": described}
    needed = [permission for operation, names in topics.items() for permission in topic_permissions(operation, names)]
    login_errors: LoginErrors | None = None
    answers = False
    try:
        login_errors = LoginErrors(settings)
        admin = login_errors.admin
        with echo_err_after(HINT_SECONDS, f"waiting for Kafka at {settings.bootstrap_servers}, up to {wait:g} s"):
            check_reachable(admin, wait)
        answers = True
        denied = missing_permissions(admin, [*needed, *groups, *permissions])
        there = partition_numbers(admin, [*read, *written, *described])
    except (KafkaException, TimeoutError) as error:
        cause = error if login_errors is None else login_errors.cause_of(error)
        if is_login_refused(cause):
            raise Failure(
                f"Kafka at {settings.bootstrap_servers} refuses the login, or its certificate is not trusted: {cause}. "
                "Correct the user, password and certificates under `kafka` in the settings"
            ) from error
        why = error.args[0].str() if isinstance(error, KafkaException) else str(error) or "no answer"
        if answers:
            raise Failure(
                f"Kafka at {settings.bootstrap_servers} answers, but does not say in time which topics and permissions "
                f"there are ({why}). It is overloaded, or the network is slow: run the command again"
            ) from error
        raise Failure(
            f"no Kafka at {settings.bootstrap_servers} ({why}, waited {wait:g} s). Start it, or "
            "name another with --bootstrap HOST:PORT, bootstrap_servers in --config, or LOCKKEEPER_BOOTSTRAP_SERVERS"
        ) from error
    if denied:  # before what is missing, for Kafka hides topics from those who may not describe them
        raise not_authorized(settings, denied)
    if missing := sorted({*read, *written, *described} - there.keys()):
        raise Failure(
            f"{', '.join(missing)}: no such topic at {settings.bootstrap_servers}. Run `lockkeeper topics create`, "
            "or name other topics in the settings"
        )
    return admin


def not_authorized(settings: "Settings", missing: Iterable["Permission"]) -> Failure:
    """The failure for permissions that the principal of the settings lacks: a line for each, and the ACLs to add."""
    from streaming.kafka.permissions import explain_lacking

    message, *details = explain_lacking(settings, missing).splitlines()
    return Failure(message, details=details)
