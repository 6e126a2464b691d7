"""What a running job does with requests and with changes of the policies. One job serves all of these tests."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from confluent_kafka import Producer

from policy import DocumentStore, Snapshot, decide
from policy.core.times import to_ms
from policy.testing import full_request, load_cases
from streaming.kafka.committed import read_stored
from streaming.kafka.publish import publish
from streaming.records.avro import Writer
from streaming.records.formats import shorten_id
from streaming.records.schemas import Kind
from streaming.topics import ALWAYS_FITS, DEFAULT_SYSTEMS
from streaming.verify.cluster import verify
from tests.brokers import TestBroker
from tests.chaos.run import Run, evaluator, new_row
from tests.chaos.scenarios import SCENARIOS
from tests.stream.running import running
from tests.stream.world import LOOKS_BACK, World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

CHANGES = int(os.environ.get("LOCKKEEPER_TEST_CHANGES", "20"))  # `make verify` has 200, `make soak` 1000
SYSTEMS = (*DEFAULT_SYSTEMS, "cedar")
CASES = Path(__file__).parents[1] / "cases"
ORDERS = "kafka:topic:prod/main/orders"


@pytest.fixture(scope="module")
def world_and_driver(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, int]]:
    """A world with a running job in it, and the process id of its driver."""
    name = f"decisions-{time.time_ns()}"
    made = World(broker, name, str(tmp_path_factory.mktemp(name) / "checkpoint"), systems=SYSTEMS)
    with running(made.settings) as job:
        yield made, job.pid


@pytest.fixture(scope="module")
def world(world_and_driver: tuple[World, int]) -> World:
    return world_and_driver[0]


@pytest.fixture
def user(world: World, fresh_name: Callable[[str], str]) -> str:
    """Somebody who holds the role of their own name, which does not exist yet."""
    name = fresh_name("user")
    world.publish(group(name, f"user:{name}"))
    return name


def _ask(world: World, asked: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The decision of a request."""
    decisions = world.reader(world.names.decisions)
    world.send([asked], **options)
    return decisions.answer(asked["id"])


def _code(decision: dict[str, Any]) -> str:
    return str(decision["context"]["reasons"][0]["code"])


def test_a_decision_record_names_its_determining_statements_and_carries_the_trace(world: World, user: str) -> None:
    offset = world.publish(role(user, ORDERS))
    decisions = world.reader(world.names.decisions)
    headers = [("traceparent", b"00-ab-cd-01"), ("authorization", b"Bearer x")]
    world.send([request(f"trace-{user}", user, "orders")], headers=headers)
    is_it = f"trace-{user}".encode()
    messages = decisions.until(lambda found: any(m.key() == is_it for m in found), "the decision")
    message = next(m for m in messages if m.key() == is_it)
    decision = json.loads(message.value())
    assert sorted(message.headers()) == [("content-type", b"application/json"), ("traceparent", b"00-ab-cd-01")]
    assert decision["decision"] is True
    assert decision["context"]["reasons"][0]["document"] == f"lenses6/Role/{user}"
    assert decision["context"]["policy_offsets"][world.policies] == {"0": offset}
    assert decision["context"]["policy_version"].startswith("sha256:")
    assert decision["context"]["facts_offset"] == -1
    source = decision["context"]["source"]
    assert source["topic"] == world.names.requests[0]
    assert decision["id"].endswith(f"-{source['partition']}-{source['offset']}")


def _snapshot(documents: list[dict[str, Any]]) -> Snapshot:
    """Of the systems that have topics."""
    store = DocumentStore(systems=SYSTEMS)
    for document in documents:
        store.put(document)
    return Snapshot(store)


