"""A system with an engine of its own: every part that handles answers and policies takes it."""

import itertools
import json
import pickle
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import policy
from policy import systems
from policy.analysis import (
    Edit,
    MayWiden,
    analyse,
    compare,
    document_contents,
    draw_trees,
    review,
    said,
    statements,
    uses,
    who_can,
)
from policy.analysis import lint as find
from policy.analysis.impact import Reach, Who, what_can
from policy.core.limits import Work
from policy.core.model import Fact, StatementId
from policy.core.request import CLAIMS, MalformedRequest, Request, parse_request
from policy.evaluation import reference
from policy.evaluation.answers import AnswerCache
from policy.evaluation.authorize import decision_for, kept
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay
from policy.store.snapshot import Snapshot
from policy.systems.kit.engine import Engine, Statement, engine_of
from policy.testing import cover, load_cases, run_cases
from streaming.enforcer.evaluator import Evaluator
from tests.examples import examples
from tests.policy.test_answers import change, deletion, spoiled
from tests.report.world import World
from tests.stream.test_prepared_answers import LIMITS, _compare
from tests.systems.allowlist import AllowlistEngine, Rule, parse

MOMENTS = range(6)


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    """Have the system of this folder found as one of another distribution is."""
    entry = EntryPoint("allowlist", "tests.systems.allowlist", systems.GROUP)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(systems, "_entries", lambda: iter([entry]))
        systems.packages.cache_clear()
        systems.all_systems.cache_clear()
        yield
    systems.packages.cache_clear()
    systems.all_systems.cache_clear()


def rules(name: str, *lines: str, **more: Any) -> dict[str, Any]:
    """A list of rules."""
    return {"system": "allowlist", "kind": "List", "name": name, "spec": {"rules": list(lines)}, **more}


def member(name: str, *groups: str) -> dict[str, Any]:
    """The groups of a user."""
    return {"system": "allowlist", "kind": "Member", "name": name, "spec": {"groups": list(groups)}}


def asks(user: str = "alice", action: str = "read", resource: str = "docs/a", **more: Any) -> dict[str, Any]:
    """What somebody wants."""
    return {
        "id": "r",
        "system": "allowlist",
        "subject": {"type": "person", "id": user},
        "action": {"name": action},
        "resource": {"type": "file", "id": resource},
        **more,
    }


def claiming(*groups: str) -> dict[str, Any]:
    """The subject alice with groups that the request claims."""
    return {"subject": {"type": "person", "id": "alice", "properties": {"groups": list(groups)}}}


LISTS = [rules("open", "permit * read docs/*", "permit alice write docs/a if mfa"), rules("shut", "forbid bob * *")]


def outcome(documents: list[dict[str, Any]], request: dict[str, Any], trust: frozenset[str] = CLAIMS) -> str:
    """The answer of the evaluator, which is the reference's too."""
    snapshot = policy.compile_documents(documents)
    found = policy.decide(snapshot, request, trust=trust)
    assert found.outcome == reference.decide(snapshot, request, trust=trust)
    return found.outcome


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asks(), "allow"),
        (asks("bob"), "deny"),
        (asks(resource="other"), "deny"),
        (asks(action="write", context={"mfa": True}), "allow"),
        (asks(action="write", context={"mfa": False}), "deny"),
        (asks(action="write"), "error"),  # the condition cannot be evaluated
        (asks("group:staff"), "error"),
    ],
)
def test_its_answer_has_three_values(request_: dict[str, Any], expected: str) -> None:
    assert outcome(LISTS, request_) == expected


def test_a_decision_names_the_determining_statements() -> None:
    snapshot = policy.compile_documents(LISTS)
    found = policy.decide(snapshot, asks())
    [reason] = found.reasons
    assert (reason.code, reason.rule, reason.document, reason.statement) == (
        "allowed",
        "AL-PERMIT",
        "allowlist/List/open",
        0,
    )
    assert found.missing == ()
    [reason] = policy.decide(snapshot, asks("bob")).reasons
    assert (reason.code, reason.document) == ("denied", "allowlist/List/shut")


