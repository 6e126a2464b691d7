"""What a task of a replay counts: every answer is that of `policy.decide`, in every system, on both sides."""

import json
from collections import Counter
from pickle import PicklingError
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import policy
from policy import CLAIMS, NO_LONGER_KNOWN, Decision, DocumentStore, Snapshot, compile_documents, layer_of
from streaming.errors import JobStopped
from streaming.history.span import Span
from streaming.replay.comparison import Comparison, Sides
from streaming.replay.evaluating import Part, Task
from streaming.replay.result import OTHERS, Compared, Count, Totals, count, kind_of, prefix_of, replayed
from streaming.replay.run import failure_text, spark_errors_as_job_stopped
from streaming.settings import Limits, Settings
from tests.cli.documents import request
from tests.examples import examples
from tests.policy.test_properties import WRITTEN, documents_of, requests_of
from tests.policy.test_widening import group, role

checked = settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
NOW = 1_000_000


def replay(
    sides: Sides, requests: list[Any], trust: frozenset[str] = CLAIMS, systems: frozenset[bytes] = frozenset()
) -> Totals:
    """The totals of requests, in JSON or as they are."""
    totals, limits = Totals(), Limits()
    task = Task("replay", {"": trust}, {}, systems, NOW, limits)
    values = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in requests]
    Part(Comparison(sides, trust), task, "t-0-", totals).take((v, NOW, n) for n, v in enumerate(values))
    return totals


def outcomes(snapshot: Snapshot, one: dict[str, Any], trust: frozenset[str]) -> list[str]:
    """As `policy.decide` answers, at the time that counts in the stream."""
    trusted = "time" in trust and one.get("time") is not None
    decision = policy.decide(
        snapshot,
        {k: v for k, v in one.items() if k != "deadline"} | {"time": one["time"] if trusted else NOW},
        trust=trust | {"time"},
    )
    return [_outcome(one) for one in decision.evaluations or (decision,)]


def _outcome(decision: Decision) -> str:
    return "unknown" if any(one.code == NO_LONGER_KNOWN for one in decision.reasons) else decision.outcome


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_both_answers_are_those_of_decide(system: str, data: st.DataObject) -> None:
    """Each request twice: the second is answered by what the first has prepared."""
    old, new = (compile_documents(data.draw(documents_of(system))) for _ in range(2))
    trust = data.draw(st.sets(st.sampled_from(sorted(CLAIMS))).map(frozenset))
    asked = [one for one in data.draw(st.lists(requests_of(system), min_size=1, max_size=8)) for _ in range(2)]
    asked = [{**one, "id": f"r-{number}"} for number, one in enumerate(asked)]
    found = replay(Sides(old, new), asked, trust)
    expected: Counter[str] = Counter()
    for one in asked:
        for pair in zip(outcomes(old, one, trust), outcomes(new, one, trust), strict=True):
            expected["unknown" if "unknown" in pair else " → ".join(pair)] += 1
    assert found.unreadable == 0
    assert found.unknown == expected.pop("unknown", 0)
    assert found.outcomes == expected


OLD = compile_documents([role("r", "kafka:topic:prod/main/orders"), group("g", ["r"], "user:dana")])
NEW = compile_documents([role("r", "kafka:topic:prod/main/pay*"), group("g", ["r"], "user:dana")])
SIDES = Sides(OLD, NEW)


def test_what_differs_is_grouped_and_shown_by_example() -> None:
    totals = replay(SIDES, [request(), request(topic="payments"), request("user:eve"), request("user:eve", "payments")])
    assert totals.outcomes == {"allow → deny": 1, "deny → allow": 1, "deny → deny": 2}
    [opened], [closed] = totals.examples["opened"], totals.examples["closed"]
    assert (opened.subject, opened.resource, opened.decision) == (
        "user:dana",
        "kafka:topic:prod/main/payments",
        "t-0-1",
    )
    assert (opened.document, opened.statement) == ("lenses6/Role/r", 0)
    assert (closed.before, closed.after, closed.document) == ("allow", "deny", "lenses6/Role/r")
    assert totals.groups["subject"] == {"user:dana": Count("user:dana", 1, 1, 0)}
    assert totals.groups["resource"] == {"kafka:topic:prod/main/*": Count("kafka:topic:prod/main/*", 1, 1, 0)}
    found = replayed(totals, Compared("a", "b", "c"), 1.0, 10)
    assert (found.differ, found.opened, found.closed, found.gain, found.lose) == (
        2,
        1,
        1,
        ("user:dana",),
        ("user:dana",),
    )


