"""Which records of a policy topic are changes, and the alerts of what they open: without a broker."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from policy.analysis.escalation import analyse
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.kafka.clients import Partition
from streaming.settings import Settings
from streaming.snapshots import changes
from streaming.snapshots.alerts import policy_rejected
from streaming.snapshots.changes import Changes
from streaming.snapshots.documents import DocumentRecord, Loader, Refused, policy_key
from tests.stream.world import LOOKS_BACK, SYSTEM, group
from tests.waiting import wait_until

NAMES = Settings().topics
TOPICS = {"policies": SYSTEM, "switches": LOOKS_BACK}
ADMIN = {
    "system": SYSTEM,
    "kind": "Role",
    "name": "admin",
    "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]},
}
SOLO = {"system": LOOKS_BACK, "kind": "Organization", "name": "shop", "spec": {}}
FIRST = [ADMIN, group("admin", "user:dana")]


class CompiledDocument:
    """A job that has read some records, by the committed offsets."""

    def __init__(
        self,
        published: Mapping[Partition, int],
        *records: Any,
        topic: str = "policies",
        unanalysed: Mapping[str, Sequence[int]] | None = None,
        reads: bool = True,
    ) -> None:
        self._store = DocumentStore()
        self._loaders = {topic: Loader(self._store, system, 1 << 20) for topic, system in TOPICS.items()}
        self.changes = Changes(Settings(), TOPICS, published, unanalysed)
        self._next = dict.fromkeys(TOPICS, 0)
        if reads:
            self.read(*records, topic=topic)

    def read(self, *records: Any, topic: str = "policies") -> None:
        """Read to the end once more: documents, or a key for what is refused."""
        self.read_some(*records, topic=topic)
        self.changes.compare(self._store, Snapshot(self._store))

    def read_some(self, *records: Any, topic: str = "policies", deletes: bool = False) -> None:
        """The same, but not to the end. `deletes`: what has these keys."""
        for value in records:
            key = value if isinstance(value, str) else f"{value['kind']}/{value['name']}"
            data = b"" if deletes else b"{" if isinstance(value, str) else json.dumps(value).encode()
            record = DocumentRecord(topic, key.encode(), data, self._next[topic], 1000 + self._next[topic])
            self.changes.note(policy_key(record.key, TOPICS[topic]), record, self._store)
            self._loaders[topic].take(record)
            self._next[topic] += 1

    def alerts(self) -> list[dict[str, Any]]:
        """What the next transaction would tell once all is compared, which is then committed."""
        wait_until(lambda: self.changes.is_idle, "all changes are compared")
        found = [(topic, json.loads(value or b"")) for topic, _, value, _ in self.changes.pending()]
        self.changes.published()
        self.widens = [record for topic, record in found if topic == NAMES.changes]
        return [record for topic, record in found if topic == NAMES.alerts]

    def ids(self) -> list[str]:
        """The ids of the same."""
        return [alert["id"] for alert in self.alerts()]


def test_the_first_reading_is_the_baseline_and_what_comes_after_it_a_change() -> None:
    job = CompiledDocument({}, *FIRST)
    assert job.ids() == []
    job.read(group("admin", "user:dana", "user:erik"))
    assert job.ids() == ["privilege-escalation-policies-2-1002"]
    assert job.ids() == []


def test_records_from_the_committed_offset_on_are_changes_of_what_lay_below_it() -> None:
    """As after a restart: dana is the baseline, erik was reported, finn came while the job was away."""
    log = [*FIRST, group("admin", "user:dana", "user:erik"), group("admin", "user:dana", "user:erik", "user:finn")]
    [alert] = CompiledDocument({("policies", 0): 3}, *log).alerts()
    assert alert["id"] == "privilege-escalation-policies-3-1003"
    assert alert["time"] == "1970-01-01T00:00:01.003Z"
    assert (alert["subject"], alert["severity"]) == ("lenses6/Group/admin", "critical")
    assert all(item["holders"] == ["user:finn"] for item in alert["evidence"][1:])


def test_a_topic_that_was_empty_when_it_was_committed_has_an_empty_baseline() -> None:
    assert CompiledDocument({("policies", 0): 0}, *FIRST).ids() == ["privilege-escalation-policies-1-1001"]
    assert CompiledDocument({("switches", 0): 0}, *FIRST).ids() == []


def test_several_versions_read_together_are_one_change_and_none_if_nothing_stays() -> None:
    first, more = FIRST[1], group("admin", "user:dana", "user:erik")
    job = CompiledDocument({}, *FIRST)
    job.read(more, group("admin", "user:dana", "user:erik", "user:finn"))
    [alert] = job.alerts()
    assert alert["id"] == "privilege-escalation-policies-3-1003"
    assert alert["evidence"][1]["holders"] == ["user:erik", "user:finn"]
    job.read(first, more, first)
    assert job.ids() == []


def test_a_role_and_its_member_are_one_change_reported_with_the_last_record_of_the_two() -> None:
    job = CompiledDocument({("policies", 0): 0}, group("admin", "user:dana"), ADMIN)
    [alert] = job.alerts()
    assert alert["id"] == "privilege-escalation-policies-1-1001"
    assert alert["evidence"][0] == {"document": "lenses6/Group/admin", "topic": "policies", "offset": 0}
    assert alert["evidence"][1]["document"] == "lenses6/Role/admin"


def test_changes_that_have_nothing_to_do_with_each_other_are_reported_one_by_one() -> None:
    job = CompiledDocument({}, *FIRST, group("ops", "user:erik"))
    job.read(group("admin", "user:gina"), {**ADMIN, "name": "ops"})
    assert job.ids() == ["privilege-escalation-policies-3-1003", "privilege-escalation-policies-4-1004"]


def test_a_refused_version_changes_nothing_and_the_next_good_one_is_compared_with_the_last() -> None:
    job = CompiledDocument({}, *FIRST)
    job.read("Role/admin")
    assert job.ids() == []
    job.read(ADMIN, FIRST[1])
    assert job.ids() == []


def test_what_is_not_committed_is_reported_again_with_what_came_after_it() -> None:
    """A reading may be followed by another before a transaction is committed."""
    job = CompiledDocument({}, *FIRST)
    job.read(group("admin", "user:erik"))
    job.read(group("admin", "user:erik", "user:finn"))
    assert job.ids() == ["privilege-escalation-policies-2-1002", "privilege-escalation-policies-3-1003"]


def test_organizations_that_enforce_nothing_are_reported_at_first_and_at_each_change() -> None:
    job = CompiledDocument({}, SOLO, topic="switches")
    [alert] = job.alerts()
    assert (alert["id"], alert["severity"]) == ("enforcement-disabled-switches-0-1000", "critical")
    job.read({**SOLO, "spec": {"enforcement": False}}, topic="switches")
    assert job.ids() == [], "it was off before"
    job.read({**SOLO, "spec": {"enforcement": True}}, topic="switches")
    assert job.ids() == []
    job.read(SOLO, topic="switches")
    assert job.ids() == ["enforcement-disabled-switches-3-1003"]
    assert CompiledDocument({("switches", 0): 1}, SOLO, topic="switches").ids() == []


def test_a_change_that_cannot_be_computed_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RecursionError("s3cret")

    job = CompiledDocument({}, *FIRST)
    monkeypatch.setattr(changes, "analyse", failing)
    job.read(group("admin", "user:erik"))
    [alert] = job.alerts()
    assert (alert["id"], alert["kind"]) == ("privilege-escalation-policies-2-1002", "privilege-escalation")
    assert "could not be worked out: RecursionError" in alert["message"]
    assert "s3cret" not in json.dumps(alert)


def test_an_id_names_a_record_of_one_topic_and_not_of_another_that_was_re_created_under_its_name() -> None:
    """Who leaves out ids that were seen before must not miss what is about another record."""

    def id_of(at: int) -> str:
        _, _, value, _ = policy_rejected("alerts", Refused("lenses6/Role/r", "policies", 5, at, ("wrong",)))
        return str(json.loads(value or b"")["id"])

    assert id_of(1000) == id_of(1000) != id_of(2000)


def test_an_alert_is_small_however_much_it_is_about() -> None:
    """The first of the holders and of the statements, and how many there are."""
    users = [f"user:u{number:03}" for number in range(500)]
    statements = [{"effect": "allow", "action": "*", "resource": f"kafka:topic:{n}/*"} for n in range(200)]
    job = CompiledDocument({("policies", 0): 0}, {**ADMIN, "spec": {"statements": statements}}, group("admin", *users))
    [alert] = job.alerts()
    assert alert["evidence"][-1] == {"more": 180}
    assert alert["evidence"][2]["holders"] == ["claim:admin", *users[:19]]
    assert alert["evidence"][2]["holders_count"] == 501
    assert "498 more" in alert["message"]
    assert len(json.dumps(alert)) < 30_000


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Analysis that waits until this is set."""
    go = threading.Event()

    def held_back(*arguments: Any) -> Any:
        assert go.wait(30)
        return analyse(*arguments)

    monkeypatch.setattr(changes, "analyse", held_back)
    yield go
    go.set()