def test_a_result_without_statements_has_its_message_as_reason() -> None:
    found = policy.decide(policy.compile_documents(LISTS), asks(resource="other"))
    assert [(reason.code, reason.message, reason.rule) for reason in found.reasons] == [
        ("no-grant", "nothing permits it", "AL-DEFAULT")
    ]
    assert found.missing == ()


def test_a_claim_that_is_not_trusted_leaves_an_error_unless_a_deny_stands() -> None:
    documents = [*LISTS, rules("staff", "permit group:staff read plans", "forbid alice read secret")]
    for resource, trusted, untrusted in (
        ("plans", "allow", "error"),
        ("docs/a", "allow", "allow"),
        ("secret", "deny", "deny"),
        ("other", "deny", "error"),
    ):
        request = asks(resource=resource, **claiming("staff"))
        assert outcome(documents, request) == trusted
        assert outcome(documents, request, CLAIMS - {"groups"}) == untrusted


@pytest.mark.parametrize("spec", [{"rules": ["permit alice"]}, {"rules": "x"}, {"other": ["group:x"]}, {}])
def test_a_refused_document_answers_error_to_everyone(spec: dict[str, Any]) -> None:
    """It may have held a forbid about anybody, whatever names it has."""
    broken = {**rules("broken"), "spec": spec}
    assert outcome([*LISTS, broken], asks()) == "error"
    assert sorted({one.code for one in find([*LISTS, broken])}) == ["answers-error", "refused"]
    good = {**rules("broken", "permit zoe read zoo"), "effective_at": 0}
    assert outcome([*LISTS, good, {**broken, "effective_at": 5}], asks(time=7)) == "allow"


def test_a_refused_fact_answers_error_to_those_who_need_it() -> None:
    broken = {**member("alice"), "spec": {"wrong": 1}}
    assert outcome([*LISTS, broken], asks()) == "error"
    assert outcome([*LISTS, broken], asks("zoe")) == "allow"


def test_a_time_bound_document_needs_the_time() -> None:
    dated = rules("dated", "permit zoe open door", valid_from=3, valid_until=5)
    for at, expected in ((2, "deny"), (3, "allow"), (5, "deny"), (None, "error")):
        assert outcome([dated], asks("zoe", "open", "door", **({} if at is None else {"time": at}))) == expected