def test_what_stands_between_the_offsets_of_a_range_of_time_and_is_of_another_time_does_not_count() -> None:
    """Kafka's index leads to a range that is wider: records may be dated out of order."""
    totals, span = Totals(), Span(NOW - 1, NOW + 1)
    task = Task("replay", {"": CLAIMS}, {}, frozenset(), NOW, Limits(), span=span)
    times = (NOW - 2, NOW - 1, NOW, NOW + 1, NOW + 900_000)
    rows = [(json.dumps(request()).encode(), at, n) for n, at in enumerate(times)]
    Part(Comparison(SIDES, CLAIMS), task, "t-0-", totals).take(iter([*rows, (b"none", NOW + 1, 5)]))
    assert (totals.records, totals.answers, totals.unreadable) == (2, 2, 0)


def test_a_batch_counts_each_of_its_answers() -> None:
    items = [{}, {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/payments"}}]
    totals = replay(SIDES, [request(evaluations=items)])
    assert (totals.records, totals.answers) == (1, 2)
    assert totals.outcomes == {"allow → deny": 1, "deny → allow": 1}


def test_a_batch_needs_no_subject_of_its_own() -> None:
    whole = request()
    batch = {"id": "b", "system": "lenses6", "evaluations": [{k: whole[k] for k in ("subject", "action", "resource")}]}
    totals = replay(SIDES, [batch, {**batch, "evaluations": [{}]}])
    assert (totals.unreadable, totals.outcomes) == (0, {"allow → deny": 1, "error → error": 1})


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"not JSON",
        b"\xff",
        json.dumps(request()).replace('"id": "r-1"', '"id": "r-1", "id": "r-2"').encode(),
        json.dumps(request(time="yesterday")).encode(),
        json.dumps(request(deadline="yesterday")).encode(),
        b"[" * 40 + b"]" * 40,
        b"\xc3\x01" + b"x" * 9,
    ],
)
def test_what_is_no_request_is_counted_and_stops_nothing(value: bytes) -> None:
    totals = replay(SIDES, [request(), value, request()])
    assert (totals.records, totals.unreadable, totals.answers) == (3, 1, 2)


@pytest.mark.parametrize(("head", "records"), [("t-0-", 3), ("", 1)])
def test_an_empty_record_is_no_request_and_an_empty_line_of_a_file_is_nothing(head: str, records: int) -> None:
    """Of a topic it is a dead letter: it was counted as unreadable, and not as a record."""
    totals, task = Totals(), Task("replay", {"": CLAIMS}, {}, frozenset(), NOW, Limits())
    rows = [(value, NOW, n) for n, value in enumerate((None, b" ", json.dumps(request()).encode()))]
    Part(Comparison(SIDES, CLAIMS), task, head, totals).take(iter(rows))
    assert (totals.records, totals.unreadable, totals.answers) == (records, records - 1, 1)


def test_deadlines_and_demands_of_offsets_were_of_their_time() -> None:
    demand = {"min_policy_offsets": {"some-topic": {"0": 10**9}}}
    totals = replay(SIDES, [request(deadline=1), request(context=demand)])
    assert totals.outcomes == {"allow → deny": 2}


def test_other_systems_are_passed_over() -> None:
    asked = [request(), request(system="cdap"), request(system="cdap", evaluations=[{}])]
    totals = replay(SIDES, asked, systems=frozenset([b'"lenses6"']))
    assert (totals.records, totals.answers) == (1, 1)


def test_facts_of_a_time_that_is_not_known_any_more_make_the_answer_unknown() -> None:
    grant = {
        "system": "cdap",
        "kind": "Grant",
        "name": "g",
        "spec": {"user": "ann", "entity": "namespace:n", "privileges": ["READ"]},
    }
    asked = {
        "id": "r",
        "system": "cdap",
        "subject": {"type": "user", "id": "ann"},
        "action": {"name": "namespace.get"},
        "resource": {"type": "namespace", "id": "namespace:n"},
    }
    facts = DocumentStore(facts_only=True)
    facts.put({"system": "cdap", "kind": "Entity", "name": "namespace:n", "spec": {"parent": None}}, NOW + 5, 0)
    totals = replay(Sides(compile_documents([]), compile_documents([grant]), layer_of(facts)), [asked])
    assert (totals.answers, totals.unknown) == (0, 1)
    later = replay(
        Sides(compile_documents([]), compile_documents([grant]), layer_of(facts)), [{**asked, "time": NOW + 9}]
    )
    assert (later.outcomes, later.unknown) == ({"deny → allow": 1}, 0)


