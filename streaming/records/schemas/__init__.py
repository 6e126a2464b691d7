"""The contracts' data files: schemas in force, those of earlier releases, and the description of the topics."""

import functools
import json
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

Kind = Literal["request", "audit-event", "decision", "alert", "policy-document", "change", "access-change"]
"""The records that have contracts; their files are called so."""

KINDS: tuple[Kind, ...] = get_args(Kind)

AvroSchema = dict[str, Any]


def names() -> list[str]:
    """The files by their path within the contracts, such as `avro/request.avsc`, sorted."""
    return sorted(name for name, _ in _files(resources.files(__package__), "") if not name.endswith(".py"))


def read(name: str) -> str:
    """The text of one of `names`."""
    return resources.files(__package__).joinpath(*name.split("/")).read_text(encoding="utf-8")


def avro_schema(kind: Kind, release: str = "") -> AvroSchema:
    """The Avro schema in force, or that of a release, as its file has it."""
    folder = f"released/{release}/" if release else ""
    schema: AvroSchema = json.loads(read(f"{folder}avro/{kind}.avsc"))
    return schema


@functools.cache
def releases() -> tuple[str, ...]:
    """The releases whose schemas are kept, such as `0.1.0`."""
    return tuple(sorted({name.split("/")[1] for name in names() if name.startswith("released/")}))


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_file():
            yield path + entry.name, entry
        elif entry.name != "__pycache__":
            yield from _files(entry, f"{path}{entry.name}/")