def test_reading_does_not_wait_for_the_analysis_whose_alert_comes_later(held: threading.Event) -> None:
    job = CompiledDocument({}, *FIRST)
    job.read(group("admin", "user:dana", "user:erik"))
    assert job.changes.pending() == []
    assert job.changes.unanalysed() == {"policies": (2,)}
    job.changes.published()
    held.set()
    assert job.ids() == ["privilege-escalation-policies-2-1002"]
    assert (job.changes.pending(), job.changes.unanalysed()) == ([], {})


def test_what_was_not_analysed_at_a_kill_is_compared_again_change_by_change(held: threading.Event) -> None:
    """Erik was added and removed again by changes of their own: together they would open nothing."""
    log = [*FIRST, group("admin", "user:dana", "user:erik"), FIRST[1], group("admin", "user:finn")]
    killed = CompiledDocument({}, *log[:2])
    for record in log[2:4]:
        killed.read(record)
    assert killed.changes.pending() == []
    unanalysed = killed.changes.unanalysed()
    assert unanalysed == {"policies": (2, 3)}
    held.set()
    restarted = CompiledDocument({("policies", 0): 4}, *log, unanalysed=unanalysed)
    alerts = restarted.alerts()
    assert [alert["id"] for alert in alerts] == [
        "privilege-escalation-policies-2-1002",
        "privilege-escalation-policies-4-1004",
    ]
    assert [alert["evidence"][1]["holders"] for alert in alerts] == [["user:erik"], ["user:finn"]]
    assert restarted.changes.unanalysed() == {}


