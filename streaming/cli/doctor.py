"""`lockkeeper doctor | status`: what became of a request, and the state of the job."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.decisions import Since, span_since
from streaming.cli.failure import FAILED, Failure
from streaming.cli.output import echo_err, echo_json, echo_lines
from streaming.decision_log.remarks import remarks

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.decision_log.status import GroupStatus, Status
    from streaming.decision_log.trace import Traced
    from streaming.settings import Settings

SECOND_MS = 1000


@app.command("doctor")
def doctor(
    request_id: Annotated[str, typer.Argument(help="The request's id.", show_default=False)],
    since: Since = "24h",
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Show what became of a request: where it was produced, whether it was decided, and by which record.

    Reads the topics of requests and of answered requests from --since on, the offsets that the job has committed,
    decisions and dead letters. A record that is not a request has no id: it is in the dead-letter topic. Exit code: 0
    if each record is decided.

    \b
    Examples:
      lockkeeper doctor r-1
      lockkeeper doctor r-1 --since 2026-11-21T14:00:00Z --json
    """
    from streaming.decision_log.trace import trace
    from streaming.topics import dead_letters_of

    span = span_since(since, None)
    settings = kafka.settings()
    names = settings.topics
    admin = connect(settings, names.decisions, *names.asking, *map(dead_letters_of, names.asking))
    traces = trace(settings, admin, request_id, span.start)
    if not traces:
        raise Failure(
            f"no request {request_id} in {', '.join(names.asking)} within {since}: it was produced to another "
            "topic or cluster, earlier (--since), or is not a request and in the dead-letter topic"
            f"{_deleted(settings, admin, span.start)}"
        )
    for traced in traces:
        if as_json:
            echo_json(_plain(traced))
        else:
            echo_lines(_lines(traced))
    _warn_of_older_protocol(settings)
    if not all(traced.decision for traced in traces):
        raise typer.Exit(FAILED)


def _deleted(settings: "Settings", admin: "AdminClient", since: int) -> str:
    """What retention may have taken of the requests from a moment (ms) on, in words."""
    from policy import to_text
    from streaming.history.ranges import Topics

    moments = Topics(settings, admin).deleted_before_by_topic(settings.topics.asking, since)
    return "".join(
        f"; retention may have deleted it: it has taken requests of {topic} before {to_text(moment)}"
        for topic, moment in moments.items()
    )


def _warn_of_older_protocol(settings: "Settings") -> None:
    """Say what the brokers' transaction protocol does not promise, where PySpark is installed, whose Java can ask."""
    if find_spec("pyspark") is None:
        return
    from streaming.commit.protocol import cluster_transaction_version, explain_version

    version = cluster_transaction_version(settings)
    if version is not None and (explanation := explain_version(version)):
        echo_err(f"attention: {explanation}")


def _plain(traced: "Traced") -> dict[str, Any]:
    from streaming.decision_log.dead_letters import exception_message

    record, committed = traced.record, traced.committed
    return {
        "source": {"topic": record.topic, "partition": record.partition, "offset": record.offset},
        "produced_at": record.at,
        "committed": committed.offset if committed else None,
        "batch": committed.metadata.batch if committed and committed.metadata else None,
        "lag": traced.lag,
        "ahead": traced.ahead,
        "decision": traced.decision.decision if traced.decision else None,
        "decided_at": traced.decision.record.at if traced.decision else None,
        "dead_letter": exception_message(traced.dead_letter) if traced.dead_letter else None,
        "answers_from": traced.answers_from,
        "unreadable": traced.unreadable,
    }


def _lines(traced: "Traced") -> Iterator[str]:
    from policy import to_text

    record, committed = traced.record, traced.committed
    yield f"produced to {record.topic}-{record.partition} at offset {record.offset}, {to_text(record.at)}"
    if committed is None:
        yield "the job has committed nothing of this partition: it has not run yet, or has another job_name"
    else:
        batch = f", batch {committed.metadata.batch}" if committed.metadata else ""
        yield f"the job has decided up to offset {committed.offset - 1}{batch}; lag: {traced.lag} records"
    yield from _answer(traced)


