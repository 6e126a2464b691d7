"""Each kind of alert of the monitor: what raises it, and what does not."""

import math
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from policy import to_text
from streaming.alert_kinds import AlertKind, KindRule
from streaming.monitor import (
    ACCESS_BYTES,
    DENIALS_HELD,
    EVERY_KEY,
    CountedEvent,
    DecisionEvent,
    UnreadEvent,
    decode_inputs,
)
from streaming.monitor.intake import UNKNOWN_SCHEMA_MS, Intake, Times, merge_decided
from streaming.monitor.processor import Bucket
from streaming.monitor.rules import Accesses, Occurrence, Watch
from streaming.monitor.state import State
from streaming.records.avro import UnknownSchema, Writer
from streaming.records.formats import Formats
from streaming.settings import ServeSettings, Settings, monitor_settings
from streaming.settings.monitor import MonitorSettings, Rules
from tests.contracts import examples
from tests.monitor.pure import DECISIONS, T0, VERDICTS, PureMonitor, Record, decision, letter, lifecycle, verdict
from tests.work import grows_with_its_input, work

MINUTE = 60_000


def watch(*batches: list[Record], until: int = T0 + 60 * MINUTE, **settings: Any) -> PureMonitor:
    """A monitor that has read the batches, and then nothing more."""
    monitor = PureMonitor(msgspec.convert(settings, MonitorSettings))
    for batch in batches:
        monitor.batch(batch)
    monitor.pass_time(until)
    return monitor


def kinds(monitor: PureMonitor) -> list[tuple[str, str, int]]:
    """Kind, subject and count of each alert."""
    return sorted((a["kind"], a["subject"], a["evidence"][0]["count"]) for a in monitor.alerts.values())


def test_an_access_with_an_allow_before_it_is_no_alert() -> None:
    monitor = watch([decision("1", "dana", "orders", "allow", T0)], [verdict("a", "dana", "orders", T0 + 1000)])
    assert kinds(monitor) == []
    assert monitor.states == {}, "nothing is remembered for ever"


@pytest.mark.parametrize("late", [MINUTE, 20 * MINUTE, 24 * 60 * MINUTE])
def test_an_allow_that_was_written_late_counts_from_when_it_was_written(late: int) -> None:
    """Such as after a stop of the job: its time is that of its request, and who asked acted when the answer came."""
    written = T0 + late
    event = [verdict("a", "dana", "orders", written + 1000)]
    for outcome, alerts in (("allow", []), ("deny", [("denied-but-done", "dana", 1)])):
        asked = [decision("1", "dana", "orders", outcome, T0, known=written)]
        for batches in ([asked, event], [[*asked, *event]]):
            assert kinds(watch(*batches, until=written + 60 * MINUTE)) == alerts


def test_an_allow_whose_request_is_dated_ahead_counts_from_when_it_was_written() -> None:
    """Where a topic's producers are trusted with the time, their clocks date the decisions."""
    asked = [decision("1", "dana", "orders", "allow", T0 + 60 * MINUTE, known=T0)]
    monitor = watch(asked, [verdict("a", "dana", "orders", T0 + 1000)], until=T0 + 180 * MINUTE)
    assert kinds(monitor) == []
    assert monitor.states == {}, "nothing is remembered for ever"


def test_unauthorized_access_is_what_the_policy_denied_when_it_happened() -> None:
    asked = decision("1", "dana", "orders", "allow", T0)
    reason = {"code": "denied", "message": "role x denies", "rule": None, "document": None, "statement": None}
    event = verdict("a", "dana", "orders", T0 + 1000, "deny", reasons=[reason])
    monitor = watch([asked], [event])
    assert kinds(monitor) == [("unauthorized-access", "dana", 1)]
    [alert] = monitor.alerts.values()
    assert "role x denies" in alert["evidence"][1]["what"]


def test_a_denial_by_policies_of_another_time_raises_no_alert() -> None:
    """Versions before 0.2 judged what was older than all policies held by the oldest of them, and said so."""
    asked = decision("1", "dana", "orders", "allow", T0)
    assert kinds(watch([asked], [verdict("a", "dana", "orders", T0 + 1000, "deny", by_oldest=True)])) == []


def test_an_access_whose_policies_are_not_known_any_more_must_still_have_been_requested() -> None:
    events = [verdict("a", "dana", "orders", T0 + 1000, "unknown"), verdict("b", "eve", "orders", T0, "unknown")]
    monitor = watch([decision("1", "dana", "orders", "allow", T0)], events)
    assert kinds(monitor) == [("unrequested-access", "eve", 1)]


