"""What another program does to the decisions of a job, on a broker: `verify` names each record of it, and no other."""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from streaming.kafka.topics import create_topics
from streaming.records.avro import Reader, Writer
from streaming.records.formats import JSON_ALONE
from streaming.settings import Encoding
from streaming.topics import dead_letters_of
from streaming.verify import Findings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, await_transaction_markers
from tests.stream.running import running
from tests.stream.world import World, group, request, role

pytestmark = pytest.mark.stream

KEYS = ("a", "b", "c")
RECORDS = 2  # of each key, by each of the policies


@dataclass
class Written:
    """A decision record as it was. `place`: key, and which of the decisions with it."""

    key: bytes
    value: bytes
    at: int


@dataclass
class Decided:
    """What a job has decided: the records of each partition of the decisions topic. `made`: topics of copies."""

    world: World
    encoding: Encoding
    partitions: dict[int, list[Written]] = field(default_factory=dict)

    def decode(self, value: bytes) -> dict[str, Any]:
        """A decision."""
        plain = value if self.encoding == "json" else Reader(JSON_ALONE).transcode("decision", value)
        decision: dict[str, Any] = json.loads(plain)
        return decision

    def encode(self, decision: dict[str, Any]) -> bytes:
        """The reverse."""
        value = json.dumps(decision).encode()
        return value if self.encoding == "json" else Writer("decision", self.encoding).encode(value)

    def verified_copy(self, partitions: dict[int, list[Written]]) -> Findings:
        """What the checker finds where the decisions are these: a topic cannot be changed, but be replaced."""
        names = msgspec.structs.replace(self.world.names, decisions=f"{self.world.names.decisions}.{uuid.uuid4().hex}")
        create_topics(self.world.admin, names, partitions=2)
        producer = Producer(
            {"bootstrap.servers": self.world.broker.bootstrap_servers, "transactional.id": names.decisions}
        )
        producer.init_transactions(30)
        for number, records in partitions.items():
            for record in records:  # a transaction for each: two that follow each other directly would be of one batch
                producer.begin_transaction()
                producer.produce(names.decisions, record.value, record.key, number, timestamp=record.at)
                producer.commit_transaction(30)
        await_transaction_markers(self.world.admin, [(names.decisions, number) for number in partitions])
        return verify(msgspec.structs.replace(self.world.settings, topics=names))


