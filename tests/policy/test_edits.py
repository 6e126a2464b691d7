"""What differs between two policy sets, found by what principals hold otherwise, is what a plain comparison finds."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.analysis.diff import Sides, compare
from policy.analysis.edits import edits_between
from policy.analysis.named_in_documents import names_of_documents
from policy.analysis.versions import placeless
from policy.core.pattern import example, matches
from policy.store import compiler as compiling
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from tests.examples import examples
from tests.policy.test_answers import UNHURRIED
from tests.policy.test_compiler import _edit, edits_of
from tests.policy.test_properties import WRITTEN, dated

checked = settings(max_examples=examples(12), deadline=None, suppress_health_check=UNHURRIED)


def _changed(system: str, data: st.DataObject) -> tuple[Snapshot, Snapshot, Snapshot, Snapshot]:
    """Two snapshots, the later one made of the earlier one; and both again, each compiled for itself."""
    store = DocumentStore()
    for order, document in enumerate(data.draw(dated(system))):
        _edit(store, "put", [document], order, True)
    compiler, before = Compiler(store), Snapshot(store)
    old = compiler.snapshot
    for order, (what, given_) in enumerate(data.draw(edits_of(system)), 100):
        _edit(store, what, given_, order, True)
    compiler.compile()
    return old, compiler.snapshot, before, Snapshot(store)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data(), by_change=st.booleans())
def test_the_documents_that_say_something_else(system: str, data: st.DataObject, by_change: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "WHOLE", 0 if by_change else 4)
        old, new, before, after = _changed(system, data)
    expected = _said_otherwise(before.policy_sets[system], after.policy_sets[system])
    for sides in ((old, new), (before, after), (old, after)):
        edits = edits_between(all_systems()[system], *(side.policy_sets[system] for side in sides))
        found = {
            edit.document: tuple(Counter(chain(said.grants, said.memberships)) for said in (edit.before, edit.after))
            for edit in edits
        }
        said = {name: both for name, both in found.items() if both[0] != both[1]}
        assert said == expected


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_the_grants_and_memberships_on_one_side_alone(system: str, data: st.DataObject) -> None:
    old, new, before, after = _changed(system, data)
    assert sorted(map(repr, compare(old, new))) == sorted(map(repr, compare(before, after)))
    sides = Sides(all_systems()[system], old.policy_sets[system], new.policy_sets[system])
    found = Counter((one.difference.sign, one.difference.document) for one in (*sides._grants(), *sides._memberships()))
    expected = _on_one_side(before.policy_sets[system], after.policy_sets[system])
    assert found == Counter((sign, one.statement_id.document) for sign, one in expected)


def _said(policy_set: PolicySet) -> dict[str, Counter[Any]]:
    found: dict[str, Counter[Any]] = {}
    for one in chain(*policy_set.grants.values(), *policy_set.memberships.values()):
        found.setdefault(one.statement_id.document, Counter())[one] += 1
    return found


def _said_otherwise(old: PolicySet, new: PolicySet) -> dict[str, tuple[Counter[Any], Counter[Any]]]:
    """All that documents say is collected on both sides, and compared."""
    before, after = _said(old), _said(new)
    both = {name: (before.get(name, Counter()), after.get(name, Counter())) for name in {*before, *after}}
    return {name: sides for name, sides in both.items() if sides[0] != sides[1]}


def _on_one_side(old: PolicySet, new: PolicySet) -> Iterable[tuple[str, Any]]:
    before, after = (list(chain(*side.grants.values(), *side.memberships.values())) for side in (old, new))
    for sign, here, there in (("removed", before, after), ("added", after, before)):
        others = {placeless(one) for one in there}
        yield from ((sign, one) for one in here if placeless(one) not in others)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_the_index_knows_whose_grants_match_and_which_names_are_matched(system: str, data: st.DataObject) -> None:
    """Compared with every grant, one after the other."""
    _, new, _, _ = _changed(system, data)
    policy_set = new.policy_sets[system]
    held = [grant for grants in policy_set.grants.values() for grant in grants]
    names = [(example(grant.object), example(grant.permission)) for grant in held] or [(("a",), ("b",))]
    permissions = [permission for _, permission in names[:3]]
    known = names_of_documents(policy_set, system)
    for name, _ in names:
        matching = [grant for grant in held if matches(grant.object, name)]
        assert known.is_matched(name) == bool(matching)
        expected = {grant.principal for grant in matching if any(matches(grant.permission, one) for one in permissions)}
        assert set(policy_set.index.principals(permissions, name)) == expected
