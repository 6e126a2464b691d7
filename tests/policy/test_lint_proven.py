"""Each finding of lint is true by the reference evaluator, and planted faults are found."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policy import CLAIMS, Batch, compile_documents
from policy.analysis.lint import lint
from policy.analysis.wording import pattern_text
from policy.core.model import Grant
from policy.core.request import parse_request
from policy.evaluation import reference
from policy.store.policy_set import PolicySet
from tests.examples import examples
from tests.policy.test_properties import WITH_GRANTS, documents_of, requests_of

WITHOUT_EFFECT = ("covered", "cancelled-by-deny", "nobody-has-it")
checked = settings(
    max_examples=examples(150),
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
    def check(documents: list[Any], requests: list[dict[str, Any]]) -> None:
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
    print(system, dict(seen))
