"""`lockkeeper explain | who-can`: why a decision is what it is, and whom it would be an allow for. Needs no Kafka."""

import contextlib
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from streaming.cli.app import FAILED, MISUSED, Failure, Json, app, echo, echo_err, echo_json, harmless

if TYPE_CHECKING:
    from rich.tree import Tree

    from policy import Snapshot
    from policy.analysis import Node, UnknownName, Who


STANDARD_INPUT = "-"

SystemOption = Annotated[str | None, typer.Option("--system", help="Such as lenses6.")]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="Who: the subject's id.")]
GroupsOption = Annotated[list[str] | None, typer.Option("--group", help="A group the subject claims; may be repeated.")]
ActionOption = Annotated[str | None, typer.Option("--action", help="What to do: the action's name.")]
ResourceOption = Annotated[str | None, typer.Option("--resource", help="On what: the resource's id.")]
PropertiesOption = Annotated[
    list[str] | None, typer.Option("--property", help="NAME=VALUE of the resource; may be repeated.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="The request's context, in JSON.")]
FileOption = Annotated[
    str | None, typer.Option("--file", "-f", help="A whole request in JSON, instead; - is standard input.")
]


AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Accept names that no catalogue has, or that look like typing errors.")
]


def refuse_unknown(found: "Iterable[UnknownName]", allowed: bool, where: str = "") -> None:
    """Raise Failure for typing errors, unless they are `allowed`; print the other names. `where`: before each."""
    names = list(found)
    if mistakes := [f"{where}{name}" for name in names if name.is_mistake and not allowed]:
        raise Failure("\n".join([*mistakes, "--allow-unknown accepts names as they are"]), MISUSED)
    for name in names:
        echo_err(f"{where}{name}")


def short_form(
    subject: str | None,
    groups: list[str] | None,
    action: str | None,
    resource: str | None,
    properties: list[str] | None,
    context: str | None,
) -> dict[str, Any]:
    """What was given, in the short form of case files. Raises Failure for a property or context that is none."""
    given: dict[str, Any] = {"subject": subject, "groups": groups, "action": action, "resource": resource}
    short = {name: value for name, value in given.items() if value}
    if properties:
        short["properties"] = dict(map(_pair, properties))
    if context is not None:
        short["context"] = _object("--context", context)
    return short


def whole_request(file: str | None, system: str | None, short: dict[str, Any]) -> dict[str, Any]:
    """The request in a file, or the one that options say in short. Raises Failure when there is not one of both."""
    from policy.testing import full_request

    if file is not None:
        if system or short:
            raise Failure("--file holds the whole request: leave out the options that describe another", MISUSED)
        return _object(f"--file {file}", _read(file))
    lacking = [name for name in ("subject", "action", "resource") if name not in short]
    if system is None or lacking:
        options = ", ".join(f"--{name}" for name in ([] if system else ["system"]) + lacking)
        raise Failure(f"{options}: required; or use --file with a whole request", MISUSED)
    return {**full_request(short, system), "id": f"cli-{uuid.uuid4()}"}


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--file {file}: {error}", MISUSED) from error


def _object(where: str, text: str) -> dict[str, Any]:
    from policy import Unreadable, read_json

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


Policies = Annotated[Path, typer.Option("--policies", "-p", help="A file or folder of documents.", show_default=False)]
Trust = Annotated[str | None, typer.Option("--trust", help="What requests may claim, with commas between.")]


@app.command("decide")
def decide(
    policies: Policies,
    requests: Annotated[str, typer.Option("--requests", "-r", help="A file of JSON lines; - is standard input.")] = "-",
    trust: Trust = None,
) -> None:
    """Decide requests by documents in files: reads JSON lines, writes one decision record per line.

    Decided at the `time` of each request, where it may be claimed; what depends on a time, a `deadline` too, is an
    error without one. A line that is no request gives a line with `line` and `error`. Exit
    code 1: there was such a line, or a document was refused (then its affected principals get `error`).
    --trust takes groups, roles, token, facts and time; all of them when it is left out.

    \b
    Examples:
      lockkeeper decide --policies policies/ --requests requests.jsonl
      echo '{"id": "r-1", "system": "lenses6", "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:ListTopic"}, "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"}}' \\
        | tr -d '\\n' | lockkeeper decide --policies policies/
    """
    from streaming.enforcer.requests import decide_lines

    claims = claims_of(trust)
    snapshot = snapshot_of(policies)
    sound, is_empty = not snapshot.rejected, True
    with _opened(requests) as lines:
        for record in decide_lines(snapshot, lines, claims):
            sound, is_empty = sound and "error" not in record, False
            echo_json(record)
    if is_empty:
        echo_err(f"no requests in {'standard input' if requests == '-' else requests}")
    if not sound:
        raise typer.Exit(FAILED)


def claims_of(trust: str | None) -> frozenset[str]:
    """What requests may claim: everything by default; nothing for an empty text. Raises Failure."""
    from policy import CLAIMS

    if trust is None:
        return CLAIMS
    claims = frozenset(filter(None, map(str.strip, trust.split(","))))
    if unknown := claims - CLAIMS:
        raise Failure(f"--trust: {', '.join(sorted(unknown))}: not among {', '.join(sorted(CLAIMS))}", MISUSED)
    return claims


def snapshot_of(path: Path) -> "Snapshot":
    """The documents at `path`, compiled; refused ones are printed. Raises FilesRefused."""
    from policy import compile_documents, read_documents

    snapshot = compile_documents(document.value for document in read_documents(path))
    for rejected in snapshot.rejected:
        echo_err(f"refused: {rejected.key}: {'; '.join(rejected.errors)}")
    return snapshot


@contextlib.contextmanager
def _opened(requests: str) -> Iterator[BinaryIO]:
    if requests == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(requests).open("rb")  # noqa: SIM115 (closed below; an error while reading is not one of opening)
    except OSError as error:
        raise Failure(f"--requests {requests}: {error.strerror}", MISUSED) from error
    with file:
        yield file


UNWRAPPED = 100_000  # columns
SIGNS = {True: ("✔", "green"), False: ("✘", "red"), None: ("?", "yellow")}
At = Annotated[str | None, typer.Option("--at", help="The request's time: RFC 3339, or ms since the epoch.")]


@app.command("explain")
def explain(
    policies: Policies,
    system: SystemOption = None,
    subject: SubjectOption = None,
    group: GroupsOption = None,
    action: ActionOption = None,
    resource: ResourceOption = None,
    property_: PropertiesOption = None,
    context: ContextOption = None,
    file: FileOption = None,
    at: At = None,
    trust: Trust = None,
    allow_unknown: AllowUnknown = False,
    as_json: Json = False,
) -> None:
    """Show how a request is decided: what its action requires, which parts hold, and by which statement.

    An action or a type that does not exist is reported, and so is a subject or resource that no document names but one
    that is spelt nearly so does. Exit code: 0 for an allow alone, 2 for such a name.

    \b
    Examples:
      lockkeeper explain --policies policies/ --system lenses6 --subject user:dana --group readers \\
        --action kafka:GetTopicDetails --resource kafka:topic:prod/main/orders
      lockkeeper explain --policies policies/ --file request.json --json
    """
    import msgspec

    from policy import MalformedRequest
    from policy.analysis import draw_trees, unknown_names

    request = whole_request(file, system, short_form(subject, group, action, resource, property_, context))
    snapshot, request, claims = snapshot_of(policies), _timed(request, at), _claims(trust, at)
    try:
        refuse_unknown(unknown_names(snapshot, request, claims), allow_unknown)
        nodes = draw_trees(snapshot, request, claims)
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed
    for node in nodes:
        if as_json:
            echo_json(msgspec.to_builtins(node))
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
    property_: PropertiesOption = None,
    context: ContextOption = None,
    organization: Annotated[
        str | None, typer.Option(help="The subject's organization, where there are several (StreamSets).")
    ] = None,
    at: At = None,
    trust: Trust = None,
    allow_unknown: AllowUnknown = False,
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
    from policy.analysis import unknown_names
    from policy.analysis import who_can as find

    short = short_form("any-principal", None, action, resource, property_, context)
    request = whole_request(None, system, short | ({"organization": organization} if organization else {}))
    snapshot, request, claims = snapshot_of(policies), _timed(request, at), _claims(trust, at)
    try:
        refuse_unknown(unknown_names(snapshot, request, claims, subject=False), allow_unknown)
        reach = find(snapshot, request, trust=claims)
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed
    if as_json:
        echo_json(msgspec.to_builtins(reach))
        return
    if reach.everyone:
        echo("any principal, also those that no document names" + (", but not:" if reach.but else ""))
    for line in _lines(reach.but if reach.everyone else reach.allowed):
        echo(line)
    if not reach.complete:
        echo_err(f"not complete: only principals that the policies and facts of {system} name were checked")
    elif not reach.everyone and not reach.allowed:
        echo_err("no principal in the documents; `lockkeeper explain` shows what a subject lacks")


def _lines(found: "tuple[Who, ...]") -> Iterator[str]:
    for who in found:
        yield f"any principal that claims {who.name} in {who.claim}" if who.claim else f"{who.type} {who.name}".strip()
