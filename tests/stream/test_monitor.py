"""The monitor with the real job: alerts and facts from audit events and decisions, each exactly once."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from policy import to_text
from streaming.kafka.clients import log_ends, partitions_of
from streaming.monitor.intake import UNKNOWN_SCHEMA_MS
from streaming.records.audit import Heartbeat, encode_verdict
from streaming.settings.monitor import MonitorSettings, Rules
from streaming.snapshots.broadcasts import SNAPSHOTS_KEPT
from tests.brokers import TestBroker
from tests.stream.running import Job, running
from tests.stream.world import LOOKS_BACK, Reader, World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

QUICK = MonitorSettings(partitions=2, rules=Rules(grace_seconds=1.0, episode_seconds=3.0))
SMALL = 4  # records of a batch of decisions, so that one of the monitor has ten


def happened(id_: str, user: str, topic: str, **more: Any) -> dict[str, Any]:
    """The user read the details of a topic."""
    return {**request(id_, user, topic), "outcome": "success", **more}


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where readers, dana among them, may read about orders."""
    made = World(broker, fresh_name("watch"), str(tmp_path / "checkpoint"), monitor=QUICK, max_records=SMALL)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def login(user: str, **more: Any) -> dict[str, Any]:
    """The user logs in to the system in which older versions count."""
    subject = {"type": "user", "id": user, "properties": {"groups": ["analysts"]}}
    return {"id": f"login-{user}", "system": LOOKS_BACK, "subject": subject, "event": "login", **more}


def alerts_by_kind(world: World) -> Counter[tuple[str, str]]:
    """How many alerts (by id) there are of each kind and subject."""
    ids = {(alert["kind"], alert["subject"], alert["id"]) for alert in world.everything(world.names.alerts)}
    return Counter((kind, subject) for kind, subject, _ in ids)


@pytest.mark.long
def test_it_distinguishes_requested_denied_and_unrequested_accesses(world: World) -> None:
    [audit] = world.names.audit
    with running(world.settings):
        world.send([request("1", "dana", "orders"), request("2", "eve", "orders")])
        answers = world.reader(world.names.decisions)
        answers.until(lambda found: len(found) == 2, "both are decided")
        world.send([happened("a", "dana", "orders"), happened("a", "dana", "orders")], audit)
        world.send([happened("b", "eve", "orders"), happened("c", "dana", "orders", outcome="failure")], audit)
        world.send([happened("d", "dana", "payments"), b"no event"], audit)
        expected = Counter(
            {
                ("unauthorized-access", "user:eve"): 1,
                ("denied-but-done", "user:eve"): 1,
                ("unauthorized-access", "user:dana"): 1,
                ("unrequested-access", "user:dana"): 1,
            }
        )
        wait_until(lambda: alerts_by_kind(world) == expected, "the alerts of what should not be", SECONDS)
        _await_snapshot(world)
    assert alerts_by_kind(world) == expected
    [letter] = world.reader(f"{audit}.dlq").to_the_end()
    assert letter.value() == b"no event"
    cluster = Path(f"{world.settings.checkpoint}-monitor", "kafka-cluster")
    assert json.loads(cluster.read_text()) == {"id": world.admin.list_topics(timeout=30).cluster_id}
    _evaluate_a_backlog_by_the_policies_of_each_access(world)


def _await_snapshot(world: World) -> None:
    """Else the state would be read from every change since the first batch, and restarts get ever slower."""
    wait_until(lambda: _versions(world, "zip")[-1:] > [1], "the state has a snapshot of a later batch than the first")


def _versions(world: World, kind: str) -> list[int]:
    """Of the files of a kind in the monitor's state."""
    state = Path(f"{world.settings.checkpoint}-monitor", "state")
    return sorted(int(path.stem) for path in state.rglob(f"*.{kind}"))


