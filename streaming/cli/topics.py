"""`lockkeeper topics` and `lockkeeper contracts`: create and check the topics; the schemas of their records."""

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app, topics_app
from streaming.cli.cluster import connect, not_authorized
from streaming.cli.common_options import Config, Json, KafkaOptions
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo_err, echo_json, echo_lines, echo_text

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.kafka.permissions import Permission
    from streaming.kafka.topics import Problem
    from streaming.settings import Settings


Partitions = Annotated[int, typer.Option(min=1, help="Of request, audit, decision and verdict topics.")]
PARTITIONS = 6
WAIT_SECONDS = 30.0


class Authentication(enum.StrEnum):
    """How users log in, by Strimzi's names."""

    scram = "scram-sha-512"
    tls = "tls"


@topics_app.command("create")
def create(
    *,
    kafka: KafkaOptions,
    partitions: Partitions = PARTITIONS,
    replication: Annotated[int, typer.Option(min=-1, help="Replicas of each topic; -1: as the broker says.")] = -1,
    mend: Annotated[bool, typer.Option("--mend", help="Correct the settings of existing topics.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to wait for a broker that is starting.")
    ] = WAIT_SECONDS,
    as_json: Json = False,
) -> None:
    """Create the missing topics, with the settings that the job requires, and check the others.

    Running it again changes nothing. Exit code 1: a topic would break a promise, and `run` would refuse it.

    \b
    Examples:
      lockkeeper topics create --bootstrap localhost:9092
      lockkeeper topics create --config lockkeeper.yaml --partitions 12 --replication 3
      lockkeeper topics create --mend
    """
    from confluent_kafka import KafkaException

    from streaming.kafka.permissions import topic_permissions
    from streaming.kafka.topics import check_topics, fix_topics
    from streaming.topics import topic_specs

    settings = kafka.settings()
    names, sizes = [spec.name for spec in topic_specs(settings.topics)], settings.limits
    needed = [*_looked_at(names), *(topic_permissions("AlterConfigs", names) if mend else ())]
    admin = connect(settings, permissions=needed, wait=wait)
    created: list[str] = []
    try:
        _create(settings, admin, partitions, replication, created)
        problems = check_topics(admin, settings.topics, sizes)
        if mend and problems:
            fix_topics(admin, problems)
            problems = check_topics(admin, settings.topics, sizes)
    except (Failure, KafkaException, TimeoutError):
        for name in created:
            echo_err(f"made   {name}")
        raise
    _show(names, set(created), problems, as_json)


def _create(settings: "Settings", admin: "AdminClient", partitions: int, replication: int, created: list[str]) -> None:
    """Appends to `created`, also before it fails. Raises Failure, KafkaException and TimeoutError."""
    from confluent_kafka import KafkaException

    from streaming.kafka.clients import error_name
    from streaming.kafka.permissions import CREATE_TOPICS, NOT_AUTHORIZED
    from streaming.kafka.topics import create_topics

    try:
        create_topics(
            admin,
            settings.topics,
            partitions=partitions,
            replication=replication,
            sizes=settings.limits,
            created=created,
        )
    except KafkaException as error:
        if error_name(error) in NOT_AUTHORIZED:
            raise not_authorized(settings, [CREATE_TOPICS]) from error
        raise


def _looked_at(names: Sequence[str]) -> "list[Permission]":
    from streaming.kafka.permissions import topic_permissions

    return [*topic_permissions("Describe", names), *topic_permissions("DescribeConfigs", names)]


@topics_app.command("check")
def check(kafka: KafkaOptions, as_json: Json = False) -> None:
    """Check that the topics exist with the settings that the job requires; changes nothing.

    Exit code 1: `run` would refuse a topic. With a warning it runs: of three or more replicas, at least two should be
    in sync (min.insync.replicas) before a record is acknowledged.

    \b
    Example:
      lockkeeper topics check --config lockkeeper.yaml
    """
    from streaming.kafka.topics import check_topics
    from streaming.topics import topic_specs

    settings = kafka.settings()
    names = [spec.name for spec in topic_specs(settings.topics)]
    admin = connect(settings, permissions=_looked_at(names))
    problems = check_topics(admin, settings.topics, settings.limits)
    _show(names, set(), problems, as_json)


