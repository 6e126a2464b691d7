"""No record that goes out is larger than Kafka takes, whatever came in; what is shortened says so."""

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from policy import compile_documents
from policy.analysis.escalation import Escalation
from policy.store.documents import DocumentStore
from streaming.enforcer.answered import AnsweredEvaluator, EvaluatorAtOffsets
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EncodedEvaluator, EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.source import Records
from streaming.enforcer.worker import replace_too_large
from streaming.records.answered import ANSWER_SKEW_MS
from streaming.records.avro import Reader, Writer
from streaming.records.dead_letter import Rejection, dead_letter
from streaming.records.formats import Formats, Result, shorten_id
from streaming.records.packing import Outgoing, Packed
from streaming.records.schemas import Kind
from streaming.records.size_gate import fits, fitting, largest, record_size
from streaming.settings import DEFAULT_TRUST, Limits, Settings
from streaming.settings.monitor import MonitorSettings
from streaming.snapshots.alerts import policy_rejected, policy_stale, privilege_escalation
from streaming.snapshots.documents import DocumentRecord, Loader, PublishedDocument, Refused
from streaming.topics import ALWAYS_FITS, ROOM
from tests.monitor.pure import T0, PureMonitor, decision
from tests.stream.arrow import records_batch
from tests.stream.world import group, request, role

AT = 1_795_000_000_000
MIB = 1 << 20
KAFKA_TAKES = 4 * MIB + ROOM - 1024  # what a record batch needs beside its records is less than the rest
CONTROL = "\x01"  # one byte in Avro, six in JSON
SNAPSHOT = compile_documents([role("readers", "kafka:topic:prod/main/orders"), group("readers", "user:dana")])
SOURCE = Source("requests", 3, "topic-id", DEFAULT_TRUST, 1)
DECISION, LETTER = 0, 1


def _for_partition(**limits: int) -> PartitionEvaluator:
    return Evaluator(SNAPSHOT, Limits(**limits)).for_partition(
        SOURCE, EvaluationContext(SNAPSHOT.version, {}, 7, {}, AT)
    )


def _audit_evaluator(**limits: int) -> AuditEvaluator:
    source = Source("audit", 3, "topic-id", DEFAULT_TRUST, LETTER)
    answers = AuditAnswers(SNAPSHOT, DEFAULT_TRUST, 9)
    return AuditEvaluator(source, DECISION, lambda _at: answers, Limits(**limits))


def _avro(kind: Kind, record: dict[str, Any]) -> bytes:
    return Writer(kind, "avro-single-object").encode(json.dumps(record).encode())


def _size(record: Outgoing | Result) -> int:
    return record_size(*record[1:])


def test_an_avro_request_whose_id_is_control_characters_is_an_error_that_says_the_id_is_shortened() -> None:
    id_ = CONTROL * 1_000_000
    made = _for_partition().decide(b"key", _avro("request", request(id_, "dana", "orders")), None, 17, AT)
    assert made[0] == DECISION
    assert _size(made) < KAFKA_TAKES
    record = json.loads(made[2] or b"")
    assert (record["decision"], record["context"]["outcome"]) == (False, "error")
    [reason] = record["context"]["reasons"]
    assert reason["code"] == "answer-too-large"
    assert "request_id" in reason["message"]
    assert "shortened" in reason["message"]
    assert record["request_id"] == shorten_id(id_)
    assert record["context"]["source"] == {"topic": "requests", "partition": 3, "offset": 17}


def test_an_id_that_is_not_what_is_too_large_stays_whole() -> None:
    asked = request("r" * 5000, "dana", CONTROL * 900_000)
    record = json.loads(_for_partition().decide(b"key", _avro("request", asked), None, 17, AT)[2] or b"")
    assert record["request_id"] == "r" * 5000
    assert record["context"]["reasons"][0]["code"] == "answer-too-large"


