"""Every promise has a history that breaks it, and the checker names the record; sound histories pass."""

import json
import sys
from typing import Any

import msgspec
import pytest
from confluent_kafka import murmur2

from policy.core.model import DENY
from policy.core.times import to_text
from policy.evaluation.trace import ExpressionResult
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.client.decision import read_decision
from streaming.enforcer.answered import AnsweredEvaluator, EvaluatorAtOffsets
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.history.records import ConsumerRecord
from streaming.records.answered import ANSWER_SKEW_MS
from streaming.records.avro import Reader
from streaming.records.formats import JSON_ALONE
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, Retention
from streaming.snapshots.documents import Loader
from streaming.topics import DAY_MS
from streaming.verify import Findings
from streaming.verify.answers import AnswerChecker
from streaming.verify.checker import Checker, Range
from tests.verify.histories import (
    BEGAN,
    DECISIONS,
    LETTERS,
    NAMES,
    OUTPUT_PARTITIONS,
    POLICIES,
    REQUESTS,
    SETTINGS,
    TOPIC_ID,
    History,
    group,
    request,
    role,
)


@pytest.fixture
def history() -> History:
    """Three batches: a role is granted, denied and granted again between them; six requests with two keys."""
    made = History()
    made.publish(group("readers", "user:dana"))
    for number, documents in enumerate(([role("readers", "orders")], [role("readers", "orders", effect="deny")], [])):
        made.publish(*documents, marker=True)
        made.ask(request(f"r{number}"), b"d")
        made.ask(request(f"s{number}", "carts"), b"b")
        made.decide()
    return made


def _broken(findings: Findings) -> dict[str, int]:
    """The checks that do not hold, with how often; and no other."""
    return {check: count for check, count in findings.counts.items() if count}


ALLOW = {"outcome": "allow"}
REMOVED = "compaction may have removed what was in force then"


def _error(code: str) -> dict[str, Any]:
    return {"outcome": "error", "reasons": [{"code": code, "message": "", "rule": None}]}


def test_a_history_that_keeps_every_promise_passes(history: History) -> None:
    findings = history.verify()
    assert _broken(findings) == {}
    assert (findings.requests, findings.decisions, findings.verified, findings.waiting) == (6, 6, 6, 0)
    assert findings.outcomes == {"allow": 1, "deny": 5}
    assert findings.summary()["ok"] is True
    assert not findings.unknown


def test_documents_that_are_valid_for_a_time_are_evaluated_at_the_brokers_time() -> None:
    """Which is no claim: the topic's producers are not trusted to say theirs."""
    history = History()
    history.publish(group("readers", "user:dana"))
    history.publish({**role("readers", "orders"), "valid_from": 5})
    history.publish({**role("late", "carts"), "valid_until": 5})
    history.ask(request("r0"))
    history.ask(request("r1", "carts", time=1))
    history.decide()
    findings = history.verify()
    assert _broken(findings) == {}
    assert findings.outcomes == {"allow": 1, "deny": 1}