@pytest.mark.parametrize(
    ("system", "action", "asked", "reported"),
    [
        ("lenses6", "kafka:ListTopic", {"type": "kafka"}, {"type": "lrn"}),
        ("lenses6", "kafka:ListTopic", {"type": "lrn"}, {"type": "topic", "properties": {"owner": "x"}}),
        (
            "lenses5",
            "kafka-consumers.view",
            {"type": "resource"},
            {"type": "consumer-group", "properties": {"consumer_group": "orders"}},
        ),
        ("streamsets", "job.start", {"type": "resource"}, {"type": "job", "properties": {"objects": 1}}),
        ("cdap", "dataset.read", {"type": "resource"}, {"type": "dataset", "properties": {"namespace": "n"}}),
    ],
)
def test_what_a_system_does_not_read_makes_no_access_unrequested(
    system: str, action: str, asked: dict[str, Any], reported: dict[str, Any]
) -> None:
    resource = {"lenses5": "orders", "streamsets": "job:orders", "cdap": "dataset:n.orders"}.get(system, "orders")
    subject = {"type": "user", "id": "dana"}
    requested = {"subject": subject, "action": {"name": action}, "resource": {"id": resource, **asked}}
    done = {**requested, "resource": {"id": resource, **reported}}
    for outcome, alerts in (("allow", []), ("deny", [("denied-but-done", "dana", 1)])):
        given = decision("1", "dana", "", outcome, T0, system=system, request=requested)
        assert kinds(watch([given], [verdict("a", "dana", "", T0 + 1000, request=done, system=system)])) == alerts


@pytest.mark.parametrize(
    ("system", "asked", "reported"),
    [
        ("lenses6", ("kafka:ListTopic", "kafka:topic:a/b/c"), ("kafka:ListTopic", "kafka:topic/a/b/c")),
        ("kafka-acls", ("Read", "orders"), ("READ", "orders")),
    ],
)
def test_another_spelling_makes_no_access_unrequested(
    system: str, asked: tuple[str, str], reported: tuple[str, str]
) -> None:
    requests = [
        {
            "subject": {"type": "user", "id": "User:dana"},
            "action": {"name": action},
            "resource": {"type": "Topic", "id": resource},
        }
        for action, resource in (asked, reported)
    ]
    allowed = decision("1", "User:dana", "", "allow", T0, system=system, request=requests[0])
    event = verdict("a", "User:dana", "", T0 + 1000, system=system, request=requests[1])
    assert kinds(watch([allowed], [event])) == []


def test_what_a_system_reads_makes_another_access() -> None:
    def on(connection: str) -> dict[str, Any]:
        resource = {"type": "topic", "id": "orders", "properties": {"connection": connection, "dataset": "orders"}}
        return {"subject": {"type": "user", "id": "dana"}, "action": {"name": "kafka.topic.show"}, "resource": resource}

    asked = decision("1", "dana", "", "allow", T0, system="lenses5", request=on("dev"))
    for connection, alerts in (("dev", []), ("production", [("unrequested-access", "dana", 1)])):
        event = verdict("a", "dana", "", T0 + 1000, system="lenses5", decision_id="1", request=on(connection))
        assert kinds(watch([asked], [event])) == alerts, "whatever decision it names"


def test_an_access_that_names_the_decision_that_denied_it_is_denied_but_done() -> None:
    """Also where another request for the same was allowed: it says itself by which answer it went."""
    asked = [decision(f"d{n}", "dana", "orders", "deny", T0 + n) for n in range(3)]
    asked.append(decision("a", "dana", "orders", "allow", T0 + 10))
    for named, alerts in (("d1", [("denied-but-done", "dana", 1)]), ("a", []), ("?", []), (None, [])):
        monitor = watch(asked, [verdict("e", "dana", "orders", T0 + 1000, decision_id=named)])
        assert kinds(monitor) == alerts
        assert not alerts or "decision d1 was no allow" in next(iter(monitor.alerts.values()))["evidence"][1]["what"]


def test_of_many_denials_of_one_access_the_newest_are_passed_on() -> None:
    denials = [DecisionEvent(b"a", False, number, number, (str(number),)) for number in range(100)]
    newest = tuple(map(str, range(100 - DENIALS_HELD, 100)))
    assert merge_decided([*denials], MINUTE) == [DecisionEvent(b"a", False, 0, 99, newest)]


def test_an_access_may_name_the_decision_of_a_batch_of_evaluations() -> None:
    one = decision("batch", "dana", "orders", "deny", T0)
    record = msgspec.json.decode(one[4])
    record["evaluations"] = [{"decision": False, "context": record["context"]}]
    asked = [(*one[:4], msgspec.json.encode(record)), decision("a", "dana", "orders", "allow", T0)]
    event = verdict("e", "dana", "orders", T0 + 1000, decision_id="batch")
    assert kinds(watch(asked, [event])) == [("denied-but-done", "dana", 1)]
    record["evaluations"].append({"decision": True, "context": {**record["context"], "outcome": "allow"}})
    assert kinds(watch([(*one[:4], msgspec.json.encode(record))], [event])) == [], "another item allowed the same"


