"""Hostile records, by kind: what a client may send that knows the topics and nothing else is kept from."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, cast

from streaming.records.avro import Writer
from streaming.records.schemas import Kind

Ask = Callable[[int], dict[str, Any]]
"""A good request by its number."""

NEAR_LIMIT = 900_000  # bytes: `limits.record_in` is 1 MiB
CONTROL = "\x01"  # one byte in Avro, six in JSON
NUMBERS_FROM = 2_000_000_000


def malformed(ask: Ask, rng: random.Random, count: int = 200) -> Iterator[bytes | None]:
    """No JSON, JSON cut off, nested too deep, of wrong types, Avro of unknown schemas, no value."""
    for number in range(count):
        good = json.dumps(ask(NUMBERS_FROM + number)).encode()
        kinds: tuple[bytes | None, ...] = (
            None,
            b"",
            rng.randbytes(200),
            good[: rng.randrange(1, len(good))],
            good.replace(b'"id"', b'"di"'),
            good.replace(b'"user"', b"17"),
            good.replace(b"lenses6", b"\xff\xfe"),
            b'{"context":' + b"[" * 5000 + b"]" * 5000 + b"," + good[1:],
            b"\x00" + rng.randbytes(4) + good,
            b"\xc3\x01" + rng.randbytes(8) + good,
            good[:-1] + b',"evaluations":{}}',
        )
        yield kinds[number % len(kinds)]


def control_characters(ask: Ask, count: int = 12) -> Iterator[bytes | None]:
    """Requests in Avro of almost 1 MiB whose texts take six times as much in JSON."""
    for number in range(count):
        asked, long = ask(NUMBERS_FROM + 10 * number), CONTROL * NEAR_LIMIT
        changed: tuple[dict[str, Any], ...] = (
            {"id": long},
            {"subject": {"type": "user", "id": long}},
            {"resource": {"type": "lrn", "id": long}},
            {"system": long},
        )
        yield _avro("request", {**asked, **changed[number % len(changed)]})


def oversized_answers(ask: Ask, count: int = 6) -> Iterator[bytes | None]:
    """Batches whose answers, each with its resource and reasons, are larger than `limits.record_out`."""
    for number in range(count):
        ids = (f"kafka:topic:{CONTROL * 700}-{item}/main/orders" for item in range(1000))
        items = [{"resource": {"type": "lrn", "id": id_}} for id_ in ids]
        yield _avro("request", {**ask(NUMBERS_FROM + 10 * number), "evaluations": items})


def batches_of_1000(ask: Ask, count: int = 40) -> Iterator[bytes | None]:
    """Batches of 1,000 evaluations, the most that is allowed, and of more."""
    for number in range(count):
        asked = ask(NUMBERS_FROM + 10 * number)
        items = [
            {"resource": ask(NUMBERS_FROM + item)["resource"]} for item in range(1001 if number % 10 == 9 else 1000)
        ]
        yield json.dumps({**asked, "evaluations": items}).encode()


def large_random_records(rng: random.Random, count: int = 200) -> Iterator[bytes | None]:
    """Records of 900 kB that nothing compresses."""
    for _ in range(count):
        yield rng.randbytes(NEAR_LIMIT)


def large_logins(count: int = 12) -> Iterator[bytes | None]:
    """Audit events of almost 1 MiB: logins that would become larger facts and alerts."""
    for number in range(count):
        names = [f"group-{CONTROL * 80}-{group}" for group in range(1_500)]
        subjects: tuple[dict[str, Any], ...] = (
            {"type": "user", "id": CONTROL * NEAR_LIMIT},
            {"type": "user", "id": f"user-{number}", "properties": {"groups": names}},
        )
        event = {"id": f"login-{number}", "system": "streamsets", "event": "login"}
        yield _avro("audit-event", {**event, "subject": subjects[number % len(subjects)]})


def broken_documents(rng: random.Random, name: str) -> Iterator[tuple[str, bytes]]:
    """Key and value of documents that must be refused, without end: of other names and of one that is in force."""
    statement = {"effect": "allow", "action": ["*"], "resource": ["*"]}
    good = {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": [statement]}}
    changes: tuple[dict[str, Any], ...] = (
        {"spec": {"statements": [{**statement, "efect": "deny"}]}},
        {"spec": {"statements": [{**statement, "effect": "permit"}]}},
        {"spec": {"statements": {}}},
        {"spec": None},
        {"kind": "Rule"},
        {"name": "another"},
        {"system": "cdap"},
        {"unknown": 1},
    )
    while True:
        key = f"Role/{rng.choice((name, f'{name}-broken-{rng.randrange(20)}'))}"
        whole = json.dumps({**good, "name": key.removeprefix("Role/"), **rng.choice(changes)}).encode()
        yield key, rng.choice((whole, whole, b"{broken", whole[:-9], b"[]", rng.randbytes(50)))


def _avro(kind: str, record: dict[str, Any]) -> bytes:
    return Writer(cast(Kind, kind), "avro-single-object").encode(json.dumps(record).encode())
