"""Past decisions evaluated again: equal as long as the topics hold what they rest on, else no longer known."""

import collections
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message, TopicPartition

from streaming.client.decision import read_decision
from streaming.decision_log.replay import Replay, Replays, find_by_id
from streaming.decision_log.search import Found
from streaming.history.records import ConsumerRecord, record_of
from streaming.kafka.committed import committed_records
from streaming.snapshots.at_offsets import NoLongerKnown
from streaming.snapshots.documents import CLOCKS_DIFFER_MS
from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import SYSTEM, World, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(1200)]

DECISIONS, CHANGES = map(int, os.environ.get("LOCKKEEPER_TEST_PAST_DECISIONS", "400,20").split(","))
PARTS = 4  # with a restart between
COMPACT_NOW = {"min.compaction.lag.ms": "0", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}
PROMISED = {"min.compaction.lag.ms": str(7 * 24 * 60 * 60 * 1000), "segment.ms": "604800000"}
USERS, TOPICS, ROLES = 20, 10, 8


def _change(number: int, chance: random.Random) -> dict[str, Any]:
    """A role or a group that is another one than before; now and then one that is refused."""
    name = f"r{chance.randrange(ROLES)}"
    if number % 9 == 8:
        return {**role(name), "spec": {"statments": []}}
    if number % 3 == 2:
        members = [f"user:u{user}" for user in chance.sample(range(USERS), 4)]
        spec = {"roles": [f"r{chance.randrange(ROLES)}", name], "members": members}
        return {"system": SYSTEM, "kind": "Group", "name": f"g{chance.randrange(4)}", "spec": spec}
    topics = [f"kafka:topic:prod/main/t{topic}" for topic in chance.sample(range(TOPICS), 4)]
    return role(name, *topics, effect="deny" if number % 5 == 4 else "allow")


def _request(number: int, chance: random.Random) -> dict[str, Any]:
    """A request; some claim a group, some are batches, some come after their deadline."""
    asked = request(f"q{number}", f"u{chance.randrange(USERS)}", f"t{chance.randrange(TOPICS)}")
    if number % 4 == 1:
        asked["subject"]["properties"] = {"groups": [f"g{chance.randrange(4)}"]}
    if number % 50 == 7:
        asked["deadline"] = "2020-01-01T00:00:00Z"
    if number % 10 == 3:
        asked["evaluations"] = [{}, {"action": {"name": "kafka:DeleteTopic"}}, {"action": 7}]
    return asked