@pytest.mark.parametrize("others", [["allow"], ["allow", "deny"], ["deny", "allow"]])
def test_an_access_that_names_a_denial_of_before_the_window_is_denied_but_done_whatever_else_was_decided(
    others: list[str],
) -> None:
    named = decision("named", "dana", "orders", "deny", T0)
    near = [decision(f"d{n}", "dana", "orders", outcome, T0 + 6 * MINUTE) for n, outcome in enumerate(others)]
    monitor = watch([named, *near], [verdict("e", "dana", "orders", T0 + 7 * MINUTE, decision_id="named")])
    assert kinds(monitor) == [("denied-but-done", "dana", 1)]


@pytest.mark.parametrize("named", ["of-eve", "of-payments", "of-another-action"])
def test_a_decision_about_something_else_excuses_no_access(named: str) -> None:
    act = {"subject": {"type": "user", "id": "dana"}, "action": {"name": "other"}, "resource": {"type": "lrn"}}
    another = decision(
        "of-another-action", "dana", "", "allow", T0, request={**act, "resource": {"type": "x", "id": "orders"}}
    )
    asked = [decision("of-eve", "eve", "orders", "allow", T0), decision("of-payments", "dana", "payments", "allow", T0)]
    event = verdict("a", "dana", "orders", T0 + 1000, decision_id=named)
    assert kinds(watch([*asked, another], [event])) == [("unrequested-access", "dana", 1)]


def test_what_an_older_version_remembered_raises_no_alert_after_an_upgrade() -> None:
    """It knew accesses by other hashes; what it saw allowed cannot be compared, and is taken as forgotten."""
    monitor = PureMonitor(MonitorSettings())
    monitor.batch([decision("1", "dana", "orders", "allow", T0)])
    [(key, state)] = monitor.states.items()
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    stored[0][0] = dict(zip([b"12 old bytes"], stored[0][0].values(), strict=True))
    monitor.states[key] = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=State)
    monitor.batch([verdict("a", "dana", "orders", T0 + 1000), decision("9", "other", "x", "allow", T0 + 10_000)])
    monitor.batch([verdict("b", "dana", "orders", T0 + 400_000)])
    monitor.pass_time(T0 + 60 * MINUTE)
    assert kinds(monitor) == [("unrequested-access", "dana", 1)], "of the second alone: no allow can be in its window"
    assert monitor.states == {}


@pytest.mark.parametrize("outcome", ["allow", "error"])
def test_an_access_that_the_policy_allowed_or_could_not_evaluate_is_not_unauthorized(outcome: str) -> None:
    monitor = watch(
        [decision("1", "dana", "orders", "allow", T0)], [verdict("a", "dana", "orders", T0 + 1000, outcome)]
    )
    assert kinds(monitor) == []


def test_unrequested_access_is_one_without_a_request() -> None:
    other = [decision("1", "dana", "payments", "allow", T0), decision("2", "eve", "orders", "allow", T0)]
    monitor = watch(other, [verdict("a", "dana", "orders", T0 + 1000)])
    assert kinds(monitor) == [("unrequested-access", "dana", 1)]


def test_an_allow_counts_for_its_window_and_no_longer() -> None:
    asked = decision("1", "dana", "orders", "allow", T0)
    within = verdict("a", "dana", "orders", T0 + 300_000)
    after = verdict("b", "dana", "orders", T0 + 300_001)
    assert kinds(watch([asked], [within])) == []
    assert kinds(watch([asked], [after])) == [("unrequested-access", "dana", 1)]


@pytest.mark.parametrize("outcome", ["deny", "error"])
def test_denied_but_done_is_what_was_asked_for_and_not_allowed(outcome: str) -> None:
    monitor = watch([decision("1", "dana", "orders", outcome, T0)], [verdict("a", "dana", "orders", T0 + 1000)])
    assert kinds(monitor) == [("denied-but-done", "dana", 1)]


def test_an_allow_beside_a_denial_is_an_allow() -> None:
    asked = [decision("1", "dana", "orders", "deny", T0), decision("2", "dana", "orders", "allow", T0 + 10)]
    assert kinds(watch(asked, [verdict("a", "dana", "orders", T0 + 1000)])) == []


def test_a_decision_that_comes_late_but_within_the_grace_period_is_no_alert() -> None:
    event = verdict("a", "dana", "orders", T0 + 1000)
    in_time = decision("1", "dana", "orders", "allow", T0, known=T0 + 5000)
    too_late = decision("1", "dana", "orders", "allow", T0, known=T0 + 60_000)
    heartbeat = decision("9", "other", "other", "allow", T0 + 7000)
    assert kinds(watch([event], [in_time])) == []
    assert kinds(watch([event], [heartbeat], [in_time])) == [], "reported with the time itself"
    assert kinds(watch([event], [heartbeat], [], [too_late])) == [("unrequested-access", "dana", 1)]


