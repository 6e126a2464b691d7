"""Which statements decided nothing: what "decided" means, exactly."""

from policy.core.model import StatementId
from streaming.report.decisions import Candidate, StatementTotals, StoredVersion
from tests.report.world import BEGIN, HOUR, SPAN, World, group, query, role

ORDERS = "kafka:topic:prod/main/orders"


def _places(found: tuple[Candidate, ...]) -> list[tuple[str, int | None]]:
    return [(one.document.rpartition("/")[2], one.statement) for one in found]


def _unused(totals: StatementTotals) -> list[tuple[str, int | None]]:
    return _places(totals.unused)


def test_a_statement_that_stands_in_the_reasons_of_an_allow_or_a_deny_decided() -> None:
    statements = (("allow", "kafka:Get*", ORDERS), ("deny", "kafka:DeleteTopic", "*"), ("allow", "kafka:List*", ORDERS))
    world = World(role("r", *statements), group("g", ["r"], "user:dana"))
    world.ask(query("user:dana", "GetTopicDetails", "orders"), times=2)
    world.ask(query("user:dana", "DeleteTopic", "orders"))
    totals = world.statements()
    assert (totals.in_force, totals.named, totals.unused_statements) == (3, 2, 1)
    assert _unused(totals) == [("r", 2)]
    assert world.tally()[0].named == {StatementId("lenses6/Role/r", 0): 2, StatementId("lenses6/Role/r", 1): 1}


def test_a_document_none_of_whose_statements_decided_stands_for_all_of_them() -> None:
    unused = role("unused", ("allow", "kafka:Get*", ORDERS), ("deny", "kafka:DeleteTopic", "*"))
    totals = World(unused, role("used", ("allow", "kafka:Get*", ORDERS))).statements()
    whole = totals.unused[0]
    assert _unused(totals) == [("unused", None), ("used", None)]
    assert (whole.whole, whole.count, whole.effect) == (True, 2, "allow and deny")
    assert totals.unused_statements == 3


def test_one_that_matched_but_is_never_named_is_redundant_and_not_unused() -> None:
    """Reasons name the first of several; the replay finds the others, and says beside which."""
    twins = [role(name, ("allow", "kafka:Get*", ORDERS)) for name in ("a", "b")]
    world = World(*twins, group("g", ["a", "b"], "user:dana"))
    world.ask(query("user:dana", "GetTopicDetails", "orders"))
    totals = world.statements()
    assert _unused(totals) == []
    assert _places(totals.redundant) == [("a", 0), ("b", 0)]
    assert totals.redundant[1].beside == "lenses6/Role/a statement 0"
    assert _unused(world.statements(replay=0)) == [("b", None)], "without replay they cannot be distinguished"


def test_one_that_was_needed_alone_once_is_not_redundant() -> None:
    world = World(
        role("a", ("allow", "kafka:Get*", ORDERS)),
        role("b", ("allow", "kafka:*", ORDERS)),
        group("g", ["a", "b"], "user:dana"),
    )
    world.ask(query("user:dana", "GetTopicDetails", "orders"), times=5)
    world.ask(query("user:dana", "DeleteTopic", "orders"))
    assert _places(world.statements().redundant) == [("a", 0)]


def test_an_allow_that_a_deny_always_takes_away_decided_nothing() -> None:
    statements = (("allow", "kafka:DeleteTopic", ORDERS), ("deny", "kafka:DeleteTopic", "*"))
    world = World(role("r", *statements), group("g", ["r"], "user:dana"))
    world.ask(query("user:dana", "DeleteTopic", "orders"))
    assert _unused(world.statements()) == [("r", 0)]


def test_a_decision_under_an_older_version_says_nothing_of_the_newer_one() -> None:
    """Statement 0 of a document may have said something else before."""
    world = World(role("r", ("allow", "kafka:Get*", ORDERS)), group("g", ["r"], "user:dana"))
    world.ask(query("user:dana", "GetTopicDetails", "orders"))
    origin = StatementId("lenses6/Role/r", 0)
    world.stored[origin] = StoredVersion("policies", 100, BEGIN + HOUR)
    assert world.tally()[0].named == {}
    world.stored[origin] = StoredVersion("policies", 99, BEGIN + HOUR)
    assert world.tally()[0].named == {origin: 1}


def test_one_that_is_younger_than_the_range_is_not_reported_and_one_of_within_says_since_when() -> None:
    names = ("old", "within", "after")
    world = World(*(role(name, ("allow", "kafka:Get*", ORDERS)) for name in names))
    for name, at in zip(names, (BEGIN - HOUR, BEGIN + HOUR, SPAN.end), strict=True):
        world.stored[StatementId(f"lenses6/Role/{name}", 0)] = StoredVersion("policies", 0, at)
    totals = world.statements()
    assert totals.younger == 1
    assert {one.document: one.since for one in totals.unused} == {
        "lenses6/Role/old": None,
        "lenses6/Role/within": BEGIN + HOUR,
    }


def test_one_that_was_not_valid_in_the_range_says_so() -> None:
    bound = role("r", ("allow", "kafka:Get*", ORDERS)) | {"valid_until": BEGIN}
    [one] = World(bound).statements().unused
    assert one.lapsed


def test_the_replay_asks_the_same_question_once_and_no_more_than_it_may() -> None:
    world = World(role("r", ("allow", "kafka:*", ORDERS)), group("g", ["r"], "user:dana"))
    for name in ("Get", "List", "Read", "Get", "Get"):
        world.ask(query("user:dana", f"{name}Topic", "orders"))
    usage = world.statements(replay=2).replayed
    assert (usage.requests, usage.covered, usage.questions, usage.complete) == (5, 4, 2, False)
    assert world.statements(replay=3).replayed.complete


def test_questions_that_differ_in_trust_time_or_context_are_not_the_same() -> None:
    bound = role("r", ("allow", "kafka:*", ORDERS)) | {"valid_from": BEGIN + HOUR}
    world = World(bound, group("g", ["r"], "user:dana"))
    asked = query("user:dana", "GetTopicDetails", "orders")
    world.ask(asked, times=3)
    world.ask(asked, at=BEGIN + 2 * HOUR)
    world.ask(asked | {"context": {"x": 1}})
    world.ask(asked | {"context": {"x": [1]}})
    assert world.statements().replayed.questions == 2, "Lenses 6 is shown neither"


def test_what_was_answered_elsewhere_is_asked_again_with_the_claims_of_its_caller_at_the_time_of_the_answer() -> None:
    """Its topic is trusted for groups, a caller need not be."""
    until = role("r", ("allow", "kafka:*", ORDERS)) | {"valid_until": BEGIN}
    asked = query("user:dana", "GetTopicDetails", "orders")
    asked["subject"] = asked["subject"] | {"properties": {"groups": ["g"]}}
    for trust, at, matched in (([], -1, 0), (["groups"], -1, 1), (None, -1, 1), (None, 0, 0), (None, -6000, 0)):
        world = World(until, group("g", ["r"]))
        given = {"by": "pdp", "time": BEGIN + at, "decision": False, "outcome": "deny", "policy_version": "sha256:"}
        given |= {"policy_offsets": {}, "facts_offset": -1, "freshness": {"kind": "bounded", "age_ms": 0, "max_ms": 9}}
        world.ask(asked | {"answered": given | ({} if trust is None else {"trust": trust})})
        assert len(world.analyse_requests(world.tally()[1])[1].matched) == matched, (trust, at)