WHO, RESOURCES = ("alice", "bob", "group:staff", "*"), ("docs/a", "docs/*", "*", "plans")
LINES = st.builds(
    Rule,
    st.sampled_from(["permit", "permit", "forbid"]),
    st.sampled_from(WHO),
    st.sampled_from(["read", "write", "*"]),
    st.sampled_from(RESOURCES),
    st.sampled_from(["", "", "mfa"]),
).map(str)


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lists, some for a time, some with versions, some refused, and members."""
    found: list[dict[str, Any]] = []
    for name in ("a", "b"):
        for at in draw(st.lists(st.sampled_from(MOMENTS), max_size=2, unique=True)):
            document = rules(name, *draw(st.lists(LINES, max_size=3)), effective_at=at)
            if draw(st.booleans()):
                start, length = draw(st.sampled_from(MOMENTS)), draw(st.integers(1, 3))
                document |= {"valid_from": start, "valid_until": start + length}
            if draw(st.integers(0, 7)) == 0:
                document["spec"] = {"rules": ["forbid"]}
            found.append(document)
    return [*found, *(member(name, "staff") for name in draw(st.sets(st.sampled_from(["alice", "bob"]))))]


REQUESTS = st.builds(
    lambda user, action, resource, context, at: asks(user, action, resource, context=context, time=at),
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(["read", "write"]),
    st.sampled_from(["docs/a", "docs/b", "plans"]),
    st.sampled_from([{}, {"mfa": True}, {"mfa": False}]),
    st.sampled_from(MOMENTS),
)
checked = settings(max_examples=examples(20), deadline=None)


def expected(documents: list[dict[str, Any]], request: dict[str, Any]) -> str:
    """The answer by the documents alone, without lockkeeper."""
    at, user = request["time"], request["subject"]["id"]
    lists, who = [], {user, "*"}
    for name in ("a", "b"):
        begun = [one for one in documents if one["name"] == name and one["effective_at"] <= at]
        begun.sort(key=lambda one: one["effective_at"])
        good = [one for one in begun if one["spec"]["rules"] != ["forbid"]]
        if begun and not good:
            return "error"
        lists += good[-1:]
    for one in documents:
        if (one["kind"], one["name"]) == ("Member", user):
            who |= {f"group:{group}" for group in one["spec"]["groups"]}
    valid = (one for one in lists if one.get("valid_from", 0) <= at < one.get("valid_until", 9))
    known = [parse(line) for one in valid for line in one["spec"]["rules"]]
    met = [one for one in known if one.who in who and one.matches(request["action"]["name"], request["resource"]["id"])]
    truths = {(one.effect, request["context"].get("mfa") if one.field else True) for one in met}
    for effect, answer in (("forbid", "deny"), ("permit", "allow")):
        if (effect, True) in truths or (effect, None) in truths:
            return answer if (effect, True) in truths else "error"
    return "deny"


@checked
@given(documents(), st.lists(REQUESTS, min_size=1, max_size=4))
def test_every_way_to_decide_gives_the_answer_of_the_language(
    written: list[dict[str, Any]], requests: list[dict[str, Any]]
) -> None:
    """`decide` with the answers it keeps, the reference, and the stream, over the edges of validity."""
    snapshot = policy.compile_documents(written)
    evaluator = Evaluator(snapshot, LIMITS)
    for at, request in itertools.product(MOMENTS, requests):
        asked = {**request, "time": at}
        answer = policy.decide(snapshot, asked)
        event(answer.outcome)
        assert answer.outcome == reference.decide(snapshot, asked) == expected(written, asked)
    for at in MOMENTS:
        _compare([(None, json.dumps({**one, "time": None}).encode(), None) for one in requests], evaluator, at=at)


@checked
@given(documents(), st.lists(REQUESTS, min_size=1, max_size=3))
def test_answers_end_with_what_they_have_read(written: list[dict[str, Any]], requests: list[dict[str, Any]]) -> None:
    """Facts of the facts topic change one by one; what is left answers as the evaluator does."""
    store, facts, overlay = DocumentStore(), DocumentStore(facts_only=True), FactOverlay()
    lists = [one for one in written if one["kind"] == "List"]
    for order, document in enumerate(lists):
        store.put(document, order=order)
    compiled = Snapshot(store)
    cache = AnswerCache(compiled.with_facts(overlay).policy_sets, CLAIMS, kept)
    members = [member("alice", "staff"), member("bob", "staff"), member("alice")]
    for order, document in enumerate([*members, *map(spoiled, members), *map(deletion, members)], len(lists)):
        changed = [("allowlist", lookup) for lookup in overlay.apply(change(facts, document, order))]
        snapshot = compiled.with_facts(overlay)
        cache.follow(snapshot.policy_sets, changed)
        for number, request in enumerate(requests):
            asked = parse_request(request)
            assert isinstance(asked, Request)
            content, id_ = b"%d" % number, asked.resource.id
            answer = cache.find(content, id_, asked.time)
            event("kept" if answer else "evaluated")
            answer = answer or cache.add(content, asked)
            assert decision_for(answer, id_) == policy.answer(snapshot, asked)


@checked
@given(st.lists(documents(), min_size=2, max_size=3), st.lists(REQUESTS, min_size=1, max_size=3))
def test_a_change_of_policies_gives_the_answers_of_the_policies_after_it(
    stages: list[list[dict[str, Any]]], requests: list[dict[str, Any]]
) -> None:
    """As the job compiles it: only what has changed, in a snapshot that shares the rest."""
    store = DocumentStore()
    compiler = Compiler(store)
    for at, document in enumerate(document for stage in stages for document in stage):
        logged = {name: value for name, value in document.items() if name != "effective_at"}
        store.put(logged, at, at)
        compiler.compile()
        for request in requests:
            asked = {**request, "time": 100}
            assert policy.decide(compiler.snapshot, asked) == policy.decide(Snapshot(store.copy()), asked)


def test_without_dates_all_facts_count_at_every_moment() -> None:
    """So no lookup compares times."""
    facts = policy.compile_documents([*LISTS, member("alice")]).policy_sets["allowlist"].facts
    assert facts.at(5) is facts


def test_the_tree_shows_the_result_and_its_statements() -> None:
    [tree] = draw_trees(policy.compile_documents(LISTS), asks())
    [node] = tree.items
    assert (tree.held, node.text, node.rule, node.held) == (True, "1 permit satisfied", "AL-PERMIT", True)
    assert node.notes == ("open rule 0: permit * read docs/*",)


def test_statements_and_what_they_decide() -> None:
    """For coverage and for reports of unused statements."""
    snapshot = policy.compile_documents(LISTS)
    found = statements(snapshot)
    first, second, third = sorted(found, key=lambda one: one.place)
    assert [(one.document, one.statement) for one in (first, second, third)] == [
        ("allowlist/List/open", 0),
        ("allowlist/List/open", 1),
        ("allowlist/List/shut", 0),
    ]
    assert [one.effect for one in found[third]] == ["deny"]
    asked = parse_request(asks("bob"))
    assert list(uses(snapshot, asked)) == [(StatementId("allowlist/List/shut", 0),)]
    assert list(uses(snapshot, parse_request(asks(action="write")))) == []  # an error: nothing decided


def test_a_report_finds_statements_that_decided_nothing() -> None:
    world = World(rules("open", "permit * read docs/*", "permit alice read docs/a"), rules("shut", "forbid bob * *"))
    world.ask(asks())
    totals = world.statements()
    assert (totals.in_force, totals.named) == (3, 2)
    [unused] = totals.unused
    assert (unused.document, unused.effect, unused.text) == ("allowlist/List/shut", "deny", "forbid bob * *")
    assert [one.statement for one in totals.redundant] == [0, 1]


CASES = """
system: allowlist
cases:
  - case: Anybody reads
    rules: [AL-PERMIT]
    stages:
      - apply: [{kind: List, name: open, spec: {rules: ["permit * read docs/*", "forbid bob * *"]}}]
        expect:
          - ask: {subject: alice, action: read, resource: docs/a}
            answer: allow
            document: List/open
            statement: 0
