"""The tree of a decision: every part with its truth, and what decided it."""

from typing import Any

import pytest

import policy
from policy.analysis.decision_tree import Node, draw_trees
from policy.analysis.nearest_grants import nearest_grants
from policy.core.request import MalformedRequest
from tests.policy.test_lint import READ, group, role

ASK: dict[str, Any] = {
    "id": "r",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:x", "properties": {"groups": ["g"]}},
    "action": {"name": "kafka:ReadTopicData"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
}
SNAPSHOT = policy.compile_documents([group("g", "r"), role("r", READ, ("deny", "kafka:Read*", "kafka:topic:a/x/*"))])


def truths(node: Node) -> Any:
    """The truth of every node, nested."""
    return (node.held, [truths(item) for item in node.items])


def test_an_allow_and_a_deny_show_the_statement_that_decided() -> None:
    """The deny in place of the allow where both match."""
    (tree,) = draw_trees(SNAPSHOT, ASK)
    assert truths(tree) == (True, [(True, [])])
    assert tree.notes == ("rests on what the request claims: groups",)
    assert tree.items[0].notes == ("allowed by lenses6/Role/r statement 0 (claim:g → group:g → role:r)",)
    (tree,) = draw_trees(SNAPSHOT, {**ASK, "resource": {"type": "lrn", "id": "kafka:topic:a/x/c"}})
    assert truths(tree) == (False, [(False, [])])
    assert tree.items[0].notes == ("denied by lenses6/Role/r statement 1 (claim:g → group:g → role:r)",)


def test_what_cannot_be_answered_is_a_node_with_its_reason() -> None:
    """No parts, no truth."""
    (tree,) = draw_trees(SNAPSHOT, {**ASK, "action": {"name": "kafka"}})
    assert truths(tree) == (None, [])
    assert (tree.rule, "is not service:operation" in tree.notes[0]) == ("L6-ACTION-FORMAT", True)


def test_an_untrusted_claim_is_an_error_above_a_part_that_failed() -> None:
    """Why it is no plain deny, is said at the top."""
    (tree,) = draw_trees(SNAPSHOT, ASK, frozenset())
    assert truths(tree) == (None, [(False, [])])
    assert "not trusted to claim" in tree.notes[0]


def test_a_passed_deadline_is_reported() -> None:
    """Though all parts hold."""
    (tree,) = draw_trees(SNAPSHOT, {**ASK, "time": 2, "deadline": 1})
    assert tree.held is None
    assert "after its deadline" in " ".join(tree.notes)


def test_a_compound_requirement_is_drawn_with_all_its_parts() -> None:
    """An action of Lenses 5 that needs more than one thing: the top agrees with the parts."""
    request = {
        "id": "r",
        "system": "lenses5",
        "subject": {"type": "user", "id": "dana"},
        "action": {"name": "sql-processors.create"},
        "resource": {"type": "sql-processor", "id": "p", "properties": {"processor": "p"}},
        "context": {"connection": "k", "input_topics": ["a"], "output_topics": ["b"], "mode": "in-process"},
    }
    (tree,) = draw_trees(SNAPSHOT, request)
    assert tree.held is False
    assert tree.items[0].text.endswith(("all of", "any of"))
    assert len(tree.items[0].items) > 1
    assert tree.held is tree.items[0].held


def test_a_batch_gives_a_tree_for_each_item() -> None:
    """An item that is no evaluation is an error by itself."""
    trees = draw_trees(SNAPSHOT, {**ASK, "evaluations": [{}, {"resource": 7}]})
    assert [tree.held for tree in trees] == [True, None]


@pytest.mark.parametrize(
    ("semantic", "held"),
    [
        ("execute_all", [False, True, False]),
        ("deny_on_first_deny", [False]),
        ("permit_on_first_permit", [False, True]),
    ],
)
def test_what_a_batch_leaves_out_has_no_tree(semantic: str, held: list[bool]) -> None:
    """It is not evaluated (AuthZEN, evaluations_semantic): the decision has no answer to it."""
    denied = {"resource": {"type": "lrn", "id": "kafka:topic:a/x/c"}}
    batch = {**ASK, "evaluations": [denied, {}, denied], "options": {"evaluations_semantic": semantic}}
    assert [tree.held for tree in draw_trees(SNAPSHOT, batch)] == held
    assert [near is None for near in nearest_grants(SNAPSHOT, batch)] == held


def test_what_is_no_request_is_refused() -> None:
    """As `decide` would."""
    with pytest.raises(MalformedRequest):
        draw_trees(SNAPSHOT, {"id": "r"})
