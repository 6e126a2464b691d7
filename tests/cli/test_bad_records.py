"""Records that are not what their topic is for: the others are shown, and each of these is named or counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from streaming.kafka.clients import topic_ids
from streaming.settings import Settings
from tests.cli.documents import readers_folder, request
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
    ("stream", "good", "bad"),
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
    stream: str,
    good: dict[str, object],
    bad: list[object],
    ask: Callable[..., Outcome],
    produce: Callable[..., None],
    settings: Settings,
) -> None:
    """It ended with a traceback at an alert without a time or a severity."""
    topic, bad = getattr(settings.topics, stream), [*NO_RECORDS, *bad]
    produce(topic, *bad, good)
    for options in ([], ["--json"]):
        shown = ask("tail", stream, "--from-beginning", "--count", str(len(bad) + 1), *options)
        assert (shown.code, len(shown.lines)) == (0, 1), shown.err
        assert "the good one" in shown.out
        named = [f"offset {offset} of {topic}, partition 0 is not one of the {stream}: " for offset in range(len(bad))]
        assert [name for name in named if name not in shown.err] == []


def test_what_looks_for_a_decision_counts_records_that_may_be_it(
    ask: Callable[..., Outcome], produce: Callable[..., None], settings: Settings, admin: AdminClient
) -> None:
    names = settings.topics
    produce(names.requests[0], request(id="r-1"))
    id_ = f"{topic_ids(admin, names.requests)[names.requests[0]]}-0-0"
    produce(names.decisions, f'{{"id": "{id_}", "request_id": "r-1"'.encode())
    explained = ask("explain", "--decision", id_)
    assert explained.code == 1
    assert "or the id is wrong; 1 records cannot be read as decisions" in explained.err
    [traced] = ask("doctor", "r-1", "--json").records
    assert (traced["decision"], traced["unreadable"]) == (None, 1)


def test_a_comparison_by_the_newest_requests_counts_records_that_are_none(
    ask: Callable[..., Outcome], produce: Callable[..., None], settings: Settings, tmp_path: Path
) -> None:
    """It said that no decision would change, of how many requests alone."""
    produce(settings.topics.requests[0], request(id="r-1"), *NO_RECORDS)
    folder = str(readers_folder(tmp_path / "policies"))
    shown = ask("policy", "diff", folder, folder, "--newest", "99")
    assert shown.lines[-1] == "0 differences, 0 of 1 decisions would change"
    assert f"{len(NO_RECORDS)} of the newest records cannot be read as requests" in shown.err


@pytest.mark.parametrize("value", [*NO_RECORDS, {"id": "c", "time": None, "before": {}, "after": {}}])
def test_the_log_of_changes_names_what_is_no_change(
    value: Any, ask: Callable[..., Outcome], produce: Callable[..., None], settings: Settings
) -> None:
    """Else HEAD were the change before one that this release cannot read, and nothing said so."""
    produce(settings.topics.changes, value)
    assert "a record of the changes topic cannot be read" in ask("policy", "log").err


def test_a_decision_that_no_job_has_written_is_not_explained(
    ask: Callable[..., Outcome], produce: Callable[..., None], settings: Settings
) -> None:
    whole = {**DECISION, "context": CONTEXT}
    bad = [
        *({name: part for name, part in whole.items() if name != field} for field in ("request_id", "system", "time")),
        {**whole, "decision": True},
        {**whole, "time": "yesterday"},
        {**whole, "system": "none"},
        {**whole, "evaluations": [{"context": CONTEXT}]},
        *(
            {**whole, "context": {**CONTEXT, field: part}}
            for field, part in (
                ("policy_offsets", {"none": {}}),
                ("policy_offsets", {"none": {"0": 5}}),
                ("policy_offsets", {settings.topics.policy_topics()["lenses6"]: {"9": 10**9}}),
                ("facts_offset", 10**9),
                ("source", {"topic": "none", "partition": 0, "offset": 0}),
                (
                    "request",
                    {"subject": {"type": "", "id": ""}, "action": {"name": ""}, "resource": {"type": "", "id": ""}},
                ),
            )
        ),
    ]
    produce(settings.topics.decisions, *({**decision, "id": f"d-{number}"} for number, decision in enumerate(bad)))
    shown = [ask("explain", "--decision", f"d-{number}") for number in range(len(bad))]
    assert [explained.err for explained in shown if explained.code != 1 or "Traceback" in explained.err] == []
    assert "lockkeeper: record d-0 of" in shown[0].err
    assert "not a decision: request_id: missing" in shown[0].err
