"""Questions about decisions on requests that a server has answered: on topics of their own, by its callers' trust."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from policy import CLAIMS
from streaming.console.past_requests import newest_requests
from streaming.kafka.publish import publish
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.cli.documents import request
from tests.cli.lockkeeper import Command
from tests.cli.test_questions import READERS, STAFF, Decided

pytestmark = [pytest.mark.stream, pytest.mark.long]


@pytest.fixture
def names(names: TopicNames) -> TopicNames:
    """With a topic of answered requests, which producers are trusted on with all that requests may claim."""
    return msgspec.structs.replace(names, answered=(names.requests[0].replace("requests", "answered"),))


@pytest.fixture
def ask(lockkeeper: Command, config: Path) -> Callable[..., Any]:
    """The command with the settings of the test."""
    return lambda *arguments: lockkeeper(*arguments, "--config", str(config))


def _answered(trust: list[str]) -> dict[str, Any]:
    answer = {"by": "pdp", "time": 1_795_000_000_000, "decision": False, "outcome": "deny", "policy_version": ""}
    freshness = {"kind": "bounded", "age_ms": 1, "max_ms": 15000}
    return {**answer, "policy_offsets": {}, "facts_offset": -1, "freshness": freshness, "trust": trust}


def _claiming(id_: str, trust: list[str]) -> dict[str, Any]:
    asked = request("user:erik", id=id_, answered=_answered(trust))
    asked["subject"]["properties"] = {"groups": ["staff"]}
    return asked


@pytest.fixture
def made(settings: Settings, admin: AdminClient, topics: TopicNames) -> Decided:
    """The topic of answered requests, decided under policies that allow readers, by their group too."""
    decided = Decided(settings, admin, topics, topics.answered[0])
    publish(settings, [READERS, STAFF])
    return decided


def test_decisions_on_answered_requests_are_explained_and_traced(
    ask: Callable[..., Any], made: Decided, topics: TopicNames
) -> None:
    """As the job decides them: by the claims that topic and caller are both trusted with."""
    made.send(_claiming("r-1", ["groups"]))
    made.decide()
    made.send(_claiming("r-2", []))
    made.decide(CLAIMS - {"groups"})
    ids = {one["request_id"]: one["id"] for one in ask("decisions", "--json").records}
    for id_, held in (("r-1", True), ("r-2", None)):
        shown = ask("explain", "--decision", ids[id_], "--json")
        [record] = shown.records
        assert (shown.code, record["equal"], [tree["held"] for tree in record["trees"]]) == (0, True, [held])
        assert record["notes"] == []
        traced = ask("doctor", id_)
        assert (traced.code, traced.lines[0].startswith(f"produced to {topics.answered[0]}-0 ")) == (0, True)


def test_a_report_ranks_denied_requests_that_were_answered_too(ask: Callable[..., Any], made: Decided) -> None:
    """Their times are those of the answers, which say nothing about a latency of the job."""
    made.send(request("user:eve", answered=_answered([])))
    made.decide()
    [report] = ask("report", "--last", "1h", "--json").records
    assert report["denied"]["answers"] == 1
    assert [row["name"] for row in report["denied"]["subjects"]["rows"]] == ["user:eve"]
    assert report["decisions"]["latency"] is None


def test_what_the_job_could_not_verify_is_not_compared(ask: Callable[..., Any], made: Decided) -> None:
    """It has decided nothing: the policies that the answer names were not known."""
    made.send(_claiming("r-1", ["groups"]))
    made.decide(
        write=lambda value: (
            value.replace(b'"decision":true', b'"decision":false')
            .replace(b'"outcome":"allow"', b'"outcome":"error"')
            .replace(b'"code":"allowed"', b'"code":"no-longer-known"')
        )
    )
    [stored] = ask("decisions", "--json").records
    assert (stored["decision"], stored["context"]["reasons"][0]["code"]) == (False, "no-longer-known")
    shown = ask("explain", "--decision", stored["id"], "--json")
    [record] = shown.records
    assert (shown.code, record["equal"], record["differences"]) == (1, None, [])
    assert "the job did not know the policies that the answer names" in record["notes"][0]


def test_a_request_is_traced_however_its_id_is_written(
    ask: Callable[..., Any], settings: Settings, admin: AdminClient, topics: TopicNames
) -> None:
    """Many encoders write other characters than ASCII, and a slash, with escapes."""
    made = Decided(settings, admin, topics)
    made.send(request(id="réponse/1"), msgspec.json.encode(request(id="shop/7")).replace(b"/7", b"\\/7"))
    made.decide()
    for id_ in ("réponse/1", "shop/7"):
        assert ask("doctor", id_).lines[0].startswith(f"produced to {topics.requests[0]}-0 ")


def test_decisions_are_found_by_a_name_that_the_request_writes_with_escapes(
    ask: Callable[..., Any], settings: Settings, admin: AdminClient, topics: TopicNames
) -> None:
    made = Decided(settings, admin, topics)
    made.send(request("user:rené", id="réponse"))
    made.decide()
    assert len(ask("decisions", "--subject", "user:rené", "--json").records) == 1


def test_policies_are_tried_on_answered_requests_with_the_claims_that_count_of_them(
    ask: Callable[..., Any], settings: Settings, admin: AdminClient, topics: TopicNames, tmp_path: Path
) -> None:
    """By `policy diff` and by a draft in the console, which shows those that are decided alone."""
    made = Decided(settings, admin, topics, topics.answered[0])
    publish(settings, [READERS, STAFF])
    made.send(_claiming("r-1", ["groups"]), _claiming("r-2", []))
    made.decide()
    made.send(_claiming("r-3", ["groups"]))
    deny = {**READERS, "spec": {"statements": [{"effect": "deny", "action": "*", "resource": "*"}]}}
    (tmp_path / "draft.yaml").write_text(json.dumps(deny))
    shown = ask("policy", "diff", "live", str(tmp_path / "draft.yaml"))
    assert shown.lines[-1] == "2 differences, 2 of 3 decisions would change"
    past = newest_requests(settings, admin, "lenses6".__eq__)
    assert [(one.asked["id"], one.trust) for one in past] == [("r-2", {"time"}), ("r-1", {"groups", "time"})]
    assert all(one.at == one.asked["time"] and "answered" not in one.asked for one in past)