def test_batches_deadlines_demands_and_dead_letters_are_judged_as_the_job_does(history: History) -> None:
    """Each evaluation; lateness by the job's clock; `min_policy_offsets` at the end and beyond it; no requests."""
    items = [{}, {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/carts"}}, {"action": {"name": ""}}]
    history.publish(role("readers", "orders"))
    for number, semantic in enumerate(("execute_all", "deny_on_first_deny", "permit_on_first_permit")):
        history.ask(request(f"batch{number}", evaluations=items, options={"evaluations_semantic": semantic}))
    history.ask(request("late", deadline=history.now - 60_000))
    history.ask(request("in time", deadline=to_text(history.now + 60_000)))
    newest = history.ends[POLICIES] - 1
    history.ask(request("known", context={"min_policy_offsets": {POLICIES: {"0": newest}}}))
    history.ask(request("ahead", context={"min_policy_offsets": {POLICIES: {"0": newest + 1}}}))
    history.ask(request("elsewhere", system="lenses7"))
    for malformed in (b"{", b"", b"\xff", b'{"id": "x"}', b'{"id": 5, "system": "lenses6"}'):
        history.ask(malformed)
    history.decide()
    findings = history.verify()
    assert _broken(findings) == {}
    assert findings.dead_letters == 5
    assert findings.verified == 6 + 8
    assert findings.outcomes["error"] == 4


def test_rule_2_switched_off_shows_as_doubled_decisions(history: History) -> None:
    """A batch that Spark replays after its transaction was committed: every record below the committed offset again."""
    history.decide(wanted=lambda record: record.offset >= 4)
    findings = history.verify()
    assert _broken(findings) == {"doubled": 2}
    assert {violation.topic for violation in findings.violations} == {DECISIONS}
    assert "another for offset 5 of authz.requests.v1" in str(findings.violations[0])


def test_dirty_reads_of_requests_show_as_decisions_without_a_request(history: History) -> None:
    """A job that reads uncommitted records decides requests of transactions that are aborted."""
    offset, value = history.ends[REQUESTS], msgspec.json.encode(request("aborted"))
    history.skip()
    history.skip()
    history.ask(request("after"))
    history.decide(extra=[ConsumerRecord(REQUESTS, 0, offset, history.now, b"k", value)])
    assert _broken(history.verify())["unasked"] == 1


def test_dirty_reads_of_policies_show_as_answers_and_versions_of_no_offsets(history: History) -> None:
    """The role that allows was published in a transaction that is aborted."""
    history.publish(role("readers", "orders"))
    history.ask(request("dirty"))
    history.decide()
    del history.documents[-1]
    assert _broken(history.verify()) == {"unlike_reference": 1, "wrong_version": 1}


def test_an_effect_that_is_inverted_in_the_evaluator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def inverted(expression: Any, grants: list[Any]) -> ExpressionResult:
        denies = [grant for grant in grants if grant.effect == DENY]
        return ExpressionResult(expression, bool(denies) or not grants, tuple(denies or grants))

    monkeypatch.setattr(sys.modules["policy.evaluation.evaluate"], "leaf", inverted)
    history = History()
    history.publish(group("readers", "user:dana"), role("readers", "orders", effect="deny"))
    history.ask(request("batch", evaluations=[{}]))
    history.decide()
    findings = history.verify()
    assert _broken(findings) == {"unlike_reference": 1}
    [violation] = findings.violations
    assert (violation.expected, violation.found) == ("deny of deny", "allow of allow")


def test_a_request_below_the_committed_offset_without_an_answer_is_lost(history: History) -> None:
    history.decisions[0 if history.decisions[0] else 1].pop()
    findings = history.verify()
    assert _broken(findings) == {"lost": 1}
    assert findings.violations[0].topic == REQUESTS


def test_without_committed_offsets_a_request_that_later_ones_have_overtaken_is_lost(history: History) -> None:
    """Not by the last transaction, which may be visible in part."""
    history.ask(request("left out"))
    history.ask(request("next"))
    history.decide(wanted=lambda record: record.offset == 7)
    findings = history.verify(decided=None)
    assert (_broken(findings), findings.waiting) == ({}, 1)
    history.now += 120_000
    history.ask(request("much later"))
    history.decide(wanted=lambda record: record.offset == 8)
    assert _broken(history.verify(decided=None)) == {"lost": 1}


def test_requests_that_are_not_decided_yet_are_waiting(history: History) -> None:
    history.ask(request("new"))
    findings = history.verify()
    assert (_broken(findings), findings.waiting) == ({}, 1)


def test_answers_that_retention_may_have_deleted_are_unknown(history: History) -> None:
    for decisions in history.decisions:
        del decisions[:1]
    findings = history.verify(answers_from=history.now)
    assert _broken(findings) == {}
    assert sum(findings.unknown.values()) == 2


def test_a_decision_of_no_record_is_unasked(history: History) -> None:
    def elsewhere(decision: dict[str, Any]) -> None:
        decision["context"]["source"]["offset"] = 99

    history.ask(request("moved"))
    history.decide(change=elsewhere)
    assert _broken(history.verify()) == {"unasked": 1, "lost": 1}


def test_a_decision_about_a_topic_that_the_settings_lack_is_reported_with_the_setting(history: History) -> None:
    """Such as one of answers, read with other settings than the job's: nobody is to be accused for that."""

    def recorded(decision: dict[str, Any]) -> None:
        decision["context"]["source"]["topic"] = "authz.answered.v1"

    history.ask(request("recorded"))
    history.decide(change=recorded)
    [violation] = [v for v in history.verify().violations if v.check == "unasked"]
    assert "these settings do not have" in violation.found
    assert "topics.answered" in violation.found


def test_a_dead_letter_of_a_request_that_is_one_is_found(history: History) -> None:
    history.ask(b"{")
    history.decide()
    offset = history.ask(request("fine"))
    letter = history.records[LETTERS][0]
    headers = tuple((k, str(offset).encode() if k.endswith(".offset") else v) for k, v in letter.headers)
    history.records[LETTERS].append(msgspec.structs.replace(letter, offset=1, at=history.now, headers=headers))
    history.commit()
    assert _broken(history.verify()) == {"unlike_reference": 1}


def test_decisions_of_one_key_in_another_order_are_found(history: History) -> None:
    for number in (0, 1):
        history.ask(request(f"x{number}"), b"d")
    history.decide(wanted=lambda record: record.offset == 7)
    history.decide(wanted=lambda record: record.offset == 6)
    assert _broken(history.verify()) == {"out_of_order": 1}


def test_decisions_of_different_keys_may_come_in_any_order(history: History) -> None:
    history.ask(request("x"), b"d")
    history.ask(request("y"), b"b")
    history.decide(wanted=lambda record: record.offset == 7)
    history.decide(wanted=lambda record: record.offset == 6)
    assert _broken(history.verify()) == {}


def test_two_snapshots_in_one_transaction_are_found(history: History) -> None:
    """Neighbours without a marker between them; both are right by what they name."""
    history.publish(role("readers", "carts"))
    history.ask(request("x", "carts"), b"d")
    history.ask(request("y", "carts"), b"d")
    history.decide(wanted=lambda record: record.offset == 6)
    for name in [log for log in history.ends if log.startswith(DECISIONS)]:
        history.ends[name] -= 1
    history.publish(role("readers", "orders"))
    history.decide(wanted=lambda record: record.offset == 7)
    assert _broken(history.verify()) == {"mixed_snapshots": 1}


def test_a_reader_of_policies_that_stands_still_is_found(history: History) -> None:
    """Acknowledged before the request by the broker's clock: the records are no part of a transaction."""
    history.read_policies_to = history.ends[POLICIES]
    history.publish(role("readers", "carts"))
    history.ask(request("stale", "carts"))
    history.decide()
    assert _broken(history.verify()) == {"judged_by_older_policy": 1}


def test_what_a_transaction_published_counts_once_something_shows_that_it_was_committed(history: History) -> None:
    """Its last record is dated before the request, its marker maybe after it. The next record is younger than that."""
    history.read_policies_to = history.ends[POLICIES]
    history.publish(role("readers", "carts"), marker=True)
    history.ask(request("stale", "carts"))
    history.decide()
    assert _broken(history.verify()) == {}
    history.publish(role("others", "carts"), marker=True)
    history.ask(request("staler", "carts"))
    history.decide()
    assert _broken(history.verify()) == {"judged_by_older_policy": 1}


def test_what_the_checker_saw_acknowledged_counts_at_once(history: History) -> None:
    history.read_policies_to = history.ends[POLICIES]
    history.publish(role("readers", "carts"), marker=True)
    history.ask(request("stale", "carts"))
    history.decide()
    demanded = {"stale": {POLICIES: history.ends[POLICIES] - 2}}
    assert _broken(history.verify(demanded)) == {"judged_by_older_policy": 1}


def test_offsets_that_go_back_are_found(history: History) -> None:
    history.publish(role("readers", "carts"), marker=True)
    for key in (b"d", b"b"):
        history.ask(request("new"), key)
    history.decide()
    history.read_policies_to = 2
    for key in (b"d", b"b"):
        history.ask(request("old"), key)
    history.decide()
    broken = _broken(history.verify())
    assert broken["offsets_back"] >= 1
    assert broken["judged_by_older_policy"] >= 1


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda decision: decision["context"].update(outcome="allow"), "unreadable"),
        (lambda decision: decision.update(decision=True, context=decision["context"] | ALLOW), "unlike_reference"),
        (lambda decision: decision.update(request_id="another"), "unlike_reference"),
        (lambda decision: decision.update(time="2026-01-01T00:00:00.000Z"), "unlike_reference"),
        (lambda decision: decision["context"].update(policy_version="sha256:0"), "wrong_version"),
        (
            lambda decision: decision["context"].update(_error("deadline-exceeded")),
            "unlike_reference",
        ),
        (
            lambda decision: decision["context"].update(_error("internal-error")),
            "unlike_reference",
        ),
    ],
)  # fmt: skip
def test_a_decision_that_says_something_else_is_found(history: History, change: Any, check: str) -> None:
    history.ask(request("denied", "carts"))
    history.decide(change=change)
    broken = _broken(history.verify())
    assert broken.pop("lost", 0) == (1 if check == "unreadable" else 0)
    assert broken == {check: 1}


