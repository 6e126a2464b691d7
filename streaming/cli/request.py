"""`lockkeeper request`: send one request and wait for the decision."""

import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import app
from streaming.cli.cluster import reach
from streaming.cli.failures import FAILED, MISUSED, Failure
from streaming.cli.options import Bootstrap, Config, Json, settings_of
from streaming.cli.output import tell, tell_json

if TYPE_CHECKING:
    from streaming.asking import Answer
    from streaming.settings import Settings

STANDARD_INPUT = "-"


@app.command("request")
def request(
    system: Annotated[str | None, typer.Option(help="Such as lenses6.")] = None,
    subject: Annotated[str | None, typer.Option(help="Who: the subject's id.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group the subject claims; may be repeated.")] = None,
    action: Annotated[str | None, typer.Option(help="What to do: the action's name.")] = None,
    resource: Annotated[str | None, typer.Option(help="On what: the resource's id.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="NAME=VALUE of the resource; may be repeated.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="The request's context, in JSON.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="A whole request in JSON, instead; - is standard input.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The request topic; the first one when left out.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait; also the request's deadline.")] = 10.0,
    config: Config = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Send one access request, wait for the decision and print it.

    Exit code: 0 for an allow alone; 1 for a deny, an error, a dead letter, or no answer in time.

    \b
    Examples:
      lockkeeper request --system lenses6 --subject user:dana --group readers \\
        --action kafka:GetTopicDetails --resource kafka:topic:prod/main/orders
      lockkeeper request --file request.json --json
    """
    from streaming.asking import ask

    given: dict[str, Any] = {"subject": subject, "groups": group, "action": action, "resource": resource}
    short = {name: value for name, value in given.items() if value}
    if property_:
        short["properties"] = dict(map(_pair, property_))
    if context is not None:
        short["context"] = _object("--context", context)
    asked = _whole(file, system, short)
    asked.setdefault("deadline", int((time.time() + timeout) * 1000))
    settings = settings_of(config, bootstrap)
    where = _topic(settings, topic)
    reach(settings)
    answer = ask(settings, where, asked, timeout)
    _show(answer, as_json)
    if answer.decision is None or answer.decision.get("decision") is not True:
        raise typer.Exit(FAILED)


def _whole(file: str | None, system: str | None, short: dict[str, Any]) -> dict[str, Any]:
    """The request in a file, or the one that options say in short. Raises Failure when there is not one of both."""
    from policy.casefile import full_request

    if file is not None:
        if system or short:
            raise Failure("--file holds the whole request: leave out the options that say another", MISUSED)
        return _object(f"--file {file}", _read(file))
    lacking = [name for name in ("subject", "action", "resource") if name not in short]
    if system is None or lacking:
        options = ", ".join(f"--{name}" for name in ([] if system else ["system"]) + lacking)
        raise Failure(f"{options}: needed, or --file with a whole request", MISUSED)
    return {**full_request(short, system), "id": f"cli-{uuid.uuid4()}"}


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--file {file}: {error}", MISUSED) from error


def _object(where: str, text: str) -> dict[str, Any]:
    from policy.texts import Unreadable, read_json

    try:
        value = read_json(text)
    except Unreadable as error:
        raise Failure(f"{where}: {error}", MISUSED) from error
    if not isinstance(value, dict):
        raise Failure(f"{where}: must be a JSON object, not {text.strip()[:40]}", MISUSED)
    return value


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Failure(f"--property {text}: write NAME=VALUE", MISUSED)
    return name, value


def _topic(settings: "Settings", topic: str | None) -> str:
    known: Sequence[str] = settings.topics.requests
    if topic is not None and topic not in known:
        raise Failure(f"--topic {topic}: not a request topic; those are {', '.join(known)}", MISUSED)
    return topic or known[0]


def _show(answer: "Answer", as_json: bool) -> None:
    if as_json:
        tell_json(answer.decision or {"dead_letter": answer.dead_letter})
        return
    if answer.decision is None:
        tell(f"DEAD LETTER  {answer.dead_letter}")
        return
    context = answer.decision["context"]
    tell(f"{context['outcome'].upper()}  after {answer.seconds:.3f} s, policies {context['policy_version'][:19]}")
    for line in explanation(context):
        tell(f"  {line}")


def explanation(context: dict[str, Any]) -> list[str]:
    """The reasons of a decision and what was missing, a line each, with the rule behind."""
    told = [*context.get("reasons", []), *context.get("missing", [])]
    return [f"{one['message']} [{one['rule']}]" if one.get("rule") else one["message"] for one in told]