def test_the_stream_answers_as_the_library_does(world: World, user: str) -> None:
    """Allowed, denied, unknown system, and a batch of evaluations: the record is what `policy.decide` makes of it."""
    documents = [role(user, "kafka:topic:prod/*"), group(user, f"user:{user}")]
    world.publish(documents[0])
    base = request("", user, "orders")
    asked: dict[str, dict[str, Any]] = {
        "allow": base,
        "deny": {**base, "action": {"name": "kafka:DeleteTopic"}},
        "error": {**base, "system": "nothing"},
        "batch": {**base, "evaluations": [{}, {"action": {"name": "kafka:DeleteTopic"}}, {"subject": 1}]},
    }
    for name, query in asked.items():
        query = {**query, "id": f"{name}-{user}"}
        expected = json.loads(json.dumps(decide(_snapshot(documents), query).to_record()))
        decision = _ask(world, query)
        expected_parts, parts = (one.get("evaluations", []) for one in (expected, decision))
        for wanted, found in zip([expected, *expected_parts], [decision, *parts], strict=True):
            assert found["decision"] is wanted["decision"]
            assert wanted["context"].items() <= found["context"].items()


def test_the_stream_answers_authzens_scenarios_by_cedar_policies(world: World) -> None:
    """Every answer that the interop and the certification scenario expect, from `tests/cases/cedar-authzen.yaml`."""
    stages = [case.stages[0] for case in load_cases(CASES / "cedar-authzen.yaml").cases]
    for document in (document for stage in stages for document in stage.apply):
        key = f"{document['kind']}/{document['name']}"
        world.publish_to(world.names.policies["cedar"], key, {"system": "cedar", **document})
    expectations = [expectation for stage in stages for expectation in stage.expect]
    asked = [{**full_request(one.ask, "cedar"), "id": f"authzen-{n}"} for n, one in enumerate(expectations)]
    ids = {one["id"] for one in asked}
    decisions = world.reader(world.names.decisions)
    world.send(asked)
    found = dict[str, dict[str, Any]]()

    def are_there(messages: list[Any]) -> bool:
        read = [json.loads(message.value()) for message in messages]
        found.update({one["request_id"]: one for one in read if one["request_id"] in ids})
        return len(found) == len(ids)

    decisions.until(are_there, "every decision")
    for number, expectation in enumerate(expectations):
        decision = found[f"authzen-{number}"]
        answers = [one["context"]["outcome"] for one in decision.get("evaluations", [decision])]
        assert answers == ([expectation.answer] if isinstance(expectation.answer, str) else expectation.answer)


def test_what_is_no_request_becomes_a_dead_letter_that_says_why_without_secrets(world: World, user: str) -> None:
    letters = world.reader(f"{world.names.requests[0]}.dlq")
    secret = {**request("", user, "orders")}
    secret["subject"] = {**secret["subject"], "properties": {"token": {"sub": "s3cret"}}}
    bad = [b"\xff\x00no", json.dumps(secret).encode(), b'{"id":"x","subject":{"token":"s3cret', b"\xc3\x01avro"]
    world.send(bad, headers=[("Authorization", b"Bearer s3cret"), ("kept", b"yes")])
    found = letters.until(lambda messages: len(messages) >= len(bad), "dead letters")
    for message in found:
        headers = dict(message.headers())
        assert b"s3cret" not in message.value()
        assert headers["Authorization"] == b"***"
        assert headers["kept"] == b"yes"
        assert headers["__connect.errors.topic"] == world.names.requests[0].encode()
        assert headers["__connect.errors.exception.message"].startswith(b"not a request")
    assert {m.value() for m in found} >= {bad[0], bad[3]}, "what holds no secret is kept as it came"


def test_a_request_after_its_deadline_is_an_error(world: World, user: str) -> None:
    world.publish(role(user, ORDERS))
    late = _ask(world, request(f"late-{user}", user, "orders", deadline="2026-01-01T00:00:00Z"))
    in_time = _ask(world, request(f"in-time-{user}", user, "orders", deadline="2126-01-01T00:00:00Z"))
    assert (late["decision"], _code(late)) == (False, "deadline-exceeded")
    assert in_time["decision"] is True


