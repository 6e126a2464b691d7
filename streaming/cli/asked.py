"""A request made of options: short on the command line, or whole in a file. Shared by the commands that ask."""

import sys
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from streaming.cli.app import MISUSED, Failure

STANDARD_INPUT = "-"

AskedSystem = Annotated[str | None, typer.Option("--system", help="Such as lenses6.")]
AskedSubject = Annotated[str | None, typer.Option("--subject", help="Who: the subject's id.")]
AskedGroups = Annotated[list[str] | None, typer.Option("--group", help="A group the subject claims; may be repeated.")]
AskedAction = Annotated[str | None, typer.Option("--action", help="What to do: the action's name.")]
AskedResource = Annotated[str | None, typer.Option("--resource", help="On what: the resource's id.")]
AskedProperties = Annotated[
    list[str] | None, typer.Option("--property", help="NAME=VALUE of the resource; may be repeated.")
]
AskedContext = Annotated[str | None, typer.Option("--context", help="The request's context, in JSON.")]
AskedFile = Annotated[
    str | None, typer.Option("--file", "-f", help="A whole request in JSON, instead; - is standard input.")
]


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
