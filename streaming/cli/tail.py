"""`lockkeeper tail`: decisions or alerts as they come."""

import enum
import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import (
    Bootstrap,
    Config,
    Json,
    app,
    echo_err,
    echo_json,
    echo_now,
    reach,
    settings_of,
    stop_on_signals,
)

if TYPE_CHECKING:
    from streaming.records.registry import CompiledDocuments
    from streaming.records.schemas import Kind


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
    config: Config = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Print decisions or alerts as they are committed, until Ctrl-C or SIGTERM.

    \b
    Examples:
      lockkeeper tail decisions
      lockkeeper tail alerts --from-beginning --json
      lockkeeper tail decisions --count 10
    """
    from streaming.kafka.reader import follow
    from streaming.records.registry import CompiledDocuments

    settings = settings_of(config, bootstrap)
    topic = settings.topics.decisions if what is Stream.decisions else settings.topics.alerts
    reach(settings, topic)
    echo_err(f"following {topic} at {settings.bootstrap_servers}")
    readings = CompiledDocuments(settings.schema_registry)
    with stop_on_signals() as stop:
        records = follow(settings, topic, from_beginning, stop.is_set)
        for message in itertools.islice(records, count):
            _show(what, message.value() or b"", readings, as_json)


def _show(what: Stream, value: bytes, readings: "CompiledDocuments", as_json: bool) -> None:
    import msgspec

    from streaming.records.avro import Undecodable

    try:
        record = msgspec.json.decode(readings.json(KINDS[what], value), type=dict[str, Any])
    except Undecodable as error:
        echo_err(f"a record that cannot be read: {error}")
        return
    except ValueError:
        echo_err(f"a record that is no JSON object, {len(value)} bytes")
        return
    if as_json:
        echo_json(record)
    else:
        echo_now(_decision_line(record) if what is Stream.decisions else _alert_line(record))


def _decision_line(record: dict[str, Any]) -> str:
    context = record.get("context", {})
    outcome = str(context.get("outcome", "?")).upper()
    reasons = "; ".join(reason["message"] for reason in context.get("reasons", []))
    time, system, asker = (record.get(field, "?") for field in ("time", "system", "request_id"))
    return f"{time:24}  {outcome:5}  {system}  {asker}  {reasons}"


def _alert_line(record: dict[str, Any]) -> str:
    time, severity, kind, message = (record.get(field, "?") for field in ("time", "severity", "kind", "message"))
    return f"{time:24}  {severity:8}  {kind:20}  {message}"
