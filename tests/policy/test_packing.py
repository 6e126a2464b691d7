"""Grants and memberships come back as they were packed, in their order."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policy
from policy.core.times import ALWAYS, Window
from policy.store.packing import pack_grants, pack_memberships, unpack_grants, unpack_memberships
from tests.examples import examples
from tests.policy.test_properties import WRITTEN, documents_of


@pytest.mark.parametrize("system", WRITTEN)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_what_is_packed_comes_back(system: str, data: st.DataObject) -> None:
    policy_set = policy.compile_documents(data.draw(documents_of(system))).policy_sets[system]
    grants, memberships = policy_set.grants, policy_set.memberships
    assert unpack_grants(pack_grants(grants)) == list(itertools.chain.from_iterable(grants.values()))
    back = unpack_memberships(pack_memberships(memberships))
    assert back == list(itertools.chain.from_iterable(memberships.values()))


def test_windows_come_back_and_the_unbounded_one_is_the_one_there_is() -> None:
    """It is compared by identity."""
    spec = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}
    bounded: dict[str, Any] = {"valid_from": 5, "valid_until": 7}
    documents = [
        {"system": "lenses6", "kind": "Role", "name": name, "spec": spec, **more}
        for name, more in (("always", {}), ("sometimes", bounded))
    ]
    back = unpack_grants(pack_grants(policy.compile_documents(documents).policy_sets["lenses6"].grants))
    always, sometimes = sorted(back, key=lambda grant: grant.principal)
    assert always.window is ALWAYS
    assert sometimes.window == Window(5, 7)
