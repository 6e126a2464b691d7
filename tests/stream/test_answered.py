"""Requests that were answered elsewhere: the job decides each again, once, by the offsets that its answer names."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from policy import to_ms, to_text
from streaming.kafka.clients import log_ends
from streaming.settings.monitor import MonitorSettings
from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import LOOKS_BACK, World, group, request, role

pytestmark = pytest.mark.stream

ORDERS = "kafka:topic:prod/main/orders"


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a running job, which has decided before there was a topic of answered records."""
    name = f"answered-{time.time_ns()}"
    made = World(broker, name, str(tmp_path_factory.mktemp(name) / "checkpoint"))
    made.publish(group("readers", "user:dana"))
    with running(made.settings):
        made.send([request("before", "dana", "orders")])
        assert made.reader(made.names.decisions).answer("before")["decision"] is False
    topic = made.with_answered()
    made.send([_answered(made, "waiting", outcome="deny"), *_answered_at_logins(made, "down", _logins(made))], topic)
    with running(made.settings):
        yield made


def _answered(
    world: World, id_: str, outcome: str = "allow", policies: int = 0, facts: int = -1, **more: Any
) -> dict[str, Any]:
    """A request of dana's with its answer, given by policies up to an offset."""
    answer = {
        "by": "pdp-1",
        "time": to_text(time.time_ns() // 1_000_000),
        "decision": outcome == "allow",
        "outcome": outcome,
        "policy_version": "sha256:0",
        "policy_offsets": {world.policies: {"0": policies}, world.names.policies[LOOKS_BACK]: {"0": -1}},
        "facts_offset": facts,
        "freshness": {"kind": "bounded", "age_ms": 3, "max_ms": 15000},
    }
    asked = more.pop("request", {})
    return {**request(id_, "dana", "orders", **asked), "answered": {**answer, **more}}


def _decided(world: World, *records: dict[str, Any]) -> list[dict[str, Any]]:
    """The decisions of answered records, which are sent together."""
    decisions = world.reader(world.names.decisions)
    world.send(records, world.names.answered[0])
    wanted = {record["id"] for record in records}
    by_id: dict[str, Any] = {}

    def all_there(messages: list[Any]) -> bool:
        by_id.update((one["request_id"], one) for one in (json.loads(message.value()) for message in messages))
        del messages[:]
        return wanted <= by_id.keys()

    decisions.until(all_there, f"decisions of {len(wanted)} records")
    return [by_id[record["id"]] for record in records]


def test_an_existing_checkpoint_takes_the_topic_and_every_record_is_decided_once(world: World) -> None:
    world.send([request("after", "dana", "orders")])
    decisions = world.reader(world.names.decisions)
    decisions.until(lambda found: len(found) >= 3, "the decisions of before, waiting and after")
    world.await_no_lag()
    ids = [one["request_id"] for one in world.everything(world.names.decisions)]
    assert {name: ids.count(name) for name in ("before", "waiting", "after")} == {"before": 1, "waiting": 1, "after": 1}


def test_answers_that_a_job_before_has_left_are_reported_before_anything_is_decided(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """It may have been killed when the verdicts on what rests on them were written: the monitor must wait for them."""
    separate = MonitorSettings(mode="separate")
    world = World(broker, fresh_name("left"), str(tmp_path / "checkpoint"), monitor=separate)
    world.send([_answered(world, "left")], world.with_answered())

    def reports(messages: list[Any]) -> list[tuple[bool, int]]:
        records = ((json.loads(message.value()), message.timestamp()[1]) for message in messages)
        return [(record["answered_lag"], at) for record, at in records if record.get("answered_lag") is not None]

    with running(world.settings):
        verdicts = world.reader(world.names.verdicts)
        (is_lagging, reported_at), *_ = reports(verdicts.until(lambda found: bool(reports(found)), "the first report"))
        [decision] = world.reader(world.names.decisions).until(bool, "the decision on what was left")
    assert is_lagging
    assert reported_at <= decision.timestamp()[1]


def test_an_answer_is_judged_by_the_policies_that_it_names_and_not_by_newer_ones(world: World) -> None:
    first = world.publish(role("readers", ORDERS))
    second = world.publish(role("readers", ORDERS, effect="deny"))
    assert second == first + 1
    records = [
        _answered(world, "right-then", "allow", first),
        _answered(world, "right-now", "deny", second),
        _answered(world, "wrong-then", "deny", first),
        _answered(world, "wrong-now", "allow", second),
    ]
    then, now, wrong_then, wrong_now = _decided(world, *records)
    assert [one["decision"] for one in (then, now, wrong_then, wrong_now)] == [True, False, True, False]
    assert [one["answered"]["agrees"] for one in (then, now, wrong_then, wrong_now)] == [True, True, False, False]
    assert all(one["answered"]["verified"] for one in (then, now, wrong_then, wrong_now))
    assert then["answered"]["by"] == "pdp-1"
    assert then["context"]["policy_offsets"][world.policies] == {"0": first}
    assert then["time"] == records[0]["answered"]["time"]
    assert then["context"]["policy_version"] != now["context"]["policy_version"]


def test_what_cannot_be_known_is_unverified_and_no_allow(world: World) -> None:
    offset = world.publish(role("readers", ORDERS))
    unknown = {world.policies: {"0": offset}, "nonesuch": {"0": 0}}
    sound = _answered(world, "sound", "allow", offset)
    records = [
        sound,
        _answered(world, "beyond", "allow", offset + 100),
        _answered(world, "unknown-topic", "allow", policy_offsets=unknown),
        _answered(world, "no-partition", "allow", policy_offsets={world.policies: {"7": 1}}),
        _answered(world, "negative", "allow", policies=-5),
        _answered(world, "facts-beyond", "allow", offset, facts=10_000),
        _answered(world, "batch", "allow", offset + 100, request={"evaluations": [{}, {}]}),
    ]
    found = _decided(world, *records)
    assert (found[0]["decision"], found[0]["answered"]["agrees"]) == (True, True)
    for one in found[1:]:
        assert (one["decision"], one["context"]["outcome"]) == (False, "error"), one
        assert one["context"]["reasons"][0]["code"] == "no-longer-known"
        assert one["answered"]["verified"] is False
        assert "agrees" not in one["answered"]
    assert [item["decision"] for item in found[-1]["evaluations"]] == [False, False]


def test_time_trust_deadline_and_batches_count_as_they_did_for_the_answer(world: World) -> None:
    world.publish(group("claimed"))
    offset = world.publish(role("claimed", "kafka:topic:prod/main/claimed"))
    now = time.time_ns() // 1_000_000
    claims = {"subject": {"type": "user", "id": "user:eve", "properties": {"groups": ["claimed"]}}}
    resource = {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/claimed"}}
    items = {"evaluations": [{}, {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/other"}}]}
    both = [{"decision": True, "outcome": "allow"}, {"decision": False, "outcome": "deny"}]
    batch = {**claims, **resource, **items}
    old = to_text(now - 60_000)
    trusted, without, misdated, stale, deadline, agrees, differs = _decided(
        world,
        _answered(world, "trusted", "allow", offset, request={**claims, **resource}),
        _answered(world, "without", "deny", offset, trust=[], request={**claims, **resource}),
        _answered(world, "misdated", "allow", offset, time=old, request={**claims, **resource}),
        _answered(world, "stale", "deny", offset, freshness={"kind": "bounded", "age_ms": 16000, "max_ms": 15000}),
        _answered(world, "late", "allow", offset, request={**claims, **resource, "deadline": to_text(now - 30_000)}),
        _answered(world, "both", "deny", offset, evaluations=both, request=batch),
        _answered(world, "one-off", "deny", offset, evaluations=both[:1] * 2, request=batch),
    )
    assert (trusted["decision"], trusted["answered"]["agrees"]) == (True, True)
    assert without["decision"] is False
    assert (misdated["answered"]["misdated"], misdated["answered"]["agrees"]) == (True, True)
    assert abs(to_ms(misdated["time"]) - now) < 60_000 - 5_000
    assert (stale["answered"]["stale"], "stale" in trusted["answered"]) == (True, False)
    assert late_code(deadline) == "deadline-exceeded"
    assert deadline["answered"]["agrees"] is False
    assert [item["decision"] for item in agrees["evaluations"]] == [True, False]
    assert (agrees["answered"]["agrees"], differs["answered"]["agrees"]) == (True, False)


def late_code(decision: dict[str, Any]) -> str:
    """The code of the first reason."""
    return str(decision["context"]["reasons"][0]["code"])


def test_what_is_no_answered_request_is_a_dead_letter(world: World) -> None:
    good = _answered(world, "malformed-good", "deny")
    answer = good["answered"]
    wrong = [
        {**good, "answered": None},
        {**good, "answered": {**answer, "decision": True}},
        {**good, "answered": {**answer, "time": "yesterday"}},
        {**good, "answered": {**answer, "policy_offsets": []}},
        {**good, "answered": {**answer, "by": ""}},
        {key: value for key, value in good.items() if key != "answered"},
        {key: value for key, value in good.items() if key != "subject"},
    ]
    letters = world.reader(f"{world.names.answered[0]}.dlq")
    world.send([*wrong, b"\xff", b"{}"], world.names.answered[0], key="k")
    letters.until(lambda found: len(found) >= len(wrong) + 2, "the dead letters")
    assert _decided(world, good)[0]["answered"]["verified"] is True


def _logins(world: World) -> list[int]:
    """A StreamSets user logs in with the group of a pipeline, without it, with it, without: the facts' offsets."""
    topic = world.names.policies[LOOKS_BACK]
    organization = {"enforcement": True, "task_roles": {}}
    world.publish_to(topic, "Organization/acme", _document("Organization", "acme", organization))
    acl = {"group:team": ["READ"]}
    spec = {"type": "pipeline", "owner": "zoe", "organization": "acme", "acl": acl, "pipeline_kind": "standard"}
    world.publish_to(topic, "Object/pipeline:p", _document("Object", "pipeline:p", spec))
    return [
        world.publish_to(
            world.names.facts,
            "streamsets/Session/sam",
            _document("Session", "sam", {"login_at": _now() + number, "groups": groups}),
        )
        for number, groups in enumerate([["team"], [], ["team"], []])
    ]


def _answered_at_logins(world: World, id_: str, logins: list[int]) -> list[dict[str, Any]]:
    """A denied request of that user at each of these offsets, under the newest policies."""
    topic = world.names.policies[LOOKS_BACK]
    policies = {world.policies: {"0": 0}, topic: {"0": log_ends(world.admin, [(topic, 0)])[topic, 0] - 1}}
    asked = {
        "system": LOOKS_BACK,
        "subject": {"type": "user", "id": "sam", "properties": {"organization": "acme"}},
        "action": {"name": "pipeline.view"},
        "resource": {"type": "pipeline", "id": "pipeline:p"},
    }
    return [
        _answered(world, f"{id_}-{number}", "deny", policy_offsets=policies, facts=offset, request=asked)
        for number, offset in enumerate(logins)
    ]


def test_facts_count_as_they_were_at_the_offset_that_is_named(world: World) -> None:
    """A StreamSets user's groups at login: each login is another fact."""
    found = _decided(world, *_answered_at_logins(world, "login", _logins(world)))
    assert len({json.dumps(one["context"]["reasons"]) for one in found[:2]}) == 2, found[:2]
    assert [one["context"]["reasons"] for one in found[:2]] == [one["context"]["reasons"] for one in found[2:]]


def test_facts_of_before_a_start_of_the_job_count_as_they_were_then(world: World) -> None:
    """The four answers were recorded while no job ran, and by facts that newer ones had superseded by then."""
    decisions = world.reader(world.names.decisions)
    records = decisions.until(lambda found: sum(b'"down-' in one.value() for one in found) == 4, "the four decisions")
    found = {one["request_id"]: one for one in (json.loads(message.value()) for message in records)}
    down = [found[f"down-{number}"] for number in range(4)]
    assert "no-longer-known" not in {late_code(one) for one in down}
    assert len({json.dumps(one["context"]["reasons"]) for one in down[:2]}) == 2, down[:2]
    assert [one["context"]["reasons"] for one in down[:2]] == [one["context"]["reasons"] for one in down[2:]]


def _now() -> int:
    return time.time_ns() // 1_000_000


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"system": LOOKS_BACK, "kind": kind, "name": name, "spec": spec}


def test_many_different_offsets_leave_the_others_verified_and_the_batch_short(world: World) -> None:
    """A producer that names whatever it likes makes its own answers unverified."""
    offsets = [world.publish(role("many", f"kafka:topic:prod/main/t{number}")) for number in range(60)]
    newest, partition = offsets[-1], TopicPartition(world.names.policies[LOOKS_BACK], 0)
    end = Consumer({"bootstrap.servers": world.broker.bootstrap_servers, "group.id": "tests"})
    named = {world.policies: {"0": newest}, partition.topic: {"0": end.get_watermark_offsets(partition)[1] - 1}}
    hostile = [_answered(world, f"any-{number}", "deny", policies=number % newest) for number in range(2000)]
    began = time.monotonic()
    found = _decided(world, *hostile, _answered(world, "honest", "deny", policy_offsets=named))
    assert found[-1]["answered"]["verified"] is True, found[-1]
    assert time.monotonic() - began < 20
    assert {one["decision"] for one in found if not one["answered"]["verified"]} <= {False}