ROLE = "lenses6/Role/readers"


def _in_reason(**changes: Any) -> Any:
    return lambda decision: decision["context"]["reasons"][0].update(changes)


def _in_request(part: str, **changes: Any) -> Any:
    return lambda decision: decision["context"]["request"][part].update(changes)


@pytest.mark.parametrize(
    ("change", "violation"),
    [
        (_in_reason(code="no-grant"), f"reasons no-grant L6-DECIDE-ALLOW {ROLE} 0"),
        (_in_reason(document="lenses6/Role/others"), "lenses6/Role/others"),
        (_in_reason(statement=1), f"{ROLE} 1"),
        (_in_reason(rule=None), f"reasons allowed {ROLE} 0"),
        (lambda decision: decision["context"].update(reasons=[]), "reasons none"),
        (lambda decision: decision["context"].update(claims=["groups"]), "claims groups"),
        (
            lambda decision: decision["context"].update(
                missing=[{"permission": "kafka:*", "object": "*", "rule": "L6-DECIDE-ALLOW", "message": ""}]
            ),
            "missing kafka:* on *",
        ),
        (_in_request("subject", id="user:eve"), "user:eve"),
        (_in_request("subject", properties={"groups": ["admins"]}), "admins"),
        (_in_request("action", name="kafka:DeleteTopic"), "kafka:DeleteTopic"),
        (_in_request("resource", type="topic"), "topic"),
        (_in_request("resource", properties={"a": 1}), "{'a': 1}"),
    ],
)
def test_a_decision_that_says_otherwise_why_or_to_whom_is_found(history: History, change: Any, violation: str) -> None:
    """The outcome is right, and who reads the decision later learns that another document or subject was allowed."""
    history.publish(role("readers", "orders"))
    history.ask(request("allowed"))
    history.decide(change=change)
    verified = history.verify()
    assert _broken(verified) == {"unlike_reference": 1}
    assert violation in verified.violations[0].found


