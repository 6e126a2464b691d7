"""Records of access changes: deterministic ids, the subject as key, and a bound for their size."""

import json
from typing import Any

from policy import CLAIMS, Request, parse_request
from policy.analysis import Answer, Turned, question_of
from streaming.records.access_change import Cause, Moment, access_change, access_change_record
from tests.cli.documents import request

SINCE = Moment(1_700_000_000_000, "sha256:1", {"policies": {"0": 7}}, 3, Cause("c-1", "dana"))


def turned(**fields: Any) -> Turned:
    """A question that was allowed and is denied."""
    parsed = parse_request(request(**fields))
    assert isinstance(parsed, Request)
    return Turned(question_of(parsed, CLAIMS), Answer("allow"), Answer("deny"))


def test_the_id_is_that_of_question_offsets_and_time() -> None:
    ids = {
        access_change(turned(id="other", time=7), SINCE).id,
        access_change(turned(), SINCE).id,
    }
    assert len(ids) == 1
    others = (
        Moment(SINCE.at + 1, "sha256:1", {"policies": {"0": 7}}, 3),
        Moment(SINCE.at, "v", {"policies": {"0": 8}}, 3),
    )
    assert (
        len({*ids, *(access_change(turned(), one).id for one in others), access_change(turned(topic="a"), SINCE).id})
        == 4
    )


def test_the_key_is_the_subject_and_what_it_claimed_is_left_out() -> None:
    claimed = turned(subject={"type": "user", "id": "user:dana", "properties": {"groups": ["secret"]}})
    topic, key, value, _ = access_change_record("t", access_change(claimed, SINCE), 1 << 20)
    assert (topic, key) == ("t", b"user:dana")
    assert b"secret" not in (value or b"")


def test_a_record_that_would_be_too_large_says_who_and_what() -> None:
    properties = {"b": "y" * (1 << 20)}
    large = turned(
        system="cedar", context={"a": "x" * 9999}, resource={"type": "lrn", "id": "r" * 5000, "properties": properties}
    )
    _, key, value, _ = access_change_record("t", access_change(large, SINCE), 1000)
    assert value is not None
    assert len(value) < 8000
    found = json.loads(value)
    assert (found["subject"]["id"], found["before"]["outcome"], found["after"]["outcome"]) == (
        "user:dana",
        "allow",
        "deny",
    )
    assert key == b"user:dana"