@topics_app.command("manifest")
def manifest(
    users: Annotated[
        bool, typer.Option("--users", help="The users and what each may do, instead of the topics.")
    ] = False,
    authentication: Annotated[
        Authentication, typer.Option(help="With --users: how they log in. tls: with client certificates.")
    ] = Authentication.scram,
    cluster: Annotated[str, typer.Option(help="The name of Strimzi's Kafka resource.")] = "kafka",
    partitions: Partitions = PARTITIONS,
    replication: Annotated[int, typer.Option(min=1, help="Replicas of each topic.")] = 3,
    config: Config = None,
) -> None:
    """Print the topics, or the users, as resources of Strimzi on Kubernetes: KafkaTopic, KafkaUser. Needs no broker.

    \b
    Examples:
      lockkeeper topics manifest --config lockkeeper.yaml > topics.yaml
      lockkeeper topics manifest --users --config lockkeeper.yaml > users.yaml
    """
    import yaml

    from streaming.kafka.manifests import topic_manifests, user_manifests

    settings = KafkaOptions(config).settings()
    resources = (
        user_manifests(settings, cluster, authentication.value)
        if users
        else topic_manifests(settings, cluster, partitions, replication)
    )
    for resource in resources:
        echo_text(f"---\n{yaml.safe_dump(resource, sort_keys=False, width=120)}".rstrip())


def _show(names: list[str], created: set[str], problems: list["Problem"], as_json: bool) -> None:
    """Raises Exit where `run` would refuse a topic."""
    from streaming.kafka.topics import MISSING, explained_problems

    states = {name: "made" if name in created else "kept" for name in names}
    states |= {problem.topic: "missing" for problem in problems if problem.wrong == MISSING}
    states |= {problem.topic: "wrong" for problem in problems if problem.refused}
    if as_json:
        echo_json({"topics": states, "problems": problems})
    else:
        echo_lines(f"{state:5}  {name}" for name, state in states.items())
        for line in explained_problems(problems, refused=True):
            echo_err(line)
        for line in explained_problems(problems, refused=False):
            echo_err(f"warning: {line}")
    if any(problem.refused for problem in problems):
        raise typer.Exit(FAILED)


@app.command("contracts")
def contracts(
    name: Annotated[str | None, typer.Argument(help="A file, such as avro/request.avsc; all when left out.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write to this folder instead; files there are replaced.")] = None,
) -> None:
    """List the contracts, print one, or write them to a folder.

    JSON Schemas (2020-12), Avro schemas, those of every release, the topics as AsyncAPI 3, and the HTTP API of
    `lockkeeper serve` as OpenAPI 3.1. They refer to each other by path: copy all of them. The `$id` of a JSON Schema
    is a name and no address: give a validator the files.

    \b
    Examples:
      lockkeeper contracts
      lockkeeper contracts avro/request.avsc
      lockkeeper contracts --to contracts/
    """
    from streaming.records.schemas import names, read

    chosen = names() if name is None else [_known(name, names())]
    if to is not None:
        _write(chosen, to)
    elif name is None:
        echo_text("\n".join(chosen))
    else:
        echo_text(read(chosen[0]).rstrip("\n"))


def _known(name: str, names: list[str]) -> str:
    if name not in names:
        raise Failure(f"{name}: there is no such contract; there are {', '.join(names)}", MISUSED)
    return name


def _write(chosen: list[str], folder: Path) -> None:
    from streaming.records.schemas import read

    for name in chosen:
        file = folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(read(name), encoding="utf-8")
        except OSError as error:
            raise Failure(f"{file}: {error.strerror}; name a folder that can be written to") from error
    echo_err(f"{len(chosen)} files written to {folder}")