def test_an_event_that_comes_late_is_held_against_the_requests_of_its_own_time() -> None:
    asked = decision("1", "dana", "orders", "allow", T0)
    later = decision("2", "dana", "orders", "allow", T0 + 10 * MINUTE)
    late = verdict("a", "dana", "orders", T0 + 1000, known=T0 + 9 * MINUTE)
    unasked = verdict("b", "dana", "orders", T0 - MINUTE, known=T0 + 9 * MINUTE)
    assert kinds(watch([asked], [later], [late])) == []
    assert kinds(watch([asked], [later], [unasked])) == [("unrequested-access", "dana", 1)]


def test_an_event_that_comes_too_late_is_checked_by_the_policy_alone() -> None:
    """It is no longer known who asked: that is no reason for an alert."""
    late = verdict("a", "dana", "orders", T0, known=T0 + 11 * MINUTE)
    late_and_denied = verdict("b", "eve", "orders", T0, "deny", known=T0 + 11 * MINUTE)
    assert kinds(watch([late, late_and_denied])) == [("unauthorized-access", "eve", 1)]


def test_failed_accesses_are_no_alerts() -> None:
    assert kinds(watch([verdict("a", "dana", "orders", T0, "deny", result="failure")])) == []


def test_a_duplicated_event_counts_once_and_one_with_a_borrowed_id_counts() -> None:
    event, other = verdict("a", "dana", "orders", T0), verdict("a", "dana", "payments", T0)
    assert kinds(watch([event, event], [event])) == [("unrequested-access", "dana", 1)]
    assert kinds(watch([event], [], [event, other])) == [("unrequested-access", "dana", 2)]


def test_denial_burst_is_more_denials_than_allowed_within_the_window() -> None:
    def denials(count: int, apart: int) -> list[Record]:
        return [decision(str(n), "dana", f"t{n}", "deny", T0 + n * apart) for n in range(count)]

    assert kinds(watch(denials(21, 1000))) == [("denial-burst", "dana", 21)]
    assert kinds(watch(denials(20, 1000))) == []
    assert kinds(watch(denials(40, 3001))) == [], "never 21 within a minute"
    assert kinds(watch(*([one] for one in denials(25, 1000)))) == [("denial-burst", "dana", 25)]


def test_a_burst_is_found_wherever_the_clock_stands_and_in_any_order() -> None:
    denials = [decision(str(n), "dana", f"t{n}", "deny", T0 + 59_000 + n * 100) for n in range(21)]
    assert kinds(watch(*([one] for one in reversed(denials)))) == [("denial-burst", "dana", 21)]


def test_denials_of_several_subjects_are_no_burst_and_errors_are_no_denials() -> None:
    mixed = [decision(str(n), f"user-{n % 3}", "t", "deny", T0 + n) for n in range(60)]
    errors = [decision(str(n), "dana", "t", "error", T0 + n) for n in range(60)]
    assert kinds(watch(mixed)) == []
    assert kinds(watch(errors)) == []


def test_items_of_a_batch_of_evaluations_count_one_by_one() -> None:
    one = decision("1", "dana", "orders", "deny", T0)
    record = msgspec.json.decode(one[4])
    record["evaluations"] = [{"decision": False, "context": record["context"]}] * 21
    many = (*one[:4], msgspec.json.encode(record))
    assert kinds(watch([many])) == [("denial-burst", "dana", 21)]


def test_malformed_burst_is_many_dead_letters_of_one_topic() -> None:
    assert kinds(watch([letter(n, T0 + n) for n in range(51)])) == [("malformed-burst", "requests.dlq", 51)]
    assert kinds(watch([letter(n, T0 + n) for n in range(50)])) == []


def test_a_burst_of_a_re_created_topic_has_an_id_of_its_own() -> None:
    """Its dead letters have the offsets of before again."""
    bursts = (watch([letter(n, at + n) for n in range(51)]).alerts for at in (T0, T0 + 24 * 60 * MINUTE))
    first, second = map(set, bursts)
    assert not first & second


def test_fact_contradiction_is_what_a_decision_notes() -> None:
    reason = {"code": "fact-contradiction", "message": "says 1", "rule": None, "document": None, "statement": None}
    monitor = watch([decision("1", "dana", "orders", "allow", T0, reasons=[reason])])
    assert kinds(monitor) == [("fact-contradiction", "dana", 1)]
    reason["code"] = "allowed"
    assert kinds(watch([decision("1", "dana", "orders", "allow", T0, reasons=[reason])])) == []