def test_totals_add_up_whatever_the_order() -> None:
    parts = [replay(SIDES, [request(f"user:{name}"), request()]) for name in ("a", "b")]
    one, other = Totals(), Totals()
    for part in parts:
        one.add(part)
    for part in reversed(parts):
        other.add(part)
    assert one == other
    assert (one.records, one.answers) == (4, 4)


REFUSED = compile_documents(
    [{"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": 7, "members": ["user:dana"]}}]
)


def test_examples_that_are_equal_and_have_no_statement_stop_nothing() -> None:
    """A file with a line twice, and a batch with an evaluation twice: None and None have no order."""
    totals = replay(Sides(OLD, REFUSED), [request(evaluations=[{}, {}])])
    totals.add(replay(Sides(OLD, REFUSED), [request(evaluations=[{}])]))
    assert [one.statement for one in totals.examples["closed"]] == [None, None, None]


@pytest.mark.parametrize("more", [{}, {"evaluations": [{}]}])
def test_an_answer_that_is_an_error_now_is_shown_with_the_reason_of_that(more: dict[str, Any]) -> None:
    """It was shown, and counted, with the statement that had allowed it."""
    [closed] = (totals := replay(Sides(OLD, REFUSED), [request(**more)])).examples["closed"]
    assert (closed.after, closed.document) == ("error", "")
    assert "refused" in closed.reason
    assert totals.groups["statement"].keys() == {closed.reason}


def test_names_beyond_what_is_held_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.replay.result.HELD", 2)
    counts: dict[str, Count] = {}
    for name in "abcda":
        count(counts, name).add(1, 0, 0)
    assert {one.name: one.opened for one in counts.values()} == {"a": 2, "b": 1, OTHERS: 2}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("deny", "allow", "opened"),
        ("error", "allow", "opened"),
        ("allow", "error", "closed"),
        ("deny", "error", "other"),
    ],
)
def test_what_happens_to_an_answer(before: str, after: str, kind: str) -> None:
    assert kind_of(before, after) == kind


@pytest.mark.parametrize(
    ("resource", "prefix"),
    [("kafka:topic:prod/main/orders", "kafka:topic:prod/main/*"), ("job:a", "job:*"), ("a", "a"), ("a/b", "a/*")],
)
def test_resources_are_grouped_by_their_beginning(resource: str, prefix: str) -> None:
    assert prefix_of(resource) == prefix


JAVA = (
    "An error occurred while calling o9.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (host "
    "executor driver): org.apache.kafka.common.errors.%s\n\tat org.apache.spark.A\n\nDriver stacktrace:\n\tat d"
)


@pytest.mark.parametrize("says", ["Not authorized to access topics: [a, b]", "Topic authorization failed."])
def test_a_permission_that_the_login_of_spark_lacks_is_named_with_the_acl_that_grants_it(says: str) -> None:
    """Kafka's other clients have theirs, so what they may do was checked before; a traceback of Java came then."""
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="reader" password="p";'
    settings = Settings(bootstrap_servers="kafka:9092", source={"kafka.sasl.jaas.config": login})
    said = failure_text(JAVA % f"TopicAuthorizationException: {says}", settings, ["a", "b"])
    first, second, *_, last = said.splitlines()
    assert [first, second] == [f"User:reader is not authorized to Read topic {topic}" for topic in "ab"]
    assert last.endswith("--add --allow-principal 'User:reader' --operation Read --topic b")


def test_another_error_of_a_task_is_shown_without_its_stack() -> None:
    said = failure_text(JAVA % "SaslAuthenticationException: Authentication failed", Settings(), ["a"])
    assert said == "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed"


def test_a_disk_that_has_no_room_for_the_policies_ends_a_replay_with_its_cause() -> None:
    """PySpark writes a broadcast to a file, and raises an error of its own."""
    error = "Could not serialize broadcast: OSError: [Errno 28] No space left on device"
    with (
        pytest.raises(JobStopped, match=r"could not be decided again: .*No space"),
        spark_errors_as_job_stopped(Settings(), []),
    ):
        raise PicklingError(error)