class _Traffic:
    """Changes of policies, and requests that are decided in between, by a job that is started again for each part."""

    def __init__(self, world: World) -> None:
        self.world, self.chance, self.part, self.sent = world, random.Random(7), 0, 0

    def decide_part(self) -> None:
        """Start the job, publish this part's changes, each followed by its share of the requests; await all."""
        changes = range(self.part * CHANGES // PARTS, (self.part + 1) * CHANGES // PARTS)
        with running(self.world.settings):
            for number in changes:
                self.world.publish(_change(number, self.chance))
                each = range(self.sent, self.sent + DECISIONS // CHANGES)
                self.world.send(_request(asked, self.chance) for asked in each)
                self.sent = each.stop
            wait_until(lambda: set(self.world.lags()) == {0}, "all requests are decided", 300)
        self.part += 1


class _Past:
    """The decisions and requests that the topics hold."""

    def __init__(self, world: World) -> None:
        self.settings, self.admin = world.settings, world.admin
        values = (record_of(message) for message in committed_records(world.settings, [world.names.decisions]))
        found = (Found(record, json.loads(record.value)) for record in values)
        self.found = sorted(found, key=lambda one: one.decision["context"]["policy_offsets"][world.policies]["0"])
        self.requests: dict[Any, ConsumerRecord] = {}
        for message in committed_records(world.settings, world.names.requests):
            record = record_of(message)
            self.requests[record.topic, record.partition, record.offset] = record

    def replayed(self) -> Iterator[tuple[Found, Replay | NoLongerKnown]]:
        """Each decision, evaluated again. The same as `Replays.replay`, with the requests read in one go."""
        replays = Replays(self.settings, self.admin)
        for found in self.found:
            stored = read_decision(msgspec.json.encode(found.decision))
            assert stored.source is not None
            place = (stored.source.topic, stored.source.partition, stored.source.offset)
            try:
                yield found, replays.replay_request(found, stored, self.requests.get(place))
            except NoLongerKnown as unknown:
                yield found, unknown


def _counts(results: Iterable[tuple[Found, Replay | NoLongerKnown]]) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for found, result in results:
        if isinstance(result, NoLongerKnown):
            counts["no longer known"] += 1
        elif result.equal is False:
            raise AssertionError(f"{found.decision['id']}: {result.differences}")
        else:
            counts["equal" if result.equal else "not compared"] += 1
    return counts


class _Compacted(msgspec.Struct, frozen=True):
    """The policies after a compaction. ``last``: the newest offset then; ``at``: when, ms; ``records``: left of it."""

    last: int
    at: int
    records: int


def _compact(world: World) -> _Compacted:
    """Make the broker compact the policies for real, until the first record is gone."""
    world.configure(world.policies, COMPACT_NOW)
    filler = {"system": SYSTEM, "kind": "Role", "name": "filler", "spec": {"statements": []}}

    left: list[Message] = []

    def is_gone() -> bool:
        last = world.publish(filler)
        reader = world.reader(world.policies)
        left[:] = reader.until(lambda seen: bool(seen) and seen[-1].offset() >= last, "the end of the policies")
        return left[0].offset() > 0

    wait_until(is_gone, "the first record of the policies is compacted away", 300)
    world.configure(world.policies, PROMISED)  # without it, the job does not start
    return _Compacted(left[-1].offset(), left[-1].timestamp()[1], len(left))


def _past_of(world: World, compacted: _Compacted) -> "_Past":
    """The decisions, where the topic promises what is true: to keep everything that came after the compaction."""
    age = int(time.time() * 1000) - compacted.at
    world.configure(world.policies, {"min.compaction.lag.ms": str(age + CLOCKS_DIFFER_MS)})
    return _Past(world)


def _of(world: World, found: Found) -> int:
    """The policies' offset by which a decision was made."""
    return int(found.decision["context"]["policy_offsets"][world.policies]["0"])


def _is_late(found: Found) -> bool:
    return bool(found.decision["context"]["reasons"][0]["code"] == "deadline-exceeded")


def test_past_decisions_come_out_as_they_were_or_are_said_to_be_unknown(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Over changes, restarts and a compaction half-way; then without the requests, which retention took."""
    world = World(broker, fresh_name("past"), str(tmp_path / "checkpoint"))
    for name in range(ROLES):
        world.publish(role(f"r{name}", f"kafka:topic:prod/main/t{name}"))
    traffic = _Traffic(world)
    while traffic.part < PARTS // 2:
        traffic.decide_part()
    past = _Past(world)
    assert len(past.found) == traffic.sent
    late = sum(map(_is_late, past.found))
    before = _counts(past.replayed())
    assert before == {"equal": len(past.found) - late, "not compared": late}
    first = past.found[0].decision["id"]
    again = find_by_id(world.settings, world.admin, first).entry
    assert again is not None
    assert again.decision["id"] == first

    compacted = _compact(world)
    assert compacted.records < compacted.last, "only the newest of each key is left"
    while traffic.part < PARTS:
        traffic.decide_part()
    whole = _past_of(world, compacted)
    assert len(whole.found) == traffic.sent == DECISIONS // CHANGES * CHANGES
    outcomes = collections.Counter(found.decision["context"]["outcome"] for found in whole.found)
    assert outcomes.keys() == {"allow", "deny", "error"}
    results = list(whole.replayed())
    older = [result for found, result in results if _of(world, found) < compacted.last]
    newer = [(found, result) for found, result in results if _of(world, found) > compacted.last]
    assert (len(older), len(older) + len(newer)) == (len(past.found), traffic.sent)
    assert all(isinstance(result, NoLongerKnown) for result in older)
    late = sum(_is_late(found) for found, _ in newer)
    after = _counts(newer)
    assert after == {"equal": len(newer) - late, "not compared": late}

    ends = [TopicPartition(world.names.requests[0], number, -1) for number in range(2)]
    for deleted in world.admin.delete_records(ends).values():
        deleted.result(30)
    without = _past_of(world, compacted)
    assert without.requests == {}
    results = list(without.replayed())
    compared = [(found, one) for found, one in results if isinstance(one, Replay)]
    assert len(compared) == len(newer)
    assert all("no longer there" in one.notes[0] for _, one in compared)
    assert all(one.equal for found, one in compared if _is_plain(found))
    print(
        f"outcomes {dict(outcomes)}; before the compaction {dict(before)}; after it {len(older)} no longer known, "
        f"{dict(after)}; without requests {dict(_counts(results))}"
    )


def _is_plain(found: Found) -> bool:
    """Whether a decision rests on nothing but what it repeats of its request."""
    context = found.decision["context"]
    return not context["claims"] and context["outcome"] == "allow" and "evaluations" not in found.decision