def test_min_policy_offsets_are_honoured_and_no_client_can_make_the_stream_wait(world: World, user: str) -> None:
    offset = world.publish(role(user, ORDERS))

    def answer(name: str, topic: str, newest: object) -> dict[str, Any]:
        context = {"min_policy_offsets": {topic: {"0": newest}}}
        return _ask(world, request(f"{name}-{user}", user, "orders", context=context))

    assert answer("there", world.policies, offset)["decision"] is True
    beyond = answer("beyond", world.policies, offset + 1_000_000)
    unknown = answer("unknown", "no-such-topic", 0)
    assert [(d["decision"], _code(d)) for d in (beyond, unknown)] == [(False, "policies-behind")] * 2


def test_producers_who_are_not_trusted_to_claim_groups_get_no_access_by_them(world: World, user: str) -> None:
    """The same request on two topics; nothing but the claim gives access."""
    world.publish(role(user, ORDERS))
    claimed = request(f"claim-{user}", "nobody", "orders")
    claimed["subject"] = {**claimed["subject"], "properties": {"groups": [user]}}
    trusted = _ask(world, {**claimed, "id": f"trusted-{user}"})
    strange = _ask(world, {**claimed, "id": f"strange-{user}"}, topic=world.names.requests[1])
    assert (trusted["decision"], trusted["context"]["claims"]) == (True, ["groups"])
    assert (strange["decision"], strange["context"]["outcome"]) == (False, "error")


def test_a_broken_document_leaves_the_last_good_one_in_force_and_raises_one_alert(world: World, user: str) -> None:
    world.publish(role(user, ORDERS))
    assert _ask(world, request(f"good-{user}", user, "orders"))["decision"] is True
    offset = world.publish({**role(user, ORDERS), "enforcment": False})
    assert _ask(world, request(f"broken-{user}", user, "orders"))["decision"] is True
    alerts = world.reader(world.names.alerts)
    raised = alerts.until(lambda found: any(m.key() == f"lenses6/Role/{user}".encode() for m in found), "the alert")
    alert = next(json.loads(m.value()) for m in raised if m.key() == f"lenses6/Role/{user}".encode())
    assert alert["kind"] == "policy-rejected"
    assert alert["evidence"][0]["offset"] == offset
    assert "enforcment" in alert["message"]


def test_a_document_that_is_not_what_its_key_says_is_refused(world: World, user: str) -> None:
    """A role of another name does not come into force by its key."""
    world.publish(role("somebody-else", ORDERS), key=f"Role/{user}")
    decision = _ask(world, request(f"wrong-key-{user}", user, "orders"))
    assert (decision["decision"], _code(decision)) == (False, "refused-document")


def test_a_deleted_document_stops_granting(world: World, user: str) -> None:
    world.publish(role(user, ORDERS))
    assert _ask(world, request(f"before-{user}", user, "orders"))["decision"] is True
    world.delete(f"Role/{user}")
    assert _ask(world, request(f"after-{user}", user, "orders"))["decision"] is False


def test_the_alert_of_a_refused_document_needs_no_request(world: World, user: str) -> None:
    world.publish(b"{no document", key=f"Role/{user}")
    alerts = world.reader(world.names.alerts)
    alerts.until(lambda found: any(m.key() == f"lenses6/Role/{user}".encode() for m in found), "the alert", 10)


def test_all_decisions_of_a_batch_carry_one_version(world: World, user: str) -> None:
    """While requests stream in, policies change; what was read up to the same offsets has the same version."""
    decisions = world.reader(world.names.decisions)

    def are_decided(count: int) -> Callable[[list[Any]], bool]:
        return lambda seen: sum(user.encode() in (message.key() or b"") for message in seen) >= count

    for number in range(10):
        world.publish(role(user, f"kafka:topic:prod/main/{number}"))
        world.send(request(f"mixed-{number}-{n}-{user}", user, str(number)) for n in range(50))
        if number % 4 == 0:  # so that not all of it becomes one batch
            decisions.until(are_decided(50 * number + 1), "the first decisions under this version")
    found = decisions.until(are_decided(500), "500 decisions")
    by_batch: dict[tuple[int, ...], set[str]] = {}
    for message in (m for m in found if user.encode() in (m.key() or b"")):
        context = json.loads(message.value())["context"]
        by_batch.setdefault(tuple(context["policy_offsets"][world.policies].values()), set()).add(
            context["policy_version"]
        )
    assert len(by_batch) > 1
    assert all(len(versions) == 1 for versions in by_batch.values())