def test_a_key_that_leaves_no_room_for_a_decision_makes_a_dead_letter_with_hashes() -> None:
    partition_evaluator, key = _for_partition(record_in=8 * MIB), b"k" * 5 * MIB
    made = partition_evaluator.decide(key, json.dumps(request("r", "dana", "orders")).encode(), None, 17, AT)
    assert made[0] == LETTER
    assert _size(made) < ALWAYS_FITS
    assert b"bytes; at most" in dict(made[3] or [])["__connect.errors.exception.message"]
    assert dict(partition_evaluator.counts) == {"dead letter": 1}


def test_trace_headers_are_carried_once_each() -> None:
    headers = [{"key": "tracestate", "value": b"x" * 1000}] * 5000 + [{"key": "traceparent", "value": b"00-1"}]
    carried = (
        _for_partition().decide(b"key", json.dumps(request("r", "dana", "orders")).encode(), headers, 17, AT)[3] or []
    )
    assert [name for name, _ in carried] == ["content-type", "traceparent", "tracestate"]


@pytest.mark.long
def test_headers_without_a_text_count_too() -> None:
    """Each takes bytes in a record."""
    headers = [{"key": "", "value": b""}] * 500_000
    made = dead_letter(Rejection("requests", 0, 1, ValueError("no")), None, b"x", headers, Limits())
    assert record_size(*made) < ALWAYS_FITS


LARGE_LOGIN = {
    "id": "e",
    "system": "streamsets",
    "event": "login",
    "subject": {"type": "user", "id": CONTROL * 900_000},
}


@pytest.mark.parametrize(
    "event",
    [
        LARGE_LOGIN,
        {**LARGE_LOGIN, "subject": {"type": "user", "id": CONTROL * 250_000}},
        {**LARGE_LOGIN, "id": CONTROL * 900_000, "subject": {"type": "user", "id": "dana"}},
        {**request(CONTROL * 900_000, "dana", "orders"), "outcome": "success"},
    ],
    ids=["login", "login whose fact is larger than a document", "id of a login", "id of an access"],
)
def test_an_audit_event_whose_verdict_is_too_large_is_a_dead_letter_that_names_the_size(event: dict[str, Any]) -> None:
    partition_evaluator = _audit_evaluator()
    made = partition_evaluator.decide(b"key", _avro("audit-event", event), None, 17, AT)
    assert made[0] == LETTER
    assert _size(made) < KAFKA_TAKES
    assert b"bytes; at most" in dict(made[3] or [])["__connect.errors.exception.message"]
    assert dict(partition_evaluator.counts) == {"dead letter": 1}


def test_a_verdict_whose_reasons_are_too_large_comes_without_them() -> None:
    event = {**request("e", "dana", CONTROL * 400_000), "outcome": "success"}
    number, _, value, _ = _audit_evaluator().decide(b"key", _avro("audit-event", event), None, 17, AT)
    assert number == DECISION
    record = json.loads(value or b"")
    assert (record["outcome"], record["reasons"]) == ("error", [])


def _alert(result: Result) -> Any:
    topic, key, value, _ = result
    assert topic == "alerts"
    assert _size(result) <= ALWAYS_FITS
    assert len(key or b"") < 5000
    return json.loads(value or b"")