def test_one_episode_is_one_alert_raised_when_it_begins_when_it_grows_and_when_it_ends() -> None:
    events = [verdict(str(n), "dana", f"t{n}", T0 + n * 1000, "deny") for n in range(150)]
    monitor = watch(*([event] for event in events), until=T0 + 240 * MINUTE, rules={"grace_seconds": 10_000})
    ids = {alert["id"] for alert in monitor.reported if alert["kind"] == "unauthorized-access"}
    counts = [a["evidence"][0]["count"] for a in monitor.reported if a["kind"] == "unauthorized-access"]
    assert len(ids) == 1
    assert counts == [1, 10, 100, 150]
    assert [a["severity"] for a in monitor.reported][:3] == ["high", "high", "critical"]


def test_after_a_quiet_time_another_episode_begins() -> None:
    first, second = verdict("a", "dana", "t", T0, "deny"), verdict("b", "dana", "t", T0 + 10 * MINUTE, "deny")
    between = decision("9", "other", "other", "allow", T0 + 8 * MINUTE)
    monitor = watch([first], [between], [second])
    assert [a for a in kinds(monitor) if a[0] == "unauthorized-access"] == [("unauthorized-access", "dana", 1)] * 2


def test_rules_are_settings_by_system_and_kind() -> None:
    denials = [decision(str(n), "dana", f"t{n}", "deny", T0 + n) for n in range(5)]
    strict = {"lenses6": {"kinds": {"denial-burst": {"more_than": 3, "severity": "critical"}}}}
    monitor = watch(denials, systems=strict)
    assert kinds(monitor) == [("denial-burst", "dana", 5)]
    assert {alert["severity"] for alert in monitor.reported} == {"critical"}
    assert kinds(watch(denials, systems={"cdap": strict["lenses6"]})) == []
    off = {"rules": {"kinds": {"unrequested-access": {"severity": "low", "enabled": False}}}}
    assert kinds(watch([verdict("a", "dana", "t", T0)], **off)) == []


@pytest.mark.parametrize(
    ("exemption", "exempt"),
    [
        ({}, True),
        ({"until": T0}, False),
        ({"subject": "eve"}, False),
        ({"systems": ["lenses6"]}, True),
        ({"systems": ["cdap"]}, False),
        ({"kinds": ["unauthorized-access"]}, True),
        ({"kinds": ["denial-burst"]}, False),
    ],
)
def test_subjects_are_exempt_until_a_date_for_systems_and_kinds(exemption: dict[str, Any], exempt: bool) -> None:
    exempted = {"subject": "dana", "reason": "nightly backup", "until": T0 + 1, **exemption}
    monitor = watch([verdict("a", "dana", "t", T0, "deny")], exempt=[exempted])
    assert ("unauthorized-access" not in {alert["kind"] for alert in monitor.reported}) is exempt


@pytest.mark.parametrize("lacking", ["reason", "until", "subject"])
def test_an_exemption_without_reason_or_end_is_refused(lacking: str) -> None:
    exempted = {"subject": "dana", "reason": "backup", "until": "2027-01-01T00:00:00Z"}
    del exempted[lacking]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"exempt": [exempted]}, MonitorSettings)


def test_settings_that_are_none_are_refused() -> None:
    for wrong in ({"kinds": {"denial-burst": {"mor_than": 1}}}, {"kinds": {"burst": {}}}, {"windows": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"systems": {"lenses6": wrong}}, MonitorSettings)


@pytest.mark.parametrize(("grace", "trigger"), [(0, 1), (2, 2), (5, 5), (60, 5)])
def test_batches_start_as_often_as_the_smallest_grace_within_bounds(grace: int, trigger: int) -> None:
    assert MonitorSettings(rules=Rules(grace_seconds=grace)).trigger_seconds == trigger
    assert MonitorSettings(systems={"cdap": {"grace_seconds": min(grace, 5)}}).trigger_seconds == trigger


def test_severities_follow_the_count() -> None:
    rule = KindRule("low", escalate={"high": 10, "medium": 5})
    assert [rule.severity_of(count) for count in (1, 4, 5, 9, 10)] == ["low", "low", "medium", "medium", "high"]


def test_what_is_forgotten_for_want_of_room_is_not_held_against_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.monitor.state.ACCESSES_OF_A_SUBJECT", 10)
    asked = [decision(str(n), "dana", f"t{n}", "allow", T0 + n) for n in range(30)]
    forgotten, remembered = verdict("a", "dana", "t0", T0 + 100), verdict("b", "dana", "t29", T0 + 100)
    assert kinds(watch(asked, [forgotten, remembered])) == []
    unasked = verdict("c", "dana", "unasked", T0 + 400_000)
    assert kinds(watch(asked, [unasked])) == [("unrequested-access", "dana", 1)]


def test_the_newest_login_becomes_a_fact_in_any_order() -> None:
    first, second = (lifecycle("login", T0 + n, subject="dana", groups=[f"g{n}"]) for n in (1, 2))
    for batches in ([[first], [second]], [[second], [first]], [[second, first]]):
        monitor = watch(*batches)
        [fact] = monitor.facts.values()
        document = msgspec.json.decode(fact or b"")
        assert document["spec"] == {"login_at": T0 + 2, "groups": ["g2"]}
        assert (document["kind"], document["name"]) == ("Session", "dana")


