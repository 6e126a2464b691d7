"""What cannot be a document is refused and listed; it neither takes others down nor is forgotten."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from policy import Snapshot, compile_documents, decide
from policy.analysis.lint import lint
from policy.evaluation import reference
from policy.systems import all_systems
from policy.systems.kit.system import EVERYONE as EVERY
from tests.examples import examples
from tests.policy.test_properties import documents_of, requests_of

ROLE = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}
NOTHING = {"statements": [{"effect": "deny", "action": "*", "resource": "*"}]}


def _lenses6(kind: str, name: Any, spec: Any, **more: Any) -> dict[str, Any]:
    return {"system": "lenses6", "kind": kind, "name": name, "spec": spec, **more}


def _group(*roles: str) -> dict[str, Any]:
    return _lenses6("Group", "staff", {"roles": list(roles), "members": ["user:dana"]})


def _request(who: str = "user:dana", **properties: Any) -> dict[str, Any]:
    return {
        "id": "r",
        "system": "lenses6",
        "subject": {"type": "user", "id": who, "properties": properties},
        "action": {"name": "iam:ListRoles"},
        "resource": {"type": "lrn", "id": "iam:role:x"},
    }


def _outcome(snapshot: Snapshot, who: str = "user:dana", **properties: Any) -> str:
    """The answer, which is the reference evaluator's too."""
    request = _request(who, **properties)
    outcome = decide(snapshot, request).outcome
    assert outcome == reference.decide(snapshot, request)
    return outcome


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE


@pytest.mark.parametrize(
    "spec", [{1: "a", "b": 2}, {("a", "b"): 1}, {"metadata": CYCLE, "x": 1}, {"metadata": _nested(5000), "x": 1}]
)
def test_a_document_that_no_text_could_hold_is_refused_alone(spec: Any) -> None:
    snapshot = compile_documents([_group("all"), _lenses6("Role", "all", ROLE), _lenses6("Role", "odd", spec)])
    assert [rejected.key for rejected in snapshot.rejected] == ["lenses6/Role/odd"]
    assert _outcome(snapshot) == "allow"


@pytest.mark.parametrize(("name", "role"), [(2024, "2024"), (1.5, "1.5")])
def test_a_document_that_is_refused_for_its_name_binds_whom_it_would_have_bound(name: Any, role: str) -> None:
    """YAML reads `name: 2024` as a number; what it denies must not be lost."""
    documents = [_group("all", role), _lenses6("Role", "all", ROLE), _lenses6("Role", name, NOTHING)]
    snapshot = compile_documents(documents)
    assert [(rejected.key, rejected.errors) for rejected in snapshot.rejected] == [
        (f"lenses6/Role/{role}", ("name: required; must be text that is not empty",))
    ]
    assert _outcome(snapshot) == "error"


@pytest.mark.parametrize("spec", [{1: "a", "b": 2}, {"metadata": CYCLE}, {"metadata": _nested(5000)}])
def test_of_two_documents_that_no_text_could_hold_each_affects_its_principals(spec: Any) -> None:
    """Nothing says that they are the same one: each may have held a deny."""
    people = ("user:dana", "user:ben")
    refused = [_lenses6("Group", "odd", {"roles": ["x"], "members": [who], **spec}) for who in people]
    for documents in (refused, refused[::-1]):
        snapshot = compile_documents([_group("all"), _lenses6("Role", "all", ROLE), *documents])
        assert [_outcome(snapshot, who) for who in people] == ["error", "error"]


def test_a_version_whose_moment_cannot_be_read_leaves_the_good_one_in_force() -> None:
    broken = _lenses6("Role", "all", NOTHING, effective_at="soon")
    for documents in ([_lenses6("Role", "all", ROLE), broken], [broken, _lenses6("Role", "all", ROLE)]):
        snapshot = compile_documents([_group("all"), *documents])
        assert [rejected.key for rejected in snapshot.rejected] == ["lenses6/Role/all"]
        assert _outcome(snapshot) == "allow"


@pytest.mark.parametrize("field", ["effective_at", "valid_from", "valid_until"])
def test_an_empty_moment_is_refused(field: str) -> None:
    """It may have been meant as an end, and would be none."""
    snapshot = compile_documents([_group("all"), _lenses6("Role", "all", ROLE, **{field: None})])
    assert [rejected.errors[0].partition(":")[0] for rejected in snapshot.rejected] == [field]
    assert _outcome(snapshot) == "error"


