"""Dead letters hold what came, no secrets, and never stop a batch by their size."""

import json
import re
import time
from random import Random
from typing import Any

import pytest

from policy.core.request import MalformedRequest
from streaming.records.dead_letter import Rejection, dead_letter, mask_secrets
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
    assert b"s3cret" not in mask_secrets(value)


NAMES = """
    token access_token accessToken ACCESS-TOKEN refresh_token id_token X-Auth-Token password Password
    passwd passphrase secret client_secret clientSecret client-secret Authorization Proxy-Authorization
    api_key apikey X-Api-Key cookie Set-Cookie private_key privateKey
    sasl.jaas.config credentials secret_access_key db_password2
""".split()  # noqa: SIM905 (one a line would be thirty lines)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ('{"NAME":"s3cret"}', '{"NAME":"***"}'),
        (' {"a" : [1.50, {"NAME" : "s3\\"cret" , "b":1e2}]}', ' {"a" : [1.50, {"NAME" : "***" , "b":1e2}]}'),
        ('{"NAME":{"a":["s3cret","]}"],"b":{}},"c":[]}', '{"NAME":"***","c":[]}'),
        ('{"NAME":[],"NAME":["s3cret"],"c":"é\\u00e9"}', '{"NAME":"***","NAME":"***","c":"é\\u00e9"}'),
        ('{"NAME":12345,"a":true}', '{"NAME":"***","a":true}'),
        ('{"a":"NAME","b":"the NAME of x"}', '{"a":"NAME","b":"the NAME of x"}'),
        ('{"a":"x=1&NAME=s3cret&y=s3cret","b":2}', '{"a":"x=1&NAME=***","b":2}'),
        ('{"a":"{\\"NAME\\": \\"s3cret\\"}","b":2}', '{"a":"{\\"NAME\\": ***","b":2}'),
        ('{"NAME":"s3cret","id":', '{"NAME":***'),
        ('{"id":1,"NAME" : {"a":"s3cret', '{"id":1,"NAME" : ***'),
        ("{'NAME': 's3cret'}", "{'NAME': ***"),
        ("a=1&NAME=s3cret&b=2", "a=1&NAME=***"),
        ("NAME%3Ds3cret", "NAME%3D***"),
        ("NAME: s3cret\r\n", "NAME: ***"),
    ],
)
def test_the_values_of_secret_names_are_masked_and_all_else_stays(name: str, value: str, masked: str) -> None:
    assert mask_secrets(value.replace("NAME", name).encode()).decode() == masked.replace("NAME", name)


@pytest.mark.parametrize(
    "value",
    [
        rb'{"\u0074oken":"s3cret"}',
        rb'{"\\":1,"pass\u0077ord":"s3cret"}',
        rb'{"client\u005fsecret":"s3cret"}',
        rb'{"api\u005Fkey":"s3cret"}',
        rb'{"pass\u0057ord":{"a":"s3cret"},"b":"\u0022"}',
        rb'{"x":"{\"pass\u0077ord\":\"s3cret\"}"}',
        rb'{"pass\u0077ord":"s3cret',
        b"pass%77ord=s3cret",
        b'{"a":"pass%77ord=s3cret"}',
        b"x=%7B%22password%22%3A%22s3cret%22%7D",
        b"<password>s3cret</password>",
        b"Bearer s3cret-s3cret",
        b"authorization: Bearer s3cret-s3cret",
        b'{"a":"Bearer s3cret-s3cret"}',
        b'{"a":["bearer  s3cret-s3cret"]}',
        b'{"a":"Basic s3crets3cret"}',
        rb'{"a":"x\neyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzM2NyZXQifQ.s3cret"}',
        b'{"url":"https://dana:s3cret@example.com/x"}',
        b'{"url":"https://example.com/?x=1&access_token=s3cret"}',
        b'{"a":"-----BEGIN RSA PRIVATE KEY-----\\ns3cret"}',
        b"-----BEGIN PRIVATE KEY-----\ns3cret",
        b'{"a":"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzM2NyZXQifQ.s3cret"}',
        b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzM2NyZXQifQ.s3cret",
        b"\xc3\x0112345678\x02\x0apassword\x02\x0cs3cret",
        b"\x00\x00\x00\x00\x07\x18access_token(s3crets3crets3cret12",
        b'\xef\xbb\xbf{"password":"s3cret"}',
        '{"password":"s3cret"}'.encode("utf-16"),
    ],
)
def test_secrets_in_other_forms_are_masked(value: bytes) -> None:
    kept = mask_secrets(value)
    assert b"s3cret" not in kept.replace(b"\0", b"")
    assert b"***" in kept


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\x00",
        b'{"id": 1}',
        b"[1, 2]",
        b'{"a":1.0,"a":1e2,  "b":"\\u0041\\/"}',
        b'{"resource":{"type":"topic","id":"kafka:topic:prod/secret/tokens"}}',
        b'{"id":"kafka:topic:prod/secret',
        b'{"id":"the bearer of news and basic things, https://a.example:80/x@y"}',
        b"no secret, no token",
    ],
)
def test_what_holds_no_secret_stays_as_it_came(value: bytes) -> None:
    assert mask_secrets(value) == value


