"""Reaching the cluster: that it answers, has the topics, and grants what a command needs, before it waits for more."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from streaming.cli.failure import Failure
from streaming.cli.output import echo_err_after

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.kafka.permissions import Permission
    from streaming.settings import Settings

SECONDS = 5.0
HINT_SECONDS = 2.0


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
    try:
        login_errors = LoginErrors(settings)
        admin = login_errors.admin
        with echo_err_after(HINT_SECONDS, f"waiting for Kafka at {settings.bootstrap_servers}, up to {wait:g} s"):
            check_reachable(admin, wait)
        denied = missing_permissions(admin, [*needed, *groups, *permissions])
        there = partition_numbers(admin, [*read, *written, *described])
    except (KafkaException, TimeoutError) as error:
        cause = error if login_errors is None else login_errors.cause_of(error)
        if is_login_refused(cause):
            raise Failure(
                f"Kafka at {settings.bootstrap_servers} refuses the login, or its certificate is not trusted: {cause}. "
                "Correct the user, password and certificates under `kafka` in the settings"
            ) from error
        why = error.args[0].str() if isinstance(error, KafkaException) else "no answer"
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
