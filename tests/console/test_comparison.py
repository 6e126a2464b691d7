"""A draft of policies compared with those in force: which of the newest requests it turns, and for whom."""

import contextlib
import json
import pickle
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from policy import DocumentStore, FactOverlay, Key, Snapshot, compile_documents, decide
from policy.analysis import review, widening_text
from policy.core.model import CompiledDocument
from policy.store.affected import UNREADABLE
from policy.store.history import DocumentHistory
from policy.systems import all_systems
from policy.systems.kit.system import Kind
from policy.testing import CaseFileError
from streaming.console import past_requests
from streaming.console.changes import Side, turned_requests
from streaming.console.comparison_program import (
    Compared,
    Comparer,
    ComparisonJob,
    DatedRequest,
    Live,
    LiveDocuments,
    LiveFact,
    compare_draft,
)
from streaming.console.comparisons import COMPARISON_PROGRAM
from streaming.console.sandbox import DraftRefused, Sandbox
from streaming.records.change import PolicyChange, PolicyState

SYSTEM = "lenses6"
READERS = {
    "kind": "Role",
    "name": "readers",
    "spec": {"statements": [{"effect": "allow", "action": "kafka:Get*", "resource": "kafka:topic:prod/*"}]},
}
MEMBERS = {"kind": "Group", "name": "readers", "spec": {"roles": ["readers"], "members": ["user:dana"]}}
OPEN = {"effect": "allow", "resource": "*"}
FROZEN = """\
kind: Role
name: readers
spec:
  statements:
    - {effect: allow, action: "kafka:Get*", resource: "kafka:topic:prod/*"}
    - {effect: deny, action: "kafka:*", resource: "kafka:topic:prod/main/audit"}
"""


def _asked(topic: str, user: str = "user:dana", **more: Any) -> DatedRequest:
    asked = {
        "id": topic,
        "system": SYSTEM,
        "subject": {"type": "user", "id": user},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
        "time": 1_795_258_800_000,
        **more,
    }
    return asked, frozenset({"groups"})


NOW = 1_795_258_800_000
ASKED = (_asked("orders"), _asked("audit"), _asked("audit", "user:nobody"))


def _snapshot(*documents: dict[str, Any]) -> Snapshot:
    return compile_documents([{"system": SYSTEM, **document} for document in documents])


def _live(*documents: dict[str, Any]) -> tuple[bytes, ...]:
    return _histories(*((document, 1) for document in documents))


def _histories(*versions: tuple[dict[str, Any], int]) -> tuple[bytes, ...]:
    """The histories of documents, as the process takes them: documents, each with the moment of its record."""
    values = [({"system": SYSTEM, **document}, at) for document, at in versions]
    store = DocumentStore()
    for number, (value, at) in enumerate(values):
        store.put(value, at, number)
    return tuple(map(pickle.dumps, store.histories.values()))


def _job(documents: str, key: str = "a", **more: Any) -> ComparisonJob:
    return msgspec.structs.replace(ComparisonJob(key, SYSTEM, documents, ASKED), **more)


def _all(documents: tuple[bytes, ...], key: str = "a") -> LiveDocuments:
    return LiveDocuments(key, documents)


def _with(live: LiveDocuments, system: str = SYSTEM) -> Live:
    taken = Live(system)
    taken.take(live)
    return taken


def _compared(documents: str, **more: Any) -> Compared:
    return compare_draft(_job(documents, **more), _with(_all(_live(READERS, MEMBERS))))


def test_the_requests_that_a_draft_turns_are_those_that_decide_answers_otherwise() -> None:
    found = _compared(FROZEN)
    [turned] = found.turned
    assert (turned.number, turned.before, turned.after, found.count) == (1, "allow", "deny", 3)
    assert turned.reason is not None
    assert (turned.reason.document, turned.reason.statement) == ("lenses6/Role/readers", 1)
    sides = [compile_documents([{"system": SYSTEM, **one} for one in (role, MEMBERS)]) for role in (READERS,)]
    assert [decide(side, ASKED[1][0]).outcome for side in sides] == ["allow"]
    [lost] = [entry for entry in found.differences if entry.difference.sign == "added"]
    assert "user:dana" in lost.lose


def test_other_documents_stay_unless_the_draft_is_all_that_there_is() -> None:
    role = json.dumps(READERS)
    assert _compared(role).turned == ()
    turned = _compared(role, prune=True).turned
    assert [(one.number, one.after) for one in turned] == [(0, "deny"), (1, "deny")]


