"""`lockkeeper contracts`: the schemas of all records, for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.app import MISUSED, Failure, app, echo, echo_err


@app.command("contracts")
def contracts(
    name: Annotated[str | None, typer.Argument(help="A file, such as avro/request.avsc; all when left out.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write to this folder instead; files there are replaced.")] = None,
) -> None:
    """List the contracts, print one, or write them to a folder.

    JSON Schemas (2020-12), Avro schemas, those of every release, the topics as AsyncAPI 3, and the HTTP API
    of `lockkeeper serve` as OpenAPI 3.1. They refer to each
    other by path, so take them along together. The `$id` of a JSON Schema is a name and no address: give a validator
    the files.

    \b
    Examples:
      lockkeeper contracts
      lockkeeper contracts avro/request.avsc
      lockkeeper contracts --to contracts/
    """
    from streaming.records.schemas import names

    chosen = names() if name is None else [_known(name, names())]
    if to is not None:
        _write(chosen, to)
    elif name is None:
        echo("\n".join(chosen))
    else:
        _print(chosen[0])


def _known(name: str, names: list[str]) -> str:
    if name not in names:
        raise Failure(f"{name}: there is no such contract; there are {', '.join(names)}", MISUSED)
    return name


def _print(name: str) -> None:
    from streaming.records.schemas import read

    echo(read(name).rstrip("\n"))


def _write(chosen: list[str], folder: Path) -> None:
    from streaming.records.schemas import read

    for name in chosen:
        file = folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(read(name), encoding="utf-8")
        except OSError as error:
            raise Failure(f"{file}: {error.strerror}; name a folder that can be written to") from error
    echo_err(f"{len(chosen)} files written to {folder}")
