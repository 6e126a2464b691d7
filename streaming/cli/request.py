"""`lockkeeper request` and `lockkeeper tail`: send a request and wait for the decision; follow decisions or alerts."""

import contextlib
import enum
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import app
from streaming.cli.cluster import HINT_SECONDS, connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_err_after, echo_json, echo_lines, echo_now
from streaming.cli.request_options import AllowUnknown, Asked, refuse_unknown
from streaming.cli.signals import stop_on_signals
from streaming.decision_log.remarks import NOT_ENFORCED, remarks

if TYPE_CHECKING:
    from streaming.client import Decision
    from streaming.history.records import ConsumerRecord
    from streaming.records.registry import Deserializer
    from streaming.records.schemas import Kind
    from streaming.settings import Settings
    from streaming.settings.console import ConsoleSettings


REACH_SECONDS = 15.0
IS_IT_RUNNING = "Is `lockkeeper run` running with these topics?"


@app.command("request")
def request(
    topic: Annotated[str | None, typer.Option(help="The request topic; the first one when left out.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds to wait; also the request's deadline.")
    ] = 10.0,
    *,
    asked: Asked,
    kafka: KafkaOptions,
    allow_unknown: AllowUnknown = False,
    as_json: Json = False,
) -> None:
    """Send one access request, wait for the decision and print it.

    An action or a type that the system does not have is reported, and nothing is sent. Exit code: 0 for an allow alone;
    1 for a deny, an error, a dead letter, or no answer in time; 2 for such a name.

    \b
    Examples:
      lockkeeper request --system lenses6 --subject user:dana --group readers \\
        --action kafka:GetTopicDetails --resource kafka:topic:prod/main/orders
      lockkeeper request --file request.json --json
    """
    from streaming.client import Client, Connection

    request = asked.whole()
    _refuse_unknown(request, allow_unknown)
    settings = kafka.settings()
    where = _topic(settings, topic)
    _reach(settings, where)
    with Client(Connection.of(settings), requests=where) as client:
        with echo_err_after(HINT_SECONDS, f"connecting to {settings.bootstrap_servers}, up to {REACH_SECONDS:g} s"):
            client.ready(REACH_SECONDS)  # so that the time to connect is not taken from the answer's
        with echo_err_after(HINT_SECONDS, f"waiting for the decision, up to {timeout:g} s. {IS_IT_RUNNING}"):
            decision = client.authorize(request, timeout)
    _show(decision, as_json)
    if not decision.allowed:
        raise typer.Exit(FAILED)


def _refuse_unknown(request: dict[str, Any], allowed: bool) -> None:
    """Raise Failure for an action or type that the catalogue lacks. What is no request is sent: it is a dead letter."""
    from policy import MalformedRequest
    from policy.analysis import unknown_terms

    with contextlib.suppress(MalformedRequest):
        refuse_unknown(unknown_terms(request), allowed)


def _topic(settings: "Settings", topic: str | None) -> str:
    topics: Sequence[str] = settings.topics.requests
    if topic is not None and topic not in topics:
        raise Failure(f"--topic {topic}: not a request topic; those are {', '.join(topics)}", MISUSED)
    return topic or topics[0]


def _reach(settings: "Settings", where: str) -> None:
    """As the client library does, which reads under the name of a group of its own."""
    from streaming.kafka.permissions import CLIENT_GROUP, Permission, topic_permissions
    from streaming.topics import dead_letters_of

    answers = (settings.topics.decisions, dead_letters_of(where))
    reading = [*topic_permissions("Read", answers), Permission("group", CLIENT_GROUP, "Describe")]
    connect(settings, written=[where], described=answers, permissions=reading)


def _show(decision: "Decision", as_json: bool) -> None:
    """Print it. Raises Failure without an answer, such as at a timeout."""
    why = decision.reasons[0].message if decision.reasons else ""
    if not decision.raw and decision.code != "dead-letter":
        message, *details = why.splitlines() or [why]  # the client's own words, with a line for each missing ACL
        raise Failure(message, details=details)
    if as_json:
        echo_json(decision.to_record() if decision.raw else {"dead_letter": why})
    elif decision.raw:
        policies = f"policies {decision.policy_version[:19]}{'' if decision.enforced else f', {NOT_ENFORCED}'}"
        echo(f"{decision.outcome.upper()}  after {decision.seconds:.3f} s, {policies}")
        echo_lines(f"  {line}" for line in explanation(decision))
    else:
        echo(f"DEAD LETTER  {why}")


def explanation(decision: "Decision") -> list[str]:
    """The reasons of a decision and what was missing, a line each, with the rule behind."""
    reasons = [(reason.message, reason.rule) for reason in decision.reasons]
    reasons += [(lack.message, lack.rule) for lack in decision.missing]
    return [f"{message} [{rule}]" if rule else message for message, rule in reasons]


class Stream(enum.StrEnum):
    """The topics that can be followed."""

    decisions = "decisions"
    alerts = "alerts"


KINDS: dict[Stream, "Kind"] = {Stream.decisions: "decision", Stream.alerts: "alert"}


@app.command("tail")
def tail(
    what: Annotated[Stream, typer.Argument(show_default=False)],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many.")] = None,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Print decisions or alerts as they are committed, until Ctrl-C or SIGTERM.

    \b
    Examples:
      lockkeeper tail decisions
      lockkeeper tail alerts --from-beginning --json
      lockkeeper tail decisions --count 10
    """
    from streaming.history.records import record_of
    from streaming.kafka.reader import follow
    from streaming.records.registry import Deserializer

    settings = kafka.settings()
    topic = settings.topics.decisions if what is Stream.decisions else settings.topics.alerts
    connect(settings, topic)
    echo_err(f"following {topic} at {settings.bootstrap_servers}")
    deserializer = Deserializer(settings.schema_registry)
    with stop_on_signals() as stop:
        records = follow(settings, topic, from_beginning, stop.is_set)
        for message in itertools.islice(records, count):
            _show_record(what, record_of(message), deserializer, settings.console, as_json)


def _show_record(
    what: Stream, record: "ConsumerRecord", deserializer: "Deserializer", console: "ConsoleSettings", as_json: bool
) -> None:
    import msgspec

    from streaming.records.avro import Undecodable

    try:
        value = deserializer.json(KINDS[what], record.value)
        id_, line = _decision_line(value) if what is Stream.decisions else _alert_line(value)
    except (Undecodable, ValueError, RecursionError) as error:
        echo_err(f"{record.source} is not one of the {what}: {error}")
        return
    if as_json:
        echo_json(msgspec.json.decode(value))
    else:
        page = console.page("decisions" if what is Stream.decisions else "alerts", id_)
        echo_now(f"{line}  {page}" if page else line)


def _decision_line(value: bytes) -> tuple[str, str]:
    """The id and the line of a decision in JSON. Raises ValueError and RecursionError."""
    from streaming.records.decision import read_plain_decision

    decision = read_plain_decision(value)
    context = decision["context"]
    reasons = "; ".join([*remarks(decision), *(reason["message"] for reason in context.get("reasons", ()))])
    id_, time, system, asker = (decision.get(field, "?") for field in ("id", "time", "system", "request_id"))
    return id_, f"{time:24}  {context['outcome'].upper():5}  {system}  {asker}  {reasons}"


def _alert_line(value: bytes) -> tuple[str, str]:
    """The same of an alert."""
    from streaming.records.alert import read_alert

    alert = read_alert(value)
    return alert.id, f"{alert.time:24}  {alert.severity:8}  {alert.kind:20}  {alert.message}"
