"""Alerts and dead letters summed up, whatever they look like."""

import json

from streaming.history.records import ConsumerRecord
from streaming.report.incidents import AlertTotals, sum_up_alerts, sum_up_dead_letters
from streaming.report.untrusted import Row
from tests.report.world import ALERTS, BEGIN, SPAN, World, record


def _alerts(world: World) -> AlertTotals:
    return sum_up_alerts(world.alerts, SPAN)


def test_alerts_are_counted_by_kind_and_severity_the_gravest_first() -> None:
    world = World()
    for severity, times in (("medium", 3), ("high", 1)):
        for _ in range(times):
            world.alert(severity=severity)
    world.alert(kind="privilege-escalation", severity="critical")
    world.alert(kind="new-kind", severity="catastrophic")
    totals = _alerts(world)
    assert [(kind.kind, kind.counts) for kind in totals.kinds] == [
        ("privilege-escalation", (1, 0, 0, 0, 0, 0)),
        ("denial-burst", (0, 1, 3, 0, 0, 0)),
        ("new-kind", (0, 0, 0, 0, 0, 1)),
    ]
    assert (totals.total, totals.grave) == (6, 2)


def test_many_small_alerts_do_not_hide_a_grave_one() -> None:
    world = World()
    world.alert(severity="critical", message="the one")
    for number in range(100):
        world.alert(at=BEGIN + number)
    totals = _alerts(world)
    assert [alert.message for alert in totals.newest_grave] == ["the one"]
    assert [alert.at for alert in totals.newest_other[:2]] == [BEGIN + 99, BEGIN + 98]
    assert len(totals.newest_other) == 25


def test_subject_and_evidence_may_be_anything_and_are_bounded() -> None:
    world = World()
    world.alert(subject={"type": "user", "id": "x"}, evidence=[1, "two", {"three": 3}, "x" * 5000, 5, 6, 7], time=12)
    world.alert(subject=None, evidence={"one": 1})
    second, first = _alerts(world).newest_other
    assert (first.subject, first.time) == ('{"type":"user","id":"x"}', "12")
    assert first.evidence[:3] == ("1", "two", '{"three":3}')
    assert first.evidence[3].startswith("x" * 1500 + "… (5,000 characters")
    assert first.evidence[-1] == "… and 2 more"
    assert (second.subject, second.evidence) == ("", ('{"one":1}',))


def test_alerts_of_one_episode_are_one_and_the_newest_counts() -> None:
    """Also when its severity rises: it is not listed among the others any more."""
    world = World()
    for severity, message in (("medium", "3 times"), ("medium", "30 times"), ("critical", "300 times")):
        world.alert(id="burst-1", severity=severity, message=message)
    world.alert(id="burst-2", message="another")
    totals = _alerts(world)
    assert (totals.total, totals.grave, totals.updates) == (2, 1, 2)
    assert [alert.message for alert in totals.newest_grave] == ["300 times"]
    assert [alert.message for alert in totals.newest_other] == ["another"]


def test_evidence_is_reported_in_sentences() -> None:
    world = World()
    first, last = "2026-11-21T11:00:00.000Z", "2026-11-21T11:05:00.000Z"
    evidence = [
        {"system": "lenses6", "count": 12, "first": first, "last": last},
        {"time": first, "what": "denied: kafka:DeleteTopic"},
        {"topic": "policies", "offset": 7, "errors": ["spec: required", "name: empty"]},
        {"document": "lenses6/Role/ops", "topic": "policies", "offset": 8},
        {"holders": ["user:a", "user:b", "user:c", "user:d"], "statement": 0, "more": None},
    ]
    world.alert(evidence=evidence)
    [alert] = _alerts(world).newest_other
    assert alert.sentences == (
        f"12 times, from {first} to {last}, in lenses6",
        f"{first}: denied: kafka:DeleteTopic",
        "spec: required; name: empty (offset 7 of policies)",
        "lenses6/Role/ops, published at offset 8 of policies",
        "holders: user:a, user:b, user:c …; statement: 0",
    )
    assert [json.loads(item) for item in alert.evidence] == evidence


def test_what_is_no_alert_is_reported_and_stops_nothing() -> None:
    world = World()
    world.alert()
    bad = (b"", b"\x00avro", b"[1]", b'{"severity": "low"}', b'{"kind": 7}')
    world.alerts += [record(ALERTS, 10 + number, BEGIN, value) for number, value in enumerate(bad)]
    totals = _alerts(world)
    assert (totals.total, totals.unreadable) == (1, len(bad))


def test_a_writer_gone_mad_fills_no_memory() -> None:
    world = World()
    for number in range(200):
        world.alert(kind=f"kind-{number}")
    totals = _alerts(world)
    assert len(totals.kinds) == 51
    assert {kind.kind: kind.total for kind in totals.kinds}["other"] == 150


def test_dead_letters_are_counted_by_reason_whatever_the_numbers_in_it() -> None:
    world = World()
    for number in range(3):
        world.dead_letter(f"not a request: invalid character (byte {number})")
    world.dead_letter("not a request: no id", topic="audit")
    world.dead_letter("too late", at=SPAN.end)
    world.dead.append(ConsumerRecord("requests.dlq", 0, 99, BEGIN, b"", b"", (("__connect.errors.topic", b"\xff"),)))
    totals = sum_up_dead_letters(world.dead, SPAN)
    assert totals.total == 5
    assert totals.reasons.rows == (
        Row("not a request: invalid character (byte #)", 3),
        Row("no reason in the headers", 1),
        Row("not a request: no id", 1),
    )
    assert totals.topics.rows == (Row("requests", 3), Row("audit", 1), Row("�", 1))
