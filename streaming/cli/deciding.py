"""`lockkeeper decide`: decisions on requests in a file. Needs no Kafka."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from streaming.cli.app import app
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo_err, echo_json
from streaming.cli.request_options import Policies, Trust, claims_of, snapshot_of


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