def _evaluate_a_backlog_by_the_policies_of_each_access(world: World) -> None:
    """While no job ran, policies changed more often than snapshots are held, and accesses came in between."""
    [audit] = world.names.audit
    users = [f"late-{number}" for number in range(SNAPSHOTS_KEPT + 4)]
    for user in users:
        world.publish(group("readers", f"user:{user}"))
        at = time.time_ns() // 1_000_000
        world.send([happened(f"of {each}", each, "orders", time=at) for each in (user, "outsider")], audit)
        wait_until(lambda at=at: time.time_ns() // 1_000_000 > at, "the next change comes later", 10)  # type: ignore[misc]
    world.publish(group("readers"))
    verdicts = world.reader(world.names.verdicts)

    def evaluated(messages: list[Any]) -> list[Any]:
        records = (json.loads(message.value()) for message in messages)
        return [verdict for verdict in records if verdict["kind"] == "access" and verdict["event_id"].startswith("of ")]

    monitor = Path(f"{world.settings.checkpoint}-monitor")
    (monitor / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000000"}')
    with running(world.settings):
        # The monitor's checkpoint is another's: it does not start until that is corrected, and decisions go on.
        found = verdicts.until(lambda found: len(evaluated(found)) == 2 * len(users), "the backlog is evaluated")
        assert not [kind for kind, subject in alerts_by_kind(world) if subject == "user:outsider"]
        monitor.rename(monitor.with_suffix(".old"))
        raised = ("unauthorized-access", "user:outsider")
        wait_until(lambda: alerts_by_kind(world)[raised] == 1, "the monitor runs without a restart of the job", SECONDS)
    outcomes = Counter((verdict["subject"]["id"], verdict["outcome"]) for verdict in evaluated(found))
    assert outcomes == {("user:outsider", "deny"): len(users), **{(f"user:{user}", "allow"): 1 for user in users}}


BACKLOG = 1500  # answered records, in so many batches that deciding them takes longer than the grace


@pytest.mark.long
def test_after_a_stop_no_access_is_accused_whose_answered_record_is_decided_after_its_audit_event(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """There are few audit events and many answered records: the audit topic is caught up with in the first batches."""
    world = World(broker, fresh_name("behind"), str(tmp_path / "checkpoint"), monitor=QUICK, max_records=100)
    answered, [audit] = world.with_answered(), world.names.audit
    world.publish(role("readers", "kafka:topic:prod/main/*"))
    offset = world.publish(group("readers", "user:dana"))
    answer = {
        "by": "pdp-1",
        "time": to_text(time.time_ns() // 1_000_000),
        "decision": True,
        "outcome": "allow",
        "policy_version": "sha256:0",
        "policy_offsets": {world.policies: {"0": offset}, world.names.policies[LOOKS_BACK]: {"0": -1}},
        "facts_offset": -1,
        "freshness": {"kind": "bounded", "age_ms": 3, "max_ms": 15000},
    }
    topics = [f"orders-{number}" for number in range(BACKLOG)]
    world.send([{**request(topic, "dana", topic), "answered": answer} for topic in topics], answered)
    world.send([happened(f"read {topic}", "dana", topic) for topic in topics[-20:]], audit)
    world.send([happened("unasked", "mallory", "orders-0")], audit)
    expected = Counter({(kind, "user:mallory"): 1 for kind in ACCESS_KINDS})
    with running(world.settings):
        wait_until(lambda: alerts_by_kind(world).keys() >= expected.keys(), "mallory's alerts", SECONDS)
        assert world.lags() == [0] * len(world.lags()), "she is accused once all answered records are decided"
    assert alerts_by_kind(world) == expected
    decisions = world.everything(world.names.decisions)
    assert [decision["answered"]["verified"] for decision in decisions] == [True] * BACKLOG


SECONDS = 180.0  # of a job to start and to alert, on a machine that does other things, too
ACCESS_KINDS = ("unauthorized-access", "unrequested-access")
STEPS = ("monitor-evaluated", "monitor-written", "monitor-committed")


@pytest.mark.long
def test_killed_at_every_step_of_the_monitor_each_alert_and_fact_is_written_once(world: World) -> None:
    """Three jobs, each killed at another step of the monitor, then one that is left alone."""
    [audit] = world.names.audit
    users = [f"user-{number}" for number in range(len(STEPS))]
    for step, user in zip(STEPS, users, strict=True):
        world.send([happened(user, user, "orders"), login(user)], audit)
        job = Job(world.settings, kill_at=step)
        assert job.await_end() == -9, job.reported
        # The enforcer beside it may report its own step in between.
        assert step in [one["step"] for one in job.reported]
    expected = Counter({(kind, f"user:{user}"): 1 for kind in ACCESS_KINDS for user in users})
    with running(world.settings):
        wait_until(lambda: alerts_by_kind(world) == expected, "an alert of each kind for each user", SECONDS)
        # The state outlives the restart: duplicates are known.
        world.send([happened(user, user, "orders") for user in users], audit)
        world.send([happened("last", "last", "orders")], audit)
        wait_until(lambda: alerts_by_kind(world)["unauthorized-access", "user:last"] == 1, "the last alert", SECONDS)
    records = Counter(alert["id"] for alert in world.everything(world.names.alerts))
    assert set(records.values()) == {1}, "one record for each alert, none of which grew"
    facts = Counter(message.key() for message in world.reader(world.names.facts).to_the_end())
    assert facts == Counter({f"{LOOKS_BACK}/Session/{user}".encode(): 1 for user in users})


def _publish(world: World, kind: str, name: str, **spec: Any) -> None:
    document = {"system": LOOKS_BACK, "kind": kind, "name": name, "spec": spec}
    world.publish_to(world.names.policies[LOOKS_BACK], f"{kind}/{name}", document)


def _pipeline(world: World, *readers: str) -> None:
    acl = {reader if ":" in reader else f"user:{reader}": ["READ"] for reader in readers}
    parts: dict[str, Any] = {"pipeline_kind": "data-collector", "connections": []}
    _publish(world, "Object", "pipeline:p", type="pipeline", owner="o", acl=acl, **parts)


def _ask(id_: str, user: str, action: str, resource: str) -> dict[str, Any]:
    subject, kind = {"type": "user", "id": user}, resource.partition(":")[0]
    return {
        "id": id_,
        "system": LOOKS_BACK,
        "subject": subject,
        "action": {"name": action},
        "resource": {"type": kind, "id": resource},
    }


def _job_event(id_: str, event: str) -> dict[str, Any]:
    return {"id": id_, "system": LOOKS_BACK, "event": event, "resource": {"type": "job", "id": "job:j"}}


def _verdict(verdicts: Reader, event_id: str) -> str:
    """The outcome of an access."""

    def found(messages: list[Any]) -> list[str]:
        records = [json.loads(message.value()) for message in messages]
        return [record["outcome"] for record in records if record.get("event_id") == event_id and "outcome" in record]

    return found(verdicts.until(lambda messages: bool(found(messages)), f"the verdict on {event_id}"))[0]


def _await_allowed(world: World, verdicts: Reader, access: dict[str, Any], what: str, seconds: float = 30.0) -> None:
    """Report the access again and again until it is evaluated as allowed."""

    def is_allowed() -> bool:
        id_ = f"later-{time.monotonic()}"
        world.send([{**access, "outcome": "success", "id": id_}], world.names.audit[0])
        return _verdict(verdicts, id_) == "allow"

    wait_until(is_allowed, what, seconds)


@pytest.mark.long
def test_a_login_and_a_restart_let_changes_of_permissions_take_effect_and_nothing_before_them(world: World) -> None:
    """Their events go the whole way: audit topic, verdict, monitor, facts topic, snapshot."""
    [audit] = world.names.audit
    _publish(world, "Organization", "acme", enforcement=True)
    _pipeline(world)
    everybody: dict[str, Any] = {"acl": {f"user:{user}": ["READ", "EXECUTE"] for user in ("dana", "nora")}}
    _publish(world, "Object", "job:j", type="job", owner="o", pipeline="p", labels=["west"], **everybody)
    engine: dict[str, Any] = {"engine_kind": "data-collector", "labels": ["west"], **everybody}
    _publish(world, "Object", "engine:e", type="engine", owner="o", **engine)
    facts, decisions = world.reader(world.names.facts), world.reader(world.names.decisions)

    def emit(event: dict[str, Any], count: int) -> None:
        world.send([event], audit)
        facts.until(lambda found: len(found) == count, f"{event['id']} is fact {count}")

    def outcomes(stage: str) -> dict[str, str]:
        asked = {
            "view": ("dana", "pipeline.view", "pipeline:p"),  # dana logs in
            "monitor": ("nora", "job.monitor", "job:j"),  # nora never does, so that the newest counts for her
        }
        world.send(_ask(f"{stage}-{name}", *query) for name, query in asked.items())
        found = decisions.until(lambda seen: len(seen) >= len(asked), f"the answers of {stage}")
        records = {record["request_id"]: record for record in (json.loads(message.value()) for message in found)}
        found.clear()
        return {name: records[f"{stage}-{name}"]["context"]["outcome"] for name in asked}

    with running(world.settings):
        emit(login("dana"), 1)
        emit(_job_event("first", "job.started"), 2)
        assert outcomes("begin") == {"view": "deny", "monitor": "deny"}
        _pipeline(world, "dana", "nora")
        assert outcomes("shared") == {"view": "deny", "monitor": "deny"}
        emit(login("dana", id="again"), 3)
        assert outcomes("login") == {"view": "allow", "monitor": "deny"}
        emit(_job_event("stop", "job.stopped"), 4)
        emit(_job_event("second", "job.started"), 5)
        assert outcomes("restart") == {"view": "allow", "monitor": "allow"}
        # What dana did after a login that is no fact yet is not judged by the login before it.
        verdicts, seen = world.reader(world.names.verdicts), _ask("seen", "dana", "pipeline.view", "pipeline:p")
        world.send([login("dana", id="third"), {**seen, "outcome": "success", "id": "at-once"}], audit)
        assert _verdict(verdicts, "at-once") in ("unknown", "allow")
        facts.until(lambda found: len(found) == 6, "the third login is a fact")

        _await_allowed(world, verdicts, seen, "accesses after the third login are judged by it")
    assert json.loads(facts.messages[0].value())["spec"]["groups"] == ["analysts"]


@pytest.mark.long
def test_after_a_stop_no_access_is_judged_without_a_login_that_lies_in_a_backlog(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Of two partitions of audit events, the one with the login takes many batches more than that with the access."""
    world = World(broker, fresh_name("backlog"), str(tmp_path / "checkpoint"), monitor=QUICK, max_records=100)
    [audit] = world.names.audit
    _publish(world, "Organization", "acme", enforcement=True)
    _pipeline(world, "group:analysts")  # her login says that she is one
    access = _ask("seen", "dana", "pipeline.view", "pipeline:p")
    others = [happened(f"other {number}", "nora", "orders") for number in range(400)]
    world.send([*others, login("dana")], audit, partition=0)
    before, after = others[:100], others[100:]  # in the first batch, nothing is known of facts yet
    world.send([*before, {**access, "outcome": "success"}, *after], audit, partition=1)
    verdicts = world.reader(world.names.verdicts)
    with running(world.settings):
        assert _verdict(verdicts, "seen") in ("unknown", "allow")
        _await_allowed(world, verdicts, access, "accesses are judged once the backlog is decided", SECONDS)


@pytest.mark.long
def test_whatever_happens_to_the_monitor_decisions_go_on_and_its_backlog_raises_no_alert(world: World) -> None:
    """It is fenced; then a topic of its own is deleted and re-created, which it says, and its checkpoint moved away."""
    [audit], untrusted = world.names.audit, world.names.requests[1]
    settings = world.settings
    monitor = Path(f"{settings.checkpoint}-monitor")
    decisions, expected = world.reader(world.names.decisions), Counter[tuple[str, str]]()

    def ask_and_do(stage: str, times: int) -> None:
        """Dana asks and then does it; somebody else does it, too."""
        for number in range(times):
            world.send([request(f"{stage}-{number}", "dana", "orders")])
            assert decisions.answer(f"{stage}-{number}")["decision"] is True
            world.send([happened(f"{stage}-{number}", "dana", "orders")], audit)
        world.send([happened(stage, stage, "orders")], audit)
        expected.update({(kind, f"user:{stage}"): 1 for kind in ACCESS_KINDS})

    def await_alerts(what: str) -> None:
        wait_until(lambda: alerts_by_kind(world) >= expected, what, SECONDS)
        assert alerts_by_kind(world) == expected

    with running(settings, idle_commit_seconds=1.0) as job:
        world.send([b"no request"], untrusted)
        ask_and_do("before", 2)
        await_alerts("the alerts of before")
        other = Producer(
            {"bootstrap.servers": settings.bootstrap_servers, "transactional.id": f"{settings.job_name}-monitor"}
        )
        other.init_transactions(30)
        ask_and_do("fenced", 20)
        await_alerts("the alerts of while it was fenced")
        wait_until(lambda: _versions(world, "changelog")[0] > 1, "changes that snapshots hold are deleted")
        world.recreate(f"{untrusted}.dlq")
        ask_and_do("recreated", 20)
        said = f"topic {untrusted}.dlq was deleted and re-created"
        wait_until(lambda: any(said in line for line in job.logged), "the monitor says why it stopped", 30)
        ask_and_do("meanwhile", 2)
        monitor.rename(monitor.with_suffix(".old"))
        await_alerts("the alerts of after the topic was re-created")


@pytest.mark.long
def test_without_its_checkpoint_the_monitor_goes_on_from_the_committed_offsets(world: World) -> None:
    """What it remembered is lost; what comes after is watched, and nothing is reported under another id."""
    [audit] = world.names.audit
    with running(world.settings):
        world.send([happened("a", "eve", "orders")], audit)
        wait_until(lambda: alerts_by_kind(world).total() == len(ACCESS_KINDS), "the alerts of the first", SECONDS)
    shutil.rmtree(f"{world.settings.checkpoint}-monitor")
    world.send([happened("b", "mallory", "orders")], audit)
    expected = Counter({(kind, f"user:{user}"): 1 for kind in ACCESS_KINDS for user in ("eve", "mallory")})
    with running(world.settings):
        wait_until(lambda: alerts_by_kind(world) == expected, "the alerts of what came after", SECONDS)


@pytest.mark.long
def test_a_monitor_that_was_away_for_longer_than_retention_says_so_and_goes_on_without_its_checkpoint(
    world: World,
) -> None:
    """Moved away, its checkpoint was of no use: the committed offsets were of deleted records, too."""
    [audit], verdicts = world.names.audit, world.names.verdicts
    with running(world.settings):
        world.send([happened("a", "eve", "orders")], audit)
        wait_until(lambda: alerts_by_kind(world).total() == len(ACCESS_KINDS), "the alerts of the first", SECONDS)
    ends = log_ends(world.admin, partitions_of(world.admin, [verdicts]))
    for _, partition in ends:
        world.producer.produce(verdicts, encode_verdict(Heartbeat(time=1)), partition=partition)
    assert world.producer.flush(30) == 0
    deleted = [TopicPartition(verdicts, partition, end + 1) for (_, partition), end in ends.items()]
    for result in world.admin.delete_records(deleted).values():
        result.result(30)
    monitor = Path(f"{world.settings.checkpoint}-monitor")
    with running(world.settings) as job:
        wait_until(lambda: any("were deleted. Move" in line for line in job.logged), "it says why it does not run", 90)
        monitor.rename(monitor.with_suffix(".old"))
        world.send([happened("b", "mallory", "orders")], audit)
        expected = Counter({(kind, f"user:{user}"): 1 for kind in ACCESS_KINDS for user in ("eve", "mallory")})
        wait_until(lambda: alerts_by_kind(world) == expected, "the alerts of what came after", SECONDS)


@pytest.mark.long
def test_a_decision_whose_schema_stays_unknown_calls_no_access_of_its_time_unrequested(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """As of a newer version, before a rollback. In cdap the window is too short for an access to rest on it."""
    rules = Rules(window_seconds=3600, grace_seconds=1.0, episode_seconds=3.0)
    monitor = MonitorSettings(partitions=2, rules=rules, systems={"cdap": {"window_seconds": 1.0}})
    world = World(broker, fresh_name("unread"), str(tmp_path / "checkpoint"), monitor=monitor)
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    world.publish(group("readers", "user:dana"))
    unread_at = time.time_ns() // 1_000_000 - UNKNOWN_SCHEMA_MS - 1000
    world.producer.produce(world.names.decisions, b"\xc3\x01" + bytes(8) + b"x", timestamp=unread_at)
    assert world.producer.flush(30) == 0
    [audit] = world.names.audit
    other = {"type": "user", "id": "mallory"}
    elsewhere = {"system": "cdap", "subject": other, "action": {"name": "dataset.read"}, "outcome": "success"}
    with running(world.settings):
        world.send([happened("a", "dana", "orders"), happened("b", "eve", "orders")], audit)
        eve = "unauthorized-access", "user:eve"
        wait_until(lambda: alerts_by_kind(world)[eve] == 1, "what the policies deny is said", SECONDS)
        world.send([{"id": "c", **elsewhere, "resource": {"type": "dataset", "id": "dataset:shop.orders"}}], audit)
        later = "unrequested-access", "mallory"
        wait_until(lambda: alerts_by_kind(world)[later] == 1, "what came later was asked by nobody", SECONDS)
    found = alerts_by_kind(world)
    assert {subject for kind, subject in found if kind == "unrequested-access"} == {"mallory"}
