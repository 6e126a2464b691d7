"""`lockkeeper decide`: the same decisions without Kafka."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from streaming.cli.app import FAILED, MISUSED, Failure, app, remark, tell_json

if TYPE_CHECKING:
    from policy import Snapshot


Policies = Annotated[Path, typer.Option("--policies", "-p", help="A file or folder of documents.", show_default=False)]
Trust = Annotated[str | None, typer.Option("--trust", help="What requests may claim, with commas between.")]


@app.command("decide")
def decide(
    policies: Policies,
    requests: Annotated[str, typer.Option("--requests", "-r", help="A file of JSON lines; - is standard input.")] = "-",
    trust: Trust = None,
) -> None:
    """Decide requests by documents in files: reads JSON lines, writes one decision record per line.

    Judged by the `time` of each request, where it may be claimed; what depends on a time, a `deadline` too, is an
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
            tell_json(record)
    if is_empty:
        remark(f"no requests in {'standard input' if requests == '-' else requests}")
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
        remark(f"refused: {rejected.key}: {'; '.join(rejected.errors)}")
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
