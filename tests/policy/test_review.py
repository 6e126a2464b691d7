"""What a review says of a change of policies: what it opens, what an allow-list covers, who gains and who loses."""

from typing import Any

import pytest

from policy import compile_documents
from policy.analysis import MayWiden, Widening, compare, read_may_widen, review
from tests.policy.test_widening import group, role

WIDE = Widening("role:r", "kafka:Get*", "kafka:topic:prod/*", "lenses6/Role/r", 0)


@pytest.mark.parametrize(
    ("entry", "covers"),
    [
        (MayWiden(who="role:*"), True),
        (MayWiden(resource="kafka:topic:prod/*"), True),
        (MayWiden(resource="kafka:topic:*", action="kafka:*"), True),
        (MayWiden(resource="kafka:topic:prod/a*"), False),
        (MayWiden(resource="kafka:topic:prod/?"), False),
        (MayWiden(action="kafka:GetTopic*"), False),
        (MayWiden(who="role:*", document="lenses6/Group/*"), False),
        (MayWiden(resource="topic:prod/*"), False),
    ],
)
def test_an_entry_covers_a_widening_that_lies_in_it_whole(entry: MayWiden, covers: bool) -> None:
    """A pattern that is wider than the entry's is not covered: the star of a policy is matched by a star alone."""
    assert entry.covers(WIDE) is covers


@pytest.mark.parametrize("text", ["- {reason: all}", "- {whom: a}", "who: a\n---\nwho: 7", "3"])
def test_an_allow_list_that_says_nothing_or_is_misspelt_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_may_widen(text)


def test_an_allow_list_may_be_empty() -> None:
    assert read_may_widen("[]") == read_may_widen("") == ()


def test_a_widening_fails_unless_it_is_allowed_and_who_gains_and_loses_is_named() -> None:
    old = compile_documents([role("r", "kafka:topic:a/*"), group("g", ["r"], "user:dana"), group("h", [], "user:eve")])
    new = compile_documents(
        [role("r", "kafka:topic:b/*"), group("g", ["r"], "user:dana"), group("h", ["r"], "user:eve")]
    )
    found = review(old, new)
    assert {(one.who, one.resource) for one in found.refused} == {
        ("role:r", "kafka:topic:b/*"),
        ("group:h", "kafka:topic:b/*"),
    }
    people = {one.name: (bool(one.gains), bool(one.loses)) for one in found.people()}
    assert people["user:dana"] == (True, True)
    assert people["user:eve"] == (True, False)
    assert review(old, new, [MayWiden(resource="kafka:topic:b/*")]).refused == ()
    assert len(review(old, new, [MayWiden(who="group:*")]).refused) == 1


def test_an_entry_for_a_document_covers_what_its_own_change_opens() -> None:
    """An entry for a role covered new members of it, which the change of another document made."""
    roles = [role("r", "kafka:topic:a/*")]
    old = compile_documents([*roles, group("g", ["r"], "user:dana")])
    joined = compile_documents([*roles, group("g", ["r"], "user:dana", "user:eve")])
    wider = compile_documents([role("r", "kafka:*"), group("g", ["r"], "user:dana")])
    of_role, of_group = MayWiden(document="lenses6/Role/r"), MayWiden(document="lenses6/Group/g")
    assert [one.who for one in review(old, joined, [of_role]).refused] == ["user:eve"]
    assert review(old, joined, [of_group]).refused == ()
    assert review(old, wider, [of_role]).refused == ()
    assert review(old, wider, [of_group]).refused


def test_an_entry_for_a_connection_does_not_cover_one_whose_name_goes_on_after_a_slash() -> None:
    """Parts were joined by slashes as they are: the dataset prod/x of dev, and x of dev/prod, were one text."""

    def namespace(connection: str, dataset: str) -> dict[str, Any]:
        namespaces = [{"connection": connection, "type": "Kafka", "datasets": [dataset], "permissions": ["ShowTopic"]}]
        return {"system": "lenses5", "kind": "Group", "name": "g", "spec": {"namespaces": namespaces}}

    nothing, entry = compile_documents([]), MayWiden(resource="dataset/dev/*")
    meant = review(nothing, compile_documents([namespace("dev", "prod/x")]), [entry])
    assert [is_allowed for _, is_allowed in meant.widenings] == [True, True]
    other = review(nothing, compile_documents([namespace("dev/5%", "x")]), [entry]).refused
    assert {one.resource for one in other} == {"dataset/dev%2F5%25/x"}


def test_a_change_that_opens_nothing_passes() -> None:
    wide, narrow = [role("r", "kafka:*")], [role("r", "kafka:topic:a/*")]
    assert review(compile_documents(wide), compile_documents(narrow)).widenings == ()