def test_a_request_after_a_change_is_never_evaluated_by_the_older_policy(world: World, user: str) -> None:
    """Grant, request, revoke, request, without a pause; and how long a change takes to show."""
    decisions = world.reader(world.names.decisions)
    seconds = []
    for number in range(CHANGES):
        granted = number % 2 == 0
        effect = "allow" if granted else "deny"
        offset = world.publish(role(user, ORDERS, effect=effect))
        begun = time.monotonic()
        id_ = f"change-{number}-{user}"
        world.send([request(id_, user, "orders")])
        decision = decisions.answer(id_)
        seconds.append(time.monotonic() - begun)
        assert decision["decision"] is granted, f"change {number} at offset {offset}: {decision}"
        assert decision["context"]["policy_offsets"][world.policies]["0"] >= offset
    print(
        f"\n{CHANGES} changes, in force after {statistics.median(seconds):.3f} s (median), {max(seconds):.3f} s at most"
    )


def test_requests_sent_right_after_apply_returned_are_never_evaluated_by_the_older_policy(
    world: World, user: str
) -> None:
    """Applied as `lockkeeper policy apply` does, in transactions, and without waiting for any answer between."""
    decisions, applied = world.reader(world.names.decisions), dict[str, int]()
    for number in range(CHANGES):
        offsets = publish(world.settings, [role(user, ORDERS, effect="allow" if number % 2 == 0 else "deny")])
        applied[f"applied-{number}-{user}"] = offsets[world.policies]["0"]
        world.send([request(f"applied-{number}-{user}", user, "orders")])
    found = {}
    while len(found) < CHANGES:
        [message] = decisions.until(lambda seen: len(seen) > 0, f"{CHANGES} decisions, after {len(found)}")[:1]
        del decisions.messages[:1]
        decision = json.loads(message.value())
        if decision["request_id"] in applied:
            found[decision["request_id"]] = decision["context"]["policy_offsets"][world.policies]["0"]
    assert [id_ for id_, offset in applied.items() if found[id_] < offset] == []


def test_the_lag_is_zero_in_kafkas_own_tool_when_nothing_is_left_to_do(world: World, user: str) -> None:
    """Of the policy topics too: what was published is in force, and reported."""
    world.publish(role(user, ORDERS))
    wait_until(lambda: set(world.lags()) == {0}, "the lag of the group is zero", 60)


def test_records_that_grow_as_they_are_written_stop_nothing(world: World, user: str) -> None:
    """A request and a login in Avro, whose control characters take six bytes each in JSON, and a document's errors."""
    control = "\x01" * 900_000
    asked = {**request(control, user, "orders"), "system": "nothing"}
    login = {"id": "e", "system": LOOKS_BACK, "event": "login", "subject": {"type": "user", "id": control}}
    for topic, kind, record in (
        (world.names.requests[0], "request", asked),
        (world.names.audit[0], "audit-event", login),
    ):
        value = Writer(cast(Kind, kind), "avro-single-object").encode(json.dumps(record).encode())
        world.producer.produce(topic, value, user)
    world.publish(role(user, ORDERS))
    statement = {"effect": "allow", "action": [], "resource": [], "\x01" * 20: 1}
    document = {"system": "lenses6", "kind": "Role", "name": f"huge-{user}", "spec": {"statements": [statement] * 2200}}
    offset = world.publish(document)
    assert _ask(world, request(f"after-{user}", user, "orders"))["decision"] is True
    world.delete(f"Role/huge-{user}")

    def ours(topic: str) -> Any:
        found = world.reader(topic).until(
            lambda seen: any(m.key() == user.encode() for m in seen), f"a record of {topic}"
        )
        return next(message for message in found if message.key() == user.encode())

    decision = json.loads(ours(world.names.decisions).value())
    assert (decision["request_id"], _code(decision)) == (shorten_id(control), "answer-too-large")
    assert (
        b"bytes; at most" in dict(ours(f"{world.names.audit[0]}.dlq").headers())["__connect.errors.exception.message"]
    )
    alerts = world.reader(world.names.alerts).until(
        lambda seen: any(f"policy-rejected-{world.policies}-{offset}-".encode() in m.value() for m in seen), "the alert"
    )
    assert max(len(message.value()) for message in alerts) < ALWAYS_FITS