def test_each_evaluation_of_a_batch_counts() -> None:
    """What turns is listed: by the outcome of the batch and its first evaluation nothing was another."""
    topics = ("orders", "audit", "audit/b", "audit")
    evaluations = [{"resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"}} for topic in topics]
    batch = _asked("orders", evaluations=[*evaluations, {"subject": {"type": "user", "id": "user:nobody"}}])
    [turned] = _compared(FROZEN, requests=(batch,)).turned
    assert (turned.number, turned.before, turned.after, turned.evaluations) == (0, "allow", "deny", (1, 3))
    assert turned.reason is not None
    assert turned.reason.statement == 1
    row = past_requests.PastRequest("d", 0, frozenset(), batch[0]).row(turned.evaluations)
    assert (row["subject"], row["resource"]) == ("user:dana", "kafka:topic:prod/main/audit")
    assert row["evaluation"] == "evaluation 2 of 5, and 1 other"


def test_a_change_that_turns_an_evaluation_of_a_batch_shows_that_one() -> None:
    evaluations = [{}, {"subject": {"type": "user", "id": "user:nobody"}}, {"action": {"name": "kafka:DeleteTopic"}}]
    more = {"kind": "Role", "name": "all", "spec": {"statements": [{**OPEN, "action": "kafka:Delete*"}]}}
    member = {"kind": "Group", "name": "all", "spec": {"roles": ["all"], "members": ["user:dana"]}}
    before, after = (_snapshot(*documents) for documents in ((READERS, MEMBERS), (READERS, MEMBERS, more, member)))
    state = PolicyState({}, "")
    said = {"id": "c", "system": SYSTEM, "time": "2026-11-28T10:00:00Z", "before": state, "after": state}
    side = Side(PolicyChange(**said, documents=(), documents_count=0), before, after)
    asked = _asked("orders", evaluations=evaluations)[0]
    past = past_requests.PastRequest("d", asked["time"], frozenset(), asked)
    [row] = turned_requests([past], [side], FactOverlay()).rows
    assert (row["action"], row["before"], row["after"]) == ("kafka:DeleteTopic", "deny", "allow")
    assert row["evaluation"] == "evaluation 3 of 3"


@pytest.mark.parametrize(
    ("documents", "line", "message"),
    [
        ("kind: Role\nname: r\nspec:\n  statements: 5\n", 4, "statements"),
        ("kind: Role\nname: r\nspec: {statements: []}\n---\nsystem: cdap\nkind: Grant\nname: g\nspec: {}\n", 5, ""),
        ("- 5\n", 1, "a document is a mapping"),
        ("kind: Role\nspec: {statements: []}\n", None, "name"),
    ],
)
def test_documents_that_would_be_refused_are_not_compared(documents: str, line: int | None, message: str) -> None:
    found = _compared(documents)
    assert found.problems
    assert found.problems[0].line == line
    assert message in " ".join(problem.message for problem in found.problems)
    assert (found.count, found.turned, found.differences) == (0, (), ())


def test_a_document_of_another_language_is_not_compared() -> None:
    other = "system: streamsets\nkind: Organization\nname: acme\nspec: {enforcement: true}\n"
    assert any("another language" in problem.message for problem in _compared(other).problems)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    box = Sandbox(1, 30.0, COMPARISON_PROGRAM, is_eager=False)
    with contextlib.closing(box):
        yield box


def test_a_process_asks_for_the_live_documents_once(sandbox: Sandbox) -> None:
    live = _all(_live(READERS, MEMBERS))
    assert sandbox.ask(_job(FROZEN)) == {"needs_live": True, "since": ""}
    first, again = sandbox.ask(_job(FROZEN, live=live)), sandbox.ask(_job(FROZEN))
    assert first == again
    assert len(first["turned"]) == 1
    assert sandbox.ask(_job(FROZEN, key="b")) == {"needs_live": True, "since": "a"}


def test_documents_that_are_no_yaml_are_refused_with_their_line(sandbox: Sandbox) -> None:
    with pytest.raises(DraftRefused) as refused:
        sandbox.ask(_job("kind: Role\nname: [", live=_all(_live(READERS))))
    assert refused.value.problem["line"] == 2


