"""`lockkeeper explain`: why a decision is what it is, of a request or of a past decision."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.nearest import nearest_lines
from streaming.cli.output import echo, echo_err, echo_json, echo_lines
from streaming.cli.request_options import Asked, Evaluation, refuse_unknown
from streaming.decision_log.remarks import remarks
from streaming.terminal import one_line, raw

if TYPE_CHECKING:
    from rich.tree import Tree

    from policy.analysis import Nearest, Node
    from streaming.decision_log.replay import Replay
    from streaming.decision_log.search import Found

UNWRAPPED = 100_000  # columns
SIGNS = {True: ("✔", "green"), False: ("✘", "red"), None: ("?", "yellow")}
Id = Annotated[
    str | None, typer.Option("--decision", help="Instead: a past decision by its id, by the policies of that time.")
]


@app.command("explain")
def explain(
    decision: Id = None,
    *,
    asked: Asked,
    evaluation: Evaluation,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Show how a request is decided: what its action requires, which parts hold, and by which statement.

    With --decision: how a past decision was made, by the policies at its offsets; `lockkeeper decisions` finds its id.
    An action or a type that does not exist is reported, and so is a subject or resource that no document names but one
    that is spelt nearly so does. Exit code: 0 for an allow alone, and for a past decision that comes out as it was; 2
    for an unknown name.

    \b
    Examples:
      lockkeeper explain --policies policies/ --system lenses6 --subject user:dana --group readers \\
        --action kafka:GetTopicDetails --resource kafka:topic:prod/main/orders
      lockkeeper explain --live --file request.json --json
      lockkeeper explain --decision 7V5yL0WvQ2aS0yQmHhV1Pw-0-17
    """
    if decision is not None:
        if asked != Asked() or evaluation.is_given():
            raise Failure("--decision names request, policies and time: leave out the other options", MISUSED)
        _explain_decision(decision, kafka, as_json)
        return
    from policy import decide
    from policy.analysis import error_tree, nearest_grants
    from streaming.pdp.reading import lacking

    request = evaluation.timed(asked.whole())
    snapshot, offsets = evaluation.snapshot_and_offsets(kafka)
    claims = evaluation.claims()
    nodes = _trees(snapshot, request, claims, evaluation.allow_unknown)
    if (behind := lacking(request, offsets)) is None:
        nearest: Sequence[Nearest | None] = nearest_grants(snapshot, request, claims)
    else:
        nodes, nearest = [error_tree(node, behind) for node in nodes], [None] * len(nodes)
    _show(nodes, nearest, as_json)
    if behind is not None or not decide(snapshot, request, trust=claims).allowed:
        raise typer.Exit(FAILED)


def _trees(snapshot: Any, request: dict[str, Any], claims: frozenset[str], allow_unknown: bool) -> "list[Node]":
    from policy import MalformedRequest
    from policy.analysis import draw_trees, unknown_names

    try:
        refuse_unknown(unknown_names(snapshot, request, claims), allow_unknown)
        return draw_trees(snapshot, request, claims)
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed


def _show(nodes: "Sequence[Node]", nearest: "Sequence[Nearest | None]", as_json: bool) -> None:
    import msgspec

    for node, near in zip(nodes, nearest, strict=True):
        if as_json:
            echo_json(msgspec.to_builtins(node) | ({"nearest": near} if near else {}))
        else:
            _print(node)
            echo_lines(nearest_lines(near))


def _explain_decision(id_: str, kafka: KafkaOptions, as_json: bool) -> None:
    """Evaluate a past decision again and print it. Raises Failure where it is not found or no longer known."""
    from policy import MalformedRequest
    from streaming.client.decision import Unreadable
    from streaming.decision_log.dead_letters import describe_dead_letter
    from streaming.decision_log.replay import Replays, find_by_id
    from streaming.decision_log.search import unreadable_text
    from streaming.snapshots.at_offsets import NoLongerKnown
    from streaming.topics import dead_letters_of

    settings = kafka.settings()
    names = settings.topics
    read = (names.decisions, *names.asking, *map(dead_letters_of, names.asking))
    admin = connect(settings, *read, documents=names.documents)
    lookup = find_by_id(settings, admin, id_)
    if lookup.dead_letter is not None:
        raise Failure(
            f"no decision {id_}: its record is no request. It was refused, {describe_dead_letter(lookup.dead_letter)}"
        )
    if (entry := lookup.entry) is None:
        raise Failure(
            f"no decision {id_} in {names.decisions}: it was deleted by retention, or the id is wrong"
            f"{unreadable_text(lookup.unreadable)}"
        )
    try:
        replay = Replays(settings, admin).replay(entry)
        nodes, nearest = replay.explanation()
    except NoLongerKnown as unknown:
        _show_stored(entry, as_json)
        raise Failure(f"the policies of decision {id_} are no longer known: {unknown}") from unknown
    except Unreadable as unreadable:
        raise Failure(f"record {id_} of {names.decisions}: {unreadable}") from unreadable
    except MalformedRequest as malformed:
        raise Failure(f"decision {id_} repeats no request that can be evaluated: {malformed}") from malformed
    _show_replay(entry, replay, nodes, nearest, as_json)
    if (page := settings.console.page("decisions", id_)) and not as_json:
        echo(f"in the console: {page}")
    if not replay.equal:
        raise typer.Exit(FAILED)


def _show_stored(entry: "Found", as_json: bool) -> None:
    if as_json:
        echo_json({"decision": entry.decision, "equal": None, "trees": []})
    else:
        _print_title(entry)
        items = entry.decision.get("evaluations", ())
        for number, answer in enumerate(items or (entry.decision,)):
            context, item = answer["context"], f"evaluation {number}: " if items else ""
            why = "; ".join(reason["message"] for reason in context.get("reasons", ()))
            echo(f"  {item}{context['outcome'].upper()}  {why}")


def _print_title(entry: "Found") -> None:
    decision = entry.decision
    echo(f"decision {decision['id']} of request {decision['request_id']}, {decision['time']}")
    echo_lines(remarks(decision))


def _show_replay(
    entry: "Found", replay: "Replay", nodes: "Sequence[Node]", nearest: "Sequence[Nearest | None]", as_json: bool
) -> None:
    if as_json:
        echo_json(
            {
                "decision": entry.decision,
                "equal": replay.equal,
                "differences": replay.differences,
                "notes": replay.notes,
                "trees": nodes,
                "nearest": nearest,
            }
        )
        return
    _print_title(entry)
    _show(nodes, nearest, as_json)
    for note in replay.notes:
        echo_err(note)
    for difference in replay.differences:
        echo(f"differs from the stored decision: {difference}")
    if replay.equal:
        echo("equal to the stored decision: outcome, codes, rules, documents and statements")


def _print(node: "Node") -> None:
    """In colour on a terminal; plain elsewhere, and never wrapped there, so that it can be searched."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNWRAPPED
    Console(file=raw(sys.stdout), highlight=False, width=width).print(_tree(node))


def _tree(node: "Node") -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    sign, colour = SIGNS[node.held]
    label = Text.assemble((f"{sign} ", colour), one_line(node.text), (f" [{node.rule}]" if node.rule else "", "dim"))
    tree = Tree(label)
    for note in node.notes:
        tree.add(Text(one_line(note), style="dim"))
    for item in node.items:
        tree.children.append(_tree(item))
    return tree