def test_an_access_between_changes_that_are_read_together_is_judged_by_the_policies_of_its_time(
    world_and_driver: tuple[World, int], user: str
) -> None:
    """It was allowed by the first change, and the second one took that back. A change follows that stays."""
    world, driver = world_and_driver
    ids, outcomes = [f"{user}-{number}" for number in range(3)], dict[str, str]()

    def are_there(messages: list[Any]) -> bool:
        verdicts = (json.loads(message.value()) for message in messages)
        outcomes.update((v["event_id"], v["outcome"]) for v in verdicts if v.get("event_id") in ids)
        return outcomes.keys() == set(ids)

    assert _ask(world, request(f"before-{user}", user, "orders"))["decision"] is False
    os.kill(driver, signal.SIGSTOP)
    try:
        for id_, topic in zip(ids, ("orders", "payments", "orders"), strict=True):
            world.publish(role(user, f"kafka:topic:prod/main/{topic}"))
            _await_next_moment()
            world.send([{**request(id_, user, "orders"), "outcome": "success"}], world.names.audit[0])
            _await_next_moment()
        world.delete(f"Role/{user}")
    finally:
        os.kill(driver, signal.SIGCONT)
    world.reader(world.names.verdicts).until(are_there, "the verdicts")
    assert [outcomes[id_] for id_ in ids] == ["allow", "deny", "allow"]


def _await_next_moment() -> None:
    """Broker's timestamps are whole milliseconds; its clock is this machine's."""
    now = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > now + 1, "two milliseconds pass")


def test_requests_of_an_aborted_transaction_are_not_decided(world: World, user: str) -> None:
    """One committed, one aborted, and one after them that shows the stream has passed both."""
    world.publish(role(user, ORDERS))
    decisions = world.reader(world.names.decisions)
    client = Producer({"bootstrap.servers": world.broker.bootstrap_servers, "transactional.id": f"client-{user}"})
    client.init_transactions(30)
    for name, end in (("kept", client.commit_transaction), ("aborted", client.abort_transaction)):
        client.begin_transaction()
        asked = request(f"{name}-{user}", user, "orders")
        client.produce(world.names.requests[0], json.dumps(asked), user.encode())
        assert client.flush(30) == 0
        end(30)
    world.send([request(f"last-{user}", user, "orders")], key=user)
    found = decisions.until(lambda seen: sum(m.key() == user.encode() for m in seen) >= 2, "two decisions")
    ids = [json.loads(m.value())["request_id"] for m in found if m.key() == user.encode()]
    assert ids == [f"kept-{user}", f"last-{user}"]


TRACE = ("traceparent", b"00-ab-cd-01")


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ([TRACE, ("bytes", b"\x00\xff\xfe"), ("empty", b""), ("nothing", None)], [TRACE]),
        ([TRACE], [TRACE]),
        ([("traceparent", b"")], [("traceparent", b"")]),
        ([("traceparent", None)], []),
        ([("tracestate", b"a=1")], [("tracestate", b"a=1")]),
        ([("näme", b"[\x00\xff")], []),
        ([("", b"")], []),
    ],
)
def test_headers_come_through_spark_as_they_were(
    world: World, user: str, given: list[tuple[str, bytes | None]], carried: list[tuple[str, bytes]]
) -> None:
    """Trace headers to the decision; to the dead letter all of them, also bytes that are no text, and null."""
    reader, dead_letters = world.reader(world.names.decisions), world.reader(f"{world.names.requests[0]}.dlq")
    world.send([request(f"traced-{user}", user, "orders"), b"no request"], key=user, headers=given)
    decided = reader.until(lambda seen: any(m.key() == user.encode() for m in seen), "it")
    [decision] = [message for message in decided if message.key() == user.encode()]
    assert decision.headers() == [("content-type", b"application/json"), *carried]
    dead = dead_letters.until(lambda seen: any(m.key() == user.encode() for m in seen), "the dead letter")
    [letter] = [message for message in dead if message.key() == user.encode()]
    kept = [(name, value) for name, value in letter.headers() if not name.startswith("__connect")]
    assert kept == given


