"""Where Avro meets the job: the same answers as in JSON, and what cannot be read is a dead letter without secrets."""

import json
from typing import Any

import pytest

from policy import compile_documents
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EncodedEvaluator, EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.records.avro import Reader, Unencodable, Writer, is_avro
from streaming.records.decision import read_decision
from streaming.records.formats import CONTENT_TYPES, JSON_ALONE, Formats
from streaming.records.packing import Packed
from streaming.records.schemas import read
from streaming.settings import DEFAULT_TRUST, Encoding, Limits
from tests.bench import workload
from tests.contracts.schemas import documents

DOCUMENTS = workload.documents(100)
SNAPSHOT = compile_documents(DOCUMENTS)
SOURCE = Source("requests", 3, "topic-id", DEFAULT_TRUST, 2)
AT = 1_795_000_000_123
REQUESTS = [json.dumps(request).encode() for request in workload.requests(DOCUMENTS, 100)]
SINGLE = Writer("request", "avro-single-object")
AVRO_OUT = Formats(output="avro-single-object")


def _for_partition(reader: Reader | None = None) -> PartitionEvaluator:
    context = EvaluationContext(SNAPSHOT.version, {"policies": {"0": 41}}, 7, {}, AT)
    return Evaluator(SNAPSHOT, Limits()).for_partition(SOURCE, context, reader)


def _encoded(partition_evaluator: PartitionEvaluator) -> EncodedEvaluator:
    return EncodedEvaluator(partition_evaluator, SOURCE, Limits(), AVRO_OUT)


def test_a_request_in_avro_gets_the_answer_of_the_same_in_json() -> None:
    """Byte for byte, in turn, so that both find what the other left in the caches."""
    partition_evaluator = _for_partition()
    for value in REQUESTS:
        answers = {partition_evaluator.decide(b"k", one, None, 17, AT) for one in (value, SINGLE.encode(value), value)}
        assert len(answers) == 1


def test_a_decision_in_avro_is_the_one_in_json_with_its_content_type() -> None:
    partition_evaluator = _for_partition()
    headers: list[dict[str, Any]] = [{"key": "traceparent", "value": b"00-1"}]
    for value in REQUESTS:
        number, key, record, headers_out = _encoded(partition_evaluator).decide(b"k", value, headers, 17, AT)
        plain = partition_evaluator.decide(b"k", value, headers, 17, AT)[2] or b""
        assert (number, key) == (0, b"k")
        assert json.loads(Reader(JSON_ALONE).transcode("decision", record or b"")) == json.loads(plain)
        assert headers_out == [("content-type", CONTENT_TYPES["avro-single-object"]), ("traceparent", b"00-1")]


@pytest.mark.parametrize("encoding", CONTENT_TYPES)
def test_a_decision_reads_the_same_in_every_encoding(encoding: Encoding) -> None:
    record = _for_partition().decide(b"k", REQUESTS[0], None, 17, AT)[2] or b""
    written = record if encoding == "json" else Writer("decision", encoding, 7).encode(record)
    reader = Reader(Formats(registry=True, known={7: (read("avro/decision.avsc"),)}))
    as_json = reader.transcode("decision", written) if is_avro(written) else written
    assert json.loads(as_json) == json.loads(record)
    assert read_decision(as_json).id == "topic-id-3-17"


def test_decisions_in_avro_carry_the_usual_headers_as_those_in_json_do() -> None:
    made = Packed([], [_encoded(_for_partition()).decide(b"k", value, None, 17, AT) for value in REQUESTS])
    [(number, batch)] = made.batches()
    assert (number, len(batch.keys), batch.headers.null_count) == (0, len(REQUESTS), len(REQUESTS))


@pytest.mark.parametrize(
    "value", [b"\xc3\x01" + bytes(9), b"\0\0\0\0\7x", b"\0", b"{", SINGLE.encode(REQUESTS[0])[:-2]]
)
def test_what_cannot_be_read_is_a_dead_letter_in_whatever_encoding(value: bytes) -> None:
    number, key, kept, headers = _encoded(_for_partition()).decide(b"k", value, None, 17, AT)
    assert (number, key, kept) == (2, b"k", value)
    assert dict(headers or ())["__connect.errors.exception.message"].startswith(b"not a request: ")


def test_a_request_whose_schema_must_be_asked_for_is_noted() -> None:
    reader = Reader(Formats(registry=True))
    _for_partition(reader).decide(b"k", b"\0\0\0\0\7x", None, 17, AT)
    assert reader.needed == {7}


def test_a_token_in_avro_is_masked_in_the_dead_letter() -> None:
    request = json.loads(REQUESTS[0])
    request["subject"]["properties"] = {"token": {"sub": "s3cret"}}
    value = SINGLE.encode(json.dumps(request).encode()) + b"too much"
    number, _, kept, headers = _for_partition().decide(b"k", value, None, 17, AT)
    assert number == 2
    assert b"s3cret" not in (kept or b"")
    assert not any(b"s3cret" in text for _, text in headers or ())


def test_a_decision_that_does_not_fit_its_schema_is_a_dead_letter_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unfit(_writer: Writer, _value: bytes) -> bytes:
        raise Unencodable("not a record")

    monkeypatch.setattr(Writer, "encode", unfit)
    number, key, kept, headers = _encoded(_for_partition()).decide(b"k", REQUESTS[0], None, 17, AT)
    assert (number, key, kept) == (2, b"k", REQUESTS[0])
    assert dict(headers or ())["__connect.errors.exception.message"] == b"not a record"


@pytest.mark.parametrize("number", [0, 1])
def test_an_audit_event_in_avro_gets_the_verdict_of_the_same_in_json(number: int) -> None:
    source, answers = Source("audit", 0, "topic-id", DEFAULT_TRUST, 3), AuditAnswers(SNAPSHOT, DEFAULT_TRUST, 9)
    partition_evaluator = AuditEvaluator(source, 1, lambda _at: answers, Limits())
    value = json.dumps(documents()["audit-event.json"]["examples"][number]).encode()
    avro = Writer("audit-event", "avro-single-object").encode(value)
    assert partition_evaluator.decide(b"k", avro, None, 17, AT) == partition_evaluator.decide(b"k", value, None, 17, AT)
    assert partition_evaluator.decide(b"k", value, None, 17, AT)[0] == 1
    to, _, _, headers = partition_evaluator.decide(b"k", SINGLE.encode(REQUESTS[0]), None, 17, AT)
    assert to == 3
    assert b"avro/audit-event.avsc" in dict(headers or ())["__connect.errors.exception.message"]