def banned(*statements: dict[str, Any]) -> list[dict[str, Any]]:
    """A role with these statements and one member."""
    return [
        {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": list(statements)}},
        group("g", ["r"], "user:dana"),
    ]


def test_nobody_gains_by_an_allow_that_a_deny_takes_away_whole() -> None:
    allow = {"effect": "allow", "action": "kafka:Get*", "resource": "kafka:topic:a/*"}
    deny = {"effect": "deny", "action": "kafka:*", "resource": "kafka:topic:*"}
    found = review(compile_documents(banned(deny)), compile_documents(banned(deny, allow)))
    assert (found.widenings, found.people()) == ((), [])
    lifted = review(compile_documents(banned(deny, allow)), compile_documents(banned(allow)))
    assert {one.kind for one in lifted.refused} == {"deny-lifted"}
    assert [one.name for one in lifted.people() if one.gains] == ["claim:g", "user:dana"]


READ = 'action == Action::"read"'
READS = f"permit(principal*, {READ}, resource*"
STAFF = f'permit(principal in Group::"*", {READ}, resource);'
LINKED = 'permit(principal == ?principal, action*, resource); ?principal = Group::"*"'
ALL = "permit(principal, action, resource)"


@pytest.mark.parametrize(
    ("pattern", "text", "covers"),
    [
        (READS, f'permit(principal is User in Group::"a (b", {READ}, resource is Doc) when {{ true }};', True),
        (READS, f"{ALL} when {{ [true, {READ}, resource in a] }};", False),
        (READS, f"{ALL} when {{ f(true, {READ}, resource) }};", False),
        (f"*{READS}", f'@id("a") @note("(") permit(principal, {READ}, resource);', True),
        (f"*{READS}", f'@id(", action == Action::") {ALL};', False),
        (f"*{READS}", f"{ALL} when {{ permit(principal, {READ}, resource) }};", False),
        ("*action == Action::read*", f'@id("action == Action::read") {ALL};', False),
        (STAFF, f'permit(principal in Group::"s\\"t", {READ}, resource);', True),
        (STAFF, f'permit(principal in Group::"s", action, resource == Doc::"", {READ}, resource);', False),
        ("permit(principal, action in *, resource);", 'permit(principal, action in [A::"a", A::"b"], resource);', True),
        ("permit(principal, action in [*], x);", 'permit(principal, action in [A::"a"], [B::"b"], x);', False),
        (LINKED, 'permit(principal == ?principal, action, resource); ?principal = Group::"a"', True),
        (LINKED, 'permit(principal == ?principal, action, resource); ?principal = User::"", Group::"a"', False),
        ("permit(*", f"{ALL} when {{ true }};", True),
        ("*", f"{ALL} when {{ true }};", True),
    ],
)
def test_a_star_in_the_text_of_a_statement_stays_within_its_brackets_and_its_string(
    pattern: str, text: str, covers: bool
) -> None:
    """The author of the policy writes that text: by a condition that looks like a scope it was covered as one."""
    assert MayWiden(action=pattern).covers(Widening("*", text, "", "cedar/PolicySet/p", 0)) is covers


def cedar(name: str, policies: str) -> dict[str, Any]:
    """A PolicySet document."""
    return {"system": "cedar", "kind": "PolicySet", "name": name, "spec": {"policies": policies}}


def test_an_entry_for_a_scope_does_not_cover_a_condition_that_reads_like_it() -> None:
    old = compile_documents([cedar("p", 'forbid (principal == User::"x", action, resource);')])
    other = f"{ALL} when {{ [principal, {READ}, resource].contains(principal) }};"
    new = compile_documents([cedar("p", f'forbid (principal == User::"x", action, resource); {other}')])
    assert [one.action for one in review(old, new, [MayWiden(action=READS)]).refused] == [other]


def test_what_a_fact_opens_is_not_known_so_its_name_covers_nothing() -> None:
    """The name is that of a document or an entity: its author passed an entry for resources of this name."""
    entities = [{"uid": {"type": "User", "id": "eve"}, "parents": [{"type": "Group", "id": "admins"}]}]
    new = compile_documents(
        [{"system": "cedar", "kind": "Entities", "name": "payments", "spec": {"entities": entities}}]
    )
    entries = {"resource": ("*payments*", "Entity *"), "who": ("user:*",), "action": ("kafka:*",)}
    for field, patterns in entries.items():
        for pattern in patterns:
            assert review(compile_documents([]), new, [MayWiden(**{field: pattern})]).refused
    for entry in (MayWiden(document="cedar/Entities/pay*"), MayWiden(who="*", action="*", resource="*")):
        assert review(compile_documents([]), new, [entry]).refused == ()


@pytest.mark.parametrize("system", ["lenses6", "cedar"])
def test_a_document_that_is_refused_for_less_time_widens(system: str) -> None:
    """In files, versions of a document begin at moments of their own: outside of these requests are no errors."""
    if system == "cedar":
        rest, bad = [cedar("p", f"{ALL};")], cedar("bad", "forbid")
        good = cedar("bad", 'forbid (principal == User::"x", action, resource);')
    else:
        rest = [role("r", "kafka:topic:a/b/c"), group("g", ["r", "bad"], "user:dana")]
        bad, good = role("bad", "kafka:topic:a/b/c", "forbid"), role("bad", "kafka:topic:b/*", "deny")

    def is_lifted(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
        old, new = compile_documents([*rest, *before]), compile_documents([*rest, *after])
        lifted = [one for one in review(old, new).refused if one.statement is None]
        assert not lifted or any(one.widens for one in compare(old, new))
        return bool(lifted)

    at = lambda document, moment: {**document, "effective_at": moment}  # noqa: E731
    assert is_lifted([bad], [at(bad, 4)])
    assert is_lifted([at(bad, 4)], [at(bad, 5)])
    assert is_lifted([bad, at(good, 5)], [bad, at(good, 4)])
    assert is_lifted([bad], [bad, at(good, 4)])
    assert not is_lifted([bad, at(good, 4)], [bad, at(good, 5)])
    assert not is_lifted([bad, at(good, 4)], [bad])
