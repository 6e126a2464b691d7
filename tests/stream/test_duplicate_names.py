"""A name that stands twice in a JSON object: a gateway may read the first, so nothing is decided, wherever it comes.

Nor where a name differs from one that counts in case alone: Go's encoding/json takes it for that.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from policy import REQUEST_NAMES, MalformedRequest, check_letter_case, decide, decode_request
from streaming.enforcer.answered import AnsweredEvaluator
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.enforcer.requests import decide_lines
from streaming.enforcer.source import Records
from streaming.records.audit import read_event
from streaming.records.avro import Reader, Undecodable, Writer
from streaming.records.formats import JSON_ALONE
from streaming.records.packing import DECISIONS
from streaming.serve.authzen import BadRequest, Rules, parse_evaluation, parse_evaluations
from streaming.settings import DEFAULT_TRUST, Limits
from tests.stream.arrow import AT, records_batch
from tests.stream.packed import decisions_of
from tests.stream.test_prepared_answers import SNAPSHOT, _for_partition, _request

SAID, CASE_SAID = "duplicate key", "ignore case"
LIMITS = Limits()
REQUEST = json.dumps(_request(context={"note": {"of": "dana"}}, deadline=AT + 1000, trace={"a": 1}))
EVENT = json.dumps({**json.loads(REQUEST), "outcome": "success", "time": AT, "decision_id": "d-1"})
ITEMS = json.dumps(_request(evaluations=[{"subject": {"type": "user", "id": "user:eve"}}]))


def doubled(text: str) -> Iterator[str]:
    """The text with one of its members once more before it: another value, in other spellings of its name."""
    for name in ("id", "system", "subject", "action", "resource", "context", "deadline", "trace", "type", "note", "a"):
        before, quoted, after = text.partition(f'"{name}": ')
        if quoted:
            escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
            for spelled in (name, escaped):
                yield f'{before}"{spelled}": "other", {quoted}{after}'
                yield f'{before}"{spelled}":1,{quoted}{after}'


MEMBERS = ("id", "system", "subject", "action", "resource", "type")


def in_other_case(text: str, *more: str) -> Iterator[str]:
    """The text with a member beside one of its own, whose name differs in case alone; or in its place."""
    for name in (*MEMBERS, *more):
        before, quoted, after = text.partition(f'"{name}": ')
        for other in (name.title(), name.upper(), name.replace("s", "\u017f")):
            if other != name and quoted:
                yield f'{before}"{other}": "other", {quoted}{after}'
                yield text.replace(f'"{name}": ', f'"{name}": "other", "{other}": ', 1)


def _refused(decode: Callable[[bytes], object], text: str) -> bool:
    try:
        decode(text.encode())
    except (MalformedRequest, BadRequest) as error:
        return SAID in str(error) or CASE_SAID in str(error)
    return False


def _is_named(headers: object) -> bool:
    said = dict(headers or ())["__connect.errors.exception.message"]  # type: ignore[call-overload]
    return SAID.encode() in said or CASE_SAID.encode() in said


@pytest.mark.parametrize("text", [*doubled(REQUEST), *in_other_case(REQUEST, "deadline")])
def test_the_stream_decides_nothing_by_whichever_path(text: str) -> None:
    """A worker that knows the query of the request without its duplicate, and one that knows nothing; both paths."""
    knows, knows_nothing = Evaluator(SNAPSHOT, LIMITS), Evaluator(SNAPSHOT, LIMITS)
    for value in (REQUEST, json.dumps(_request(context={"note": {"of": "dana"}}, deadline=AT))):
        _for_partition(knows).decide_all(Records(records_batch([(b"k", value.encode(), None)])))
    for evaluator in (knows, knows_nothing):
        made = _for_partition(evaluator).decide_all(Records(records_batch([(b"k", text.encode(), None)])))
        assert decisions_of(made) == []
        number, _, _, headers = _for_partition(evaluator).decide(b"k", text.encode(), None, 0, AT)
        assert number != DECISIONS
        assert _is_named(headers)


@pytest.mark.parametrize("name", ["Min_policy_offsets", "MIN_POLICY_OFFSETS", "min_policy_off\u017fets"])
def test_offsets_that_are_asked_for_in_another_case_are_not_passed_over(name: str) -> None:
    """Policies that are older than these would be new enough. Also where the answer without them is known."""
    offsets, several = {"authz.policies.lenses6.v1": {"0": 41}}, [{"context": {name: {}}}]
    evaluator = Evaluator(SNAPSHOT, LIMITS)
    for context in ({}, {"a": 1}, {name: 1}, {name: "x"}):  # scalars are no offsets, and are not compared
        text = json.dumps(_request(context=context))
        assert decide(SNAPSHOT, json.loads(text)).outcome == "allow"
        outputs = _for_partition(evaluator).decide_all(Records(records_batch([(b"k", text.encode(), None)])))
        assert outputs.columnar or outputs.others[0][0] == DECISIONS
    for malformed in (
        _request(context={name: offsets}),
        _request(context={"a": 1, name: offsets}),
        _request(context={name: []}),
        _request(evaluations=several),
    ):
        text = json.dumps(malformed)
        for each in (evaluator, Evaluator(SNAPSHOT, LIMITS)):
            outputs = _for_partition(each).decide_all(Records(records_batch([(b"k", text.encode(), None)])))
            assert decisions_of(outputs) == []
        for parse in (parse_evaluations, parse_evaluation) if "evaluations" not in malformed else (parse_evaluations,):
            assert _refused(lambda body, parse=parse: parse(body, "r-1", "lenses6", Rules(("lenses6",))), text)
        assert _refused(decode_request, text)
        assert decide(SNAPSHOT, malformed).reasons[0].code == "malformed-request"
    assert decode_request(json.dumps(_request(context={"Topics": [], "topics": []})).encode())


@pytest.mark.parametrize("spaces", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
def test_a_request_without_duplicates_takes_the_fast_path(
    spaces: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is read whole only to look for names, however it is written, and whether it has moments or not."""
    evaluator, read = Evaluator(SNAPSHOT, LIMITS), list[bytes]()
    monkeypatch.setattr("streaming.enforcer.answers.decode_json", read.append)
    for beside in ({}, {"deadline": AT + 1000}, {"time": AT, "deadline": "2030-01-01T00:00:00Z"}):
        more = {"context": {}, **beside}
        values = [json.dumps(_request(f"r-{n}", **more), separators=spaces).encode() for n in range(3)]
        made = _for_partition(evaluator).decide_all(Records(records_batch((None, value, None) for value in values)))
        assert len(made.columnar[0].keys) == 3
    assert read == []