def test_a_job_is_active_from_its_start_to_its_stop_in_any_order() -> None:
    start, stop, again = (
        lifecycle(event, T0 + at, resource="job:load")
        for event, at in (("job.started", 1), ("job.stopped", 2), ("job.started", 3))
    )
    key = "streamsets/ActiveJob/job:load"
    assert msgspec.json.decode(watch([start]).facts[key] or b"")["spec"] == {"started_at": T0 + 1}
    assert watch([start], [stop]).facts == {key: None}
    assert watch([stop], [start]).facts == {key: None}, "accesses between them are judged by the run"
    assert msgspec.json.decode(watch([again], [start, stop]).facts[key] or b"")["spec"] == {"started_at": T0 + 3}


def test_logins_of_systems_without_sessions_and_logouts_change_nothing() -> None:
    other = lifecycle("login", T0, subject="dana", system="lenses6")
    assert watch([other, lifecycle("logout", T0, subject="dana")]).facts == {}
    assert Rules().window_seconds == 300


def _answer(**found: Any) -> dict[str, Any]:
    """An answer by a server, and what the job found of it."""
    return {"by": "pdp-1", "decision": True, "outcome": "allow", **found}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"verified": True, "agrees": False}, "answer-contradicted"),
        ({"verified": True, "agrees": True, "stale": True}, "answer-stale"),
        ({"verified": False, "misdated": True}, "answer-misdated"),
    ],
)
def test_what_is_wrong_with_an_answer_is_about_its_server(found: dict[str, Any], kind: str) -> None:
    outcome = "allow" if found.get("agrees") else "error"
    made = decision("1", "dana", "orders", outcome, T0)
    value = {**msgspec.json.decode(made[-1]), "answered": _answer(**found)}
    assert kinds(watch([(*made[:-1], msgspec.json.encode(value))])) == [(kind, "pdp-1", 1)]
    for harmless in ({"verified": True, "agrees": True}, {"verified": False}):
        value["answered"] = _answer(**harmless)
        assert kinds(watch([(*made[:-1], msgspec.json.encode(value))])) == []
    value["answered"] = {**_answer(verified=True, agrees=False), "decision": False, "outcome": "error"}
    assert kinds(watch([(*made[:-1], msgspec.json.encode(value))])) == [], "a server that cannot decide protects"


def test_an_answer_counts_as_a_request_also_where_it_could_not_be_verified() -> None:
    made = decision("1", "dana", "orders", "error", T0)
    value = {**msgspec.json.decode(made[-1]), "answered": _answer(verified=False)}
    event = [verdict("a", "dana", "orders", T0 + 1000)]
    assert kinds(watch([(*made[:-1], msgspec.json.encode(value))], event)) == []
    value["answered"] = {**_answer(verified=False), "decision": False, "outcome": "deny"}
    assert kinds(watch([(*made[:-1], msgspec.json.encode(value))], event)) == [("denied-but-done", "dana", 1)]


def test_an_answer_whose_record_waited_for_kafka_allows_what_was_done_upon_it() -> None:
    """The job decides it at its record's time, a minute later: nobody acted without a request meanwhile."""
    late = T0 + MINUTE
    found = {**_answer(verified=True, agrees=True, misdated=True), "time": to_text(T0)}

    def alerts(outcome: str, done: int, **changed: Any) -> list[tuple[str, str, int]]:
        made = decision("1", "dana", "orders", outcome, late)
        value = {**msgspec.json.decode(made[-1]), "answered": {**found, **changed}}
        access = verdict("a", "dana", "orders", done, known=late)
        raised = kinds(watch([(*made[:-1], msgspec.json.encode(value))], [access]))
        return [alert for alert in raised if alert[0] != "answer-misdated"]

    assert alerts("allow", T0 + 100) == alerts("allow", late) == []
    assert alerts("deny", T0 + 100) == [], "access that ended meanwhile was there when the answer was given"
    assert alerts("error", T0 + 100, verified=False, agrees=None) == []
    assert alerts("allow", T0 - MINUTE) == [("unrequested-access", "dana", 1)]
    assert alerts("allow", T0 + 100, time=to_text(late + MINUTE)) == [("unrequested-access", "dana", 1)]
    assert ("denied-but-done", "dana", 1) in alerts("deny", T0 + 100, agrees=False)


@pytest.mark.parametrize("outcome", ["deny", "error"])
def test_an_answer_that_was_no_allow_allows_no_access_whatever_the_job_decides(outcome: str) -> None:
    made = decision("1", "dana", "orders", "allow", T0)
    refused = {**_answer(verified=True, agrees=False), "decision": False, "outcome": outcome}
    value = {**msgspec.json.decode(made[-1]), "answered": refused}
    event = [verdict("a", "dana", "orders", T0 + 1000)]
    assert ("denied-but-done", "dana", 1) in kinds(watch([(*made[:-1], msgspec.json.encode(value))], event))


