"""Decisions summed up: outcomes over time, reasons, and who was denied what."""

from policy import Request, parse_request
from streaming.history.span import Span
from streaming.records.decision import Place
from streaming.report import read_decision
from streaming.report.decisions import Latency, Tally
from streaming.report.requests import CHUNK, AnswerIndex, Combinations
from streaming.report.untrusted import Ranking, Row
from tests.report.world import (
    BEGIN,
    DECISIONS,
    HOUR,
    REQUESTS,
    SPAN,
    TOPIC_ID,
    World,
    decision_record,
    group,
    query,
    record,
    role,
)

DENY = {"decision": False, "context": {"outcome": "deny", "reasons": [{"code": "no-grant", "message": "x"}]}}


def orders_world() -> World:
    """user:dana may read orders, and delete nothing."""
    statements = (("allow", "kafka:*", "kafka:topic:prod/main/orders"), ("deny", "kafka:DeleteTopic", "*"))
    return World(role("r", *statements), group("g", ["r"], "user:dana"))


def test_decisions_are_counted_by_system_outcome_and_step() -> None:
    world = orders_world()
    world.ask(query("user:dana", "GetTopicDetails", "orders"), times=3)
    world.ask(query("user:dana", "DeleteTopic", "orders"), times=2, at=BEGIN + HOUR)
    world.ask(query("dana", "DeleteTopic", "orders"), at=SPAN.end - 1)
    world.ask(query("user:dana", "DeleteTopic", "orders") | {"system": "no\x00such"}, at=SPAN.end - 1)
    totals = world.tally()[0].totals()
    assert (totals.total, totals.allow, totals.deny, totals.error) == (7, 3, 2, 2)
    lenses, other = totals.systems
    assert totals.axis == SPAN
    assert (lenses.system, lenses.steps[0], lenses.steps[2], lenses.steps[-1]) == (
        "lenses6",
        (3, 0, 0),
        (0, 2, 0),
        (0, 0, 1),
    )
    assert (other.system, other.total) == ("other", 1)
    reasons = {row.name: row.count for row in totals.reasons.rows}
    assert reasons == {"deny: denied": 2, "error: unknown-principal": 1, "error: unknown-system": 1}


def test_what_lies_outside_of_the_range_does_not_count_though_kafka_gave_it() -> None:
    world = orders_world()
    for at in (SPAN.start - 1, SPAN.start, SPAN.end - 1, SPAN.end):
        world.ask(query("user:dana", "GetTopicDetails", "orders"), at=at)
    assert world.tally()[0].totals().total == 2


def test_what_is_no_decision_is_reported_and_stops_nothing() -> None:
    world = orders_world()
    world.ask(query("user:dana", "GetTopicDetails", "orders"))
    bad = (b"", b"\xc3\x01avro", b"[]", b'{"id": "x"}', b"{" * 100_000, {"id": "x", "system": "s", "context": {}})
    world.decisions += [record(DECISIONS, 10 + number, BEGIN, value) for number, value in enumerate(bad)]
    totals = world.tally()[0].totals()
    assert (totals.total, totals.unreadable) == (1, len(bad))


def test_who_was_denied_what_is_looked_up_in_the_requests() -> None:
    world = orders_world()
    world.ask(query("user:eve", "GetTopicDetails", "orders"), times=3)
    world.ask(query("user:dana", "DeleteTopic", "orders"))
    world.ask(query("user:dana", "GetTopicDetails", "orders"), times=5)
    counted, answered = world.tally()
    denied = world.analyse_requests(answered)[0].denied(10)
    assert denied.answers == counted.totals().denied_answers == 4
    assert denied.subjects.rows == (Row("user:eve", 3), Row("user:dana", 1))
    assert denied.resources.rows == (Row("kafka:topic:prod/main/orders", 4),)


def test_only_requests_whose_decision_is_in_the_range_count() -> None:
    """Requests between them, decided before or after, are passed over."""
    world = orders_world()
    for at in (SPAN.start, SPAN.start - 1, SPAN.end - 1):
        world.ask(query("user:eve", "GetTopicDetails", "orders"), at=at)
    _, answered = world.tally()
    assert world.analyse_requests(answered)[0].denied(10).answers == 2


def test_each_evaluation_of_a_batch_counts_among_the_denied_and_a_batch_as_one_decision() -> None:
    """Those that were not answered any more do not."""
    world = orders_world()
    items = [{}, {"action": {"name": "kafka:DeleteTopic"}}, {"action": {"name": "kafka:DeleteTopic"}}, {"subject": 1}]
    batch = query("user:dana", "GetTopicDetails", "orders", evaluations=items)
    world.ask(batch)
    world.ask({**batch, "options": {"evaluations_semantic": "deny_on_first_deny"}})
    counted, answered = world.tally()
    totals = counted.totals()
    assert (totals.total, totals.denied_answers) == (2, 2 + 1)
    assert world.analyse_requests(answered)[0].denied(10).subjects.rows == (Row("user:dana", 3),)
    assert {row.name: row.count for row in totals.reasons.rows} == {
        "deny: denied": 3,
        "error: incomplete-evaluation": 1,
    }


