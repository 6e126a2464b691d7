"""`lockkeeper request`: send one request and wait for the decision."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import app
from streaming.cli.asked import (
    AskedAction,
    AskedContext,
    AskedFile,
    AskedGroups,
    AskedProperties,
    AskedResource,
    AskedSubject,
    AskedSystem,
    short_form,
    whole_request,
)
from streaming.cli.cluster import reach
from streaming.cli.failures import FAILED, MISUSED, Failure
from streaming.cli.options import Bootstrap, Config, Json, settings_of
from streaming.cli.output import tell, tell_json

if TYPE_CHECKING:
    from streaming.asking import Answer
    from streaming.settings import Settings


@app.command("request")
def request(
    system: AskedSystem = None,
    subject: AskedSubject = None,
    group: AskedGroups = None,
    action: AskedAction = None,
    resource: AskedResource = None,
    property_: AskedProperties = None,
    context: AskedContext = None,
    file: AskedFile = None,
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
    from streaming.topics import dead_letters_of

    asked = whole_request(file, system, short_form(subject, group, action, resource, property_, context))
    asked.setdefault("deadline", int((time.time() + timeout) * 1000))
    settings = settings_of(config, bootstrap)
    where = _topic(settings, topic)
    reach(settings, where, settings.topics.decisions, dead_letters_of(where))
    answer = ask(settings, where, asked, timeout)
    _show(answer, as_json)
    if answer.decision is None or answer.decision.get("decision") is not True:
        raise typer.Exit(FAILED)


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
