"""`lockkeeper decisions`: past decisions by subject, action, resource, outcome and time."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.failure import MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_json
from streaming.decision_log.remarks import remarks

if TYPE_CHECKING:
    from streaming.decision_log.search import Answer, Found, Query
    from streaming.history.span import Span

Subject = Annotated[str, typer.Option("--subject", help="The subject's id; a * at the end stands for anything.")]
Action = Annotated[str, typer.Option("--action", help="The action's name, likewise.")]
Resource = Annotated[str, typer.Option("--resource", help="The resource's id, likewise.")]
Outcome = Annotated[
    str, typer.Option("--outcome", help="allow, deny or error: by the job, or in an answer given elsewhere.")
]
Since = Annotated[
    str, typer.Option("--since", help="From then on: RFC 3339, ms since 1970, or a length such as 90m, 24h or 7d.")
]
Until = Annotated[str | None, typer.Option("--until", help="Before then; now if it is left out.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="The newest so many.")]
Exact = Annotated[bool, typer.Option("--exact", help="A * at the end is a character of the name.")]
WIDTHS = (24, 5, 20, 28, 44)  # of the columns before the id


@app.command("decisions")
def decisions(
    subject: Subject = "",
    action: Action = "",
    resource: Resource = "",
    outcome: Outcome = "",
    since: Since = "24h",
    until: Until = None,
    limit: Limit = 20,
    exact: Exact = False,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Search past decisions on Kafka; the newest are last. Times are Kafka's, of the decision records.

    The last columns are the decision's id, for `lockkeeper explain --decision`, and its first reason. Says what the
    topic's retention has deleted of the range.

    \b
    Examples:
      lockkeeper decisions --subject user:dana --outcome deny --since 24h
      lockkeeper decisions --resource "kafka:topic:prod/*" --since 2026-11-21T14:00:00Z --until 2026-11-21T14:05:00Z
      lockkeeper decisions --action kafka:DeleteTopic --limit 1000 --json
    """
    from policy import OUTCOMES
    from streaming.decision_log.search import Query, search

    if outcome and outcome not in OUTCOMES:
        raise Failure(f"--outcome {outcome}: must be one of {', '.join(OUTCOMES)}", MISUSED)
    query = Query(span_since(since, until), subject, action, resource, outcome, limit, exact)
    settings = kafka.settings()
    admin = connect(settings, settings.topics.decisions)
    answer = search(settings, admin, query)
    _remarks(answer, query, settings.topics.decisions)
    for entry in answer.found:
        if as_json:
            echo_json(entry.decision)
        else:
            echo(_line(entry))


def span_since(since: str, until: str | None) -> "Span":
    """The range from a moment, or from so long ago, on. Raises Failure."""
    from streaming.history.span import LENGTH, SpanError, span_of

    now = time.time_ns() // 1_000_000
    begin, last = (None, since) if LENGTH.fullmatch(since) else (since, None)
    try:
        return span_of(begin, until, last, now)
    except SpanError as error:
        text = str(error).replace("--from", "--since").replace("--last", "--since")
        lengths = ", nor a length such as 90m, 24h or 7d" if text.startswith("--since: ") else ""
        raise Failure(text + lengths, MISUSED) from error


def _remarks(answer: "Answer", query: "Query", topic: str) -> None:
    from policy import to_text

    if answer.kept_from is not None:
        echo_err(
            f"{topic}: decisions before {to_text(answer.kept_from)} may have been deleted by the topic's retention"
        )
    if answer.unreadable:
        echo_err(f"{answer.unreadable} records cannot be read as decisions")
    if answer.more:
        echo_err(f"older decisions that fit: {answer.more}; raise --limit to see them")
    if not answer.found:
        fits = " fits" if query.subject or query.action or query.resource or query.outcome else ""
        echo_err(f"no decision{fits} from {to_text(query.span.start)} until {to_text(query.span.end)}")


def _line(entry: "Found") -> str:
    """Time, outcome, subject, action, resource, the decision's id, and the first reason."""
    decision = entry.decision
    context = decision.get("context", {})
    request = context.get("request", {})
    items = decision.get("evaluations", ())
    named = (("subject", "id"), ("action", "name"), ("resource", "id"))
    parts = [f"batch of {len(items)}", "", ""] if items else [request.get(p, {}).get(f, "?") for p, f in named]
    columns = (decision.get("time") or "?", str(context.get("outcome", "?")).upper(), *parts)
    line = "  ".join(f"{text:{width}}" for text, width in zip(columns, WIDTHS, strict=True))
    why = [*remarks(decision), *(reason.get("message", "") for reason in context.get("reasons", ())[:1])]
    return f"{line}  {decision.get('id', '?')}  {'; '.join(why)}"
