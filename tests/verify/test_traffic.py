"""The checker's own documents and requests: no other application is concerned, and no alert is raised."""

import pytest
from confluent_kafka import Message

from policy import compile_documents, decide
from policy.analysis.edits import Edit, said
from policy.analysis.escalation import Escalation, analyse
from policy.core.document import Key
from policy.core.limits import Work
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from streaming.alert_kinds import MONITORED, AlertKind
from streaming.settings import Settings
from streaming.verify.cluster import Traffic


@pytest.fixture
def traffic() -> Traffic:
    return Traffic(Settings(), rate=50)


def test_each_change_has_another_answer_and_denies_win(traffic: Traffic) -> None:
    asked = next(traffic.request(n) for n in range(100) if "orders" in traffic.request(n)["resource"]["id"])
    outcomes = [decide(compile_documents([traffic.group(), traffic.role(n)]), asked).outcome for n in range(3)]
    assert outcomes == ["allow", "deny", "deny"]
    snapshot = compile_documents([traffic.group(), traffic.role(0)])
    assert not snapshot.rejected
    undated = ({**traffic.request(n), "deadline": None} for n in range(100))
    assert {decide(snapshot, request).outcome for request in undated} == {"allow", "deny"}


def test_a_request_that_kafka_acknowledged_without_its_offset_is_no_failure(traffic: Traffic) -> None:
    """As a duplicate, when the leader of the partition has moved."""
    traffic._note(None, Message(topic="requests", partition=0, offset=3, timestamp=(2, 10)))
    traffic._note(None, Message(topic="requests", partition=0, timestamp=(0, 0)))
    assert traffic.sent.last == {("requests", 0): 3}
    assert (traffic.sent.first_at, traffic.sent.last_at) == (10, 10)


def _opened(traffic: Traffic, before: int | None, after: int | None) -> list[Escalation]:
    """What a change of the role opens, as the job's alerts report it; None: there is no role."""
    store, key = DocumentStore(), Key("lenses6", "Role", traffic.run)
    store.put(traffic.group())
    if before is not None:
        store.put(traffic.role(before), 1, 1)
    earlier = said(store.histories.get(key))
    if after is None:
        store.delete(key, 2, 2)
    else:
        store.put(traffic.role(after), 2, 2)
    edit = Edit(str(key), earlier, said(store.histories.get(key)))
    policy_set = Snapshot(store).policy_sets["lenses6"]
    return list(analyse(all_systems()["lenses6"], policy_set, [edit], 2, Work()).escalations)


def test_no_change_is_an_escalation(traffic: Traffic) -> None:
    """From each state of the role to any later one, since the job may read several changes at once, and to none at all.

    The other way round one would be.
    """
    states = [None, *range(8)]
    for number, before in enumerate(states):
        for after in (*states[number + 1 :], None):
            assert not _opened(traffic, before, after), (before, after)
    assert _opened(traffic, 1, 0)


def test_no_subject_is_denied_so_often_that_it_is_a_burst(traffic: Traffic) -> None:
    rule = MONITORED[AlertKind.DENIAL_BURST].rule
    within = int(rule.within_seconds * 50)
    subjects = [traffic.request(number)["subject"]["id"] for number in range(within)]
    assert max(map(subjects.count, set(subjects))) <= rule.more_than