def test_an_item_of_a_batch_that_got_no_answer_allows_no_access() -> None:
    _, _, offset, at, item = decision("1", "dana", "orders", "allow", T0)
    answer = msgspec.json.decode(item)
    value = {**answer, "evaluations": [answer, answer], "answered": _answer(verified=True, agrees=False)}
    event = [verdict("a", "dana", "orders", T0 + 1000)]

    def alerts(whole: str, *outcomes: str) -> list[tuple[str, str, int]]:
        items = [{"decision": outcome == "allow", "outcome": outcome} for outcome in outcomes]
        value["answered"] = {**_answer(verified=True, agrees=True), "outcome": whole, "evaluations": items}
        return kinds(watch([(DECISIONS, 0, offset, at, msgspec.json.encode(value))], event))

    assert alerts("allow", "error", "allow") == []
    assert alerts("allow") == [], "not all servers repeat the answers to the items"
    assert alerts("error") == alerts("deny", "error", "error") == [("denied-but-done", "dana", 1)]


@pytest.mark.parametrize(
    "value", [b"", b"hello", b"{}", b"null", b'{"kind":"other"}', b'{"context":{"outcome":"allow"}}']
)
@pytest.mark.parametrize("topic", [DECISIONS, VERDICTS])
def test_a_record_that_the_enforcer_did_not_write_hides_no_other(topic: str, value: bytes) -> None:
    stray, asked = (topic, 0, 7, T0, value), decision("1", "dana", "orders", "allow", T0)
    monitor = watch(
        [stray, asked, stray], [verdict("a", "dana", "orders", T0), stray, verdict("b", "eve", "orders", T0)]
    )
    assert kinds(monitor) == [("unrequested-access", "eve", 1)]


UNKNOWN_SCHEMAS = {
    "no such id": b"\0" + (987_654).to_bytes(4) + b"x",
    "no such fingerprint": b"\xc3\x01" + bytes(8) + b"x",
}


@pytest.mark.parametrize("value", UNKNOWN_SCHEMAS.values(), ids=UNKNOWN_SCHEMAS)
def test_a_decision_whose_schema_stays_unknown_is_awaited_for_a_while_and_then_left_out(value: bytes) -> None:
    """The job registers its schema before it writes: a registry that is asked later has it."""
    now, asked = time.time_ns() // 1_000_000, decision("1", "dana", "orders", "allow", T0)
    intake = Intake(DECISIONS, VERDICTS, 60_000, Formats(registry=True))
    with pytest.raises(UnknownSchema, match=f"{DECISIONS}-0, offset 7: "):
        list(intake.read(DECISIONS, 0, 7, now, value))
    for at in (now - UNKNOWN_SCHEMA_MS - 1, now + UNKNOWN_SCHEMA_MS + 60_000):
        [(key, unread)] = list(intake.read(DECISIONS, 0, 7, at, value))  # else it would stop the monitor at each start
        assert key == EVERY_KEY
        assert isinstance(unread, UnreadEvent)
        assert unread.at <= min(at, now + 30_000), "one that is dated ahead would excuse all accesses until then"
    assert EVERY_KEY not in dict(intake.read(*asked))


@pytest.mark.parametrize("value", UNKNOWN_SCHEMAS.values(), ids=UNKNOWN_SCHEMAS)
def test_while_a_decision_cannot_be_read_no_access_of_its_time_is_called_unrequested(value: bytes) -> None:
    """It may have been the access's: such as of a newer version, before a rollback. What is denied is alerted."""
    unread = (DECISIONS, 0, 7, T0, value)
    accesses = [
        verdict("a", "dana", "orders", T0 + 1000),
        verdict("b", "eve", "orders", T0 + 2000, outcome="deny"),
        verdict("c", "mallory", "orders", T0 + 6 * MINUTE),
    ]
    expected = [("unauthorized-access", "eve", 1), ("unrequested-access", "mallory", 1)]
    for batches in ([[unread, *accesses]], [[unread], accesses], [[unread], *([access] for access in accesses)]):
        monitor = watch(*batches)
        assert kinds(monitor) == expected
        assert monitor.states == {}, "nothing is remembered for ever"
    assert ("unrequested-access", "dana", 1) in kinds(watch(accesses))


def test_a_bucket_of_before_is_read_and_one_of_now_by_the_version_before() -> None:
    """An upgrade and a rollback keep the checkpoint."""

    class Before(msgspec.Struct, array_like=True):
        timer: int = -1
        states: dict[str, tuple[int, msgspec.Raw]] = {}

    state = {"key": (7, msgspec.Raw(msgspec.msgpack.encode(["state"])))}
    old, new = msgspec.msgpack.encode(Before(5, state)), msgspec.msgpack.encode(Bucket(5, state, T0))
    assert msgspec.msgpack.decode(old, type=Bucket) == Bucket(5, state)
    assert msgspec.msgpack.decode(new, type=Before) == Before(5, state)