def test_the_key_is_masked_too() -> None:
    assert dead_letter(REJECTION, b'{"password":"s3cret"}', b"v", None, Limits())[0] == b'{"password":"***"}'
    assert dead_letter(REJECTION, None, b"v", None, Limits())[0] is None


def test_json_stays_json_with_the_rest_as_it_was() -> None:
    """Any JSON with any names, against the meaning: decode, replace what secret names hold."""
    random = Random(15)
    for _ in range(500):
        content = _any_json(random, 4)
        value = json.dumps(content, ensure_ascii=random.random() < 0.5, indent=random.choice([None, 2])).encode()
        assert json.loads(mask_secrets(value)) == _without_secrets(content)


def _any_json(random: Random, depth: int) -> Any:
    kind = random.randrange(7 if depth else 5)
    if kind >= 5:
        items = range(random.randrange(4))
        keys = (random.choice(["a", 'b"', "c\\", "é", "password", 'x"token"', "secret\\", "api_key"]) for _ in items)
        return (
            {k: _any_json(random, depth - 1) for k in keys}
            if kind == 5
            else [_any_json(random, depth - 1) for _ in items]
        )
    return [None, True, -1.5, "", 'a]}"\\ secret, token'][kind]


def _without_secrets(content: Any) -> Any:
    if isinstance(content, dict):
        secret = re.compile("password|token|secret|api_key").search
        return {k: "***" if secret(k) else _without_secrets(v) for k, v in content.items()}
    return [_without_secrets(v) for v in content] if isinstance(content, list) else content


@pytest.mark.parametrize(
    "part",
    [
        b"token",
        b'"token',
        b'{"token":',
        b'"token":"",',
        b"token=1&",
        b"bearer ",
        b"basic x",
        b"://a:b",
        b"://",
        b"eyJ0.",
        b"eyJaaaaaaaaaa",
        b"\\u0074",
        b"\\",
        b'\\"',
        b"api_key  ",
        b"%74",
        b"token\\",
        b"-----begin ",
        b"\xc3\x01token",
        b"[",
    ],
)
@pytest.mark.parametrize("around", [b"%s", b'{"a":"%s"}', b'{"token":"%s"}', b'["%s', b'[{"token":[["%s"]]}]'])
def test_time_grows_no_faster_than_the_value(part: bytes, around: bytes) -> None:
    """Ten times the value takes at most thirty times as long, the best of three; quadratic: a hundred times."""
    small, large = (around.replace(b"%s", part * (size // len(part))) for size in (4_000, 40_000))
    assert _seconds(large) < 30 * max(_seconds(small), 3e-5)


def _seconds(value: bytes) -> float:
    took = []
    for _ in range(3):
        begin = time.process_time()
        mask_secrets(value)
        took.append(time.process_time() - begin)
    return min(took)


def test_headers_that_look_like_secrets_are_masked() -> None:
    names = ("Authorization", "X-Api-Key", "cookie", "my-token")
    headers = [{"key": name, "value": b"s3cret"} for name in names]
    headers += [{"key": "x", "value": b"Bearer s3cret"}, {"key": "kept", "value": b"yes"}]
    kept = dead_letter(REJECTION, b"k", b"v", headers, Limits())[2][:6]
    assert kept == [*((name, b"***") for name in names), ("x", b"***"), ("kept", b"yes")]


def test_a_header_without_a_value_stays_without_one() -> None:
    """A null is not an empty value: a record that is sent again would be another one."""
    headers = [{"key": name, "value": value} for name, value in (("x", None), ("token", None), ("y", b""))]
    assert dead_letter(REJECTION, b"k", b"v", headers, Limits())[2][:3] == [("x", None), ("token", None), ("y", b"")]


def test_one_that_is_too_large_carries_hashes_and_its_place() -> None:
    key, value, headers = dead_letter(REJECTION, b"k", b"v" * 100_000, None, Limits(record_out=65_536))
    content = json.loads(value)
    assert key is None
    assert (content["topic"], content["partition"], content["offset"]) == ("requests", 2, 17)
    assert len(content["value_sha256"]) == 64
    assert len(value or b"") + sum(len(text or b"") for _, text in headers) < 65_536


def test_the_headers_are_those_of_kafka_connect() -> None:
    fields = dict(dead_letter(REJECTION, b"k", b"v", None, Limits())[2])
    names = ("topic", "partition", "offset", "stage", "exception.class.name", "exception.message")
    assert set(fields) == {f"__connect.errors.{name}" for name in names}
    assert fields["__connect.errors.partition"] == b"2"
