"""Workers make each snapshot out of one that they have and what has changed, however long they were away."""

import pickle
import random
from typing import Any

import pytest

from policy.core.document import Key
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.enforcer.process_cache import HeldSnapshots
from streaming.snapshots import broadcasts as broadcasts_module
from streaming.snapshots.broadcasts import Broadcasts, PublishedSnapshot, Segment
from tests.policy.test_compiler import contents_of, role


class Sent:
    """A broadcast as it arrives: once for each process, and not at all when it is destroyed."""

    full = False  # a disk that takes nothing more

    def __init__(self, value: Any) -> None:
        if self.full:
            raise OSError("disk full")
        self._bytes: bytes | None = pickle.dumps(value)
        self.read = 0

    @property
    def value(self) -> Any:
        assert self._bytes is not None, "it is destroyed"
        self.read += 1
        return pickle.loads(self._bytes)

    def destroy(self) -> None:
        self._bytes = None


class Process:
    """A worker process, with the snapshots that it has."""

    def __init__(self) -> None:
        self.held = HeldSnapshots()

    def snapshots(
        self, eras: tuple[PublishedSnapshot, ...], segments: tuple[Segment, ...], changes: Any
    ) -> list[Snapshot]:
        found = []
        for era in reversed(eras):
            which = max(number for number, segment in enumerate(segments) if segment.first <= era.number)
            found.append(self.held.get(era.number, segments[which], era.broadcast, changes[which]))
        self.held.keep({era.number for era in eras})
        return found[::-1]


@pytest.mark.parametrize("skipped", [0.0, 0.6, 0.95])
def test_every_worker_has_what_the_driver_has(monkeypatch: pytest.MonkeyPatch, skipped: float) -> None:
    """Whatever it missed; with changes that travel with the tasks, broadcast ones, and snapshots sent anew."""
    monkeypatch.setattr(broadcasts_module, "TAIL_BYTES", 2_000)
    monkeypatch.setattr(broadcasts_module, "SEGMENT_CHANGES", 9)
    dice, store = random.Random(7), DocumentStore()
    for order in range(40):
        store.put(_role(dice, order), order, order)
    compiler, expected = Compiler(store), dict[int, Any]()
    feed, processes = Broadcasts(_send, 3, lambda: None), [Process() for _ in range(4)]
    begun, sent = set[int](), 0
    for order in range(100, 220):
        _edit(store, dice, order)
        compiler.compile()
        Sent.full = dice.random() < 0.1
        try:
            eras = feed.current(compiler.snapshot, order, compiler.changes_since)
        except OSError:
            continue
        finally:
            Sent.full = False
        expected[eras[-1].number] = contents_of(Snapshot(store))
        begun |= {segment.first for segment in feed.segments}
        sent += bool(feed.segments[-1].sent)
        for process in processes:
            if dice.random() >= skipped:
                snapshots = process.snapshots(eras, feed.segments, feed.changes)
                assert [contents_of(snapshot) for snapshot in snapshots] == [expected[era.number] for era in eras]
        if dice.random() < 0.7:
            feed.tidy()
        assert len(pickle.dumps(feed.segments[-1].tail)) < 5_000
    assert len(begun) > 3
    assert sent


@pytest.mark.parametrize("back", [False, True])
def test_between_changes_that_were_read_together_neither_the_last_snapshot_nor_the_new_one_was_in_force(
    back: bool,
) -> None:
    """Accesses of then were judged by the last one. Also where the last change has taken the first one back."""
    store, first, second = DocumentStore(), role("r", ("allow", "*", "*")), role("r", ("deny", "*", "*"))
    store.put(first, 10, 0)
    compiler, feed = Compiler(store), Broadcasts(_send, 3, lambda: None)
    compiler.compile()
    feed.current(compiler.snapshot, 10, compiler.changes_since)
    store.put(second, 20, 1)
    store.put(first if back else role("r", ("allow", "kafka:*", "*")), 30, 2)
    compiler.compile()
    published = feed.current(compiler.snapshot, 30, compiler.changes_since, until=20)
    assert [(snapshot.since, snapshot.until) for snapshot in published] == [(10, 20), (30, None)]


def _send(value: Any) -> Any:
    return Sent(value)


def _role(dice: random.Random, number: int) -> dict[str, Any]:
    effect, topic = dice.choice(["allow", "allow", "deny"]), dice.randrange(20)
    return role(f"r{number}", (effect, "kafka:Get*", f"kafka:topic:e/c/t{topic}*"), ("allow", "*", f"kafka:{topic}*"))


def _edit(store: DocumentStore, dice: random.Random, order: int) -> None:
    number = dice.randrange(45)
    if dice.random() < 0.2:
        store.delete(Key("lenses6", "Role", f"r{number}"), order, order)
    elif dice.random() < 0.2:
        store.put({**_role(dice, number), "spec": {"wrong": 1}}, order, order)
    else:
        store.put(_role(dice, number), order, order)


def test_a_worker_that_keeps_up_reads_each_broadcast_of_all_policies_once_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when they are sent anew: it takes the change beside them."""
    monkeypatch.setattr(broadcasts_module, "SEGMENT_CHANGES", 4)
    store, process = DocumentStore(), Process()
    for order in range(40):
        store.put(_role(random.Random(order), order), order, order)
    compiler = Compiler(store)
    feed, bases = Broadcasts(_send, 2, lambda: None), list[Any]()
    for order in range(100, 130):
        eras = feed.current(compiler.snapshot, order, compiler.changes_since)
        process.snapshots(eras, feed.segments, feed.changes)
        bases += [] if bases and bases[-1] is eras[-1].broadcast else [eras[-1].broadcast]
        feed.tidy()
        store.put(_role(random.Random(order), order % 40), order, order)
        compiler.compile()
    assert len(bases) > 4
    assert [base.read for base in bases] == [1, *[0] * (len(bases) - 1)]
