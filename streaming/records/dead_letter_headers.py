"""The headers of a dead letter: which record it was, and why it became no decision. Names as Kafka Connect has them."""

from collections.abc import Iterable, Mapping
from typing import Any

from streaming.records.decision import Place

PREFIX = "__connect.errors."


def read_headers(headers: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The texts of the headers below `PREFIX`, by their names without it; of a name that comes twice, the last."""
    return {name.removeprefix(PREFIX): _text(value) for name, value in headers if name.startswith(PREFIX)}


def source_of(fields: Mapping[str, str]) -> Place | None:
    """The record of `read_headers`; None where they name none."""
    try:
        return Place(fields["topic"], int(fields["partition"]), int(fields["offset"]))
    except (KeyError, ValueError):
        return None


def _text(value: str | bytes | None) -> str:
    return value if isinstance(value, str) else (value or b"").decode("utf-8", "replace")
