"""`lockkeeper explain | who-can`: why a decision is what it is, and whom it would be an allow for. Needs no Kafka."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import Json, app, harmless, remark, tell, tell_json
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
from streaming.cli.decide import Policies, Trust, claims_of, snapshot_of
from streaming.cli.failures import FAILED, MISUSED, Failure

if TYPE_CHECKING:
    from rich.tree import Tree

    from policy.analysis import Node, Who

UNWRAPPED = 100_000  # columns
SIGNS = {True: ("✔", "green"), False: ("✘", "red"), None: ("?", "yellow")}
At = Annotated[str | None, typer.Option("--at", help="The request's time: RFC 3339, or ms since the epoch.")]


@app.command("explain")
def explain(
    policies: Policies,
    system: AskedSystem = None,
    subject: AskedSubject = None,
    group: AskedGroups = None,
    action: AskedAction = None,
    resource: AskedResource = None,
    property_: AskedProperties = None,
    context: AskedContext = None,
    file: AskedFile = None,
    at: At = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Show how a request is decided: what its action requires, which parts hold, and by which statement.

    Exit code: 0 for an allow alone.

    \b
    Examples:
      lockkeeper explain --policies policies/ --system lenses6 --subject user:dana --group readers \\
        --action kafka:GetTopicDetails --resource kafka:topic:prod/main/orders
      lockkeeper explain --policies policies/ --file request.json --json
    """
    import msgspec

    from policy import MalformedRequest
    from policy.analysis import draw_trees

    asked = whole_request(file, system, short_form(subject, group, action, resource, property_, context))
    try:
        nodes = draw_trees(snapshot_of(policies), _timed(asked, at), _claims(trust, at))
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed
    for node in nodes:
        if as_json:
            tell_json(msgspec.to_builtins(node))
        else:
            _print(node)
    if not all(node.held for node in nodes):
        raise typer.Exit(FAILED)


def _timed(request: dict[str, Any], at: str | None) -> dict[str, Any]:
    if at is None:
        return request
    return {**request, "time": int(at) if at.isdecimal() else at}


def _claims(trust: str | None, at: str | None) -> frozenset[str]:
    """What counts: a moment given by --at is no claim of the request."""
    return claims_of(trust) | ({"time"} if at is not None else frozenset())


def _print(node: "Node") -> None:
    """In colour on a terminal; plain elsewhere, and never wrapped there, so that it can be searched."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNWRAPPED
    Console(highlight=False, width=width).print(_tree(node))


def _tree(node: "Node") -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    sign, colour = SIGNS[node.held]
    label = Text.assemble((f"{sign} ", colour), harmless(node.text), (f" [{node.rule}]" if node.rule else "", "dim"))
    tree = Tree(label)
    for note in node.notes:
        tree.add(Text(harmless(note), style="dim"))
    for item in node.items:
        tree.children.append(_tree(item))
    return tree


@app.command("who-can")
def who_can(
    action: Annotated[str, typer.Argument(help="What to do: the action's name.", show_default=False)],
    resource: Annotated[str, typer.Argument(help="On what: the resource's id.", show_default=False)],
    policies: Policies,
    system: Annotated[str, typer.Option(help="Such as lenses6.", show_default=False)],
    property_: AskedProperties = None,
    context: AskedContext = None,
    organization: Annotated[
        str | None, typer.Option(help="The subject's organization, where there are several (StreamSets).")
    ] = None,
    at: At = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """List whom the policies allow an action on a resource: subjects, and subjects that claim a group or role.

    Every name in the documents is checked; subjects that they do not name are listed as "any principal".

    \b
    Example:
      lockkeeper who-can kafka:DeleteTopic kafka:topic:prod/main/orders --system lenses6 --policies policies/
    """
    import msgspec

    from policy import MalformedRequest
    from policy.analysis import who_can as find

    short = short_form("any-principal", None, action, resource, property_, context)
    asked = whole_request(None, system, short | ({"organization": organization} if organization else {}))
    try:
        reach = find(snapshot_of(policies), _timed(asked, at), trust=_claims(trust, at))
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed
    if as_json:
        tell_json(msgspec.to_builtins(reach))
        return
    if reach.everyone:
        tell("any principal, also those that no document names" + (", but not:" if reach.but else ""))
    for line in _lines(reach.but if reach.everyone else reach.allowed):
        tell(line)
    if not reach.complete:
        remark(f"not complete: only principals that the policies and facts of {system} name were checked")
    elif not reach.everyone and not reach.allowed:
        remark("no principal in the documents; `lockkeeper explain` shows what a subject lacks")


def _lines(found: "tuple[Who, ...]") -> Iterator[str]:
    for who in found:
        yield f"any principal that claims {who.name} in {who.claim}" if who.claim else f"{who.type} {who.name}".strip()