def test_alerts_that_a_transaction_lacks_leave_their_change_unanalysed(held: threading.Event) -> None:
    """The analysis may end between the two questions of a commit."""
    job = CompiledDocument({}, *FIRST)
    job.read(group("admin", "user:erik"))
    assert job.changes.pending() == []
    held.set()
    wait_until(lambda: job.changes.is_idle, "the change is analysed")
    assert job.changes.unanalysed() == {"policies": (2,)}
    assert job.changes.has_news
    assert job.ids() == ["privilege-escalation-policies-2-1002"]


def test_an_analysis_that_is_too_much_work_says_so_and_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_STEPS", 50)
    users = [f"user:u{number}" for number in range(40)]
    statements = [{"effect": "allow", "action": "*", "resource": f"kafka:topic:{n}/*"} for n in range(20)]
    job = CompiledDocument({("policies", 0): 0}, {**ADMIN, "spec": {"statements": statements}}, group("admin", *users))
    *found, incomplete = job.alerts()
    assert incomplete["id"] == "privilege-escalation-policies-1-1001-incomplete"
    assert "known in part only: the analysis would have taken too much work" in incomplete["message"]
    assert {alert["kind"] for alert in found} <= {"privilege-escalation"}


def test_changes_that_come_too_fast_are_compared_together_which_is_said(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_UNANALYSED", 1)
    job = CompiledDocument({}, *FIRST)
    job.read(group("admin", "user:erik"))
    wait_until(lambda: not job.changes._analysis._waiting, "its analysis begins")
    for user in ("finn", "gina"):
        job.read(group("admin", f"user:{user}"))
    held.set()
    first, *together = job.alerts()
    assert first["id"] == "privilege-escalation-policies-2-1002"
    assert [alert["id"] for alert in together] == [
        "privilege-escalation-policies-4-1004",
        "privilege-escalation-policies-4-1004-incomplete",
    ]
    assert "2 changes came sooner than they could be analysed" in together[-1]["message"]


def test_a_job_that_ends_does_not_wait_for_an_analysis() -> None:
    """Also not where it has much to do; the next start begins it again."""
    users = [f"user:u{number}" for number in range(300)]
    statements = [{"effect": "allow", "action": "*", "resource": f"kafka:topic:{n}/*"} for n in range(300)]
    job = CompiledDocument({("policies", 0): 0}, {**ADMIN, "spec": {"statements": statements}}, group("admin", *users))
    job.changes.close()
    assert not job.changes.is_idle or job.changes.has_news
    assert job.changes.unanalysed() == {"policies": (0,)}


def test_a_commit_before_all_is_read_keeps_what_was_unanalysed_before() -> None:
    """Such as that of an alert that the policies cannot be read."""
    log = [*FIRST, group("admin", "user:dana", "user:erik"), FIRST[1], group("admin", "user:finn")]
    job = CompiledDocument({("policies", 0): 4}, unanalysed={"policies": (2, 3)}, reads=False)
    job.read_some(*log[:4])
    wait_until(lambda: job.changes.is_idle, "what is read is analysed")
    assert (job.changes.pending(), job.changes.unanalysed()) == ([], {"policies": (2, 3)})
    assert not job.changes.has_news
    job.read(*log[4:])
    assert job.ids() == ["privilege-escalation-policies-2-1002", "privilege-escalation-policies-4-1004"]
    assert job.changes.unanalysed() == {}


def test_what_a_change_widens_follows_with_the_ids_of_the_changes_that_were_compared() -> None:
    job = CompiledDocument({("policies", 0): 0}, *FIRST)
    assert len(job.alerts()) == 1
    [widens] = job.widens
    assert (widens["changes"], widens["complete"], widens["system"]) == ([""], True, SYSTEM)
    assert ["role:admin", "*", "*"] in [[one["who"], one["action"], one["resource"]] for one in widens["widens"]]
    job.read(group("admin", "user:dana", "user:erik"))
    job.alerts()
    [widens] = job.widens
    assert {one["who"] for one in widens["widens"]} == {"user:erik"}
    job.read(group("admin"))
    assert job.alerts() == []
    assert [widens["widens"] for widens in job.widens] == [[]], "that nothing is widened is said too"


def test_a_refused_document_that_is_deleted_or_corrected_widens() -> None:
    """Requests that it affected were errors; what is refused again lifts nothing."""
    job = CompiledDocument({("policies", 0): 0}, "Role/bad")
    job.alerts()
    job.read("Role/bad")
    job.alerts()
    assert [widens["widens"] for widens in job.widens] == [[]]
    job.read({"system": SYSTEM, "kind": "Role", "name": "bad", "spec": {"statements": []}})
    job.alerts()
    lifted = {"who": "*", "action": "*", "resource": "*", "document": f"{SYSTEM}/Role/bad", "kind": "deny-lifted"}
    assert [widens["widens"] for widens in job.widens] == [[lifted]]


def test_a_record_whose_key_names_no_document_widens_when_it_is_deleted() -> None:
    """Every request of its system was an error for it."""
    job = CompiledDocument({("policies", 0): 0}, "no key", "Role/bad")
    job.alerts()
    job.read_some("no key", deletes=True)
    job.read()
    job.alerts()
    lifted = {"who": "*", "action": "*", "resource": "*", "document": f"{SYSTEM}/?/no key", "kind": "deny-lifted"}
    assert [widens["widens"] for widens in job.widens] == [[lifted]]