def test_a_bucket_has_one_row_for_many_arrow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row costs Spark more than a record. Those of a backlog go on before they take much memory."""
    records = [decision(f"{n}", f"user {n % 3}", "orders", "deny", T0 + n) for n in range(12)]
    names = ["topic", "partition", "offset", "at", "value"]
    batches = [pa.table(list(zip(*records[n : n + 3], strict=True)), names).to_batches()[0] for n in range(0, 12, 3)]
    intake, times = Intake(DECISIONS, VERDICTS, MINUTE), Times(0, math.inf, math.inf)
    for most_bytes, rows in ((1 << 20, [4]), (1, [4] * 4)):
        monkeypatch.setattr("streaming.monitor.intake.ROWS_BYTES", most_bytes)
        row_batches = list(intake.bucket_rows(batches, times))
        assert [batch.num_rows for batch in row_batches] == rows, "a bucket for each user, and that which advances time"
        assert row_batches[-1]["at"].to_pylist() == [datetime.fromtimestamp((T0 + 11) / 1000, UTC)] * 4
        cells = [cell for batch in row_batches for cells in batch["inputs"].to_pylist() for cell in cells]
        inputs = [input_ for cell in cells for inputs in decode_inputs(cell).values() for input_ in inputs]
        denied = {input_.id for input_ in inputs if isinstance(input_, CountedEvent)}
        assert denied == {str(number) for number in range(12)}, "none is lost"


def test_while_the_registry_does_not_answer_no_decision_in_its_encoding_is_left_out() -> None:
    intake = Intake(DECISIONS, VERDICTS, 60_000, Formats(registry=True, asked=False))
    with pytest.raises(UnknownSchema):
        list(intake.read(DECISIONS, 0, 7, T0 - UNKNOWN_SCHEMA_MS, UNKNOWN_SCHEMAS["no such id"]))
    [(key, _)] = intake.read(DECISIONS, 0, 7, T0 - UNKNOWN_SCHEMA_MS, UNKNOWN_SCHEMAS["no such fingerprint"])
    assert key == EVERY_KEY


def test_what_is_no_avro_of_any_schema_is_left_out_at_once() -> None:
    intake = Intake(DECISIONS, VERDICTS, 60_000, Formats(registry=True))
    cut_off = Writer("decision", "avro-single-object").encode(examples.decisions()[0])[:-1]
    for value in (b"\0\0", b"\0\xff\xff\xff\xffx", b"\xc3\x01", cut_off):
        assert list(intake.read(DECISIONS, 0, 7, time.time_ns() // 1_000_000, value)) == []


def test_a_record_that_is_dated_ahead_does_not_move_the_time_of_all() -> None:
    """It goes never back: accesses would be held against their subjects before their decisions are written."""
    ahead, now = 4_102_444_800_000, time.time_ns() // 1_000_000  # 2100
    assert now <= Times(0, math.inf, math.inf).reached(ahead) < now + 60_000
    assert Times(T0 + 5, math.inf, math.inf).reached(T0) == T0 + 5
    assert Times(0, T0, T0).reached(ahead) == T0


def test_unrequested_access_is_off_for_systems_whose_answers_are_not_all_recorded() -> None:
    serve = ServeSettings(record={"cdap": "durable", "lenses6": "denials"})
    settings = monitor_settings(Settings(serve=serve))
    rules = {system: settings.monitor.rules_of(system).of("unrequested-access").enabled for system in settings.systems}
    assert rules == {**dict.fromkeys(settings.systems, True), "lenses6": False}
    assert settings.monitor.rules_of("lenses6").of("unauthorized-access").enabled


def test_many_late_occurrences_that_are_no_burst() -> None:
    """Where days are caught up with, all of them are recent at once."""
    rules = MonitorSettings().rules_of("lenses6")
    rule, apart = rules.of(AlertKind.DENIAL_BURST), 60_000

    def measure(size: int) -> int:
        watch = Watch()
        late = [Occurrence(f"d{number}", number * apart, size * apart, "") for number in range(size)]
        return work(lambda: [watch.add(AlertKind.DENIAL_BURST, "dana", each, rules, rule) for each in late])

    assert grows_with_its_input(measure, 50)


def test_many_late_decisions_of_one_access() -> None:
    rules = MonitorSettings().rules_of("lenses6")

    def measure(size: int) -> int:
        accesses = Accesses()
        moments = (number * rules.kept_ms for number in range(size))
        late = [DecisionEvent(b"a" * ACCESS_BYTES, True, moment, moment, ()) for moment in moments]
        return work(lambda: [accesses.note(decided, rules) for decided in late])

    assert grows_with_its_input(measure, 50)