def _answer(traced: "Traced") -> Iterator[str]:
    from policy import to_text
    from streaming.decision_log.dead_letters import describe_dead_letter
    from streaming.decision_log.search import unreadable_text

    if traced.decision is not None:
        record, decision = traced.decision.record, traced.decision.decision
        seconds = (record.at - traced.record.at) / SECOND_MS
        outcome = decision["context"]["outcome"]
        yield f"decided after {seconds:.3f} s: {outcome}, {record.topic}-{record.partition} at offset {record.offset}"
        yield f"decision {decision['id']}"
        yield from (f"  {text}" for text in remarks(decision))
        yield from (f"  {reason['message']}" for reason in decision["context"].get("reasons", ()))
    elif traced.dead_letter is not None:
        yield f"refused, {describe_dead_letter(traced.dead_letter)}"
    elif traced.decided:
        if traced.answers_from is not None:
            yield f"decided, but answers before {to_text(traced.answers_from)} were deleted by the topics' retention"
        else:
            lost = f"no answer is there{unreadable_text(traced.unreadable)}"
            yield f"committed as decided, but {lost}: run `lockkeeper verify`"
    elif traced.hung and traced.record.offset >= traced.end - traced.hung:
        yield "not decided: a transaction of its producer is open, and hides it from readers"
    else:
        yield f"not decided yet: {traced.ahead} records of its partition come before it; see `lockkeeper status`"


@app.command("status")
def show_status(
    metrics: Annotated[
        str, typer.Option("--metrics", help="Also ask the job's metrics endpoint, such as http://localhost:9464.")
    ] = "",
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Show the state of the job, its policies and its monitor, by committed offsets, their metadata and the topics.

    Nothing of the job itself is asked but its metrics endpoint, where --metrics names it. Exit code 1: something needs
    attention.

    \b
    Examples:
      lockkeeper status
      lockkeeper status --metrics http://localhost:9464 --json
    """
    from streaming.decision_log.status import status
    from streaming.kafka.permissions import Permission
    from streaming.settings import monitor_settings

    settings = kafka.settings()
    names = settings.topics
    topics = (*names.inputs, *names.policy_topics().values(), names.facts, names.decisions, names.verdicts)
    groups = [Permission("group", owner.job_name, "Describe") for owner in (settings, monitor_settings(settings))]
    current = status(settings, connect(settings, described=topics, permissions=groups), metrics)
    if as_json:
        echo_json(current)
    else:
        echo_lines(_status_lines(current))
    if current.problems:
        raise typer.Exit(FAILED)


def _status_lines(status: "Status") -> Iterator[str]:
    yield from _group_lines("job", status.job)
    yield f"newest decision: {_ago(status.at, status.decided)}"
    for topic, newest in status.policies.items():
        yield f"newest document of {topic}: {_ago(status.at, newest)}"
    yield from _group_lines("monitor", status.monitor)
    if status.metrics:
        yield f"metrics endpoint: {status.metrics}"
    yield from (f"attention: {problem}" for problem in status.problems)


def _group_lines(what: str, group: "GroupStatus") -> Iterator[str]:
    yield f"{what} {group.group}: {_newest_batch(group)}, lag {group.lag} records"
    for topic in group.topics:
        read = "nothing read" if topic.committed is None else f"read {topic.committed} of {topic.end}"
        yield f"  {topic.topic}: {read}" + (f", lag {topic.lag}" if topic.lag else "")


def _newest_batch(group: "GroupStatus") -> str:
    if group.batch is None:
        return "nothing committed"
    # A new group commits where it begins before it has a batch or a checkpoint.
    return f"batch {group.batch} of checkpoint {group.checkpoint}" if group.checkpoint else "no batch yet"


def _ago(now: int, moment: int | None) -> str:
    from policy import to_text

    if moment is None:
        return "none"
    seconds = max(now - moment, 0) // SECOND_MS
    return f"{to_text(moment)}, {seconds // 3600} h {seconds // 60 % 60} min {seconds % 60} s ago"
