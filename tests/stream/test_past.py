"""Snapshots of the past are rebuilt as far as they are known. No client can keep the job busy with that alone."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from policy.core.document import Key
from policy.core.model import Fact, Unanswerable
from policy.store.overlay import FactChange, FactOverlay
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot, compile_documents
from streaming.enforcer.worker import Task, Worker
from streaming.records.formats import JSON_ALONE
from streaming.settings import DEFAULT_TRUST, Limits
from streaming.snapshots.at_offsets import DocumentLog, Retention
from streaming.snapshots.broadcasts import Facts
from streaming.snapshots.documents import DocumentRecord
from streaming.snapshots.rebuilt import AT_ONCE_SECONDS, HELD_SECONDS, SHARE, PastSnapshots
from streaming.topics import DAY_MS, TopicNames
from tests.stream.world import LOOKS_BACK, group

NAMES = TopicNames()
TOPIC = NAMES.policy_topics()["lenses6"]
NOW = 1_795_000_000_000
CHANGES = 50


class Sent:
    """What the driver has of a broadcast."""

    def __init__(self, value: Snapshot) -> None:
        self.value, self.destroyed = value, False

    def destroy(self) -> None:
        self.destroyed = True


class Clock:
    """Stands still; with `work`, each look at it takes so many seconds."""

    def __init__(self, work: float = 0.0) -> None:
        self.now, self.work = 0.0, work

    def __call__(self) -> float:
        self.now += self.work
        return self.now


def _documents(first_at: int = NOW) -> DocumentLog:
    """One group that changes every second, beginning with `first_at`."""
    log = DocumentLog(NAMES, 1 << 20, NOW, {topic: Retention(7 * DAY_MS) for topic in NAMES.policy_topics().values()})
    for offset in range(CHANGES):
        value = json.dumps(group("readers", f"user:{offset}")).encode()
        log.add(DocumentRecord(TOPIC, b"Group/readers", value, offset, first_at + 1000 * offset))
    log.read_to({(topic, 0): CHANGES if topic == TOPIC else 0 for topic in NAMES.policy_topics().values()})
    return log


def _past(clock: Clock | None = None, first_at: int = NOW, kept: int = 2) -> PastSnapshots:
    send: Any = Sent
    return PastSnapshots(_documents(first_at), send, kept, clock or Clock())


def _members(past: PastSnapshots) -> dict[tuple[int, int | None], list[str]]:
    """When each snapshot was in force, and who is a member in it."""
    held = past.held()
    return {
        (one.since - NOW, one.until and one.until - NOW): list(one.broadcast.value.policy_sets["lenses6"].memberships)
        for one in held
    }


def test_the_snapshot_of_a_moment_is_rebuilt_once_and_says_when_it_was_in_force() -> None:
    past = _past()
    assert past.rebuild([NOW + 5500, NOW + 5999, NOW + 7000])
    members = _members(past)
    assert list(members) == [(5000, 6000), (7000, 8000)]
    assert "user:5" in members[5000, 6000]
    assert "user:7" in members[7000, 8000]
    assert not past.rebuild([NOW + 5000, NOW + 7999]), "they are held already"


def test_a_moment_before_all_that_is_known_stays_unknown() -> None:
    past = _past(first_at=NOW - 20 * DAY_MS)
    assert not past.rebuild([NOW - 20 * DAY_MS + 1500, NOW - 30 * DAY_MS])
    assert past.held() == ()


def test_no_more_are_held_than_so_many_and_those_for_a_while() -> None:
    clock = Clock()
    past = _past(clock)
    assert past.rebuild(NOW + 1000 * number for number in range(CHANGES))
    held = past.held()
    assert len(held) == 8, "four times as many as snapshots of the present"
    assert not past.rebuild(NOW + 1000 * number for number in range(CHANGES)), "until these are let go of"
    clock.now += HELD_SECONDS + 1
    past.tidy()
    past.tidy()
    assert past.held() == ()
    assert all(one.broadcast.destroyed for one in held)  # type: ignore[attr-defined]
    assert past.rebuild([NOW])


def test_the_work_that_events_cause_is_a_share_of_the_time() -> None:
    """Some at once, as after a restart; from then on no more than a share of the time."""
    clock = Clock(work=1.0)
    past, rebuilt = _past(clock, kept=1000), 0
    for number in range(CHANGES):
        rebuilt += past.rebuild([NOW + 1000 * number])
    assert 0 < rebuilt < CHANGES / 2
    clock.work = 0.0
    assert not past.rebuild([NOW + 1000 * (CHANGES - 1)])
    clock.now += AT_ONCE_SECONDS / SHARE
    assert past.rebuild([NOW + 1000 * (CHANGES - 1)])


@pytest.mark.parametrize("moments", [[], [NOW - 40 * DAY_MS]])
def test_without_anything_new_the_batch_is_not_evaluated_again(moments: list[int]) -> None:
    assert not _past().rebuild(moments)


def test_a_worker_evaluates_at_a_moment_and_reports_the_moments_whose_snapshot_it_lacks() -> None:
    older, newest = (compile_documents([group("readers", f"user:{name}")]) for name in ("older", "newest"))
    key = Key(LOOKS_BACK, "Session", "dana")
    overlay = FactOverlay(FactChange(key, (Fact("Session", "dana", at),), at=at) for at in (15, 30))
    worker = _worker([(0, 10, older), (20, None, newest)], overlay)
    answers = {moment: worker._answers_at(DEFAULT_TRUST, moment) for moment in (-1, 5, 10, 19, 25, 30, 99)}
    held = {moment: one for moment, one in answers.items() if one is not None}
    found = {moment: one.policies_at(moment)[0] for moment, one in held.items()}
    versions = {moment: one.version for moment, one in held.items()}
    assert versions == {5: older.version, **dict.fromkeys((25, 30, 99), newest.version)}
    assert worker._moments == {-1, 10, 19}
    assert [_login(found[moment]) for moment in (25, 30, 99)] == [15, 30, 30]
    assert found[30] is found[99], "as a rule nothing has to be put together"
    with pytest.raises(Unanswerable, match="not known any more"):
        _login(found[5])


def _login(policy_sets: Mapping[str, PolicySet]) -> Any:
    return policy_sets[LOOKS_BACK].facts.get("Session", "dana")


def _worker(snapshots_: list[tuple[int, int | None, Snapshot]], overlay: FactOverlay) -> Worker:
    send: Any = Sent
    by_topic = ("committed", "topic_ids", "trust", "outputs", "read", "policy_offsets")
    nothing: dict[str, Any] = {field: {} for field in by_topic}
    task = Task(
        topics=(),
        **nothing,
        facts_offset=-1,
        snapshots=tuple((since, until, number) for number, (since, until, _) in enumerate(snapshots_)),
        facts=Facts(id(overlay), (), 0, ()),
        now=NOW,
        limits=Limits(),
        formats=JSON_ALONE,
        enforced=True,
        budgets={},
    )
    return Worker(task, [send(snapshot) for _, _, snapshot in snapshots_], [send(overlay)])
