"""A draft of policies compared with those in force: which of the newest requests it turns, and for whom."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from policy import compile_documents, decide
from streaming.console.comparison_program import (
    Compared,
    Comparer,
    ComparisonJob,
    Live,
    LiveDocument,
    PastRequest,
    compare_draft,
)
from streaming.console.draft_pages import COMPARISON_PROGRAM
from streaming.console.sandbox import DraftRefused, Sandbox

SYSTEM = "lenses6"
READERS = {
    "kind": "Role",
    "name": "readers",
    "spec": {"statements": [{"effect": "allow", "action": "kafka:Get*", "resource": "kafka:topic:prod/*"}]},
}
MEMBERS = {"kind": "Group", "name": "readers", "spec": {"roles": ["readers"], "members": ["user:dana"]}}
FROZEN = """\
kind: Role
name: readers
spec:
  statements:
    - {effect: allow, action: "kafka:Get*", resource: "kafka:topic:prod/*"}
    - {effect: deny, action: "kafka:*", resource: "kafka:topic:prod/main/audit"}
"""


def _asked(topic: str, user: str = "user:dana", **more: Any) -> PastRequest:
    asked = {
        "id": topic,
        "system": SYSTEM,
        "subject": {"type": "user", "id": user},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
        "time": 1_795_258_800_000,
        **more,
    }
    return PastRequest(asked, ("groups",))


ASKED = (_asked("orders"), _asked("audit"), _asked("audit", "user:nobody"))


def _live(*documents: dict[str, Any], is_fact: bool = False) -> tuple[LiveDocument, ...]:
    values = ({"system": SYSTEM, **document} for document in documents)
    return tuple(LiveDocument(json.dumps(value), 1, number, is_fact) for number, value in enumerate(values))


def _job(documents: str, key: str = "a", **more: Any) -> ComparisonJob:
    return msgspec.structs.replace(ComparisonJob(key, SYSTEM, documents, ASKED), **more)


def _compared(documents: str, **more: Any) -> Compared:
    job = _job(documents, live=_live(READERS, MEMBERS), **more)
    return compare_draft(job, Live(job))


def test_the_requests_that_a_draft_turns_are_those_that_decide_answers_otherwise() -> None:
    found = _compared(FROZEN)
    [turned] = found.turned
    assert (turned.number, turned.before, turned.after, found.count) == (1, "allow", "deny", 3)
    assert turned.reason is not None
    assert (turned.reason.document, turned.reason.statement) == ("lenses6/Role/readers", 1)
    sides = [compile_documents([{"system": SYSTEM, **one} for one in (role, MEMBERS)]) for role in (READERS,)]
    assert [decide(side, ASKED[1].asked).outcome for side in sides] == ["allow"]
    [lost] = [difference for difference in found.differences if difference.sign == "added"]
    assert "user:dana" in lost.lose


def test_other_documents_stay_unless_the_draft_is_all_that_there_is() -> None:
    role = json.dumps(READERS)
    assert _compared(role).turned == ()
    turned = _compared(role, prune=True).turned
    assert [(one.number, one.after) for one in turned] == [(0, "deny"), (1, "deny")]


def test_each_evaluation_of_a_batch_counts() -> None:
    batch = _asked("orders", evaluations=[{}, {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/audit"}}])
    assert [one.number for one in _compared(FROZEN, requests=(batch,)).turned] == [0]


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
    live = _live(READERS, MEMBERS)
    assert sandbox.ask(_job(FROZEN)) == {"needs_live": True}
    first, again = sandbox.ask(_job(FROZEN, live=live)), sandbox.ask(_job(FROZEN))
    assert first == again
    assert len(first["turned"]) == 1
    assert sandbox.ask(_job(FROZEN, key="b")) == {"needs_live": True}


def test_documents_that_are_no_yaml_are_refused_with_their_line(sandbox: Sandbox) -> None:
    with pytest.raises(DraftRefused) as refused:
        sandbox.ask(_job("kind: Role\nname: [", live=_live(READERS)))
    assert refused.value.problem["line"] == 2


def test_facts_of_the_facts_topic_count() -> None:
    acl = {"type": "pipeline", "owner": "rita", "organization": "acme", "acl": {"user:miguel": ["READ"]}}
    policies = [
        {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
        {"system": "streamsets", "kind": "Object", "name": "pipeline:orders", "spec": acl},
    ]
    session = {"system": "streamsets", "kind": "Session", "name": "sam", "spec": {"login_at": 5, "groups": ["dev"]}}
    draft = json.dumps({"kind": "Object", "name": "pipeline:orders", "spec": {**acl, "acl": {"group:dev": ["READ"]}}})
    asked = {
        "id": "r",
        "system": "streamsets",
        "subject": {"type": "user", "id": "sam"},
        "action": {"name": "pipeline.view"},
        "resource": {"type": "pipeline", "id": "pipeline:orders"},
        "time": 1_795_258_800_000,
    }
    live = (
        *(LiveDocument(json.dumps(one), 1, number) for number, one in enumerate(policies)),
        LiveDocument(json.dumps(session), 2, 0, True),
    )
    job = ComparisonJob("a", "streamsets", draft, (PastRequest(asked, ()),), False, live)
    [turned] = compare_draft(job, Live(job)).turned
    assert (turned.before, turned.after) == ("deny", "allow")


def test_a_comparer_without_live_documents_asks_for_them() -> None:
    comparer = Comparer()
    assert comparer(msgspec.json.encode(_job(FROZEN))) == {"result": {"needs_live": True}}
