"""Policies and facts at the offsets that answered records name: exact, or not known, and never at any price."""

import json
import random
from typing import Any

import pytest

from policy import compile_documents
from policy.core.document import Key
from policy.core.model import Fact
from policy.store.overlay import FactChange, FactOverlay
from streaming.enforcer.facts_at import HELD, FactsAt
from streaming.records.answered import offsets_key
from streaming.snapshots.at_offsets import DocumentLog, Retention
from streaming.snapshots.broadcasts import PublishedSnapshot
from streaming.snapshots.documents import DocumentRecord
from streaming.snapshots.named_offsets import KNOWN, NamedOffsets
from streaming.topics import DAY_MS, TopicNames
from tests.stream.test_past import Clock, Sent
from tests.stream.world import group

NAMES = TopicNames()
TOPIC = NAMES.policy_topics()["lenses6"]
NOW = 1_795_000_000_000
CHANGES = 50
KEPT = 4


def _change(name: str, order: int) -> FactChange:
    key = Key("streamsets", "Session", name)
    fact = Fact("Session", name, {"login_at": order})
    return FactChange(key, (fact,) if order % 5 else (), at=NOW + order, order=order, recorded=NOW + order)


def test_facts_at_an_offset_are_those_of_all_changes_up_to_it() -> None:
    """Whatever is asked for first, and with far more offsets than are held."""
    rng = random.Random(3)
    changes = [_change(f"user-{rng.randrange(6)}", order) for order in sorted(rng.sample(range(10, 500), 200))]
    facts = FactsAt(FactOverlay([_change("user-0", 4)]), 4)
    for start in range(0, len(changes), 7):
        facts.follow(start, changes[start : start + 7])
        facts.follow(start, changes[start : start + 7])  # another task of the same batch
    for offset in [rng.randrange(4, 510) for _ in range(10 * HELD)]:
        expected = FactOverlay([_change("user-0", 4), *(change for change in changes if change.order <= offset)])
        newest = facts.newest_of("streamsets", offset)
        assert newest == max([4, *(change.order for change in changes if change.order <= offset)])
        found = facts.at(newest)
        for name in (f"user-{number}" for number in range(6)):
            tables = (one.table("streamsets").get("Session", name) for one in (found, expected))
            assert len({fact and fact.name + str(fact.body) for fact in tables}) == 1, (offset, name)
        later = [change.at for change in changes if change.order > offset]
        assert facts.superseded("streamsets", offset) == (later[0] if later else None)
    assert facts.newest_of("streamsets", 3) is None, "older than the layer began with"
    assert facts.newest_of("cdap", 400) == 4


@pytest.fixture
def documents() -> DocumentLog:
    """One group that changes every second."""
    log = DocumentLog(NAMES, 1 << 20, NOW, {topic: Retention(7 * DAY_MS) for topic in NAMES.policy_topics().values()})
    for offset in range(CHANGES):
        value = json.dumps(group("readers", f"user:{offset}")).encode()
        log.add(DocumentRecord(TOPIC, b"Group/readers", value, offset, NOW + 1000 * offset))
    log.read_to({(topic, 0): CHANGES if topic == TOPIC else 0 for topic in NAMES.policy_topics().values()})
    return log


def _named(documents: DocumentLog, clock: Clock | None = None) -> NamedOffsets:
    """With the newest snapshot, number 7, that the job holds."""
    send: Any = Sent
    made = NamedOffsets(documents, send, KEPT, clock or Clock())
    held: Any = PublishedSnapshot(7, NOW, "sha256:7", Sent(compile_documents([])))  # type: ignore[arg-type]
    made.follow([held], {TOPIC: {"0": CHANGES - 1}})
    return made


def _key(offset: int, **more: Any) -> bytes:
    return offsets_key({TOPIC: {"0": offset}, **more})


def test_the_newest_is_known_without_a_rebuild_and_an_older_one_once_it_is_rebuilt(documents: DocumentLog) -> None:
    named = _named(documents)
    assert {text: one.number for text, one in named.named().items()} == {_key(CHANGES - 1): 7}
    assert named.named()[_key(CHANGES - 1)].superseded == {}
    assert named.resolve([_key(20)])
    one = named.named()[_key(20)]
    assert (one.number, one.superseded) == (-1, {TOPIC: NOW + 21_000})
    snapshot = named.broadcasts()[one.rebuilt].value
    assert snapshot.version == documents.snapshot_at({TOPIC: {"0": 20}}, None).version
    assert not named.resolve([_key(20)]), "it is known"


def test_what_was_never_there_is_never_known_and_costs_no_rebuild(documents: DocumentLog) -> None:
    named = _named(documents)
    texts = [_key(CHANGES), _key(-2), _key(1, nonesuch={"0": 1}), b"{", b'{"x":1}', offsets_key({TOPIC: {"1": 3}})]
    assert not named.resolve(texts)
    assert named.broadcasts() == []
    assert named.named().keys() == {_key(CHANGES - 1)}


def test_rebuilding_is_bounded_in_number_time_and_memory(documents: DocumentLog) -> None:
    named = _named(documents)
    named.resolve(map(_key, range(40)))
    assert len(named.named()) - 1 <= KEPT
    assert len(named.broadcasts()) == KEPT
    gone = list(named.broadcasts())
    named.resolve(map(_key, range(40, 45)))
    named.tidy()
    assert all(one.destroyed for one in gone), "nothing refers to them after the commit"  # type: ignore[attr-defined]
    slow = _named(documents, Clock(work=30.0))  # each takes long
    slow.resolve(map(_key, range(5)))
    assert len(slow.broadcasts()) == 1
    many = [json.dumps({TOPIC: {"0": CHANGES - 1}}).replace(" ", " " * n).encode() for n in range(3 * KNOWN)]
    named.resolve(many)
    named.follow([PublishedSnapshot(7, NOW, "sha256:7", gone[0])], {TOPIC: {"0": CHANGES - 1}})
    assert len(named.named()) <= KNOWN + 1
    assert _key(CHANGES - 1) in named.named()
