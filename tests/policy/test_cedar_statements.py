"""Cedar policies are compared by what Cedar parsed: text that looks alike may decide otherwise, and the reverse."""

import json
from typing import Any

import cedarpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import DocumentStore, Snapshot, Work, all_systems, compile_documents, decide, identify
from policy.analysis import Edit, analyse, compare, document_contents, said
from tests.examples import examples
from tests.policy.strategies import cedar as strategies

ASKED = {
    "id": "r",
    "system": "cedar",
    "subject": {"type": "User", "id": "a b"},
    "action": {"name": "read"},
    "resource": {"type": "Doc", "id": "plan"},
}

SWITCHED = [  # each first denies the request, or has a forbid that holds, and the second allows it
    (
        "permit(principal, action, resource) when { true //\n && false\n };",
        "permit(principal, action, resource) when { true // && false\n };",
    ),
    ('permit(principal == User::"a  b", action, resource);', 'permit(principal == User::"a b", action, resource);'),
    (
        'permit(principal, action, resource) when { "a\tb" == "a b" };',
        'permit(principal, action, resource) when { "a b" == "a b" };',
    ),
    (
        'permit(principal, action, resource) when { "a\nb" == "a b" };',
        'permit(principal, action, resource) when { "a b" == "a b" };',
    ),
    (
        "permit(principal, action, resource) when { 2 - 1 - 1 == 2 };",
        "permit(principal, action, resource) when { 2 - (1 - 1) == 2 };",
    ),
    (
        r'permit(principal, action, resource) when { "ab" like "a\*" };',
        'permit(principal, action, resource) when { "ab" like "a*" };',
    ),
    (
        r'permit(principal, action, resource) when { "\\n" == "\n" };',
        r'permit(principal, action, resource) when { "\n" == "\n" };',
    ),
]
OPEN = "permit(principal, action, resource);"
SAME = [
    ("permit(principal, action, resource);", "  permit (principal,\n action, // all\n resource ) ;"),
    (
        'permit(principal == User::"ab", action, resource);',
        r'permit(principal == User::"\u{61}\x62", action, resource);',
    ),
    (
        "permit(principal, action, resource) when { true };",
        '@id("x") @note("n")\npermit(principal,action,resource)when{true};',
    ),
    (
        "permit(principal, action, resource) when { 1 == 2 && true };",
        "permit(principal, action, resource) when {(((1)==2))&&(true)};",
    ),
    (
        'permit(principal, action in [Action::"a", Action::"b"], resource);',
        'permit(principal, action in [Action::"b", Action::"a", Action::"b"], resource);',
    ),
    (
        "permit(principal, action, resource) when { {a: 1, b: 2} == {a: 1, b: 2} };",
        "permit(principal, action, resource) when { {b: 2, a: 1} == {a: 1, b: 2} };",
    ),
    (
        f'{OPEN} forbid(principal == User::"eve", action, resource);',
        f'forbid(principal == User::"eve", action, resource); {OPEN}',
    ),
]


def document(policies: str, name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"system": "cedar", "kind": "PolicySet", "name": name, "spec": {"policies": policies, **spec}}


def widened(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The kinds of what a change widens."""
    stores = DocumentStore(), DocumentStore()
    for store, one in zip(stores, (before, after), strict=True):
        assert store.put(one) is None
    key = identify(before)
    edit = Edit(str(key), *(said(store.histories[key]) for store in stores))
    policy_set = Snapshot(stores[1]).policy_sets["cedar"]
    return [one.kind for one in analyse(all_systems()["cedar"], policy_set, [edit], 0, Work()).widenings.found]


def contents(one: dict[str, Any]) -> set[Any]:
    """By what the statements of a document are compared."""
    store = DocumentStore()
    assert store.put(one) is None
    return set(document_contents("cedar", said(store.histories[identify(one)])))


@pytest.mark.parametrize(("denied", "allowed"), SWITCHED)
def test_a_change_that_turns_an_answer_is_a_difference_however_alike_the_texts_are(denied: str, allowed: str) -> None:
    """White space in strings, ends of comments, brackets and escapes."""
    before, after = document(denied), document(allowed)
    old, new = compile_documents([before]), compile_documents([after])
    assert [decide(side, ASKED).outcome for side in (old, new)] == ["deny", "allow"]
    assert [(one.sign, one.widens) for one in compare(old, new)] == [("removed", False), ("added", True)]
    assert widened(before, after) == ["allowed"]
    assert contents(before).isdisjoint(contents(after))


def test_a_forbid_that_says_less_by_a_blank_is_lifted() -> None:
    before, after = (
        document(f'{OPEN} forbid(principal == User::"a{blank}b", action, resource);') for blank in (" ", "  ")
    )
    assert [decide(compile_documents([one]), ASKED).outcome for one in (before, after)] == ["deny", "allow"]
    assert widened(before, after) == ["deny-lifted"]
    assert [one.sign for one in compare(compile_documents([before]), compile_documents([after])) if one.widens] == [
        "removed"
    ]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_policies_that_cedar_parses_alike_are_no_difference(one: str, other: str) -> None:
    """Blanks, comments, escapes, brackets, annotations and order: an alert for them would be a false accusation."""
    before, after = document(one), document(other)
    assert compare(compile_documents([before]), compile_documents([after])) == []
    assert widened(before, after) == widened(after, before) == []
    assert contents(before) == contents(after)


def test_a_link_is_what_its_template_says_with_the_slots_filled() -> None:
    """Each of two links counts, and one does what the policy does that names its entity."""

    def linked(*names: str) -> dict[str, Any]:
        values = ({"?principal": {"type": "User", "id": name}} for name in names)
        links = [{"templateId": "t", "newId": f"l{number}", "values": one} for number, one in enumerate(values)]
        return document('@id("t") permit(principal == ?principal, action, resource) when { true };', links=links)

    plain = document('permit(principal == User::"ann", action, resource) when { true };')
    assert contents(linked("ann")) == contents(plain)
    assert widened(plain, linked("ann")) == []
    assert widened(linked("ann"), linked("ann", "eve")) == ["allowed"]
    assert widened(linked("ann", "eve"), linked("eve", "ann")) == []


def test_a_statement_is_shown_in_one_line_with_its_strings_as_they_are() -> None:
    text = 'permit(principal, action, resource) // all\n\twhen { "a  //b\n" == context.x };'
    [shown] = compare(compile_documents([]), compile_documents([document(text)]))
    assert shown.text == 'permit(principal, action, resource) when { "a  //b\\n" == context.x };'


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(strategies.policies(), min_size=1, max_size=2), st.lists(strategies.policies(), min_size=1, max_size=2))
def test_statements_are_equal_where_the_library_parses_them_alike(one: list[str], other: list[str]) -> None:
    """By its JSON form without annotations."""

    def parsed(texts: list[str]) -> set[str]:
        found = json.loads(cedarpy.policies_to_json_str("\n".join(texts)))["staticPolicies"].values()
        return {json.dumps({**policy, "annotations": {}}, sort_keys=True) for policy in found}

    assert len(contents(document("\n".join(one)))) == len(parsed(one)) or "action in [" in "".join(one)
    if parsed(one) == parsed(other):
        assert contents(document("\n".join(one))) == contents(document("\n".join(other)))
    elif "action in [" not in "".join((*one, *other)):  # where order does not count
        assert contents(document("\n".join(one))) != contents(document("\n".join(other)))