def test_a_request_topic_that_was_made_anew_is_not_mistaken_for_the_old_one() -> None:
    """The decision's id begins with the id of the topic it counts in."""
    world = orders_world()
    world.ask(query("user:eve", "GetTopicDetails", "orders"))
    anew = decision_record(query("user:dana", "x", "y"), DENY, 0) | {"id": "another-topic-id-0-0"}
    world.decisions = [record(DECISIONS, 0, BEGIN, anew)]
    counted, answered = world.tally()
    assert counted.totals().denied_answers == 1
    assert answered.ranges() == {}
    assert world.analyse_requests(answered)[0].denied(10).answers == 0


def test_answers_beyond_the_bound_are_left_out_and_not_held() -> None:
    """Room for one chunk of offsets, and for two evaluations."""
    answered = AnswerIndex({"requests": TOPIC_ID}, most_chunks=1, most_items=2)
    item = {"decision": False, "context": {"outcome": "deny"}}
    for offset, evaluations in ((5, []), (CHUNK, []), (6, [item, item]), (7, [item])):
        written = decision_record(query("u", "a", "t"), DENY, offset) | {"evaluations": evaluations}
        decision = read_decision(record(DECISIONS, 0, 0, written).value)
        assert decision is not None
        answered.note(decision)
    outcomes = [answered.of(Place(REQUESTS, 0, offset)) for offset in (5, CHUNK, 6, 7)]
    assert outcomes == [("deny",), (), ("deny", "deny"), ()]


def test_an_empty_range_is_no_failure() -> None:
    report = World().report(Span(5, 6))
    assert report.empty
    assert report.decisions.systems == ()


def test_the_axis_fits_the_traffic_and_loses_none_of_it() -> None:
    """Whatever the extent: a minute at least, and steps that the counted bins add up to."""
    for extent in (0, 59_000, 31 * 60_000, 6 * HOUR, 31 * HOUR, 40 * 24 * HOUR, 500 * 24 * HOUR):
        world = orders_world()
        moments = [BEGIN, BEGIN + extent // 3, BEGIN + extent]
        for at in moments:
            world.ask(query("user:dana", "GetTopicDetails", "orders"), at=at)
        totals = world.tally(Span(BEGIN - HOUR, BEGIN + extent + HOUR))[0].totals()
        axis, [lenses] = totals.axis, totals.systems
        assert (axis.start, axis.end) == (BEGIN, BEGIN + max(60_000, extent + 1))
        assert len(lenses.steps) == axis.steps
        places = sorted((at - axis.first) // axis.step for at in moments)
        assert [place for place, (allow, _, _) in enumerate(lenses.steps) for _ in range(allow)] == places


def test_latencies_are_from_the_request_to_the_decision() -> None:
    world = orders_world()
    for number in range(100):
        world.ask(query("user:dana", "GetTopicDetails", "orders"), took=number + 1)
    assert world.tally()[0].totals().latency == Latency(100, 50, 95)
    claimed = Tally(SPAN, world.stored, AnswerIndex({}), frozenset({REQUESTS}))
    for each in world.decisions:
        claimed.take(each)
    assert claimed.totals().latency is None


def test_combinations_are_counted_with_their_first_denial() -> None:
    world = orders_world()
    for topic, times, at in (("carts", 3, BEGIN + HOUR), ("carts", 1, BEGIN), ("payments", 2, BEGIN + 2 * HOUR)):
        world.ask(query("user:eve", "GetTopicDetails", topic), times=times, at=at)
    denied = world.analyse_requests(world.tally()[1])[0].denied(1)
    [most], [newest] = denied.most, denied.newest
    assert (most.subject, most.action, most.count, most.first) == ("user:eve", "kafka:GetTopicDetails", 4, BEGIN)
    assert (newest.resource, newest.first) == ("kafka:topic:prod/main/payments", BEGIN + 2 * HOUR)
    assert (denied.combinations, denied.uncounted) == (2, 0)


def test_combinations_beyond_the_bound_are_counted_apart() -> None:
    found = Combinations(most=1)
    for topic in ("a", "b", "a", "b"):
        request = parse_request(query("user:eve", "GetTopicDetails", topic))
        assert isinstance(request, Request)
        found.add(request, BEGIN)
    denied = found.denied(4, Ranking((), 0, 0), Ranking((), 0, 0), 10)
    assert ([one.count for one in denied.most], denied.combinations, denied.uncounted) == ([2], 1, 2)