def test_a_duplicate_in_an_unknown_field_is_refused_beside_a_known_query() -> None:
    evaluator = Evaluator(SNAPSHOT, LIMITS)
    sent = [json.dumps(_request(trace={"a": {"b": 1}})), json.dumps(_request(trace={"a": {"b": 1}}))]
    sent.append(sent[0].replace('"b": 1', '"b": 1, "b": 2'))
    made = _for_partition(evaluator).decide_all(Records(records_batch((None, text.encode(), None) for text in sent)))
    assert len(made.columnar[0].keys) == 2
    assert [record[0] == DECISIONS for record in made.others] == [False]


@pytest.mark.parametrize(
    "text",
    [
        *doubled(EVENT),
        *in_other_case(EVENT, "outcome", "time"),
        EVENT.replace('"outcome": ', '"outcome": "failure", "outcome": '),
    ],
)
def test_an_audit_event_gets_no_verdict(text: str) -> None:
    answers = AuditAnswers(SNAPSHOT, DEFAULT_TRUST, 100)
    evaluator = AuditEvaluator(Source("audit", 0, "t", DEFAULT_TRUST, 1), 0, lambda _: answers, LIMITS)
    assert evaluator.decide(None, EVENT.encode(), None, 0, AT)[0] == 0
    number, _, _, headers = evaluator.decide(None, text.encode(), None, 1, AT)
    assert number == 1
    assert _is_named(headers)
    with pytest.raises(MalformedRequest, match=f"{SAID}|{CASE_SAID}"):
        read_event(text.encode(), None, LIMITS, Reader(JSON_ALONE))


@pytest.mark.parametrize(
    "text",
    [
        *doubled(REQUEST),
        *doubled(ITEMS),
        *in_other_case(REQUEST, "deadline"),
        ITEMS.replace('[{"subject', '[{"Subject'),
    ],
)
def test_no_server_library_or_command_takes_it(text: str) -> None:
    rules = Rules(("lenses6",))
    assert _refused(decode_request, text)
    assert _refused(lambda body: parse_evaluation(body, "r-1", "lenses6", rules), text)
    assert _refused(lambda body: parse_evaluations(body, "r-1", "lenses6", rules), text)
    [line] = decide_lines(SNAPSHOT, [text.encode()], DEFAULT_TRUST)
    assert SAID in line["error"] or CASE_SAID in line["error"]


def test_json_within_avro_is_read_as_strictly() -> None:
    value = Writer("request", "avro-single-object").encode(json.dumps(_request(context={"note": 1})).encode())
    twice = value.replace(b'\x14{"note":1}', b'\x26{"note":1,"note":2}')
    assert twice != value
    source = Source("requests", 0, "topic-id", DEFAULT_TRUST, 1)
    partition = Evaluator(SNAPSHOT, LIMITS).for_partition(source, EvaluationContext("", {}, 7, {}, AT))
    assert partition.decide(None, value, None, 0, AT)[0] == DECISIONS
    number, _, _, headers = partition.decide(None, twice, None, 0, AT)
    assert number != DECISIONS
    assert b"duplicate key 'note'" in dict(headers or ())["__connect.errors.exception.message"]