def test_what_an_evaluation_of_a_batch_says_is_checked_too(history: History) -> None:
    items = [{}, {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/carts"}}]

    def change(decision: dict[str, Any]) -> None:
        decision["evaluations"][1]["context"]["reasons"][0]["code"] = "denied"
        decision["evaluations"][0]["context"]["request"]["subject"]["id"] = "user:eve"

    history.publish(role("readers", "orders"))
    history.ask(request("batch", evaluations=items))
    history.decide(change=change)
    findings = history.verify()
    assert _broken(findings) == {"unlike_reference": 2}
    assert all("evaluation" in violation.found for violation in findings.violations)


def test_a_reason_with_other_words_is_unknown(history: History) -> None:
    """Versions differ in these."""
    history.publish(role("readers", "orders"))
    history.ask(request("allowed"))
    history.decide(change=_in_reason(message="because"))
    findings = history.verify()
    assert _broken(findings) == {}
    assert findings.unknown == {"this version words the reasons otherwise": 1}


def test_a_decision_without_its_request_is_one_of_version_0_1(history: History) -> None:
    history.ask(request("r9"))
    history.decide(change=lambda decision: decision["context"].pop("request"))
    assert _broken(history.verify()) == {}


def test_a_decision_in_another_partition_than_its_key_leads_to_is_found(history: History) -> None:
    """Once all partitions have been in use: the topic may have got them later."""
    for number in range(8):
        history.ask(request(f"n{number}"), b"k%d" % number)
    history.decide()
    assert _broken(history.verify()) == {}
    records = next(records for records in history.decisions if records[-1].key.startswith(b"k"))
    moved = records.pop()
    other = 1 - moved.partition
    history.decisions[other].append(
        msgspec.structs.replace(moved, partition=other, offset=history.ends[f"{DECISIONS}-{other}"])
    )
    findings = history.verify()
    assert _broken(findings) == {"misplaced": 1}
    assert findings.violations[0].found == f"partition {other}"


def test_decisions_from_before_the_topic_got_more_partitions_are_where_their_keys_led() -> None:
    history = History()
    history.publish(group("readers", "user:dana"))
    history.partitions = 1
    keys = [b"k%d" % number for number in range(8)]
    for key in keys:
        history.ask(request("before"), key)
    history.decide()
    history.partitions = OUTPUT_PARTITIONS
    for key in keys:
        history.ask(request("after"), key)
    history.decide()
    assert _broken(history.verify()) == {}


def test_a_deadline_that_was_passed_by_far_allows_nothing(history: History) -> None:
    def in_time(decision: dict[str, Any]) -> None:
        decision["context"].update(outcome="deny", reasons=[])

    history.ask(request("late", "carts", deadline=history.now - 60_000))
    history.decide(change=in_time)
    assert _broken(history.verify()) == {"unlike_reference": 1}


def test_decisions_of_requests_before_the_range_are_left_alone(history: History) -> None:
    history.records[REQUESTS] = history.records[REQUESTS][4:]
    findings = history.verify(start=4)
    assert (_broken(findings), findings.requests, findings.verified) == ({}, 2, 2)


def test_answers_at_offsets_that_compaction_may_have_touched_are_unknown(history: History) -> None:
    """A topic without a compaction lag: its end alone is known, however wrong the answers before it are."""
    history.ask(request("wrong"))
    history.decide(change=lambda decision: decision["context"].update(_error("internal-error")))
    history.publish(role("readers", "orders"))
    history.ask(request("right"))
    history.decide()
    findings = history.verify(lag_ms=0)
    assert _broken(findings) == {}
    assert findings.verified == 1
    assert findings.unknown == {"authz.policies.lenses6.v1 at offset #: " + REMOVED: 7}
    assert _broken(history.verify()) == {"unlike_reference": 1}


def test_of_a_sample_alone_the_answers_are_worked_out(history: History) -> None:
    for number in range(100):
        history.ask(request(f"n{number}"))
    history.decide(change=lambda decision: decision["context"].update(_error("internal-error")))
    findings = history.verify(sample=0.2)
    assert 5 < findings.counts["unlike_reference"] < 40
    assert history.verify(sample=0).counts["unlike_reference"] == 0
    assert history.verify(sample=0).counts["doubled"] == 0


def _of_older_topic(decision: dict[str, Any]) -> None:
    decision["id"] = "other-id-0-0"
    decision["context"]["source"]["offset"] = 0


def test_decisions_of_a_topic_that_was_created_again_are_unknown() -> None:
    history = History()
    history.publish(group("readers", "user:dana"), role("readers", "orders"))
    history.ask(request("first"))
    history.decide(change=_of_older_topic)
    history.committed = 0
    history.decide()
    findings = history.verify()
    assert _broken(findings) == {}
    assert (findings.verified, sum(findings.unknown.values())) == (1, 1)


def test_a_decision_with_an_id_of_no_topic_among_those_of_the_present_one_is_found(history: History) -> None:
    """Forged beside the true one, it would pass for one of a topic before this one, and not be looked at."""
    history.decide(wanted=lambda record: record.offset == 0, change=_of_older_topic)
    findings = history.verify()
    assert (_broken(findings), dict(findings.unknown)) == ({"unasked": 1}, {})


def test_decisions_after_their_topic_was_created_again_are_in_order(history: History) -> None:
    """The offsets of requests begin at 0 again, with the same keys."""
    for records in history.decisions:
        records[:] = [
            msgspec.structs.replace(record, value=record.value.replace(TOPIC_ID.encode(), b"another"))
            for record in records
        ]
    history.records[REQUESTS].clear()
    history.ends[REQUESTS] = history.committed = 0
    for number in range(3):
        history.ask(request(f"n{number}"), b"d")
    history.decide()
    findings = history.verify()
    assert _broken(findings) == {}
    assert (findings.verified, sum(findings.unknown.values())) == (3, 6)


@pytest.mark.parametrize("later", [0, 20])
def test_decisions_from_before_the_policies_topic_was_created_again_are_unknown(later: int) -> None:
    """They name offsets that it has not, or got after them; what follows names smaller ones."""
    history = History()
    history.publish(group("readers", "user:dana"), *(role("readers", f"t{number}") for number in range(6)))
    history.ask(request("old"))
    history.decide()
    history.now += 60_000
    history.documents.clear()
    history.ends[POLICIES] = 0
    history.publish(group("readers", "user:dana"), role("readers", "orders"), marker=True)
    history.ask(request("new"))
    history.decide()
    history.publish(*(role(f"r{number}", "carts") for number in range(later)))
    history.ask(request("newest"))
    history.decide()
    findings = history.verify()
    assert _broken(findings) == {}
    assert (findings.verified, sum(findings.unknown.values())) == (2, 1)
    assert "was the topic deleted and created again?" in next(iter(findings.unknown))


def test_offsets_that_the_topic_never_had_hide_no_decision(history: History) -> None:
    """Else a decision that was changed would need no more than that in order not to be checked."""

    def forge(decision: dict[str, Any]) -> None:
        decision["decision"], decision["context"]["outcome"] = True, "allow"
        decision["context"]["policy_offsets"][POLICIES]["0"] = 999

    history.ask(request("r9"), b"d")
    history.decide(change=forge)
    history.ask(request("r10"), b"d")
    history.decide()
    findings = history.verify()
    assert (_broken(findings), findings.verified) == ({"wrong_version": 1}, 7)


CDAP = NAMES.policy_topics()["cdap"]


def _allow(decision: dict[str, Any]) -> None:
    decision["decision"] = True
    decision["context"].update(outcome="allow", policy_version="sha256:0")


@pytest.mark.parametrize(
    ("named", "unknown"),
    [
        (lambda context: context.update(facts_offset=99), "authz.facts.v1 got the named offset later"),
        (lambda context: context["policy_offsets"].update({CDAP: {"0": 0}}), f"{CDAP} got the named offset later"),
        (lambda context: context["policy_offsets"].update(other={"0": 5}), "other: not among the policy topics"),
    ],
)
def test_offsets_of_topics_that_a_system_does_not_read_hide_no_decision(
    history: History, named: Any, unknown: str
) -> None:
    """These topics are empty: whether there were others of their names before is unknown, but not what is decided."""

    def forge(decision: dict[str, Any]) -> None:
        _allow(decision)
        named(decision["context"])

    history.ask(request("r9", "carts"))
    history.decide(change=forge)
    findings = history.verify()
    assert (_broken(findings), len(findings.unknown)) == ({"unlike_reference": 1}, 1)
    assert unknown in next(iter(findings.unknown))


def test_a_decision_that_is_dated_before_its_request_is_checked(history: History) -> None:
    """Its producer dates it: no such moment shows that a topic was deleted and created again."""
    history.ask(request("r9", "carts"), b"d")
    history.decide(change=_allow)
    records = history.decisions[murmur2(b"d", OUTPUT_PARTITIONS)]
    records[-1] = msgspec.structs.replace(records[-1], at=0)
    records.sort(key=lambda record: record.at)
    findings = history.verify()
    assert (findings.counts["unlike_reference"], findings.counts["wrong_version"], len(findings.unknown)) == (1, 1, 0)


def test_offsets_of_a_partition_that_no_policy_topic_has_are_found(history: History) -> None:
    history.ask(request("r9"))
    history.decide(change=lambda decision: decision["context"]["policy_offsets"][POLICIES].update({"1": 3}))
    assert _broken(history.verify()) == {"wrong_version": 1}


def test_an_answer_given_elsewhere_to_a_request_without_one_is_found(history: History) -> None:
    history.ask(request("r9"))
    history.decide(change=lambda decision: decision.update(answered={**ANSWERED, "verified": True, "agrees": True}))
    assert _broken(history.verify()) == {"unlike_reference": 1}


@pytest.mark.parametrize(
    "more", [{"deadline": 1}, {"context": {"min_policy_offsets": {POLICIES: {"0": 999}}}}], ids=["late", "behind"]
)
def test_the_only_reason_of_an_error_without_an_evaluation_is_checked(history: History, more: dict[str, Any]) -> None:
    history.ask(request("r9", **more))
    history.decide(change=lambda decision: decision["context"]["reasons"].append(decision["context"]["reasons"][0]))
    assert _broken(history.verify()) == {"unlike_reference": 1}


def test_the_rule_of_what_is_missing_is_checked_and_its_words_are_unknown(history: History) -> None:
    def change(decision: dict[str, Any]) -> None:
        number = int(decision["request_id"][1:])
        decision["context"]["missing"][0].update([("rule", "other"), ("message", "because")][number : number + 1])

    history.ask(request("r0", "carts"))
    history.ask(request("r1", "carts"))
    history.decide(change=change)
    findings = history.verify()
    assert _broken(findings) == {"unlike_reference": 1}
    assert findings.unknown == {"this version words the reasons otherwise": 1}


def test_a_request_that_the_decision_on_a_batch_repeats_beside_its_evaluations_is_found(history: History) -> None:
    def change(decision: dict[str, Any]) -> None:
        decision["context"]["request"] = decision["evaluations"][0]["context"]["request"]

    history.ask(request("r9", evaluations=[{}]))
    history.decide(change=change)
    assert _broken(history.verify()) == {"unlike_reference": 1}


def test_a_dead_letter_on_the_topic_of_another_request_topic_is_found() -> None:
    names = msgspec.structs.replace(NAMES, requests=(REQUESTS, "others"))
    log = DocumentLog(names, 1 << 20, BEGAN)
    checker = Checker(Settings(topics=names), log, {(REQUESTS, 0): Range(0, 1, 1, 1)}, {REQUESTS: TOPIC_ID}, 1)
    checker.take(ConsumerRecord(REQUESTS, 0, 0, BEGAN, b"k", b"no request"))
    source = {"topic": REQUESTS, "partition": "0", "offset": "0"}
    headers = tuple((f"__connect.errors.{name}", text.encode()) for name, text in source.items())
    checker.take(ConsumerRecord("others.dlq", 0, 0, BEGAN, b"k", b"no request", headers))
    assert _broken(checker.finish()) == {"unasked": 1, "lost": 1}


def test_offsets_of_a_deleted_topic_are_unknown_also_after_a_decision_by_no_policies() -> None:
    """That one names the offset before the first, as any topic has it."""
    history = History()
    history.ask(request("none"))
    history.decide()
    history.publish(group("readers", "user:dana"), *(role("readers", f"t{number}") for number in range(6)))
    history.ask(request("old"))
    history.decide()
    history.documents.clear()
    history.ends[POLICIES] = 0
    history.publish(role("readers", "orders"), marker=True)
    history.ask(request("new"))
    history.decide()
    findings = history.verify()
    assert (_broken(findings), findings.verified, sum(findings.unknown.values())) == ({}, 2, 1)


def test_the_first_violations_are_kept_and_all_are_counted(history: History) -> None:
    for number in range(30):
        history.ask(request(f"n{number}"))
    history.commit()
    findings = history.verify()
    assert findings.counts["lost"] == 30
    assert len(findings.summary()["violations"]) == 20


@pytest.mark.parametrize("change", [{"id": f"{TOPIC_ID}-0-77"}, {"key": b"another"}], ids=repr)
def test_a_decision_with_the_id_or_the_key_of_another_is_found(history: History, change: dict[str, Any]) -> None:
    history.ask(request("r9"), b"d")
    history.decide(change=lambda decision: decision.update(id=change.get("id", decision["id"])))
    records = history.decisions[murmur2(b"d", OUTPUT_PARTITIONS)]
    records[-1] = msgspec.structs.replace(records[-1], key=change.get("key", b"d"))
    assert _broken(history.verify()) == {"unlike_reference": 1}


def test_a_decision_of_no_offset_is_of_no_request(history: History) -> None:
    history.ask(request("r9"), b"d")

    def change(decision: dict[str, Any]) -> None:
        decision["context"]["source"]["offset"] = -1

    history.decide(change=change)
    assert _broken(history.verify()) == {"unasked": 1, "lost": 1, "out_of_order": 1}


ANSWERED = {
    "by": "pdp-1",
    "time": BEGAN,
    "decision": True,
    "outcome": "allow",
    "policy_version": "sha256:0",
    "policy_offsets": {POLICIES: {"0": 1}},
    "facts_offset": -1,
    "freshness": {"kind": "bounded", "age_ms": 3, "max_ms": 15000},
}


def _checked_again(record: dict[str, Any], at: int = BEGAN, **findings: Any) -> list[str]:
    """What is wrong with the job's decision on an answered record, in which these findings were changed."""
    history = History()
    history.publish(group("readers", "user:dana"), role("readers", "orders"))
    log = DocumentLog(NAMES, 1 << 20, history.now, {POLICIES: Retention(7 * DAY_MS)})
    store = DocumentStore()
    for document in history.documents:
        log.add(document)
        Loader(store, "lenses6", 1 << 20).take(document)
    log.read_to({(topic, 0): history.ends.get(topic, 0) for topic in log.topics})
    found = EvaluatorAtOffsets(Evaluator(Snapshot(store), SETTINGS.limits), None, True)
    source = Source("answered", 0, TOPIC_ID, frozenset(), 1)
    context = EvaluationContext("", {}, -1, {}, 0)
    evaluator = AnsweredEvaluator(
        found.evaluator, lambda *_: found, source, context, NAMES.facts, ANSWER_SKEW_MS, Reader(JSON_ALONE)
    )
    value = msgspec.json.encode(record)
    _, _, decided, _ = evaluator.decide(b"", value, None, 0, at)
    decision = json.loads(decided or b"")
    decision["answered"] |= findings
    checker = AnswerChecker(log, NAMES, lambda _topic: frozenset())
    asked = ConsumerRecord("answered", 0, 0, at, b"", value)
    checked = checker.check_again(asked, value, read_decision(msgspec.json.encode(decision)), ANSWER_SKEW_MS, {})
    return [str(problem) for problem in checked]


@pytest.mark.parametrize(("outcome", "at"), [("allow", BEGAN), ("deny", BEGAN), ("error", BEGAN), ("deny", 2 * BEGAN)])
def test_what_the_job_says_of_an_answer_is_checked(outcome: str, at: int) -> None:
    answer = {**ANSWERED, "outcome": outcome, "decision": outcome == "allow"}
    record = request("r", answered=answer)
    assert _checked_again(record, at) == []
    if at == BEGAN:
        assert "agrees" in "".join(_checked_again(record, at, agrees=outcome != "allow"))
    assert "misdated" in "".join(_checked_again(record, at, misdated=at == BEGAN))
    assert "pdp-2" in "".join(_checked_again(record, at, by="pdp-2"))
    if outcome != "error":
        [problem] = _checked_again(record, at, stale=True, agrees=None, verified=False)[:1]
        assert ("verified" in problem) is (outcome == "allow")


@pytest.mark.parametrize(
    "changes",
    [
        {"time": BEGAN + 1},
        {"decision": False, "outcome": "deny"},
        {"policy_version": "sha256:1"},
        {"policy_offsets": {POLICIES: {"0": 0}}},
        {"facts_offset": 5},
        {"freshness": {"kind": "full", "age_ms": 3, "max_ms": 15000}},
        {"trust": ["groups"]},
        {"evaluations": [{"decision": True, "outcome": "allow"}]},
        {"by": ""},
    ],
    ids=repr,
)
def test_a_decision_that_repeats_another_answer_is_found(changes: dict[str, Any]) -> None:
    """Who looks for the server that allowed something reads it there."""
    problems = _checked_again(request("r", answered=ANSWERED), **changes)
    assert [problem for problem in problems if "unlike_reference" in problem]


def test_a_decision_may_write_the_time_of_an_answer_otherwise() -> None:
    """In Avro a moment has one form alone."""
    assert _checked_again(request("r", answered=ANSWERED), time=to_text(BEGAN)) == []


def test_an_answer_that_was_too_old_by_its_own_words_is_stale() -> None:
    old = request("r", answered={**ANSWERED, "freshness": {"kind": "bounded", "age_ms": 20_000, "max_ms": 15_000}})
    assert _checked_again(old) == []
    assert "stale" in "".join(_checked_again(old, stale=False))
    error = request("r", answered={**ANSWERED, "decision": False, "outcome": "error"})
    assert "stale" in "".join(_checked_again(error, stale=True))


def test_an_answer_of_which_the_job_says_it_did_not_know_the_policies_is_unknown() -> None:
    denied = request("r", answered={**ANSWERED, "decision": False, "outcome": "deny"})
    unknown = _checked_again(denied, verified=False, agrees=None)
    assert unknown == ["the job did not know the policies that an answer names"]


def test_answers_to_the_items_of_a_batch_are_checked() -> None:
    items = [{}, {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/carts"}}]
    for outcomes, agrees in ((("allow", "deny"), True), (("deny", "deny"), False), ((), True)):
        answers = [{"decision": outcome == "allow", "outcome": outcome} for outcome in outcomes]
        answer = {**ANSWERED, "outcome": "deny", "decision": False, "evaluations": answers}
        record = request("r", evaluations=items, answered=answer)
        assert _checked_again(record) == []
        assert "agrees" in "".join(_checked_again(record, agrees=not agrees))
