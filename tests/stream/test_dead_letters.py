"""Dead letters hold what came, no secrets, and never stop a batch by their size."""

import json

import pytest

from policy.requests import MalformedRequest
from streaming.enforcer.deadletters import Rejection, dead_letter, mask_value
from streaming.settings import Limits

REJECTION = Rejection("requests", 2, 17, MalformedRequest("not a request: é" + "x" * 10_000))


@pytest.mark.parametrize(
    "value",
    [
        b'{"subject":{"properties":{"token":"s3cret"}}}',
        b'{"subject":{"properties":{"token":{"sub":"s3cret"}}}}',
        b'{"a":[{"token":["s3cret"]}]}',
        rb'{"\u0074oken":"s3cret"}',
        b'{"token":"s3cret","id":',
        b'{"token" : "a\\"s3cret',
        b'{"token":{"sub":"s3cret"},',
        b'{"token":["s3cret"]',
        b'x {"password":"s3cret"}',
    ],
)
def test_tokens_are_masked_whole_or_broken(value: bytes) -> None:
    assert b"s3cret" not in mask_value(value)


@pytest.mark.parametrize("value", [b"", b"\xff\x00", b'{"id": 1}', b"[1, 2]"])
def test_what_holds_no_secret_stays_as_it_came(value: bytes) -> None:
    assert mask_value(value) == value


def test_headers_that_look_like_secrets_are_masked() -> None:
    names = ("Authorization", "X-Api-Key", "cookie", "my-token")
    headers = [{"key": name, "value": b"s3cret"} for name in names]
    headers += [{"key": "x", "value": b"Bearer s3cret"}, {"key": "kept", "value": b"yes"}]
    kept = dead_letter(REJECTION, b"k", b"v", headers, Limits())[2][:6]
    assert kept == [*((name, b"***") for name in names), ("x", b"***"), ("kept", b"yes")]


def test_one_that_is_too_large_carries_hashes_and_its_place() -> None:
    key, value, headers = dead_letter(REJECTION, b"k", b"v" * 100_000, None, Limits(record_out=65_536))
    told = json.loads(value)
    assert key is None
    assert (told["topic"], told["partition"], told["offset"]) == ("requests", 2, 17)
    assert len(told["value_sha256"]) == 64
    assert len(value) + sum(len(text) for _, text in headers) < 65_536


def test_the_headers_are_those_of_kafka_connect() -> None:
    told = dict(dead_letter(REJECTION, b"k", b"v", None, Limits())[2])
    names = ("topic", "partition", "offset", "stage", "exception.class.name", "exception.message")
    assert set(told) == {f"__connect.errors.{name}" for name in names}
    assert told["__connect.errors.partition"] == b"2"