def test_a_refused_document_of_440_kb_makes_a_small_alert_that_says_what_it_leaves_out() -> None:
    statements = [{"effect": "allow", "action": ["a:b"], "resource": [], "x" + CONTROL * 20: 1}] * 2200
    document = {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": statements}}
    value = msgspec.json.encode(document)
    refused = Loader(DocumentStore(), "lenses6", MIB).take(DocumentRecord("policies", b"Role/r", value, 5, AT))
    assert refused is not None
    assert len(msgspec.json.encode(refused.errors)) > 400_000
    alert = _alert(policy_rejected("alerts", refused))
    [evidence] = alert["evidence"]
    assert (evidence["topic"], evidence["offset"]) == ("policies", 5)
    assert evidence["errors"][:-1] == list(refused.errors[: len(evidence["errors"]) - 1])
    assert evidence["errors"][-1] == f"… and {len(refused.errors) - len(evidence['errors']) + 1} more"
    assert "more characters" in alert["message"]


def test_an_alert_that_is_small_stays_as_it_is() -> None:
    errors = tuple(f"statement {number}: unknown field" for number in range(100))
    alert = _alert(policy_rejected("alerts", Refused("lenses6/Role/r", "policies", 5, AT, errors)))
    assert alert["evidence"][0]["errors"] == list(errors)
    assert alert["message"].endswith(errors[-1])


@pytest.mark.parametrize("what", [CONTROL * 30_000, "kafka:topic:prod/main/" + "x" * 200_000])
def test_denied_requests_with_long_resources_raise_a_small_alert_and_make_a_small_state(what: str) -> None:
    monitor = PureMonitor(MonitorSettings())
    monitor.batch(decision(str(n), "dana", f"{what}-{n}", "deny", T0 + n) for n in range(30))
    monitor.pass_time(T0 + 1000)
    [alert] = monitor.reported
    assert alert["kind"] == "denial-burst"
    assert len(msgspec.json.encode(alert)) < ALWAYS_FITS
    assert "more characters" in alert["evidence"][1]["what"]
    assert len(msgspec.msgpack.encode(list(monitor.states.values()))) < 100_000


def test_an_alert_about_a_subject_with_a_long_name_names_it_by_a_hash() -> None:
    name = CONTROL * 900_000
    monitor = PureMonitor(MonitorSettings())
    monitor.batch(decision(str(n), name, "orders", "deny", T0 + n) for n in range(30))
    monitor.pass_time(T0 + 1000)
    [alert] = monitor.reported
    assert alert["subject"] == shorten_id(name)
    assert len(msgspec.json.encode(alert)) < ALWAYS_FITS


TEXTS = st.builds(
    lambda begin, character, count: begin + character * count,
    st.text(st.characters(exclude_categories=("Cs",)), max_size=3),
    st.sampled_from([CONTROL, "x", "é", "😀", '"', "\\"]),
    st.sampled_from([0, 1, 300, 5000, 20_000]),
)
LIMITS = st.sampled_from([100, 1000, 5000, 100_000, 300_000])
PROPERTIES = st.dictionaries(st.text(max_size=3), TEXTS, max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of texts that grow when they are written."""
    record = {
        "id": draw(TEXTS) or "r",
        "system": draw(st.sampled_from(["lenses6", "cdap"]) | TEXTS) or "s",
        "subject": {"type": "user", "id": draw(TEXTS) or "u"},
        "action": {"name": draw(TEXTS) or "a"},
        "resource": {"type": "lrn", "id": draw(TEXTS) or "o", "properties": draw(PROPERTIES)},
    }
    return {**record, **({"evaluations": [{}] * draw(st.integers(1, 50))} if draw(st.booleans()) else {})}


@given(requests(), st.binary(max_size=300), LIMITS, st.booleans(), st.sampled_from(["json", "avro-single-object"]))
def test_every_decision_and_its_dead_letter_fits(
    asked: dict[str, Any], key: bytes, limit: int, avro: bool, output: Any
) -> None:
    limits = Limits(record_out=limit)
    value = _avro("request", asked) if avro else json.dumps(asked).encode()
    partition_evaluator = _for_partition(record_out=limit)
    decide = (
        partition_evaluator.decide
        if output == "json"
        else EncodedEvaluator(partition_evaluator, SOURCE, limits, Formats(output)).decide
    )
    made = decide(key, value, [{"key": "traceparent", "value": b"00-1"}], 17, AT)
    assert fits(_size(made), limit), made[0]
    if made[0] == DECISION and output == "json":
        record = json.loads(made[2] or b"")
        assert record["request_id"] in (asked["id"], shorten_id(asked["id"]))


@given(requests(), st.booleans(), LIMITS, st.booleans())
def test_every_verdict_and_its_dead_letter_fits(asked: dict[str, Any], login: bool, limit: int, avro: bool) -> None:
    event = {**asked, "event": "login"} if login else {**asked, "outcome": "success"}
    event.pop("evaluations", None)
    value = _avro("audit-event", event) if avro else json.dumps(event).encode()
    assert fits(_size(_audit_evaluator(record_out=limit).decide(b"key", value, None, 17, AT)), limit)


@settings(max_examples=25)
@given(TEXTS, st.lists(TEXTS, max_size=2), st.sampled_from([0, 1, 30]))
def test_every_alert_of_the_policies_fits(name: str, errors: list[str], times: int) -> None:
    _alert(policy_rejected("alerts", Refused(name, "policies", 5, AT, tuple(errors * times))))
    _alert(policy_stale("alerts", ("policies", 0), 5, AT, name))
    many, record = tuple(errors * times), PublishedDocument(name, "policies", 5, AT)
    texts: dict[str, Any] = dict.fromkeys(("names", "grants", "principals", "before", "after", "ways"), many)
    opened = Escalation(
        document=name, statement=0, kind="wildcard", severity="high", causes=(name,), allow=name, **texts
    )
    _alert(privilege_escalation("alerts", record, [opened] * 25, {name: record}))


@pytest.mark.parametrize("positions", [None, [0, 2]], ids=["all", "some by the short way"])
def test_what_a_worker_made_too_large_is_replaced_by_a_dead_letter_of_its_own_record(
    positions: list[int] | None,
) -> None:
    records = Records(records_batch([(b"k", b"%d" % number, None) for number in range(3)]))
    small, large = (DECISION, b"k", b"x", None), (DECISION, b"k", b"s3cret" * MIB, None)
    made = Packed([], [small, large], positions)
    assert replace_too_large(made, records, LETTER, 4 * MIB) == 1
    [kept, (number, key, value, headers)] = made.others
    assert (kept, number, key) == (small, LETTER, None)
    offset = 1 if positions is None else positions[1]
    record = json.loads(value or b"")
    assert (record["topic"], record["partition"], record["offset"]) == ("requests", 0, offset)
    assert record["value_sha256"] == hashlib.sha256(b"%d" % offset).hexdigest()
    assert dict(headers or [])["__connect.errors.exception.message"].startswith(
        b"the record to write has 6291457 bytes"
    )


def test_what_is_too_large_all_the_same_is_left_out_logged_and_counted() -> None:
    ours, dropped = Settings(), list[str]()
    names = ours.topics
    small, large = (names.alerts, b"k", b"x", []), (names.facts, b"k", b"s3cret" * MIB, [])
    with capture_logs() as logged:
        assert list(fitting([small, large, small], largest(ours), dropped.append)) == [small, small]
    [line] = logged
    assert (line["log_level"], line["topic"], line["bytes"]) == ("error", names.facts, 6 * MIB + 1)
    assert "s3cret" not in repr(logged)
    assert dropped == [names.facts]


def test_a_kept_version_of_the_largest_document_is_never_left_out() -> None:
    ours = Settings(limits=Limits(document=8 * MIB))
    kept = (ours.topics.history, b"lenses6/Role/r/5", b"x" * 8 * MIB, [("at", b"1")])
    assert list(fitting([kept], largest(ours), lambda _topic: None)) == [kept]


@pytest.mark.parametrize("record_out", [MIB, 900])
def test_an_answer_elsewhere_that_is_stale_and_misdated_stays_so_where_its_decision_is_too_large(
    record_out: int,
) -> None:
    """Else whoever answers would hide it in a large request."""
    answered = {
        "by": "pdp-1",
        "time": AT,
        "decision": False,
        "outcome": "deny",
        "policy_version": "sha256:0",
        "policy_offsets": {},
        "facts_offset": -1,
        "freshness": {"kind": "bounded", "age_ms": 20_000, "max_ms": 15_000},
    }
    found = EvaluatorAtOffsets(Evaluator(SNAPSHOT, Limits(record_out=record_out)), None, True)
    context = EvaluationContext("", {}, -1, {}, 0)
    reader = Reader(Formats())
    again = AnsweredEvaluator(found.evaluator, lambda *_: found, SOURCE, context, "facts", ANSWER_SKEW_MS, reader)
    value = json.dumps({**request("r", "dana", "o" * 800), "answered": answered}).encode()
    number, _, decided, _ = again.decide(None, value, None, 0, AT + 60_000)
    findings = json.loads(decided or b"")["answered"]
    assert number == DECISION
    assert (findings["verified"], findings["stale"], findings["misdated"]) == (record_out == MIB, True, True)