def _with(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The document with other fields; one that is ``...`` is left out."""
    return {name: value for name, value in {**document, **changes}.items() if value is not ...}


BANNED = {"roles": ["none"], "members": ["user:dana"], "sso_name": "okta-banned"}
BAN = _lenses6("Group", "banned", BANNED)
FREEZE = _lenses6("Role", "none", NOTHING)
OPEN = [
    _lenses6("Role", "all", ROLE),
    _lenses6("Group", "staff", {"roles": ["all"], "members": ["user:dana", "user:erik"]}),
]

GROUPS = {  # a refused Group -> whether its principals cannot be determined, so that erik is answered error too
    "name: true": (_with(BAN, name=True), True),
    "name: a list": (_with(BAN, name=["banned"]), True),
    "name: null": (_with(BAN, name=None), True),
    "name: a float": (_with(BAN, name=1.1), True),
    "name: left out": (_with(BAN, name=...), True),
    "name: empty": (_with(BAN, name=""), True),
    "name: a mapping": (_with(BAN, name={"banned": None}), True),
    "kind: group": (_with(BAN, kind="group"), True),
    "kind: Groups": (_with(BAN, kind="Groups"), True),
    "kind: null": (_with(BAN, kind=None), True),
    "kind: a list": (_with(BAN, kind=["Group"]), True),
    "kind: Role": (_with(BAN, kind="Role"), False),
    "members outside spec": (_with(BAN, spec={"roles": ["none"]}, members=["user:dana"]), False),
    "members under another name": (_with(BAN, spec=_with(BANNED, members=..., users=["user:dana"])), False),
    "members: one text of two": (_with(BAN, spec={**BANNED, "members": "user:dana, user:ben"}), False),
    "members: blanks between": (_with(BAN, spec={**BANNED, "members": "user:ben user:dana"}), False),
    "members: two in one item": (_with(BAN, spec={**BANNED, "members": ["user:ben;user:dana"]}), False),
    "members: a list as text": (_with(BAN, spec={**BANNED, "members": "['user:dana']"}), False),
    "members: bare": (_with(BAN, spec={**BANNED, "members": ["dana"]}), False),
    "members: another case of the prefix": (_with(BAN, spec={**BANNED, "members": ["User:dana"]}), False),
    "members: a blank after the prefix": (_with(BAN, spec={**BANNED, "members": ["user: dana"]}), False),
    "members: a mapping": (_with(BAN, spec={**BANNED, "members": {"user:dana": True}}), False),
    "members: deeper": (_with(BAN, spec={"roles": ["none"], "group": {"all": [{"members": ["user:dana"]}]}}), False),
    "members: in the metadata": (_with(BAN, spec={"rolez": ["none"], "metadata": {"members": ["user:dana"]}}), False),
    "members: a star": (_with(BAN, spec={**BANNED, "members": ["*"]}), True),
    "members: a star behind a prefix": (_with(BAN, spec={**BANNED, "members": ["user:*"], "x": 1}), True),
    "members: a prefix alone": (_with(BAN, spec={**BANNED, "members": ["user:"]}), True),
    "members: no texts": (_with(BAN, spec={**BANNED, "members": [True]}), True),
    "members: true": (_with(BAN, spec={**BANNED, "members": True}), True),
    "spec: a list": (_with(BAN, spec=[BANNED]), False),
    "spec: a text": (_with(BAN, spec="members: [user:dana]"), False),
    "spec: null": (_with(BAN, spec=None), True),
    "spec: left out": (_with(BAN, spec=...), True),
    "spec: a list of numbers": (_with(BAN, spec=[7.5]), True),
}


@pytest.mark.parametrize(("document", "everyone"), GROUPS.values(), ids=GROUPS.keys())
def test_a_refused_group_never_loses_its_deny(document: dict[str, Any], everyone: bool) -> None:
    """Whom it names is answered error, and all of the system where that cannot be determined; nobody else is."""
    snapshot = compile_documents([*OPEN, FREEZE, document])
    assert len(snapshot.rejected) == 1
    assert _outcome(snapshot) == "error"
    assert _outcome(snapshot, "user:erik") == ("error" if everyone else "allow")


SSO = {
    "ssoName": _with(BANNED, sso_name=..., ssoName="okta-banned"),
    "sso_name: a list": {**BANNED, "sso_name": ["okta-banned"]},
    "in the metadata": _with(BANNED, sso_name=..., metadata={"sso": "group:okta-banned"}, x=1),
    "another field is wrong": {**BANNED, "members": ["dana"]},
}


@pytest.mark.parametrize("spec", SSO.values(), ids=SSO.keys())
def test_who_claims_the_name_that_a_refused_group_has_at_the_identity_provider_is_answered_error(spec: Any) -> None:
    snapshot = compile_documents([*OPEN, FREEZE, _with(BAN, spec=spec)])
    assert _outcome(snapshot, "user:erik", groups=["okta-banned"]) == "error"
    assert _outcome(snapshot, "user:erik", groups=["banned"]) == "error"
    assert _outcome(snapshot, "user:erik", groups=["others"]) == "allow"


ROLES = {
    "name: left out": (_with(FREEZE, name=...), True),
    "name: true": (_with(FREEZE, name=True), True),
    "kind: role": (_with(FREEZE, kind="role"), True),
    "kind: Group": (_with(FREEZE, kind="Group"), False),
    "spec: null": (_with(FREEZE, spec=None), False),
    "spec: a list": (_with(FREEZE, spec=[NOTHING]), False),
    "statements: a mapping": (_with(FREEZE, spec={"statements": NOTHING["statements"][0]}), False),
    "statements outside spec": (_with(FREEZE, spec=..., statements=NOTHING["statements"]), False),
}


@pytest.mark.parametrize(("document", "everyone"), ROLES.values(), ids=ROLES.keys())
def test_a_refused_role_never_loses_its_deny(document: dict[str, Any], everyone: bool) -> None:
    """A role names no principal: it is held through its name, so without one nobody knows who holds it."""
    snapshot = compile_documents([*OPEN, BAN, document])
    assert len(snapshot.rejected) == 1
    assert _outcome(snapshot) == "error"
    assert _outcome(snapshot, "user:erik") == ("error" if everyone else "allow")


@pytest.mark.parametrize("system", ["lenses 6", "Lenses6", "", None, 6, ["lenses6"], ...])
def test_a_document_of_an_unknown_system_leaves_no_request_an_answer(system: Any) -> None:
    """It may have been meant for any of them."""
    snapshot = compile_documents([*OPEN, _with(FREEZE, system=system)])
    assert _outcome(snapshot) == "error"
    assert all(EVERY in policy_set.broken for policy_set in snapshot.policy_sets.values())


@pytest.mark.parametrize("value", [None, "text", 7, [], [FREEZE]])
def test_what_is_no_document_at_all_leaves_no_request_an_answer(value: Any) -> None:
    assert _outcome(compile_documents([*OPEN, value])) == "error"


@pytest.mark.parametrize("system", all_systems())
def test_a_document_of_an_unknown_kind_or_without_a_name_takes_its_own_system_alone(system: str) -> None:
    for document in ({"kind": "Grop", "name": "x"}, {"kind": None, "name": "x"}, {"kind": "Grop"}):
        snapshot = compile_documents([{"system": system, "spec": {}, **document}])
        assert {name for name, policy_set in snapshot.policy_sets.items() if EVERY in policy_set.broken} == {system}
    for kind in all_systems()[system].kinds:
        snapshot = compile_documents([{"system": system, "kind": kind, "name": None, "spec": {}}])
        assert {name for name, policy_set in snapshot.policy_sets.items() if EVERY in policy_set.broken} == {system}


def test_a_refused_document_names_principals_in_the_words_of_its_system() -> None:
    """Systems without prefixes in their documents too; what is beside the principals binds nobody else."""
    wrong = [
        {"system": "cdap", "kind": "Grant", "name": "g", "spec": {"users": "dana,erik", "entity": "dataset:d"}},
        {"system": "ververica", "kind": "InitialAccess", "name": "a", "spec": {"access": {"userId": "dana"}}},
        {"system": "lenses5", "kind": "Group", "name": "g", "spec": {"member": ["dana"]}},
    ]
    snapshot = compile_documents(wrong)
    for system in ("cdap", "ververica", "lenses5"):
        broken = snapshot.policy_sets[system].broken
        assert "user:dana" in broken
        assert not {EVERY, "user:mona"} & broken.keys()


KAFKA_DENY = {"principal": "User:CN=dana,OU=shop", "operation": "Read", "permission": "DENY", "resource_type": "Topic"}


@pytest.mark.parametrize(
    "entries",
    [
        [{**KAFKA_DENY, "name": "a", "hosts": "*"}],
        str([{**KAFKA_DENY, "name": "a"}]),
        [{**KAFKA_DENY, "name": "a", "principal": "CN=dana,OU=shop"}],
        [{**KAFKA_DENY, "name": "a", "principal": ["User:CN=dana,OU=shop"]}],
    ],
)
def test_a_refused_deny_of_kafkas_affects_the_principal_and_not_those_of_other_names(entries: Any) -> None:
    """A star for all hosts or all names is no principal."""
    allow = [{"principal": "User:*", "operation": "Read", "resource_type": "Topic", "name": "a"}]
    documents = [
        {"system": "kafka-acls", "kind": "Acls", "name": name, "spec": {"entries": said}}
        for name, said in (("open", allow), ("closed", entries))
    ]
    snapshot = compile_documents(documents)
    assert [rejected.key for rejected in snapshot.rejected] == ["kafka-acls/Acls/closed"]
    asked = {"system": "kafka-acls", "action": {"name": "Read"}, "resource": {"type": "Topic", "id": "a"}, "id": "r"}
    for who, outcome in (("User:CN=dana,OU=shop", "error"), ("User:CN=erik,OU=shop", "allow"), ("User:erik", "allow")):
        request = {**asked, "subject": {"type": "user", "id": who}}
        assert decide(snapshot, request).outcome == reference.decide(snapshot, request) == outcome


ENTRY = {**KAFKA_DENY, "name": "a"}
UNCLEAR = {
    "entries: null": None,
    "an entry: null": [ENTRY, None],
    "an entry alone": _with(ENTRY, principal=...),
    "principal: left out": [ENTRY, _with(ENTRY, principal=...)],
    "principal: null": [_with(ENTRY, principal=None)],
    "principal: empty": [_with(ENTRY, principal="")],
    "principal: a star": [_with(ENTRY, principal="*")],
    "principal: a star of another type": [_with(ENTRY, principal="user:*", hosts="*")],
    "principal: a star in a list": [_with(ENTRY, principal=["*"])],
    "principal: a star in a mapping": [_with(ENTRY, principal={"type": "User", "name": "*"})],
    "principal: a type alone": [_with(ENTRY, principal="User:")],
    "principals: a star": [_with(ENTRY, principal=..., principals="*")],
}


@pytest.mark.parametrize("entries", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_a_refused_deny_of_kafkas_that_names_no_principal_may_be_about_any(entries: Any) -> None:
    allow = [{"principal": "User:*", "operation": "Read", "resource_type": "Topic", "name": "a"}]
    documents = [
        {"system": "kafka-acls", "kind": "Acls", "name": name, "spec": {"entries": said}}
        for name, said in (("open", allow), ("closed", entries))
    ]
    snapshot = compile_documents(documents)
    assert [rejected.key for rejected in snapshot.rejected] == ["kafka-acls/Acls/closed"]
    request = {
        "id": "r",
        "system": "kafka-acls",
        "subject": {"type": "user", "id": "User:erik"},
        "action": {"name": "Read"},
        "resource": {"type": "Topic", "id": "a"},
    }
    assert decide(snapshot, request).outcome == reference.decide(snapshot, request) == "error"


def test_the_reason_says_which_document_and_until_when() -> None:
    snapshot = compile_documents([*OPEN, _with(FREEZE, kind="role")])
    (reason,) = decide(snapshot, _request()).reasons
    assert reason.code == "refused-document"
    assert reason.message == (
        "lenses6/role/none was refused, has no earlier good version, and whom it affects cannot be determined: "
        "correct or delete it, until then all requests are errors"
    )


def test_of_two_refused_documents_the_first_is_named_also_where_one_is_refused_for_a_time() -> None:
    banned = {**BAN, "members": ["user:dana"]}
    first = [{**banned, "name": "a", "effective_at": 1}, {**BAN, "name": "a", "effective_at": 2_000_000_000_000}]
    snapshot = compile_documents([*OPEN, *first, {**banned, "name": "b"}])
    for at, named in ((5, "lenses6/Group/a"), (2_000_000_000_001, "lenses6/Group/b")):
        (reason,) = decide(snapshot, {**_request(), "time": at}).reasons
        assert reason.message.startswith(f"{named} was refused")


def test_lint_says_what_a_refused_document_closes() -> None:
    findings = lint([*OPEN, _with(FREEZE, kind="role"), _with(FREEZE, system="lenses 6"), {**BAN, "spec": {"role": 1}}])
    closed = {finding.document: finding.message for finding in findings if finding.code == "answers-error"}
    assert closed == {
        "lenses6/role/none": "every request of lenses6 is answered error until it is corrected or deleted",
        "lenses 6/Role/none": "every request of every system is answered error until it is corrected or deleted",
    }
    assert {f.level for f in findings if f.code == "answers-error"} == {"error"}


def test_a_good_document_in_its_place_lifts_it() -> None:
    broken = {**BAN, "effective_at": 5, "members": 1}
    assert [_outcome(compile_documents([*OPEN, *good])) for good in ([broken], [BAN, broken])] == ["error", "allow"]


def _wrap(value: Any) -> list[Any]:
    return [value]


def _in_mapping(value: Any) -> dict[str, Any]:
    return {"value": value}


def _as_text(value: Any) -> str:
    return str(value)


KEEPING: tuple[Callable[[Any], Any], ...] = (_wrap, _in_mapping, _as_text)
WRONG: tuple[Callable[[Any], Any], ...] = (
    *KEEPING,
    lambda _: None,
    lambda _: True,
    lambda _: 7,
    lambda _: [],
    lambda _: {},
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, part in items for place in _places(part, (*path, name)))]


@st.composite
def _broken(draw: st.DrawFn, document: dict[str, Any], wrong: Sequence[Callable[[Any], Any]] = WRONG) -> Any:
    """The document with some values of a wrong type, renamed or moved."""
    found: Any = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from([place for place in _places(found) if place] or [()])) or (None,)
        inner = found
        for name in path:
            inner = inner[name]
        change = draw(st.sampled_from(("type", "name", "move")))
        if last is None:
            return found
        if change == "type" or isinstance(inner, list):
            inner[last] = draw(st.sampled_from(wrong))(inner[last])
        else:
            value = inner.pop(last)
            if change == "name":
                inner[draw(st.sampled_from((last.upper(), f"{last}s", f" {last}", f"{last}Name")))] = value
            else:
                found[last] = value
    return found


@pytest.mark.parametrize("document", [BAN, FREEZE], ids=["Group", "Role"])
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_no_way_to_break_a_document_takes_its_deny_away(document: dict[str, Any], data: st.DataObject) -> None:
    """What a good document denies, no refused one opens: to a member, and to who claims the group."""
    broken = data.draw(_broken(document))
    others = [BAN] if document is FREEZE else [FREEZE]
    snapshot = compile_documents([*OPEN, *others, broken])
    if snapshot.rejected and _is_named(broken):
        assert _outcome(snapshot) != "allow", broken


def _is_named(broken: Any) -> bool:
    """Whether a broken group still names dana anywhere; a role never does, and is held through its name."""
    return "Role" in str(broken) or "dana" in str(broken)


@pytest.mark.parametrize("system", all_systems())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_refused_document_opens_what_the_good_one_closed(system: str, data: st.DataObject) -> None:
    """Whatever is misplaced, renamed or wrapped in one document of a system, with all that it says still there."""
    documents, request = data.draw(documents_of(system).filter(bool)), data.draw(requests_of(system))
    names = [(document["kind"], document["name"]) for document in documents]
    alone = [number for number, name in enumerate(names) if names.count(name) == 1]
    assume(alone)  # below a refused version of several, the last good one stays
    place = data.draw(st.sampled_from(alone))
    broken = data.draw(_broken(documents[place], KEEPING))
    before = compile_documents(documents)
    after = compile_documents([*documents[:place], broken, *documents[place + 1 :]])
    if len(after.rejected) > len(before.rejected):
        outcome = decide(after, request).outcome
        assert outcome == reference.decide(after, request)
        assert outcome != "allow" or decide(before, request).outcome == "allow", broken
