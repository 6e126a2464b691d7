"""Many readers of the policies at offsets beside a writer: each reads what a replay from the first record gives."""

import collections
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from policy import Snapshot, decide
from policy.store.documents import DocumentStore
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown, Retention
from streaming.snapshots.documents import DocumentRecord, Loader
from streaming.topics import DAY_MS, TopicNames
from tests.snapshots.test_at_offsets import group, put, role

NAMES = TopicNames()
TOPICS = NAMES.policy_topics()
FIRST, SECOND = TOPICS["lenses6"], TOPICS["streamsets"]
NOW = 1_800_000_000_000
READERS = 8
TOPIC_NAMES = ("orders", "payments", "audit")
State = tuple[Any, ...]


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    """Threads take turns between most instructions: races show in a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def history(count: int, chance: random.Random) -> list[DocumentRecord]:
    """Roles, groups, deletions and refused documents, and organizations on a topic of their own, in one order."""
    records, offsets = list[DocumentRecord](), collections.Counter[str]()
    for number in range(count):
        topic = SECOND if number % 7 == 3 else FIRST
        if topic == SECOND:
            document: Any = {"system": "streamsets", "kind": "Organization", "name": "shop"}
            record = put(0, document | {"spec": {"enforcement": bool(number % 2)}}, NOW + number)
        elif number % 5 == 2:
            members = chance.sample(["user:dana", "user:erik", "user:ann"], chance.randrange(3))
            record = put(0, group("readers", *members), NOW + number)
        else:
            name = chance.choice(["readers", "others"])
            wanted = chance.sample(TOPIC_NAMES, chance.randrange(3))
            record = put(0, role(name, *wanted, effect=chance.choice(["allow", "deny"])), NOW + number)
            if number % 11 == 0:
                record = put(0, chance.choice([None, b"{"]), NOW + number, f"Role/{name}")
        records.append(DocumentRecord(topic, record.key, record.value, offsets[topic], record.at))
        offsets[topic] += 2 if number % 3 == 0 else 1  # the marker of a transaction takes an offset
    return records


def state_of(snapshot: Snapshot) -> State:
    """What a snapshot says, in a form that can be compared: its version, and decisions with their reasons."""
    dana = {"type": "user", "id": "user:dana"}
    read = [("lenses6", "kafka:ReadTopicData", "lrn", f"kafka:topic:prod/main/{topic}") for topic in TOPIC_NAMES]
    asked = [
        {
            "id": "r",
            "system": system,
            "subject": dana,
            "action": {"name": action},
            "resource": {"type": type_, "id": id_},
        }
        for system, action, type_, id_ in (*read, ("streamsets", "job.view", "job", "job:x"))
    ]
    answers = [decide(snapshot, one) for one in asked]
    return snapshot.version, *((answer.outcome, tuple(answer.reasons)) for answer in answers)


class World:
    """A log, its writer, and what a replay from zero gives at each number of records."""

    def __init__(self, records: list[DocumentRecord]) -> None:
        self.records = records
        self.log = DocumentLog(NAMES, 1 << 20, NOW, {topic: Retention(7 * DAY_MS) for topic in NAMES.policy_topics()})
        self.log.read_to({(topic, 0): 0 for topic in self.log.topics})
        self.offsets = [dict.fromkeys(TOPICS.values(), -1)]
        for record in records:
            self.offsets.append(self.offsets[-1] | {record.topic: record.offset})
        self.written = 0
        self._expected: dict[int, State] = {}

    def expected(self, count: int) -> State:
        """Of the first so many records, put into an empty store one by one."""
        if count not in self._expected:
            store = DocumentStore(systems=NAMES.systems)
            for record in self.records[:count]:
                system = next(system for system, topic in TOPICS.items() if topic == record.topic)
                Loader(store, system, 1 << 20).take(record)
            self._expected[count] = state_of(Snapshot(store))
        return self._expected[count]

    def write(self, forget_every: int) -> None:
        """Publish the next record; now and then let go of the oldest."""
        record = self.records[self.written]
        self.log.add(record)
        self.log.read_to({(record.topic, 0): record.offset + 1})
        self.written += 1
        if forget_every and self.written % forget_every == 0:
            self.log.forget_before(self.records[self.written // 2].at)

    def read(self, count: int) -> State | None:
        """What the log says at the end of so many records; None: it says that it does not know any more."""
        offsets = {topic: {"0": offset} for topic, offset in self.offsets[count].items()}
        try:
            return state_of(self.log.snapshot_at(offsets, -1))
        except NoLongerKnown:
            return None


def run(world: World, reads: int, forget_every: int) -> collections.Counter[str]:
    """So many reads by all readers together, beside the writer, which writes evenly among them."""
    counts: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    turns = iter(range(reads))
    turned = threading.Condition()

    def read_on(seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not failures:
                with turned:
                    turn = next(turns, None)
                if turn is None:
                    return
                count = chance.randint(max(world.written - 40, 0), world.written)
                found = world.read(count)
                with turned:
                    if found is None:
                        counts["no longer known"] += 1
                    elif found == world.expected(count):
                        counts["equal"] += 1
                    else:
                        failures.append(f"after {count} records: {found}, not {world.expected(count)}")
                    due = (turn + 1) * len(world.records) // reads
                    waiting[0] = max(waiting[0], due)
                    turned.notify_all()
        except Exception as error:
            failures.append(repr(error))

    def write_on() -> None:
        try:
            while world.written < len(world.records) and any(reader.is_alive() for reader in readers) and not failures:
                with turned:
                    is_due = turned.wait_for(lambda: world.written < waiting[0] + READERS, 1)
                if is_due:
                    world.write(forget_every)
        except Exception as error:
            failures.append(repr(error))

    waiting = [0]
    readers = [threading.Thread(target=read_on, args=(seed,)) for seed in range(READERS)]
    writer = threading.Thread(target=write_on)
    for thread in (*readers, writer):
        thread.start()
    for thread in (*readers, writer):
        thread.join(3600)
    assert not failures, failures[0]
    return counts


@pytest.mark.parametrize("forget_every", [0, 10])
def test_readers_beside_a_writer_read_what_a_replay_gives(forget_every: int) -> None:
    world = World(history(60, random.Random(1)))
    counts = run(world, 600, forget_every)
    assert counts.total() == 600
    assert counts["equal"] > 300
    assert forget_every or not counts["no longer known"]


def test_a_reader_that_is_slow_reads_what_was_there_when_the_writer_lets_go_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Held between the records of two topics; meanwhile the records of the second one are no longer kept."""
    world = World(history(60, random.Random(1)))
    while world.written < 60:
        world.write(forget_every=0)
    take, began, go_on = Loader.take, threading.Event(), threading.Event()
    found: list[State | None] = []

    def held(loader: Loader, record: DocumentRecord) -> Any:
        if threading.current_thread() is reader:
            began.set()
            assert go_on.wait(30)
        return take(loader, record)

    monkeypatch.setattr(Loader, "take", held)
    reader = threading.Thread(target=lambda: found.append(world.read(40)))
    writer = threading.Thread(target=lambda: world.log.forget_before(NOW + 50))
    reader.start()
    assert began.wait(30)
    writer.start()
    writer.join(0.5)  # it waits for the reader; without that it ends at once
    go_on.set()
    for thread in (reader, writer):
        thread.join(30)
    assert found == [world.expected(40)]
    assert world.read(40) is None
    assert world.read(55) == world.expected(55)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_reads_beside_a_writer_are_what_a_replay_gives() -> None:
    sys.setswitchinterval(1e-4)  # races are for the short ones
    world = World(history(500, random.Random(2)))
    counts = run(world, 10_000, forget_every=20)
    assert (counts.total(), world.written) == (10_000, 500)
    print(counts)
    assert counts["equal"] > 5_000
