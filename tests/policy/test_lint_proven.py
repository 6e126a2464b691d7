"""Each finding of lint is true by the reference evaluator, and planted faults are found."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policy import CLAIMS, Batch, compile_documents
from policy.analysis.lint import lint
from policy.core.model import Grant
from policy.core.pattern import pattern_text
from policy.core.request import parse_request
from policy.evaluation import reference
from policy.store.policy_set import PolicySet
from tests.examples import examples
from tests.policy.test_properties import WITH_GRANTS, documents_of, requests_of

WITHOUT_EFFECT = ("covered", "cancelled-by-deny", "nobody-has-it")
checked = settings(
    max_examples=max(examples(150), 75),  # with fewer nothing is found
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


def _is_meant(grant: Grant, finding: Any) -> bool:
    """Whether a grant is what a finding says has no effect."""
    what = f"the allow of {pattern_text(grant.permission)} on {pattern_text(grant.object)} does nothing"
    return (
        grant.statement_id.document == finding.document
        and finding.statement in (None, grant.statement_id.statement)
        and (finding.code != "cancelled-by-deny" or finding.message.startswith(what))
    )


def _without(policy_set: PolicySet, finding: Any) -> Any:
    grants = {
        principal: [grant for grant in of_principal if not _is_meant(grant, finding)]
        for principal, of_principal in policy_set.grants.items()
    }
    assert grants != policy_set.grants, finding
    plain = {"facts": policy_set.facts, "broken_at": policy_set.broken_at, "memberships": policy_set.memberships}
    return SimpleNamespace(**plain, grants=grants)


@pytest.mark.parametrize("system", WITH_GRANTS)
def test_what_has_no_effect_has_none(system: str) -> None:
    seen = Counter[str]()

    @checked
    @given(documents_of(system), st.lists(requests_of(system), min_size=3, max_size=8))
    def check(versions: list[Any], requests: list[dict[str, Any]]) -> None:
        # One version of each: findings name a statement by its number, which in another version is another statement.
        documents = list({(document["kind"], document["name"]): document for document in versions}.values())
        snapshot = compile_documents(documents)
        policy_set = snapshot.policy_sets[system]
        for finding in lint(documents):
            seen[finding.code] += 1
            if finding.code not in WITHOUT_EFFECT:
                continue
            other = SimpleNamespace(policy_sets={system: _without(policy_set, finding)})
            for request in map(parse_request, requests):
                if not isinstance(request, Batch):
                    asked = (request, CLAIMS)
                    assert reference._one(snapshot, *asked) == reference._one(other, *asked), (finding, request)

    check()
    assert seen, "nothing was found"


def _acl(**more: str) -> dict[str, str]:
    return {"principal": "User:dana", "operation": "Read", "permission": "ALLOW", "resource_type": "Topic", **more}


def _document(system: str, kind: str, name: str = "a", **spec: Any) -> dict[str, Any]:
    return {"system": system, "kind": kind, "name": name, "spec": spec}


def _namespace(datasets: str, *permissions: str) -> dict[str, Any]:
    return {"connection": "kafka", "type": "Kafka", "datasets": [datasets], "permissions": [*permissions]}


VIEWER = {"userId": "dana@example.com", "workspaceId": "w", "namespaceId": "n", "role": "VIEWER"}
PLANTED = {
    "the same entry twice": ([_document("kafka-acls", "Acls", entries=[_acl(name="a")] * 2)], (1, "covered")),
    "an entry below a prefix": (
        [_document("kafka-acls", "Acls", entries=[_acl(name="ab"), _acl(name="a", pattern_type="PREFIXED")])],
        (0, "covered"),
    ),
    "an entry that is denied": (
        [_document("kafka-acls", "Acls", entries=[_acl(name="a"), _acl(name="*", permission="DENY")])],
        (0, "cancelled-by-deny"),
    ),
    "an entry that is denied to all": (
        [
            _document("kafka-acls", "Acls", entries=[_acl(name="a", operation="Write")]),
            _document("kafka-acls", "Acls", "b", entries=[_acl(name="*", permission="DENY", principal="User:*")]),
            _document("kafka-acls", "Acls", "c", entries=[_acl(name="*", operation="Write", principal="User:*")]),
        ],
        (0, "covered"),
    ),
    "an entry of one host that is denied to all": (
        [
            _document("kafka-acls", "Acls", entries=[_acl(name="a", host="10.0.0.1")]),
            _document("kafka-acls", "Acls", "b", entries=[_acl(name="*", permission="DENY", principal="User:*")]),
        ],
        (0, "cancelled-by-deny"),
    ),
    "a grant below another": (
        [
            _document("cdap", "Grant", "wide", user="dana", entity="dataset:shop.*", privileges=["READ", "WRITE"]),
            _document("cdap", "Grant", "a", user="dana", entity="dataset:shop.orders", privileges=["READ"]),
        ],
        (None, "covered"),
    ),
    "a role twice": ([_document("ververica", "InitialAccess", initialAccess=[VIEWER] * 2)], (1, "covered")),
    "a namespace below another": (
        [_document("lenses5", "Group", namespaces=[_namespace("a", "ShowTopic"), _namespace("a*", "ShowTopic")])],
        (0, "covered"),
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_found(planted: str) -> None:
    """And only that."""
    documents, (statement, code) = PLANTED[planted]
    assert [(one.document.rpartition("/")[2], one.statement, one.code) for one in lint(documents)] == [
        ("a", statement, code)
    ] * len(lint(documents))
    assert lint(documents)