HOUR = 3_600_000
ACL = {"type": "pipeline", "owner": "rita", "organization": "acme", "acl": {"user:miguel": ["READ"]}}
STREAMSETS = [
    {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
    {"system": "streamsets", "kind": "Object", "name": "pipeline:orders", "spec": ACL},
]
TO_DEVELOPERS = json.dumps(
    {"kind": "Object", "name": "pipeline:orders", "spec": {**ACL, "acl": {"group:dev": ["READ"]}}}
)


def _login(hour: int, *groups: str) -> LiveFact:
    at, key = NOW + hour * HOUR, Key("streamsets", "Session", "sam")
    value = {"system": key.system, "kind": key.kind, "name": key.name, "spec": {"login_at": at, "groups": groups}}
    return LiveFact(key, json.dumps(value).encode(), at, hour)


def _viewed(hour: int) -> DatedRequest:
    asked = {
        "id": "r",
        "system": "streamsets",
        "subject": {"type": "user", "id": "sam"},
        "action": {"name": "pipeline.view"},
        "resource": {"type": "pipeline", "id": "pipeline:orders"},
        "time": NOW + hour * HOUR,
    }
    return asked, frozenset()


def test_each_request_is_decided_with_the_facts_of_its_time() -> None:
    """Also where they come later, to a process that has some; of a time of which they are not known none is turned."""
    policies = _live(*STREAMSETS)
    facts = (_login(1, "dev"), _login(3), _login(5, "dev"))
    asked = tuple(_viewed(hour) for hour in (0, 2, 4, 6))
    job = ComparisonJob("a", "streamsets", TO_DEVELOPERS, asked)
    whole = LiveDocuments("a", policies, facts=facts, facts_held_after=NOW, no_facts_before=NOW)
    live = _with(whole, "streamsets")
    turned = compare_draft(job, live).turned
    assert [(one.number, one.before, one.after) for one in turned] == [(1, "deny", "allow"), (3, "deny", "allow")]
    in_parts = _with(msgspec.structs.replace(whole, facts=facts[:1]), "streamsets")
    assert [one.number for one in compare_draft(job, in_parts).turned] == [1, 2, 3]
    in_parts.take(LiveDocuments("b", (), "a", facts=facts[1:]))
    assert compare_draft(job, in_parts) == compare_draft(job, live)
    gone = LiveFact(facts[0].key, b"", NOW + 7 * HOUR, 7)
    in_parts.take(LiveDocuments("c", (), "b", facts=(gone, LiveFact(Key("cdap", "Entity", "x"), b"{", NOW, 8))))
    assert compare_draft(job, in_parts) == compare_draft(job, live)


def test_versions_that_were_in_force_at_a_login_count_beside_a_draft() -> None:
    """What somebody could who signed in before the newest version is what the job answers, not what lacks."""
    [organization, pipeline] = STREAMSETS
    older = {**pipeline, "spec": {**ACL, "acl": {"group:dev": ["READ"]}}}
    policies = _histories((organization, 1), (older, 1), (pipeline, NOW + 2 * HOUR))
    whole = LiveDocuments("a", policies, facts=(_login(1, "dev"),), facts_held_after=NOW, no_facts_before=NOW)
    live = _with(whole, "streamsets")
    assert compare_draft(ComparisonJob("a", "streamsets", TO_DEVELOPERS, (_viewed(3),)), live).turned == ()


def test_a_comparer_without_live_documents_asks_for_them() -> None:
    comparer = Comparer()
    assert comparer(msgspec.json.encode(_job(FROZEN))) == {"result": {"needs_live": True, "since": ""}}


TEAM = {"kind": "Group", "name": "team", "spec": {"roles": "readers", "members": ["user:dana"]}}


def _refused(key: Key, value: object = UNREADABLE) -> bytes:
    store = DocumentStore()
    store.refuse(key, ["spec.roles: must be a list"], 1, 9, value)
    return pickle.dumps(store.histories[key])


def test_whom_a_refused_document_names_is_answered_error_until_a_good_version_stands() -> None:
    team = Key(SYSTEM, "Group", "team")
    live = _with(_all((*_live(READERS, MEMBERS), _refused(team, {"system": SYSTEM, **TEAM}))))
    assert compare_draft(_job(json.dumps(READERS)), live).turned == ()
    repaired = json.dumps({**TEAM, "spec": {"roles": ["readers"], "members": ["user:dana"]}})
    turned = compare_draft(_job(repaired), live).turned
    assert [(one.number, one.before, one.after) for one in turned] == [(0, "error", "allow"), (1, "error", "allow")]
    live.take(LiveDocuments("b", (), "a", (team,)))
    assert compare_draft(_job(repaired, key="b"), live).turned == (), "it was deleted"
    live.take(LiveDocuments("c", (_refused(Key(SYSTEM, "Odd", "x")),), "b"))
    turned = compare_draft(_job(repaired, key="c", prune=True), live).turned
    assert [(one.number, one.before, one.after) for one in turned] == [(number, "error", "deny") for number in range(3)]


ROOT = {"kind": "Role", "name": "root", "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}}
ADMINS = {"kind": "Group", "name": "admins", "spec": {"roles": ["root"], "members": ["user:trent"]}}


@pytest.mark.parametrize("documents", [(ROOT, ADMINS), (READERS,), ({**READERS, "spec": {"statements": []}},)], ids=len)
def test_what_a_draft_opens_is_what_a_review_of_it_says(documents: tuple[dict[str, Any], ...]) -> None:
    found = _compared("\n---\n".join(map(json.dumps, documents)))
    replaced = {(one["kind"], one["name"]) for one in documents}
    kept = [one for one in (READERS, MEMBERS) if (one["kind"], one["name"]) not in replaced]
    sides = ([READERS, MEMBERS], [*kept, *documents])
    old, new = (compile_documents({"system": SYSTEM, **one} for one in side) for side in sides)
    assert list(found.opens) == [widening_text(widening) for widening, _ in review(old, new).widenings]
    assert found.opens_count == len(found.opens)
    assert any("user:trent" in line for line in found.opens) == (ROOT in documents)


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("documents", ["", "# nothing\n"])
def test_a_draft_without_documents_does_not_pass_for_one_that_changes_nothing(documents: str, prune: bool) -> None:
    with pytest.raises(CaseFileError, match="no documents"):
        _compared(documents, prune=prune)


def test_what_has_changed_is_enough() -> None:
    """A process that gets it answers as one that gets all documents; the draft of one system leaves others alone."""
    comparer, members = Comparer(), {**MEMBERS, "spec": {"roles": ["readers"], "members": ["user:nobody"]}}
    states = [(READERS, MEMBERS), (READERS, members), (members,), (READERS, members)]
    sent: dict[str, bytes] = {}
    for number, documents in enumerate(states):
        whole = {str(one["kind"]): live for one, live in zip(documents, _live(*documents), strict=True)}
        changed = tuple(live for kind, live in whole.items() if sent.get(kind) != live)
        gone = tuple(Key(SYSTEM, kind, "readers") for kind in sent if kind not in whole)
        key = f"{number}"
        live = LiveDocuments(key, changed, str(number - 1) if number else "", gone)
        found = comparer(msgspec.json.encode(_job(FROZEN, key=key, live=live)))["result"]
        expected = Comparer()(msgspec.json.encode(_job(FROZEN, key=key, live=_all(tuple(whole.values()), key))))
        assert found == expected["result"]
        other = ComparisonJob("x", "cdap", None, live=LiveDocuments("x", ()))
        assert comparer(msgspec.json.encode(other)) == {"result": msgspec.to_builtins(Compared())}
        sent = whole


def test_a_process_that_has_taken_in_nothing_of_a_change_asks_for_all_of_it() -> None:
    comparer = Comparer()
    comparer(msgspec.json.encode(_job(FROZEN, live=_all(_live(READERS, MEMBERS)))))
    with pytest.raises(AssertionError):
        comparer(msgspec.json.encode(_job(FROZEN, key="c", live=LiveDocuments("c", (), "b"))))
    assert comparer(msgspec.json.encode(_job(FROZEN)))["result"]["since"] == ""


def test_documents_are_sent_without_the_functions_of_their_kind() -> None:
    """A kind of another distribution may read documents by a function that has no name, which no pickle takes."""
    history = DocumentHistory(Key(SYSTEM, "Role", "readers"), Kind(read=lambda _document: CompiledDocument()))
    kinds = (all_systems()[SYSTEM].kinds["Role"], Kind())
    for key, kind in zip((history.key, Key(SYSTEM, "Odd", "x")), kinds, strict=True):
        history.key = key
        assert pickle.loads(pickle.dumps(history)).kind == kind
