"""Grants and memberships come back as they were packed, in their order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import policy
from policy.core.times import ALWAYS, Window
from policy.store.packing import pack_grants, pack_memberships, unpack_grants, unpack_memberships
from tests.policy.test_properties import WRITTEN, documents_of


@pytest.mark.parametrize("system", WRITTEN)
@given(data=st.data())
def test_what_is_packed_comes_back(system: str, data: st.DataObject) -> None:
    policy_set = policy.compile_documents(data.draw(documents_of(system))).policy_sets[system]
    grants, memberships = (
        unpack_grants(pack_grants(policy_set.grants)),
        unpack_memberships(pack_memberships(policy_set.memberships)),
    )
    assert (list(grants.items()), list(memberships.items())) == (
        list(policy_set.grants.items()),
        list(policy_set.memberships.items()),
    )


def test_windows_come_back_and_the_unbounded_one_is_the_one_there_is() -> None:
    """It is compared by identity."""
    spec = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}
    bounded: dict[str, Any] = {"valid_from": 5, "valid_until": 7}
    documents = [
        {"system": "lenses6", "kind": "Role", "name": name, "spec": spec, **more}
        for name, more in (("always", {}), ("sometimes", bounded))
    ]
    back = unpack_grants(pack_grants(policy.compile_documents(documents).policy_sets["lenses6"].grants))
    assert back["role:always"][0].window is ALWAYS
    assert back["role:sometimes"][0].window == Window(5, 7)
