"""Cedar's answers: those of the library over all policies and entities, where this package gives it a part of them."""

import itertools
from collections.abc import Iterator
from typing import Any

import cedarpy
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import policy
from tests.examples import examples
from tests.policy.strategies import cedar as strategies


def document(policies: str, name: str = "p", **spec: Any) -> dict[str, Any]:
    """A PolicySet document."""
    return {"system": "cedar", "kind": "PolicySet", "name": name, "spec": {"policies": policies, **spec}}


def entities(*found: dict[str, Any], name: str = "e") -> dict[str, Any]:
    """An Entities document."""
    return {"system": "cedar", "kind": "Entities", "name": name, "spec": {"entities": list(found)}}


def whole(texts: list[str], parsed: cedarpy.PolicySet, known: list[dict[str, Any]], request: dict[str, Any]) -> str:
    """The answer by all policies and all entities at once, read from the rule CE-ERRORS."""
    asked = {
        "principal": _uid(request["subject"]),
        "action": {"type": "Action", "id": request["action"]["name"]},
        "resource": _uid(request["resource"]),
        "context": _context(request),
    }
    by_uid = {(one["uid"]["type"], one["uid"]["id"]): one for one in known}
    for part in (request["subject"], request["resource"]):
        by_uid.setdefault((part["type"], part["id"]), _own(part))
    groups = [{"type": "Group", "id": name} for name in request["subject"].get("properties", {}).get("groups", [])]
    subject = (request["subject"]["type"], request["subject"]["id"])
    by_uid[subject] = {**by_uid[subject], "parents": [*by_uid[subject]["parents"], *groups]}
    answer = cedarpy.is_authorized(asked, parsed, list(by_uid.values()))
    assert answer.decision is not cedarpy.Decision.NoDecision, answer.diagnostics.errors
    failed = {error.split("`")[1] for error in answer.diagnostics.errors}
    effects = {"forbid" if "forbid(" in text else "permit" for n, text in enumerate(texts) if f"policy{n}" in failed}
    if answer.allowed:
        return "error" if "forbid" in effects else "allow"
    return "error" if "permit" in effects and not answer.diagnostics.reasons else "deny"


def _uid(part: dict[str, Any]) -> dict[str, str]:
    return {"type": part["type"], "id": part["id"]}


def _own(part: dict[str, Any]) -> dict[str, Any]:
    return {"uid": _uid(part), "attrs": part.get("properties", {}), "parents": []}


def _context(request: dict[str, Any]) -> dict[str, Any]:
    context = {name: value for name, value in request["context"].items() if name != "min_policy_offsets"}
    properties = request["action"].get("properties")
    return {**context, "action_properties": properties} if properties else context


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(strategies.policies(), min_size=3, max_size=9),
    strategies.entities(),
    strategies.requests(),
    st.integers(0, 9),
)
def test_slices_answer_as_the_whole_does(
    texts: list[str], known: list[dict[str, Any]], drawn: dict[str, Any], cut: int
) -> None:
    """Of policies and entities only those that a request needs are evaluated, and nothing changes (CE-SLICE).

    For every subject, action and resource, with the properties and the context that were drawn.
    """
    sets = [document("\n".join(part), name) for name, part in (("a", texts[:cut]), ("b", texts[cut:])) if part]
    snapshot = policy.compile_documents([*sets, entities(*known)])
    assert not snapshot.rejected
    parsed = cedarpy.PolicySet.from_str("\n".join(texts))
    for request in asking(drawn):
        decision = policy.decide(snapshot, request)
        assert decision.outcome == whole(texts, parsed, known, request), (request, decision.reasons)
        event(decision.outcome)


def asking(drawn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The request for each subject, action and resource; one that is subject and resource says one thing of itself."""
    properties = drawn["subject"].get("properties", {})
    for subject, action, resource in itertools.product(strategies.USERS, strategies.ACTIONS, strategies.RESOURCES):
        of_resource = properties if subject == resource else drawn["resource"].get("properties", {})
        yield {
            **drawn,
            "subject": {**strategies.json_of(subject), "properties": properties},
            "action": {**drawn["action"], "name": action},
            "resource": {**strategies.json_of(resource), "properties": of_resource},
        }