@pytest.fixture(scope="module", params=["json", "avro-single-object"])
def decided(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Decided:
    """Decisions of dana by three policies, allows and denies, those of two keys in a partition; and a dead letter."""
    name = f"tampered-{request.param}-{time.time_ns()}"
    world = World(broker, name, str(tmp_path_factory.mktemp(name) / "checkpoint"), encoding=request.param)
    world.publish(group("dana", "user:dana"))
    with running(world.settings):
        for number, topic in enumerate(("orders", "carts", "orders")):
            world.publish(role("dana", f"kafka:topic:prod/main/{topic}"))
            for key in KEYS:
                world.send([_asked(f"{key}-{number}-{one}") for one in range(RECORDS)], key=key, partition=0)
        world.send([b"no request"], key="a", partition=0)
        world.await_no_lag()
    made = Decided(world, request.param, {0: [], 1: []})
    for message in world.reader(world.names.decisions).to_the_end():
        written = Written(message.key(), message.value(), message.timestamp()[1])
        made.partitions[message.partition()].append(written)
    return made


def _asked(id_: str) -> dict[str, Any]:
    return request(id_, "dana", "orders")


Records = list[Written]
Change = Callable[[Decided, Records], set[int]]
"""Changes the records of a partition; returns the offsets, in records, of those that a violation must name."""


def _edit(change: Callable[[dict[str, Any]], None], at: int) -> Change:
    def edit(decided: Decided, records: Records) -> set[int]:
        decision = decided.decode(records[at].value)
        change(decision)
        records[at] = Written(records[at].key, decided.encode(decision), records[at].at)
        return {at % len(records)}

    return edit


def _forged(change: Callable[[dict[str, Any]], None]) -> Change:
    """Another decision, of the first one's request, at the end."""

    def forge(decided: Decided, records: Records) -> set[int]:
        decision = decided.decode(records[0].value)
        change(decision)
        records.append(Written(records[0].key, decided.encode(decision), records[-1].at))
        return {len(records) - 1}

    return forge


def _allow(decision: dict[str, Any]) -> None:
    assert not decision["decision"]
    decision["decision"], decision["context"]["outcome"] = True, "allow"


def _source(offset: int) -> Callable[[dict[str, Any]], None]:
    return lambda decision: decision["context"]["source"].update(offset=offset)


def _denied(decided: Decided, records: Records) -> int:
    return next(at for at, one in enumerate(records) if not decided.decode(one.value)["decision"])


def _allow_one(decided: Decided, records: Records) -> set[int]:
    return _edit(_allow, _denied(decided, records))(decided, records)


def _allow_by_no_offset(decided: Decided, records: Records) -> set[int]:
    def change(decision: dict[str, Any]) -> None:
        _allow(decision)
        decision["context"]["policy_offsets"][decided.world.policies]["0"] = 99

    return _edit(change, _denied(decided, records))(decided, records)


def _swap(_decided: Decided, records: Records) -> set[int]:
    """Two neighbours with one key, of one policy."""
    at = next(at for at, one in enumerate(records) if records[at + 1].key == one.key)
    records[at], records[at + 1] = records[at + 1], records[at]
    return {at + 1}


def _double(_decided: Decided, records: Records) -> set[int]:
    records.insert(1, records[0])
    return {1}


def _cut(_decided: Decided, records: Records) -> set[int]:
    records[1] = Written(records[1].key, records[1].value[:40], records[1].at)
    return {1}


def _empty(_decided: Decided, records: Records) -> set[int]:
    records[1] = Written(records[1].key, b"", records[1].at)
    return {1}


def _rekey(_decided: Decided, records: Records) -> set[int]:
    other = next(one.key for one in records if one.key != records[1].key)
    records[1] = Written(other, records[1].value, records[1].at)
    return {1}


FOREIGN = _forged(lambda decision: decision.update(id=f"AAAAAAAAAAAAAAAAAAAAAA-0-{decision['id'][-1]}"))
CHANGES: dict[str, tuple[Change, dict[str, int]]] = {
    "a deny that is an allow": (_allow_one, {"unlike_reference": 1}),
    "an allow by offsets that are none": (_allow_by_no_offset, {"wrong_version": 1}),
    "another subject": (
        _edit(lambda decision: decision["context"]["request"]["subject"].update(id="user:eve"), 1),
        {"unlike_reference": 1},
    ),
    "another version": (
        _edit(lambda decision: decision["context"].update(policy_version="sha256:" + "0" * 64), 1),
        {"wrong_version": 1},
    ),
    "a second one": (_double, {"doubled": 1}),
    "another order": (_swap, {"out_of_order": 1}),
    "a forged one of a request that is not there": (_forged(_source(10_000)), {"unasked": 1}),
    "a forged one of the dead letter's record": (
        _forged(_source(3 * len(KEYS) * RECORDS)),
        {"doubled": 1},
    ),
    "a forged one of a topic that never was": (FOREIGN, {"unasked": 1}),
    "another key": (_rekey, {"unlike_reference": 1}),
    "half of one": (_cut, {"unreadable": 1, "lost": 1}),
    "one without a value": (_empty, {"unreadable": 1, "lost": 1}),
}


def _largest(decided: Decided) -> int:
    """The partition with more keys."""
    return max(decided.partitions, key=lambda number: len(decided.partitions[number]))


def _broken(findings: Findings) -> dict[str, int]:
    return {check: count for check, count in findings.counts.items() if count}


def test_a_copy_of_all_decisions_accuses_nobody(decided: Decided) -> None:
    findings = decided.verified_copy(decided.partitions)
    assert (_broken(findings), dict(findings.unknown)) == ({}, {})
    assert findings.verified == findings.decisions == 3 * len(KEYS) * RECORDS
    assert findings.outcomes == {"allow": 12, "deny": 6}
    assert findings.dead_letters == 1


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_found_where_it_was_made_and_nothing_else(decided: Decided, name: str) -> None:
    change, expected = CHANGES[name]
    number = _largest(decided)
    records = list(decided.partitions[number])
    changed = change(decided, records)
    findings = decided.verified_copy({**decided.partitions, number: records})
    assert _broken(findings) == expected, findings.violations
    named = [one for one in findings.violations if one.check != "lost"]
    # Each record is followed by the marker of its transaction.
    assert {(one.partition, one.offset // 2) for one in named} == {(number, at) for at in changed}
    assert dict(findings.unknown) == {}


def test_what_is_missing_and_what_lies_elsewhere_are_found(decided: Decided) -> None:
    number = _largest(decided)
    records = list(decided.partitions[number])
    dropped = decided.decode(records.pop(3).value)["context"]["source"]
    moved = records.pop()
    others = [*decided.partitions[1 - number], moved]
    findings = decided.verified_copy({number: records, 1 - number: others})
    assert _broken(findings) == {"lost": 1, "misplaced": 1}
    lost, misplaced = sorted(findings.violations, key=lambda one: one.check)
    assert (lost.topic, lost.partition, lost.offset) == (dropped["topic"], 0, dropped["offset"])
    assert (misplaced.partition, misplaced.offset) == (1 - number, 2 * (len(others) - 1))


def test_a_forged_dead_letter_is_found(decided: Decided) -> None:
    """The last test: it stays."""
    world = decided.world
    topic = dead_letters_of(world.names.requests[0])
    source = {"topic": world.names.requests[0], "partition": "0", "offset": "0"}
    headers = [(f"__connect.errors.{name}", text.encode()) for name, text in source.items()]
    world.producer.produce(topic, b"{}", b"a", 0, headers=headers)
    assert world.producer.flush(30) == 0
    findings = verify(world.settings)
    assert _broken(findings) == {"doubled": 1}
    assert [(one.topic, one.partition) for one in findings.violations] == [(topic, 0)]