def _long(number: int) -> bytes:
    """As Avro encodes it: zigzag, seven bits a byte."""
    bits, encoded = number << 1, bytearray()
    while bits > 0x7F:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*encoded, bits])


def _text(text: str) -> bytes:
    return _long(len(text)) + text.encode()


def _answered(policy_offsets: dict[str, dict[str, int]]) -> str:
    freshness = {"kind": "full", "age_ms": 1, "max_ms": 2}
    answered = {"by": "pdp", "time": AT, "decision": True, "outcome": "allow", "policy_version": "v", "facts_offset": 7}
    return json.dumps(_request(answered={**answered, "freshness": freshness, "policy_offsets": policy_offsets}))


ANSWERED = _answered({"topic": {"0": 41, "1": 5}})
INNER = ("by", "time", "decision", "outcome", "policy_version", "facts_offset", "freshness", "kind", "topic", "0", "1")


@pytest.mark.parametrize("name", ["answered", "by", "outcome", "policy_offsets"])
def test_an_answered_request_with_a_name_in_another_case_is_a_dead_letter(name: str) -> None:
    source, context = Source("answered", 0, "id", DEFAULT_TRUST, 1), EvaluationContext("", {}, 7, {}, AT)
    evaluator = AnsweredEvaluator(
        Evaluator(SNAPSHOT, LIMITS), lambda *_: None, source, context, "facts", 5000, Reader(JSON_ALONE)
    )
    text = ANSWERED.replace(f'"{name}": ', f'"{name.title()}": "deny", "{name}": ')
    number, _, _, headers = evaluator.decide(None, text.encode(), None, 0, AT)
    assert number != DECISIONS
    assert _is_named(headers)


def test_evaluations_within_evaluations_are_gone_through_once_however_deep_they_are() -> None:
    """They are no request's: the check of names must not end in a RecursionError, which no caller expects."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [{"evaluations": deep}]
    check_letter_case({"evaluations": deep}, REQUEST_NAMES)


def test_other_names_and_those_in_properties_and_context_stand() -> None:
    """Systems and policies compare them exactly; what a request has beside its own members nobody reads."""
    beside = {"Trace": 1, "context": {"Id": 1, "id": 2}, "identity": 3}
    request = _request(**beside)
    request["subject"]["properties"] = {"Groups": ["a"], "Type": "b"}
    assert decode_request(json.dumps(request).encode())
    assert not _refused(lambda body: parse_evaluation(body, "r-1", "lenses6", Rules(("lenses6",))), json.dumps(request))


@pytest.mark.parametrize("name", ["answered", "policy_offsets", *INNER])
def test_an_answered_request_that_has_a_name_twice_is_a_dead_letter(name: str) -> None:
    """Of what its answer says, too: the last outcome would be verified, and an auditor may read the first."""
    source, context = Source("answered", 0, "id", DEFAULT_TRUST, 1), EvaluationContext("", {}, 7, {}, AT)
    find, newest = (lambda *_: None), Evaluator(SNAPSHOT, LIMITS)
    evaluator = AnsweredEvaluator(newest, find, source, context, "facts", 5000, Reader(JSON_ALONE))
    assert evaluator.decide(None, ANSWERED.encode(), None, 0, AT)[0] == DECISIONS
    for other in ('"other"', "1", "{}"):
        twice = ANSWERED.replace(f'"{name}": ', f'"{name}": {other}, "{name}": ')
        assert twice != ANSWERED
        number, _, _, headers = evaluator.decide(None, twice.encode(), None, 0, AT)
        assert number != DECISIONS
        assert b"duplicate key" in dict(headers or ())["__connect.errors.exception.message"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_map_of_avro_that_has_a_key_twice_is_refused(number: int) -> None:
    """Of the offsets that an answer names: the last would count, and another reader may take the first."""
    inner = {"0": 41, "1": 5}
    value, reader = Writer("request", "avro-single-object").encode(ANSWERED.encode()), Reader(JSON_ALONE)
    assert json.loads(reader.transcode("request", value))["answered"]["policy_offsets"] == {"topic": inner}
    pairs = _long(2) + _text("0") + _long(41) + _text("1") + _long(5) + _long(0)
    once = _long(1) + _text("topic") + pairs + _long(0)
    assert once in value
    twice = {
        1: _long(2) + (_text("topic") + pairs) * 2 + _long(0),
        2: once.replace(_text("1") + _long(5), _text("0") + _long(5)),
    }[number]
    with pytest.raises(Undecodable, match="duplicate key"):
        reader.transcode("request", value.replace(once, twice))
    in_blocks = _long(1) + _text("topic") + pairs + _long(1) + _text("other") + pairs + _long(0)
    found = json.loads(reader.transcode("request", value.replace(once, in_blocks)))
    assert found["answered"]["policy_offsets"] == {"topic": inner, "other": inner}
