"""Records that are not what their topic is for: the others are shown, and each of these is named or counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from streaming.settings import Settings
from tests.cli.lockkeeper import Command, Outcome

pytestmark = [pytest.mark.stream, pytest.mark.usefixtures("topics")]

ALERT = {"id": "a", "kind": "k", "severity": "low", "time": "2026-11-22T00:00:00Z", "message": "the good one"}
CONTEXT = {"outcome": "deny", "reasons": [{"code": "c", "message": "the good one"}]}
DECISION = {"id": "d", "request_id": "r-1", "system": "lenses6", "decision": False, "time": "2026-11-22T00:00:00Z"}
NO_RECORDS = [None, b"[]", b"null", b"{", b"\xff", b"\x00\x00\x00\x00\x63a", b"\xc3\x0112345678a"]


@pytest.fixture
def ask(lockkeeper: Command, config: Path) -> Callable[..., Outcome]:
    """The command with the settings of the test."""
    return lambda *arguments: lockkeeper(*arguments, "--config", str(config))


@pytest.fixture
def produce(settings: Settings) -> Callable[..., None]:
    """Write values to a topic, all to one partition."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})

    def produce(topic: str, *values: Any) -> None:
        for value in values:
            producer.produce(topic, json.dumps(value).encode() if isinstance(value, dict) else value, partition=0)
        assert producer.flush(10) == 0

    return produce


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ("alerts", ALERT, [{**ALERT, field: None} for field in ("id", "kind", "severity", "time", "message")]),
        (
            "decisions",
            {**DECISION, "context": CONTEXT},
            [
                DECISION,
                *({**DECISION, "context": context} for context in (None, {}, {**CONTEXT, "reasons": [{}]})),
                *({**DECISION, "context": CONTEXT, field: None} for field in DECISION),
            ],
        ),
    ],
)
def test_tail_names_each_bad_record_and_shows_the_others(
    what: str,
    good: dict[str, object],
    bad: list[object],
    ask: Callable[..., Outcome],
    produce: Callable[..., None],
    settings: Settings,
) -> None:
    """It ended with a traceback at an alert without a time or a severity."""
    topic, bad = getattr(settings.topics, what), [*NO_RECORDS, *bad]
    produce(topic, *bad, good)
    for options in ([], ["--json"]):
        shown = ask("tail", what, "--from-beginning", "--count", str(len(bad) + 1), *options)
        assert (shown.code, len(shown.lines)) == (0, 1), shown.err
        assert "the good one" in shown.out
        named = [f"offset {offset} of {topic}, partition 0 is not one of the {what}: " for offset in range(len(bad))]
        assert [name for name in named if name not in shown.err] == []