def test_keys_and_times_come_through_spark_as_they_were(world: World, user: str) -> None:
    """A key may be missing, or empty, which is not the same; so may a value, which then is no request."""
    sent, topic = time.time(), world.names.requests[0]
    for number, key in enumerate((None, b"", b"\x00\xff")):
        asked = json.dumps(request(f"{number}-{user}", user, "orders"))
        world.producer.produce(topic, asked, key)
    world.producer.produce(topic, None, user)
    assert world.producer.flush(30) == 0

    def ours(messages: list[Any]) -> dict[str, Any]:
        pairs = ((json.loads(message.value()), message.key()) for message in messages)
        return {record["request_id"]: (key, record) for record, key in pairs if record["request_id"].endswith(user)}

    decided = ours(world.reader(world.names.decisions).until(lambda seen: len(ours(seen)) == 3, "three decisions"))
    assert [decided[f"{number}-{user}"][0] for number in range(3)] == [None, b"", b"\x00\xff"]
    for _, decision in decided.values():
        assert abs(to_ms(decision["time"]) / 1000 - sent) < 60
    letters = world.reader(f"{topic}.dlq").until(lambda seen: any(m.key() == user.encode() for m in seen), "the letter")
    [letter] = [message for message in letters if message.key() == user.encode()]
    assert b"has no value" in dict(letter.headers())["__connect.errors.exception.message"]
    assert letter.value() is None


def test_the_history_checker_finds_every_promise_kept(world: World) -> None:
    """In all that the tests of this file did, and in a scenario of `make chaos`, which cleans up: malformed records."""
    run, malformed = Run(world, seed=1), SCENARIOS["malformed"]
    row = evaluator(run, malformed.action, new_row(malformed.name, malformed.fault, seed=1))
    assert row.ok, row
    assert row.dead_letters > 100
    found = verify(world.settings)
    assert found.violations == []
    assert found.unknown == {}
    assert found.waiting == 0
    assert found.verified == found.decisions >= row.decisions >= 100
    assert found.outcomes["allow"] > 0
    stored = {document.key for document in read_stored(world.settings, ["lenses6"])}
    assert not {key for key in stored if run.traffic.run in key}


def test_the_history_checker_finds_a_decision_that_another_program_wrote(world: World, tmp_path: Path) -> None:
    """A second answer to a request: the command names its record and fails; outside of the time range it does not."""
    [message] = world.reader(world.names.decisions).until(lambda found: bool(found), "a decision")[:1]
    world.producer.produce(world.names.decisions, message.value(), message.key(), partition=message.partition())
    assert world.producer.flush(30) == 0
    config = tmp_path / "lockkeeper.yaml"
    given = {name: getattr(world.settings, name) for name in ("job_name", "bootstrap_servers", "topics", "trust")}
    written = msgspec.to_builtins(given)
    written["systems"] = written["topics"].pop("systems", None)
    config.write_text(yaml.safe_dump({name: value for name, value in written.items() if value is not None}))
    command = [sys.executable, "-m", "streaming.cli", "verify", "--config", str(config)]
    failed = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert failed.returncode == 1, failed.stderr
    summary = json.loads(failed.stdout)
    assert not summary["ok"]
    assert summary["checks"]["doubled"] == 1
    [violation] = [violation for violation in summary["violations"] if violation["check"] == "doubled"]
    assert (violation["topic"], violation["partition"]) == (message.topic(), message.partition())
    later = ["--since", str(message.timestamp()[1] + 3_600_000), "--until", str(message.timestamp()[1] + 7_200_000)]
    passed = subprocess.run([*command, *later], capture_output=True, text=True)
    assert passed.returncode == 0, passed.stdout
    assert passed.stdout.endswith("every check holds\n")