"""


def test_policy_tests_run_with_coverage(tmp_path: Any) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(CASES)
    file = load_cases(path)
    assert [one.why for one in run_cases(file)] == ["", ""]
    covered = cover(file)
    assert (covered.percent, [one.statement for one in covered.idle]) == (50.0, [1])


def test_a_difference_is_reported_by_statements() -> None:
    """A permit that came and a forbid that went widen; facts are compared as they are."""
    before = policy.compile_documents([*LISTS, member("alice", "staff")])
    after = policy.compile_documents([rules("open", "permit * read docs/*", "permit zoe read zoo"), member("alice")])
    found = [(one.sign, one.text, one.document, one.widens) for one in compare(before, after)]
    assert found == [
        ("removed", "permit alice write docs/a if mfa", "allowlist/List/open", False),
        ("added", "permit zoe read zoo", "allowlist/List/open", True),
        ("removed", "forbid bob * *", "allowlist/List/shut", True),
        ("changed", "what is known of Member alice", "allowlist/Member/alice", True),
    ]
    [history] = store_of(LISTS[:1]).histories.values()
    assert set(document_contents("allowlist", said(history)).values()) == set(LISTS[0]["spec"]["rules"])


def store_of(written: list[dict[str, Any]]) -> DocumentStore:
    """The documents as a log has them."""
    store = DocumentStore()
    for order, document in enumerate(written):
        store.put(document, order, order)
    return store


def test_moved_statements_are_no_difference() -> None:
    before = policy.compile_documents([rules("a", "permit * read docs/*", "forbid bob * *")])
    after = policy.compile_documents([rules("b", "forbid bob * *", "permit * read docs/*")])
    assert compare(before, after) == []


def test_who_can_asks_for_each_principal_and_is_not_complete() -> None:
    snapshot = policy.compile_documents([rules("a", "permit alice read plans", "forbid bob * *"), member("zoe")])
    assert who_can(snapshot, asks(resource="plans")) == Reach((Who("alice"),), complete=False)
    snapshot = policy.compile_documents([rules("a", "permit * read plans", "forbid bob * *")])
    assert who_can(snapshot, asks(resource="plans")) == Reach((), True, (Who("bob"),), complete=False)


def test_what_a_subject_can_do_is_not_listed() -> None:
    with pytest.raises(MalformedRequest, match="use what_is_permitted"):
        what_can(policy.compile_documents(LISTS), asks())


def test_lint_looks_over_all_documents() -> None:
    vocabulary = {"system": "allowlist", "kind": "Vocabulary", "name": "all", "spec": {"actions": ["read"]}}
    found = find([rules("a", "permit alice read x", "permit alice raed y"), vocabulary])
    assert [(one.document, one.statement, one.code) for one in found] == [("allowlist/List/a", 1, "unknown-action")]


def _escalations(before: list[dict[str, Any]], after: list[dict[str, Any]], at: int = 0) -> list[tuple[Any, ...]]:
    old, new = (store_of(written) for written in (before, after))
    keys = sorted({*old.histories, *new.histories})
    edits = [Edit(str(key), said(old.histories.get(key)), said(new.histories.get(key))) for key in keys]
    system = systems.all_systems()["allowlist"]
    found = analyse(system, Snapshot(new).policy_sets["allowlist"], edits, at, Work())
    assert found.complete
    return [(one.kind, one.document, one.statement, one.principals, one.severity) for one in found.escalations]


def test_escalations_are_new_privileges_and_lifted_denies() -> None:
    forbids = rules("shut", "forbid bob write docs/*")
    lifted = ("deny-lifted", "allowlist/List/shut", 0, ("bob",), "medium")
    assert _escalations([forbids], []) == [lifted]
    assert _escalations([forbids], [rules("moved", "forbid bob write docs/*")]) == []
    gained = ("wildcard", "allowlist/List/root", 1, ("zoe",), "critical")
    root = rules("root", "permit zoe read x", "permit zoe * *")
    assert _escalations([], [root]) == [gained]
    assert _escalations([root], [root, rules("again", "permit zoe * *")]) == []
    over = rules("root", "permit zoe * *", valid_from=1, valid_until=3)
    assert _escalations([], [over], at=4) == []
    assert len(_escalations([over], [rules("root", "permit zoe * *")], at=2)) == 1  # for longer than before


def test_an_analysis_that_ends_early_says_so() -> None:
    store = store_of([rules("root", "permit zoe * *")])
    [(key, history)] = store.histories.items()
    edits = [Edit(str(key), policy.CompiledDocument(), said(history))]
    system, policy_set = systems.all_systems()["allowlist"], Snapshot(store).policy_sets["allowlist"]
    assert not analyse(system, policy_set, edits, 0, Work(1)).complete


class TwoPrincipalsEngine(AllowlistEngine):
    """Each rule is for two."""

    def statement(self, fact: Fact) -> Statement:
        """The line, for another one too."""
        statement = super().statement(fact)
        return msgspec.structs.replace(statement, principals=(*statement.principals, "zoe"))


def test_each_principal_of_a_statement_is_a_widening_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined, an allow-list's entry for one of them covered the others: its star stands for any text."""
    monkeypatch.setattr("tests.systems.allowlist.Allowlist.engine", TwoPrincipalsEngine())
    before, after = policy.compile_documents([]), policy.compile_documents([rules("a", "permit bob read x")])
    reviewed = review(before, after, [MayWiden(who="bob*")])
    assert [(widening.who, is_allowed) for widening, is_allowed in reviewed.widenings] == [
        ("bob", True),
        ("zoe", False),
    ]


def test_without_hooks_tools_know_nothing_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.systems.allowlist.Allowlist.engine", Engine())
    snapshot = policy.compile_documents(LISTS)
    assert engine_of(systems.all_systems()["lenses6"]) is None
    assert statements(snapshot) == {}
    assert who_can(snapshot, asks("bob", resource="x")) == Reach((), complete=False)
    assert find(LISTS) == []
    changed = compare(snapshot, policy.compile_documents(LISTS[:1]))
    assert [(one.sign, one.text, one.widens) for one in changed] == [("removed", "what is known of Rule shut#0", True)]


def test_a_snapshot_answers_the_same_in_another_process() -> None:
    snapshot = policy.compile_documents([*LISTS, member("alice", "staff")])
    again = pickle.loads(pickle.dumps(snapshot))
    assert policy.decide(again, asks()) == policy.decide(snapshot, asks())
