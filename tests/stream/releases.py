"""What a released version left behind, as files: recorded once by that version's job, restored for every later one.

A folder `tests/released/VERSION` holds `records.jsonl` (the topics), `offsets.jsonl` (what the job's group has
committed) and `checkpoint/` (Spark's). Since `main-73aa212` there are `monitor-offsets.jsonl` and
`checkpoint-monitor/`, with the monitor's state, and requests of `lockkeeper verify`. Names of topics begin with `NAME`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from streaming.settings.monitor import MonitorSettings, Rules
from streaming.topics import TopicNames, TopicSpec, topic_specs
from tests.stream.world import LOOKS_BACK, request

NAME = "lockkeeper-release"
RELEASES = Path(__file__).parents[1] / "released"
RECORDS, OFFSETS, CHECKPOINT = "records.jsonl", "offsets.jsonl", "checkpoint"
MONITOR_OFFSETS, MONITOR_CHECKPOINT = "monitor-offsets.jsonl", f"{CHECKPOINT}-monitor"
STAMP = "message.timestamp.type"
YEARS = 20 * 365 * 86_400.0  # the state of a recording must not be too old, however old the recording is
MONITOR = MonitorSettings(
    partitions=2,
    rules=Rules(grace_seconds=1.0, episode_seconds=YEARS, window_seconds=YEARS, lateness_seconds=YEARS),
)

Row = TypeVar("Row", bound=msgspec.Struct)


class Kept(msgspec.Struct, frozen=True):
    """A record of a topic; all that the job writes or reads here is text."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: list[tuple[str, str]]


class Committed(msgspec.Struct, frozen=True):
    """A committed offset of the job's group."""

    topic: str
    partition: int
    offset: int
    metadata: str


def denied_access(id_: str, user: str, at: int) -> dict[str, Any]:
    """The user did what no policy allows, at a moment (ms)."""
    return {**request(id_, user, "payments"), "outcome": "success", "time": at}


def login(id_: str, user: str, at: int) -> dict[str, Any]:
    """The user logged in to the system in which older versions count, at a moment (ms)."""
    return {"id": id_, "system": LOOKS_BACK, "subject": {"type": "user", "id": user}, "event": "login", "time": at}


def write_rows(path: Path, rows: Iterable[msgspec.Struct]) -> None:
    """Write rows as lines of JSON."""
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def read_rows(path: Path, type_: type[Row], name: str, ids: Mapping[str, str] | None = None) -> list[Row]:
    """The rows of a file, with `name` in place of `NAME`, and with the topic ids that `ids` has for recorded ones."""
    text = path.read_text(encoding="utf-8").replace(NAME, name)
    for recorded, found in (ids or {}).items():
        text = text.replace(recorded, found)
    return [msgspec.json.decode(line, type=type_) for line in text.splitlines()]


def specs_of(names: TopicNames, name: str) -> list[TopicSpec]:
    """The topics of the world with a name, without those that every world shares."""
    return [spec for spec in topic_specs(names) if spec.name.startswith(name)]


def has_rule(spec: TopicSpec, setting: str, value: str) -> bool:
    """Whether a topic's setting must be this."""
    return any(rule.setting == setting and rule.value == value for rule in spec.rules)


def requests(prefix: str) -> Iterator[dict[str, Any]]:
    """Dana may read about orders, not about payments; Miguel may view what was shared with him when he logged in."""
    yield request(f"{prefix}-allow-1", "dana", "orders")
    yield request(f"{prefix}-deny-1", "dana", "payments")
    viewing = request(f"{prefix}-allow-2", "miguel", "orders", system=LOOKS_BACK, action={"name": "pipeline.view"})
    subject = {"type": "user", "id": "miguel", "properties": {"organization": "shop"}}
    yield viewing | {"subject": subject, "resource": {"type": "pipeline", "id": "pipeline:orders"}}
