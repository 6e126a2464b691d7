"""What a worker process knows of the facts follows the driver's changes, however they reach it."""

import copy
import random
from typing import Any

import msgspec
import pytest

from policy.core.document import Key
from policy.core.model import Fact
from policy.store.documents import DocumentStore
from policy.store.overlay import FactChange, FactOverlay, changes_of
from streaming.enforcer import process_cache
from streaming.enforcer.facts_at import FactsAt
from streaming.enforcer.process_cache import HeldFacts
from streaming.snapshots import broadcasts as broadcasts_module
from streaming.snapshots.broadcasts import FactBroadcasts


class Arrived:
    """What a worker process has of a broadcast: a value of its own."""

    def __init__(self, value: Any) -> None:
        self.value = copy.deepcopy(value)


@pytest.mark.parametrize("skipped", [0.0, 0.7])
def test_every_worker_knows_what_the_driver_knows(monkeypatch: pytest.MonkeyPatch, skipped: float) -> None:
    """Also one that sits out many batches, over parts and new layers."""
    monkeypatch.setattr(broadcasts_module, "PART", 5)
    monkeypatch.setattr(broadcasts_module, "REBASED", 23)
    rng, overlay, feed = random.Random(1), FactOverlay(), FactBroadcasts(Arrived)
    held: HeldFacts | None = None
    applied, layer_is_new = 0, False
    for batch in range(200):
        changes = [_change(f"user-{rng.randrange(8)}", batch) for _ in range(rng.randrange(4))]
        for change in changes:
            overlay.apply(change)
        facts = feed.current(overlay, changes)
        if rng.random() < skipped:
            continue
        if held is None or held.base != facts.base:
            held, applied, layer_is_new = HeldFacts(facts.base, feed.broadcasts[0].value), 0, True
        held.follow(facts, feed.broadcasts)
        for _ in range(2):  # another task of the same batch
            held.follow(facts, feed.broadcasts)
        seen, applied = held.changed_since(applied), held.applied
        expected = {("streamsets", ("name", "Session", change.key.name)) for change in changes}
        assert seen is None or layer_is_new or expected <= {*seen}
        layer_is_new = False
        for name in (f"user-{number}" for number in range(8)):
            assert held.overlay.table("streamsets").get("Session", name) == overlay.table("streamsets").get(
                "Session", name
            )


def test_changes_that_could_not_be_sent_are_sent_with_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may not take a broadcast in time; the batch is tried again, or the next one comes."""
    monkeypatch.setattr(broadcasts_module, "PART", 5)
    monkeypatch.setattr(broadcasts_module, "REBASED", 23)
    rng, overlay, held, failed = random.Random(2), FactOverlay(), list[HeldFacts](), 0

    def broadcast(value: Any) -> Any:
        if rng.random() < 0.5:
            raise TimeoutError
        return Arrived(value)

    feed = FactBroadcasts(broadcast)
    for batch in range(300):
        changes = [_change(f"user-{rng.randrange(8)}", batch) for _ in range(rng.randrange(4))]
        for change in changes:
            overlay.apply(change)
        try:
            facts = feed.current(overlay, changes)
        except TimeoutError:
            failed += 1
            continue
        if not held or held[-1].base != facts.base:
            held.append(HeldFacts(facts.base, feed.broadcasts[0].value))
        held[-1].follow(facts, feed.broadcasts)
        for name in (f"user-{number}" for number in range(8)):
            expected = overlay.table("streamsets").get("Session", name)
            assert held[-1].overlay.table("streamsets").get("Session", name) == expected, batch
    assert failed > 20
    assert len(held) > 10


def test_lookups_that_changed_too_long_ago_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_cache, "LOOKUPS_HELD", 10)
    feed, overlay = FactBroadcasts(Arrived), FactOverlay()
    facts = feed.current(overlay, [])
    held = HeldFacts(facts.base, feed.broadcasts[0].value)
    for number in range(1, 40):
        change = _change(f"user-{number}", number)
        overlay.apply(change)
        held.follow(feed.current(overlay, [change]), feed.broadcasts)
    assert held.changed_since(held.applied) == []
    assert held.changed_since(held.applied - 1) == [("streamsets", ("name", "Session", "user-39"))]
    assert held.changed_since(0) is None


def _change(name: str, number: int) -> FactChange:
    facts = () if number % 7 == 0 else (Fact("Session", name, number),)
    return FactChange(Key("streamsets", "Session", name), facts)


def test_what_was_known_before_the_newest_changes_of_a_start_is_known_by_their_offsets() -> None:
    """The layer that is broadcast first is that of before; what a worker makes of it is the same as the driver's."""
    overlay, feed = FactOverlay(), FactBroadcasts(Arrived)
    changes = [msgspec.structs.replace(_change("sam", number), order=number) for number in range(1, 7)]
    for change in changes[:3]:
        overlay.apply(change)
    older = overlay.copy(), 3
    for change in changes[3:]:
        overlay.apply(change)
    facts = feed.current(overlay, changes, 6, older)
    layer = feed.broadcasts[0].value
    held = HeldFacts(facts.base, layer, FactsAt(layer.copy(), facts.since))
    held.follow(facts, feed.broadcasts)
    assert held.overlay.table("streamsets").get("Session", "sam") == overlay.table("streamsets").get("Session", "sam")
    assert held.past is not None
    assert held.past.newest_of("streamsets", 2) is None
    for offset in range(3, 7):
        assert held.past.newest_of("streamsets", offset) == offset
        found = held.past.at(offset).table("streamsets").get("Session", "sam")
        assert found == _change("sam", offset).facts[0]


def test_a_refused_version_is_recorded_when_it_came_though_an_older_one_stays_in_force() -> None:
    """Or else each answer by the older one would seem to have been late since that came."""
    facts, key = DocumentStore(facts_only=True), Key("streamsets", "Session", "sam")
    good = {"system": key.system, "kind": key.kind, "name": key.name, "spec": {"login_at": 1, "groups": ["team"]}}
    facts.put(good, 1_000, 1)
    facts.put({**good, "spec": {"wrong": 1}}, 9_000, 2)
    first, second = changes_of(key, facts.histories[key], 2)
    assert [(one.order, one.at, one.recorded) for one in (first, second)] == [(1, 1_000, 1_000), (2, 1_000, 9_000)]
    known = FactsAt(FactOverlay(), 0)
    known.follow(0, [first, second])
    assert [known.superseded("streamsets", offset) for offset in (0, 1, 2)] == [1_000, 9_000, None]
