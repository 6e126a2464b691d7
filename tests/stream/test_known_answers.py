"""What Java answers by its table is, byte for byte, what a worker that keeps nothing decides; the rest is Python's."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from policy import compile_documents, decide
from policy.core.request import CLAIMS
from policy.core.times import to_ms, to_text
from policy.evaluation import Lookup
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from streaming.commit.java_classes import PACKAGE
from streaming.commit.partitions import Evaluated, PartitionResult
from streaming.enforcer.evaluator import Evaluator
from streaming.enforcer.known_task import Versions, encode_task
from streaming.enforcer.ranges import Budget, stops
from streaming.enforcer.source import Records, read_range
from streaming.enforcer.worker import Outputs, Worker
from streaming.records.formats import Formats
from streaming.runtime.spark import start_session
from streaming.settings import DEFAULT_TRUST, Limits
from tests.bench import traffic
from tests.brokers import TestBroker
from tests.examples import examples
from tests.policy import test_answer_mutants as checks
from tests.policy.incremental import IncrementalPolicies
from tests.policy.test_answers import MOMENTS, UNHURRIED, change, deletion, spoiled
from tests.policy.test_properties import WRITTEN as SYSTEMS
from tests.policy.test_properties import dated, requests_of
from tests.stream.arrow import AT, Sent, records_at
from tests.stream.known import (
    ENOUGH,
    PLACE,
    TOPIC,
    Made,
    Table,
    compile_mutant,
    context_of,
    same,
    source_of,
    task_of,
    teach,
)
from tests.stream.test_partitions import RECORDS, Place
from tests.stream.test_prepared_answers import REPEATING, _repeating, _request, _sent, unprepared
from tests.stream.world import SHORT_LIVED, group, role

pytestmark = pytest.mark.stream

DOCUMENTS = [
    role("open", "kafka:topic:prod/main/*"),
    role("narrow", "kafka:topic:prod/*/orders-*", "kafka:topic:*"),
    role("closed", "kafka:topic:prod/main/secret*", "kafka:topic:prod/main/secretary", effect="deny"),
    group("open", "user:dana"),
    group("narrow", "user:dana", "user:eve"),
    group("closed", "user:eve"),
]
Timed = tuple[bytes | None, bytes | None, Any, int]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("known", SHORT_LIVED, "local[1]")
    yield session
    session.stop()


class Ways:
    """A worker and Java's table, and beside them a worker that keeps nothing."""

    package: ClassVar = PACKAGE

    def __init__(self, spark: SparkSession, snapshot: Snapshot, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.evaluator, self.table = Evaluator(snapshot, self.limits), Table(spark, self.package)
        self.table.follow(snapshot)

    def follow(self, snapshot: Snapshot, changed: Iterable[tuple[str, Lookup]] = ()) -> None:
        changed = tuple(changed)
        self.evaluator.follow(snapshot, changed)
        self.table.follow(snapshot, changed)

    def compare(self, sent: list[Timed], trust: frozenset[str] = DEFAULT_TRUST, now: int = AT, times: int = 3) -> int:
        """How many Java has decided, the last time."""
        batch, source = records_at(sent, TOPIC, PLACE), source_of(trust)
        task = self.table.task(trust=trust, now=now, limits=self.limits)
        with unprepared():
            alone = Evaluator(self.evaluator.snapshot, self.limits).for_partition(source, context_of(now))
            careful = [alone.decide(*row) for row in Records(batch).rows()]
        for _ in range(times):
            made, side = self.table.decide(batch, task)
            decided = [number for number, one in enumerate(made) if one.missing is None]
            for number in decided:
                assert same(made[number], careful[number])
            assert (side is None) == (not decided)
            self.table.learn(teach(self.evaluator, batch, made, source, now), task)
        return len(decided)

    def ask(self, *requests: Any, at: int = AT, **more: Any) -> int:
        """The same for requests as JSON."""
        return self.compare([(b"k", json.dumps(request).encode(), None, at) for request in requests], **more)


def _timed(sent: Iterable[Sent], at: int = AT) -> list[Timed]:
    return [(*record, at) for record in sent]


@pytest.fixture
def ways(spark: SparkSession) -> Ways:
    return Ways(spark, compile_documents(DOCUMENTS))


def test_a_request_that_comes_again_is_decided_in_java(ways: Ways) -> None:
    trace = [("traceparent", b"00-1")]
    sent: list[Timed] = [(b"k", json.dumps(_request(f"r-{n}")).encode(), trace, AT + n) for n in range(3)]
    assert ways.compare(sent) == 3
    assert ways.compare([(None, *record[1:]) for record in sent], times=1) == 3


def test_ids_that_were_never_seen_are_known_where_they_lead_to_a_known_state(ways: Ways) -> None:
    known = ("orders-1", "other", "secret-1")
    assert (
        ways.ask(*(_request(user=user, topic=f"prod/main/{name}") for user in ("dana", "eve") for name in known)) == 6
    )
    new = ("orders-2", "another", "secret-2", "secrets")
    asked = [_request(user=user, topic=f"prod/main/{name}") for user in ("dana", "eve") for name in new]
    assert ways.ask(*asked, times=1) == 8
    assert ways.ask(_request(user="eve", topic="prod/main/secretary"), times=1) == 0, "a pattern names it"
    assert ways.ask(_request(user="dana", topic="prod/main/"), times=1) == 0, "its last part is empty"


def test_what_a_worker_has_taught_stays_known_when_another_teaches_of_ids_that_begin_alike(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process numbers states in its own way."""
    asked = [_request(user="dana", topic=f"prod/main/{name}") for name in ("orders-1", "other", "secret-1")]
    assert ways.ask(*asked) == 3
    monkeypatch.setattr("streaming.enforcer.lessons._first_number", lambda _process: 1 << 40)
    ways.evaluator = Evaluator(ways.evaluator.snapshot, ways.limits)
    assert ways.ask(_request(user="eve", topic="prod/main/other"), times=1) == 0
    assert ways.ask(_request(user="eve", topic="prod/main/other"), times=1) == 1
    assert ways.ask(*asked, times=1) == 3


def test_the_mix_of_all_systems_is_decided_alike(spark: SparkSession) -> None:
    documents, requests = traffic.policies_and_requests(300, 2_000)
    ways = Ways(spark, compile_documents(documents))
    assert ways.ask(*requests) > 1_900, "nearly all that comes again is known"


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(_sent(), min_size=1, max_size=12))
def test_whatever_a_record_is_java_decides_it_as_python_or_not_at_all(spark: SparkSession, sent: list[Sent]) -> None:
    ways = Ways(spark, compile_documents(DOCUMENTS))
    ways.ask(
        *(_request("t", user, topic) for user in ("dana", "eve") for topic in ("prod/main/orders-1", "prod/main/x"))
    )
    ways.compare(_timed(sent))


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_a_property_that_repeats_the_id_stands_for_it_as_in_python(spark: SparkSession, order: int) -> None:
    ways = Ways(spark, _datasets("orders", "bill*", "a/*"))
    show = {"system": "lenses5", "action": {"name": "kafka.topic.show"}, "resource": {"type": "topic"}}
    hostile = ((":", '{"connection":"kafka"}'), (",", '{"connection","kafka"}'), ("a", '{"a":"a","b":"x'))
    marked = (("bills", f'{{"connection":"kafka","dataset":{mark}}}') for mark in ("\x01", ""))
    asked = [*REPEATING, *hostile, *marked, ("bills", '{"connection":"kafka","dataset":"bills"}')][::order]
    sent: list[Timed] = [(None, _repeating(n, *one, show), None, AT) for n, one in enumerate(asked)]
    assert ways.compare(sent) > 10
    assert ways.compare(sent[::-1], times=1) > 10


HOSTILE = (
    # what is replaced in a request that is known
    (b'"id":"r-1",', b""),
    (b'"id":"r-1"', b'"id":""'),
    (b'"id":"r-1"', b'"id":"\\u0072-1"'),
    (b'"id":"r-1"', b'"id":"\xc3\xa9"'),
    (b'"id":"r-1"', b'"id":"\xff"'),
    (b'"id":"r-1"', b'"id":"r-1","id":"r-2"'),
    (b'"id":"r-1"', b'"id":"r-1","deadline":0,"deadline":%d' % (2 * AT)),
    (b'"id":"r-1"', b'"id":"r-1","unknown":1'),
    (b'"id":"r-1"', b'"id":"r-1","evaluations":[]'),
    (b'"id":"r-1"', b'"id":"r-1","deadline":00%d' % (2 * AT)),
    (b'"id":"r-1"', b'"id":"r-1","deadline":%d.5' % (2 * AT)),
    (b'"id":"kafka:', b'"id":"x","id":"kafka:'),
    (b'orders-1"', b'orders -1"'),
    (b'orders-1"', b'orders-1 "'),
    (b'orders-1"', b'orders-1\xc3\xa9"'),
    (b'orders-1"', b'orders-1\\u0041"'),
    (b'orders-1"', b'orders-1\x7f"'),
    (b"}}", b"}}}"),
    (b"}}", b"}} x"),
    (b"}}", b"}"),
    (b'{"id"', b'[{"id"'),
    (b'{"id"', b' {"id"'),
    (b'"subject":{', b'"subject":{"x":1,'),
    (b'"subject":{', b'"subject":{\0'),
)


def test_what_is_no_request_is_left_to_python(ways: Ways) -> None:
    value = msgspec.json.encode(_request())
    assert ways.compare([(None, value, None, AT)]) == 1
    for right, wrong in HOSTILE:
        assert value.count(right) == 1
        ways.compare([(None, value.replace(right, wrong), None, AT)])
    for value_ in (None, b"", b"{", b"{}", b"[]", b"\xc3\x01", b'"', value[:-1], value * 2):
        assert ways.compare([(None, value_, None, AT)]) == 0


HEADERS = (
    [],
    [("__TypeId__", b"com.example.Request")],  # Spring's serializer adds it to each record
    [("traceparent", None)],
    [("traceparent", b"x" * 1024)],
    [("traceparent", b"x" * 1025)],
    [("traceparent", b"x" * 1025), ("tracestate", b"a=b")],
    [("traceparent", b"00-1"), ("traceparent", b"x" * 1025), ("traceparent", None)],
    [("traceparent", b"")],
    [("", b"traceparent"), ("traceparents", b"1"), ("traceparen", b"2")],
    [("tracestate", b"a=b"), ("baggage", b"c=d"), ("traceparent", b"00-1")],
    [("traceparent", b"00-1"), ("content-type", b"application/json"), ("traceparent", b"00-2")],
)


def test_of_any_headers_the_traces_are_carried_over(ways: Ways) -> None:
    value = msgspec.json.encode(_request())
    assert ways.compare([(None, value, headers, AT) for headers in HEADERS]) == len(HEADERS)


def test_a_request_is_known_however_large_it_is(spark: SparkSession) -> None:
    """Users are in hundreds of groups of a directory."""
    ways, asked = Ways(spark, compile_documents([role("open", "kafka:topic:prod/*"), group("g-7")])), _request()
    asked["subject"]["properties"] = {"groups": ["g-7", *(f"CN=g-{n},OU=Groups".ljust(100, "x") for n in range(1000))]}
    assert ways.ask(asked, trust=CLAIMS) == 1
    asked["resource"]["id"] = f"kafka:topic:prod/main/{'x' * 20_000}"
    ways.ask(asked, trust=CLAIMS)
    assert ways.ask(asked, trust=CLAIMS, at=AT + 1, times=1) == 1
    small = Ways(spark, ways.evaluator.snapshot, Limits(record_in=len(json.dumps(asked))))
    assert small.ask(asked, trust=CLAIMS) == 0, "beyond the limit with its key"


def test_a_context_is_part_of_what_is_asked(spark: SparkSession) -> None:
    ways, asked = Ways(spark, compile_documents(checks.POLICIES)), checks.CONSUMERS
    without = {name: part for name, part in asked.items() if name != "context"}
    for one in (without, asked, without, checks.TOPIC, {**checks.TOPIC, "context": {"a": 1}}):
        assert ways.ask(one, trust=CLAIMS) == 1


CONTEXTS = (
    *('{"ip":"10.0.0.7","attempt":3,"is_retry":false}', '{ "ip" : "10.0.0.8" , "nothing" : null }', '{"n":-0,"m":0}'),
    *(json.dumps({str(number): number for number in range(32)}), '{"ip":"","":""}', '{"n":999999999999999}'),
)
WHOLE = (
    *(
        '{"ip":"10.0.0.7","ip":"10.0.0.7"}',
        '{"ip":1,"ip":2}',
        '{"ip":"\\u0061"}',
        '{"\\u0069p":"a"}',
        '{"ip":"é"}',
        "{}",
    ),
    *('{"ip":1.5}', '{"ip":1e5}', '{"ip":01}', '{"ip":+1}', '{"ip":-}', '{"ip":1000000000000000}', '{"ip":[]}'),
    *('{"ip":{"a":1}}', '{"ip":truth}', '{"ip":nul}', '{"ip":"a"}x', '{"ip":"a"', '{"ip":"a",}', '{,"ip":"a"}', "{ }"),
    *('{"ip" "a"}', '{"ip":}', '{ip:"a"}', '{"ip":"a\t"}', '{"ip":"a""b":1}', "[]", "[1]", "null", '"ip"', "1", "{"),
    *(json.dumps({str(number): number for number in range(33)}), '{"ip":"a";"b":1}', '{"ip":"a"]', '{"ip":"\\""}'),
    *('{"min_policy_offsets":{}}', '{"min_policy_offsets":1}', '{"ip":1,"min_policy_offsets":{"p":{"0":9}}}'),
)


def test_what_a_system_is_not_shown_of_a_context_is_no_part_of_what_is_asked(ways: Ways) -> None:
    """Each request may have another client's address. What may be malformed counts as a whole."""
    whole = json.dumps({**_request(), "context": "?"})
    assert ways.ask({**_request(), "context": {"ip": "10.0.0.1"}}) == 1
    sent: list[Timed] = [(None, whole.replace('"?"', context).encode(), None, AT) for context in CONTEXTS]
    assert ways.compare(sent, times=1) == len(CONTEXTS)
    for context in WHOLE:
        value = whole.replace('"?"', context).encode()
        assert ways.compare([(None, value, None, AT)], times=1) == 0
        ways.compare([(None, value, None, AT)])


def test_what_a_system_is_shown_of_a_context_is_part_of_what_is_asked(spark: SparkSession) -> None:
    entry = {"principal": "User:dana", "operation": "Read", "resource_type": "Topic", "name": "orders"}
    spec = {"entries": [{**entry, "host": host} for host in ("10.0.0.1", "10.0.0.2")]}
    ways = Ways(spark, compile_documents([{"system": "kafka-acls", "kind": "Acls", "name": "orders", "spec": spec}]))
    asked: dict[str, Any] = {"id": "r", "system": "kafka-acls", "subject": {"type": "user", "id": "User:dana"}}
    asked |= {"action": {"name": "Read"}, "resource": {"type": "Topic", "id": "orders"}}
    for host, outcome in (("10.0.0.1", "allow"), ("10.0.0.3", "deny"), ("10.0.0.2", "allow")):
        with_host = [{**asked, "context": {"port": port, "host": host, "ip": "x"}} for port in (1, 2)]
        assert decide(ways.evaluator.snapshot, with_host[0]).outcome == outcome
        assert ways.ask(*with_host, trust=CLAIMS) == 2
        assert ways.ask({**asked, "context": {"host": host, "port": 3}}, trust=CLAIMS, times=1) == 1


def test_time_and_deadline_are_those_that_python_goes_by(spark: SparkSession) -> None:
    ending = {**role("open", "kafka:topic:prod/main/*"), "valid_from": AT - 5, "valid_until": AT + 5}
    ways = Ways(spark, compile_documents([ending, group("open", "user:dana")]))
    moments = (AT - 6, AT - 5, AT, AT + 4, AT + 5)
    numbers = (0, 5, 10**9 - 1, 10**9, 10**11, 10**11 + 1, AT - 5, AT + 5, 253402300799999, 253402300800000)
    texts = map(to_text, (AT - 5, AT - 1, AT, AT + 1, AT + 5))
    values = (*numbers, *texts, AT - 1, AT, AT + 1)
    claims = [{}, *({name: value} for name in ("time", "deadline") for value in values)]
    for trust, at, now in itertools.product((DEFAULT_TRUST, CLAIMS, frozenset({"time"})), moments, (AT, AT + 1)):
        ways.ask(*(_request(**claim) for claim in claims), at=at, trust=trust, now=now, times=2)
    assert ways.ask(_request(), at=AT + 4, times=2) == 1


WRITTEN = (
    *("2026-11-21T10:00:00Z", "2026-11-21T10:00:00.5Z", "2026-11-21T10:00:00.123456789Z", "1970-01-01T00:00:00.0019Z"),
    *("2024-02-29T23:59:59.999Z", "2000-02-29T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-11-30T09:08:07.06Z"),
)
UNUSUAL = (
    *("2026-11-21T10:00:00+00:00", "2026-11-21t10:00:00Z", "2026-11-21T10:00:00z", "2026-11-21 10:00:00Z"),
    *("2016-12-31T23:59:60Z", "1969-12-31T23:59:59Z", "2026-02-29T00:00:00Z", "2026-11-31T00:00:00Z"),
    *("1900-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-11-00T00:00:00Z"),
    *("2026-11-21T24:00:00Z", "2026-11-21T10:60:00Z", "2026-11-21T10:00:60Z", "2026-11-21T10:00:00", ""),
    *("2026-11-21T10:00:00.Z", "2026-11-21T10:00:00.1234567891Z", "2026-11-21T10:00:00,5Z", "2026-11-21T10:00Z"),
    *("+026-11-21T10:00:00Z", "2026-11-21T10:00:00ZZ", "2026-11-21T10:00:00.-1Z", "2026-11-21T1 :00:00Z", "2026"),
    *(
        "0000-00-00T00:00:00Z",
        "2026/11/21T10:00:00Z",
        "2026-11-21T10-00-00Z",
        "2100-02-29T00:00:00Z",
        "2026-11-21T10:00:00A",
    ),
)


@pytest.mark.parametrize("name", ["time", "deadline"])
def test_moments_are_written_as_in_the_examples_of_the_contracts(spark: SparkSession, name: str) -> None:
    """RFC 3339 in UTC is decided in Java, to the millisecond; whatever else it may be, as in Python or not at all."""
    ways, now = Ways(spark, compile_documents(DOCUMENTS)), AT if name == "time" else 0
    assert ways.ask(*(_request(**{name: text}) for text in WRITTEN), trust=CLAIMS, now=now) == len(WRITTEN)
    failures = ways.table.failures()
    cut = [text[:length] for text in WRITTEN for length in range(19, len(text))]
    for text in (*UNUSUAL, *WRITTEN, *cut):
        for moment in (0, to_ms(WRITTEN[0]), 253402300799999):
            ways.ask(_request(**{name: text}), trust=CLAIMS, now=moment, times=1)
    assert ways.table.failures() == failures


def test_each_trust_has_its_own_answers(spark: SparkSession) -> None:
    ways = Ways(spark, compile_documents([role("open", "kafka:topic:*"), group("open")]))
    asked = _request()
    asked["subject"]["properties"] = {"groups": ["open"]}
    for trust in (CLAIMS, CLAIMS - {"groups"}, CLAIMS):
        assert ways.ask(asked, trust=trust) == 1
    assert ways.ask(asked, trust=frozenset()) == 0, "two have a table, others none"


def test_answers_that_changed_policies_may_touch_end_and_an_older_task_finds_none(ways: Ways) -> None:
    asked = [_request(user=user, topic=f"prod/main/{name}") for user in ("dana", "eve") for name in ("x", "secret-1")]
    assert ways.ask(*asked) == 4
    older, batch = ways.table.task(), records_at([(None, json.dumps(one).encode(), None, AT) for one in asked])
    changed = compile_documents(
        [*DOCUMENTS[:2], role("closed", "kafka:topic:prod/main/x*", effect="deny"), *DOCUMENTS[3:]]
    )
    ways.follow(changed)
    made, _ = ways.table.decide(batch, older)
    assert all(one.missing is None for one in made), "no newer task has begun: all of a batch are by one version"
    lessons = teach(Evaluator(compile_documents(DOCUMENTS), Limits()), batch, [Made(1)] * 4, source_of())
    assert lessons
    ways.table.learn(lessons, older, newer=ways.table.task())
    assert ways.ask(*asked, times=1) == 0
    assert ways.ask(*asked) == 4
    made, _ = ways.table.decide(batch, older)
    assert {one.missing for one in made} == {0}, "nothing is known, nor to be taught"
    ways.table.learn(lessons, older)
    assert ways.ask(*asked, times=1) == 4


def test_answers_that_are_seldom_asked_for_end_with_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is so little room that each query is an old one as soon as it is learned."""
    file, enough, little = "KnownAnswers.java", "youngBytes > mostBytes / 2", "youngBytes > 0"
    compile_mutant(spark, "generations", tmp_path, file, enough, little)
    monkeypatch.setattr(Ways, "package", "generations")
    ways, asked = Ways(spark, compile_documents(checks.POLICIES)), checks.VERVERICA
    assert ways.ask(asked, trust=CLAIMS) == 1
    ways.follow(compile_documents([document for document in checks.POLICIES if document["system"] != "ververica"]))
    assert ways.ask(asked, trust=CLAIMS, times=1) == 0


def test_records_of_a_partition_that_the_task_does_not_name_are_left_to_python(ways: Ways) -> None:
    """Producers of another topic may be trusted with more."""
    assert ways.ask(_request()) == 1
    batch, task = records_at([(None, json.dumps(_request()).encode(), None, AT)]), json.loads(ways.table.task())
    [partition] = task["partitions"]
    for other in ({"topic": "others"}, {"number": PLACE + 1}):
        made, _ = ways.table.decide(batch, msgspec.json.encode({**task, "partitions": [{**partition, **other}]}))
        assert [record.missing for record in made] == [0]


def _datasets(*patterns: str) -> Snapshot:
    """Policies of Lenses 5, whose patterns may have a wildcard anywhere; those of Lenses 6 at the end alone."""
    return compile_documents([_dataset_group("dana", *patterns)])


def _dataset_group(member: str, *patterns: str) -> dict[str, Any]:
    namespace = {"connection": "kafka", "type": "Kafka", "datasets": [*patterns], "permissions": ["Show Topic"]}
    spec = {"namespaces": [namespace], "members": [member]}
    return {"system": "lenses5", "kind": "Group", "name": f"of-{member}", "spec": spec}


def _dataset(name: str) -> Any:
    show = {"system": "lenses5", "subject": {"type": "user", "id": "dana"}, "action": {"name": "kafka.topic.show"}}
    return {
        "id": "r-1",
        **show,
        "resource": {"type": "topic", "id": name, "properties": {"connection": "kafka", "dataset": name}},
    }


def _outcomes(snapshot: Snapshot, names: Iterable[str]) -> list[str]:
    return [str(decide(snapshot, _dataset(name)).outcome) for name in names]


def test_ids_by_globs_are_known_one_by_one_and_lead_elsewhere_under_other_policies(spark: SparkSession) -> None:
    first, names = _datasets("q*a*z"), ("one-1", "two-1")
    ways = Ways(spark, first)
    asked = [_dataset(name) for name in names]
    assert ways.ask(*asked) == 2
    assert ways.ask(_dataset("three-1"), times=1) == 0
    second = _datasets("q*a*z", "o*-*1")
    assert (_outcomes(first, names), _outcomes(second, names)) == (["deny", "deny"], ["allow", "deny"])
    ways.follow(second)
    assert ways.ask(*asked) == 2


def test_where_ids_lead_ends_with_the_policies(spark: SparkSession) -> None:
    """By the first all lead to one state; by those that follow, a glob allows one of the two."""
    first, second, names = _datasets("*"), _datasets("o*e"), ("one", "two")
    assert (_outcomes(first, names), _outcomes(second, names)) == (["allow", "allow"], ["allow", "deny"])
    ways = Ways(spark, first)
    asked = [_dataset(name) for name in names]
    assert ways.ask(*asked) == 2
    ways.follow(second)
    assert ways.ask(*asked) == 2


def test_what_fails_in_java_is_left_to_python_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    package = "failing"
    compile_mutant(spark, package, tmp_path, "KnownRecords.java", "table.find(", "((KnownAnswers) null).find(")
    gateway: Any = spark.sparkContext._gateway
    table = Table(spark, package)
    table.follow(compile_documents(DOCUMENTS))
    task = table.task()
    made, _ = table.decide(records_at([(b"k", json.dumps(_request()).encode(), None, AT)], TOPIC, PLACE), task)
    assert [record.missing for record in made] == [0], "decided by Python, of which nothing is to be learned"
    assert getattr(gateway.jvm, package).KnownTrial.failures() == 1


def test_executors_that_missed_a_change_of_facts_forget_all(ways: Ways) -> None:
    assert ways.ask(_request()) == 1
    ways.follow(ways.evaluator.snapshot, [("streamsets", ("name", "Session", str(n))) for n in range(3_000)])
    assert ways.ask(_request(), times=1) == 0
    assert ways.ask(_request()) == 1
    ways.follow(ways.evaluator.snapshot, [("streamsets", ("name", "Session", "s"))])
    assert ways.ask(_request(), times=1) == 1


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_answers_follow_facts_and_policies_that_change(spark: SparkSession, system: str, data: st.DataObject) -> None:
    """After each change, over edges of time, in all systems; at last of the policies."""
    kinds = {name for name, kind in all_systems()[system].kinds.items() if kind.fact}
    documents = [msgspec.json.decode(msgspec.json.encode(document)) for document in data.draw(dated(system))]
    asked = [{**data.draw(requests_of(system)), "id": str(number)} for number in range(3)]
    plain = [{name: part for name, part in one.items() if name not in ("time", "deadline")} for one in asked]
    policies, facts, overlay = DocumentStore(), DocumentStore(facts_only=True), FactOverlay()
    for document in documents:
        document.pop("effective_at", None)
    rules = [document for document in documents if document["kind"] not in kinds]
    for order, document in enumerate(rules):
        policies.put(document, order, order)
    compiled = IncrementalPolicies(policies)
    ways = Ways(spark, compiled.snapshot.with_facts(overlay))
    changes = [document for document in documents if document["kind"] in kinds][:2]
    for order, document in enumerate([None, *changes, *map(spoiled, changes), *map(deletion, changes)], len(documents)):
        lookups = [] if document is None else overlay.apply(change(facts, document, order))
        ways.follow(compiled.snapshot.with_facts(overlay), [(system, lookup) for lookup in lookups])
        for at in data.draw(st.lists(st.sampled_from(MOMENTS), min_size=1, max_size=2)):
            ways.ask(*plain, at=at, times=2)
    for order, document in enumerate(data.draw(st.lists(st.sampled_from(rules), max_size=4)) if rules else (), 1_000):
        edit = data.draw(st.sampled_from([deletion, dict, dict, spoiled]))
        ways.follow(compiled.change(edit(document), order).with_facts(overlay))
        ways.ask(*plain, at=6, times=2)


def test_answers_outlive_policies_that_change_for_others(spark: SparkSession) -> None:
    policies = IncrementalPolicies.of(DOCUMENTS)
    ways = Ways(spark, policies.snapshot)
    dana, eve = (
        [_request(user=user, topic=f"prod/main/{name}") for name in ("x", "secret-1")] for user in ("dana", "eve")
    )
    assert ways.ask(*dana, *eve) == 4
    ways.follow(policies.change(role("closed", "kafka:topic:prod/main/x*", effect="deny")))
    assert ways.ask(*eve, times=1) == 0, "affected as a member of the group with that role"
    assert ways.ask(*dana, times=1) == 2
    assert ways.ask(*dana, *eve) == 4
    ways.follow(policies.change(group("closed", "user:eve", "user:dana"), 2))
    assert ways.ask(*dana, times=1) == 0, "a new member"
    assert ways.ask(*eve, times=1) == 2
    ways.follow(policies.change(group("closed", "user:eve"), 3))
    assert ways.ask(*dana, times=1) == 0, "a member no more"
    ways.follow(policies.change({**group("never", "user:tom"), "spec": {"roles": 1}}, 4))
    assert ways.ask(*dana, *eve, times=1) == 0, "documents that are refused affect all principals"


def test_an_id_that_is_new_is_asked_for_again_after_a_change_that_may_tell_it_apart(spark: SparkSession) -> None:
    """The globs of the tries are for Python: each id is known by itself."""
    policies = IncrementalPolicies.of([_dataset_group("dana", "q*a*z")])
    ways = Ways(spark, policies.snapshot)
    assert ways.ask(_dataset("one-1")) == 1
    ways.follow(policies.change(_dataset_group("eve", "o*e")))
    assert ways.ask(_dataset("one-1"), times=1) == 1
    assert ways.ask(_dataset("two-1"), times=1) == 0
    assert ways.ask(_dataset("two-1"), times=1) == 1, "taught by one record"
    assert ways.ask(_dataset("one-1"), times=1) == 0, "of the newest trie it is not known yet"
    assert ways.ask(_dataset("one-1"), _dataset("two-1"), times=1) == 2
    ways.follow(policies.change(_dataset_group("dana", "o*1"), 2))
    assert ways.ask(_dataset("one-1"), _dataset("two-1"), times=1) == 0


def test_records_are_counted_as_a_worker_counts_them(ways: Ways) -> None:
    asked = [_request(f"r-{n}", user=("dana", "eve")[n % 2], topic="prod/main/secret-1") for n in range(10)]
    trace = [("traceparent", b"00-" + b"1" * 100)]
    sent: list[Timed] = [(b"k", json.dumps(one).encode(), trace, AT - 7 * (n % 3)) for n, one in enumerate(asked)]
    ways.compare(sent)
    _, side = ways.table.decide(records_at(sent), ways.table.task())
    (topic, outcomes, dead, ages, aged, traces), *_, decided = side
    assert (topic, dead, sorted(outcomes)) == (TOPIC, 0, [["lenses6", "allow", 5], ["lenses6", "deny", 5]])
    assert dict(zip(ages, aged, strict=True)) == {0: 4, 7: 3, 14: 3}
    assert traces == [("00-" + "1" * 100)[:64]] * 8
    assert decided[:4] == [PLACE, 0, 10, False]


@pytest.mark.parametrize(("room", "exceeds", "decided"), [(0, True, 1), (0, False, 0), (3_500, True, 3)])
def test_no_more_is_decided_than_the_budget_allows(ways: Ways, room: int, exceeds: bool, decided: int) -> None:
    sent: list[Timed] = [(None, json.dumps(_request(f"r-{n}")).encode(), None, AT) for n in range(10)]
    ways.compare(sent)
    made, side = ways.table.decide(records_at(sent), ways.table.task(budget=Budget(room, 3.0, exceeds)))
    assert [one.missing is None for one in made] == [n < decided for n in range(10)]
    assert side[-1][:4] == [PLACE, 0, decided, True]


def test_an_older_task_finds_no_answer_of_a_newer_one_that_began_meanwhile(ways: Ways) -> None:
    assert ways.ask(_request()) == 1
    older, batch = ways.table.task(), records_at([(None, json.dumps(_request()).encode(), None, AT)])
    ways.follow(compile_documents([*DOCUMENTS, role("none", "*", effect="deny"), group("none", "user:eve")]))
    made, _ = ways.table.decide(batch, older, newer=ways.table.task())
    assert [record.missing for record in made] == [0], (
        "dana's answer is the same, but its record would name other policies"
    )


def test_records_before_the_committed_offset_are_not_decided_again(ways: Ways) -> None:
    sent: list[Timed] = [(None, json.dumps(_request(f"r-{n}")).encode(), None, AT) for n in range(4)]
    ways.compare(sent)
    made, side = ways.table.decide(records_at(sent), ways.table.task(), committed=2)
    assert [record.missing for record in made] == [9, 9, None, None], "9: not handed over to Python either"
    assert side[-1][:3] == [PLACE, 2, 4]


def test_records_beyond_the_limits_are_not_decided(spark: SparkSession) -> None:
    for limits in (Limits(record_in=300), Limits(record_out=900), Limits()):
        ways = Ways(spark, compile_documents(DOCUMENTS), limits)
        for length in range(0, 400, 50):
            request = _request("r" * (length + 1))
            ways.compare([(b"k" * 60, json.dumps(request).encode(), None, AT)] * 2)


def test_where_each_decision_is_for_python_no_task_uses_the_table() -> None:
    versions, partitions = Versions(), [(TOPIC, PLACE)]
    versions.follow(compile_documents(DOCUMENTS), ())
    used = encode_task(task_of(), "v", versions, partitions)
    assert used is not None
    avro = task_of(formats=Formats(output="avro-single-object"))
    assert encode_task(avro, "v", versions, partitions) is None
    for outputs in (Outputs(2, verdicts=1), Outputs(2, answered=True)):
        other = encode_task(task_of(outputs={TOPIC: outputs}), "v", versions, partitions)
        assert other is not None
        assert len(other) < len(used), "its partition is not in it"


class InJava(Ways):
    """As a worker of `tests.policy.test_answer_mutants`, whose checks also ask Java."""

    spark: SparkSession

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(self.spark, snapshot)
        follow = self.evaluator.follow

        def follow_both(snapshot: Snapshot, changed: Any) -> None:
            follow(snapshot, changed := tuple(changed))
            self.table.follow(snapshot, changed)

        self.evaluator.follow = follow_both  # type: ignore[method-assign]

    def compare(self, request: Any, at: int = checks.AT) -> None:  # type: ignore[override]
        value = request if isinstance(request, bytes) else msgspec.json.encode(request)
        self.limits = self.evaluator.limits
        super().compare([(b"k", value, None, at)], CLAIMS, at, 2)


def test_java_stands_the_checks_that_find_each_bug_of_the_cache(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they ask of a worker, a worker and Java are asked."""
    InJava.spark = spark
    monkeypatch.setattr(checks, "InWorker", InJava)
    checks.compare()


class Batches:
    """Batches of requests on a partition of a broker, decided by a worker and by what is known; to one topic."""

    def __init__(self, place: Place) -> None:
        self.place, self.versions = place, Versions()
        self.decided = self.sent = RECORDS
        place.transactions.commit_offsets([TopicPartition(place.input, 0, RECORDS, "")], {(place.input, 0): None})

    def send(self, *values: bytes | None) -> None:
        producer = Producer({"bootstrap.servers": self.place.settings.bootstrap_servers})
        for value in values:
            producer.produce(self.place.input, value, b"k", partition=0)
        assert producer.flush(30) == 0
        self.sent += len(values)

    def decide(self, snapshot: Snapshot, budget: Budget = ENOUGH) -> PartitionResult:
        """What became of all that was sent; committed up to where it is decided."""
        place, partition = self.place, (self.place.input, 0)
        self.versions.follow(snapshot, ())
        task = msgspec.structs.replace(
            task_of(),
            topics=(place.output,) * 3,
            committed={partition: self.decided},
            budgets={partition: budget},
            topic_ids={place.input: "topic-id"},
            trust={place.input: DEFAULT_TRUST},
            outputs={place.input: Outputs(2)},
            snapshots=((0, None, self.versions.to_java()["number"]),),
        )
        broadcast = place.spark.sparkContext.broadcast
        worker = Worker(task, [broadcast(snapshot)], [broadcast(FactOverlay())])
        records = read_range(place.spark, place.settings, {partition: self.decided}, {partition: self.sent})
        committed = {partition: self.decided}
        known = encode_task(task, "v", self.versions, [partition])
        evaluated = place.transactions.evaluate(records, worker, committed, {partition: self.sent}, known)
        self.decided = stops(evaluated.side_outputs).get(partition, self.sent)
        place.commit(evaluated, offset=self.decided, committed=committed[partition])
        [result] = evaluated.results
        return result


@pytest.fixture
def batches(broker: TestBroker, spark: SparkSession, fresh_name: Callable[[str], str]) -> Iterator[Batches]:
    place = Place(broker, spark, fresh_name("known"))
    yield Batches(place)
    place.transactions.close()


def _counted(result: PartitionResult) -> int:
    """The records that Java has decided."""
    outcomes = json.loads(result.counted)[0][1] if result.counted else []
    return sum(count for _, _, count in outcomes)


def _numbered(numbers: Iterable[int]) -> list[bytes]:
    """Requests of two kinds, and every seventh of them none."""
    topics = ("prod/main/orders-1", "prod/main/secret-1")
    return [json.dumps(_request(f"r-{n}", topic=topics[n % 2])).encode() if n % 7 else b"no request" for n in numbers]


@pytest.mark.long
def test_a_partition_is_written_in_its_order_and_counted_whoever_decides_its_records(batches: Batches) -> None:
    snapshot, place = compile_documents(DOCUMENTS), batches.place
    batches.send(*_numbered(range(30)))
    assert _counted(batches.decide(snapshot)) == 0
    batches.send(*_numbered(range(30, 60)))
    result = batches.decide(snapshot)
    assert _counted(result) == 26
    dead = [side.tally.dead_letters for side in Evaluated([result]).side_outputs]
    assert dead == [4, 0]
    batches.send(*(value for value in _numbered(range(61, 90)) if value != b"no request"))
    assert len(batches.decide(snapshot).side_outputs) == 0, "no worker was needed"
    written = place.written(85)
    offsets = [json.loads(value)["context"]["source"]["offset"] for value in written if value != b"no request"]
    assert offsets == sorted(offsets)
    assert [value == b"no request" for value in written[:60]] == [n % 7 == 0 for n in range(60)]
    assert len(written) == 85


def test_a_change_of_policies_is_in_force_with_the_next_batch(batches: Batches) -> None:
    closed = [*DOCUMENTS, role("none", "*", effect="deny"), group("none", "user:dana")]
    for documents, allowed in (
        (DOCUMENTS, True),
        (DOCUMENTS, True),
        (closed, False),
        (closed, False),
        (DOCUMENTS, True),
    ):
        batches.send(json.dumps(_request()).encode())
        batches.decide(compile_documents(documents))
        written = batches.place.written()
        assert json.loads(written[-1])["decision"] is allowed


def test_what_the_budget_leaves_follows_in_the_next_range(batches: Batches) -> None:
    snapshot = compile_documents(DOCUMENTS)
    batches.send(*_numbered(range(1, 30)))
    batches.decide(snapshot)
    batches.send(*_numbered(range(30, 60)))
    times = 0
    while batches.decided < batches.sent:
        batches.decide(snapshot, Budget(6_000, 3.0))
        times += 1
    assert 4 < times < 15
    offsets = [
        json.loads(value)["context"]["source"]["offset"] for value in batches.place.written(59) if value[:1] == b"{"
    ]
    assert offsets == sorted(set(offsets))
