"""Who can, and what can: the answers that the properties cannot pin down."""

import itertools
import re
from typing import Any

import pytest

import policy
from policy.analysis.impact import Reach, Who, what_can, what_subject_can, who_can
from policy.analysis.nearest_grants import nearest_grants
from policy.analysis.resource_access import ResourceQuestion
from policy.analysis.review import review
from policy.analysis.unknown_names import unknown_subject
from policy.core.model import ALLOW, DENY, Grant, StatementId
from policy.core.pattern import EVERYTHING
from policy.core.request import MalformedRequest
from policy.store.delta import PolicySetChange
from policy.store.policy_set import PolicySet
from policy.systems.kit.system import EVERYONE
from tests.policy.test_lint import READ, group, role
from tests.policy.test_tree import ASK

BAN = ("deny", "kafka:*", "kafka:topic:a/*")
PART = ("deny", "kafka:ReadTopicData", "kafka:topic:a/b/*")


def members(name: str, roles: list[str], *who: str) -> dict[str, Any]:
    """A group with members."""
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": roles, "members": list(who)}}


def test_members_and_claims_are_found_and_those_who_are_denied_are_not() -> None:
    """A member of a second group with a deny is left out."""
    documents = [
        members("readers", ["reads"], "user:dana", "service-account:ci", "user:erik"),
        members("banned", ["bans"], "user:erik"),
        role("reads", READ),
        role("bans", BAN),
    ]
    reach = who_can(policy.compile_documents(documents), ASK)
    assert reach.allowed == (Who("service-account:ci"), Who("user:dana"), Who("readers", "groups"))
    assert (reach.everyone, reach.but) == (False, ())


def test_where_everyone_may_it_is_said() -> None:
    """With StreamSets' enforcement off a stranger may too."""
    open_ = {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcement": False}}
    job = {
        "system": "streamsets",
        "kind": "Object",
        "name": "job:j",
        "spec": {"type": "job", "owner": "rita", "acl": {}},
    }
    request = {
        **ASK,
        "system": "streamsets",
        "action": {"name": "job.view"},
        "resource": {"type": "job", "id": "job:j"},
        "subject": {"type": "user", "id": "anyone"},
        "time": 5,
    }
    snapshot = policy.compile_documents([open_, job])
    assert who_can(snapshot, request).everyone


def _streamsets() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two organizations, so that a request must say to which its subject belongs."""
    documents = [
        {"system": "streamsets", "kind": "Organization", "name": name, "spec": {"enforcement": True}}
        for name in ("acme", "other")
    ]
    spec = {
        "type": "job",
        "owner": "rita",
        "organization": "acme",
        "acl": {"user:uma": ["READ"], "group:ops": ["READ"]},
    }
    documents.append({"system": "streamsets", "kind": "Object", "name": "job:j", "spec": spec})
    subject = {"type": "user", "id": "uma", "properties": {"organization": "acme", "groups": ["nobody"]}}
    about = {"action": {"name": "job.view"}, "resource": {"type": "job", "id": "job:j"}}
    return documents, {**ASK, "system": "streamsets", "subject": subject, "time": 5, **about}


def test_who_can_asks_for_subjects_with_the_properties_that_the_request_gives() -> None:
    """An organization means its members; what a subject claims of itself is another's own affair."""
    documents, request = _streamsets()
    snapshot = policy.compile_documents(documents)
    assert policy.decide(snapshot, request).allowed
    allowed = who_can(snapshot, request).allowed
    assert {Who("uma"), Who("rita"), Who("ops", "groups")} <= set(allowed)
    assert Who("nobody", "groups") not in allowed
    request["subject"]["properties"]["organization"] = "other"
    assert who_can(snapshot, request).allowed == ()


def test_who_claims_a_role_of_an_organization_is_listed_by_the_roles_own_name() -> None:
    """A claim is of the role, and the subject's organization says whose: SS-ADMIN-FULL, SS-ENG-DEFAULT."""
    documents, request = _streamsets()
    administrator = Who("Organization Administrator", "roles")
    assert administrator in who_can(policy.compile_documents(documents), request).allowed
    request["subject"]["properties"]["organization"] = "other"
    assert who_can(policy.compile_documents(documents), request).allowed == ()
    del documents[1], request["subject"]["properties"]["organization"]
    snapshot = policy.compile_documents(documents)
    assert administrator in who_can(snapshot, request).allowed
    rows = itertools.chain.from_iterable(ResourceQuestion(snapshot, "streamsets", [request]).answers())
    assert administrator in {row.who for row in rows}
    [nearest] = nearest_grants(snapshot, {**request, "subject": {"type": "user", "id": "eve"}})
    assert nearest is not None
    assert administrator in nearest.principals
    engine = {"type": "engine", "owner": "rita"}
    documents.append({"system": "streamsets", "kind": "Object", "name": "engine:e", "spec": engine})
    asked = {**request, "action": {"name": "engine.view"}, "resource": {"type": "engine", "id": "engine:e"}}
    allowed = who_can(policy.compile_documents(documents), asked).allowed
    assert {administrator, Who("Auth Token Administrator", "roles")} <= set(allowed)
    assert who_can(policy.compile_documents(documents), asked, trust=frozenset()).allowed == (Who("rita"),)


def test_nothing_is_held_in_an_organization_that_is_not_the_subjects() -> None:
    """Neither shares nor what everyone has there, as its enforcement is off (SS-Q16)."""
    documents, request = _streamsets()
    documents.append({"system": "streamsets", "kind": "Organization", "name": "open", "spec": {}})
    snapshot = policy.compile_documents(documents)
    documents_of: dict[str, set[str]] = {}
    for organization in ("acme", "other", "open", ""):
        request["subject"]["properties"] = {"organization": organization} if organization else {}
        documents_of[organization] = {
            permission.grant.statement_id.document for permission in what_can(snapshot, request)
        }
    job, switch = "streamsets/Object/job:j", "streamsets/Organization/open"
    assert documents_of == {"acme": {job}, "other": set(), "open": {switch}, "": {job, switch}}
    refused = {"system": "streamsets", "kind": "Organization", "name": "bad", "spec": {"enforcement": "off"}}
    request["subject"]["properties"] = {"organization": "acme"}
    assert what_can(policy.compile_documents([*documents, refused]), request) != ()


def test_an_unknown_system_has_nobody_and_a_batch_is_refused() -> None:
    """Neither is an empty success by accident."""
    snapshot = policy.compile_documents([])
    assert who_can(snapshot, {**ASK, "system": "none"}).allowed == ()
    with pytest.raises(MalformedRequest, match="not for a batch"):
        who_can(snapshot, {**ASK, "evaluations": [{}]})


def test_what_a_subject_holds_is_listed_with_the_denies_that_meet_it() -> None:
    """A deny of all of it cancels, a deny of a part narrows."""
    documents = [group("g", "reads", "part"), role("reads", READ), role("part", PART)]
    reads, part = reversed(what_can(policy.compile_documents(documents), ASK))
    assert (reads.route, reads.cancelled_by, reads.narrowed_by) == ("claim:g → group:g → role:reads", (), (part.grant,))
    assert (part.cancelled_by, part.narrowed_by) == ((), ())
    documents = [group("g", "reads", "bans"), role("reads", READ), role("bans", BAN)]
    bans, reads = what_can(policy.compile_documents(documents), ASK)
    assert (reads.cancelled_by, reads.narrowed_by) == ((bans.grant,), ())


def test_those_who_are_denied_what_everyone_else_may_are_named() -> None:
    """A ban concerns no unknown principals, so those it meets are listed beside "everyone"; who errs is not."""
    everything = (EVERYTHING, EVERYTHING, StatementId("x"))
    grants = (Grant(EVERYONE, ALLOW, *everything), Grant("user:dana", DENY, *everything))
    snapshot = policy.compile_documents([])
    snapshot.policy_sets["lenses6"] = PolicySet().with_change(PolicySetChange(grants=grants))
    reach = who_can(snapshot, ASK, also=["user:erik", "malformed"])
    assert reach == Reach((Who("user:erik"),), True, (Who("user:dana"),))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_those_whom_a_refused_document_names_may_not_what_everyone_else_may(elsewhere: bool) -> None:
    """Their requests are errors, as it may have held a deny; also where no other document names them."""
    entry = {"host": "*", "operation": "Read", "resource_type": "Topic", "name": "t", "pattern_type": "LITERAL"}
    allow, deny = ({**entry, "permission": permission} for permission in ("ALLOW", "DENY"))
    of_others = [{**allow, "principal": "User:*"}, *([{**allow, "principal": "User:erik"}] if elsewhere else [])]
    documents = [
        {"system": "kafka-acls", "kind": "Acls", "name": name, "spec": {"entries": entries}}
        for name, entries in (("all", of_others), ("refused", [{**deny, "principal": "User:erik", "typo": 1}]))
    ]
    snapshot = policy.compile_documents(documents)
    request = {"id": "r", "system": "kafka-acls", "action": {"name": "Read"}, "resource": {"type": "Topic", "id": "t"}}
    outcomes = {
        name: policy.decide(snapshot, {**request, "subject": {"type": "user", "id": name}}).outcome
        for name in ("User:dana", "User:erik")
    }
    assert outcomes == {"User:dana": "allow", "User:erik": "error"}
    reach = who_can(snapshot, request)
    assert (reach.everyone, reach.but) == (True, (Who("User:erik"),))


def test_those_who_get_an_error_where_a_moment_is_needed_may_not_what_everyone_else_may() -> None:
    """Whether a deny that is bound in time has ended is not known without a time."""
    entry = {"operation": "Read", "resource_type": "Topic", "name": "t"}
    documents: list[dict[str, Any]] = [
        {"system": "kafka-acls", "kind": "Acls", "name": name, "spec": {"entries": [{**entry, **more}]}, **window}
        for name, more, window in (
            ("all", {"principal": "User:*", "permission": "ALLOW"}, {}),
            ("dana", {"principal": "User:dana", "permission": "DENY"}, {"valid_until": 5}),
        )
    ]
    snapshot = policy.compile_documents(documents)
    request = {"id": "r", "system": "kafka-acls", "action": {"name": "Read"}, "resource": {"type": "Topic", "id": "t"}}
    dana = Who("User:dana")
    assert who_can(snapshot, request) == Reach((), True, (dana,))
    assert who_can(snapshot, {**request, "time": 4}) == Reach((), True, (dana,))
    assert who_can(snapshot, {**request, "time": 5}) == Reach((dana,), True)


def test_those_for_whom_a_condition_of_cedar_fails_may_not_what_everyone_else_may() -> None:
    policies = "permit (principal, action, resource); forbid (principal is User, action, resource) when { %s };"
    condition = "principal has level && principal.level > 3"
    known = [{"uid": {"type": "User", "id": name}, "attrs": {"level": level}} for name, level in (("a", "5"), ("b", 1))]
    documents = [
        {"system": "cedar", "kind": "PolicySet", "name": "p", "spec": {"policies": policies % condition}},
        {"system": "cedar", "kind": "Entities", "name": "e", "spec": {"entities": known}},
    ]
    snapshot = policy.compile_documents(documents)
    request = {"id": "r", "system": "cedar", "action": {"name": "read"}, "resource": {"type": "Doc", "id": "d"}}
    reach = who_can(snapshot, {**request, "subject": {"type": "User", "id": "any"}})
    assert reach == Reach((Who("b", "", "User"),), True, (Who("a", "", "User"),), complete=False)


def test_a_star_among_kafkas_super_users_is_nobodys() -> None:
    """Kafka has no wildcard there (KA-PRINCIPAL): no tool says that everybody is a super user, whom `decide` denies."""
    authorizer = {
        "system": "kafka-acls",
        "kind": "Authorizer",
        "name": "authorizer",
        "spec": {"super_users": ["User:*", "User:admin"]},
    }
    before, after = policy.compile_documents([]), policy.compile_documents([authorizer])
    for who, permitted in (("User:dana", 0), ("User:admin", 1)):
        subject = {"type": "user", "id": who}
        assert len(what_subject_can(after, "kafka-acls", subject)) == permitted
        asked = {"action": {"name": "Read"}, "resource": {"type": "Topic", "id": "a"}, "subject": subject}
        assert policy.decide(after, {"id": "r", "system": "kafka-acls", **asked}).allowed is bool(permitted)
    assert [widening.who for widening, _ in review(before, after).widenings] == ["principal:User:admin"]


def share(at: int, *shares: str, **more: Any) -> dict[str, Any]:
    """A version of a pipeline of Zed's that is shared with users."""
    spec = {"type": "pipeline", "owner": "zed", "acl": {f"user:{user}": ["READ"] for user in shares}, **more}
    return {"system": "streamsets", "kind": "Object", "name": "pipeline:p", "effective_at": at, "spec": spec}


@pytest.mark.parametrize(
    ("login_at", "versions", "who", "outcome"),
    [
        (None, [share(1, "dana"), share(5)], "dana", "deny"),
        (None, [share(1), share(5, "dana")], "dana", "allow"),
        (3, [share(1, "dana"), share(5)], "dana", "allow"),
        (3, [share(1), share(5, "dana")], "dana", "deny"),
        (3, [share(5, "dana")], "dana", "deny"),
        (3, [share(5, "dana")], "zed", "allow"),
    ],
)
def test_what_a_user_of_streamsets_can_is_what_counts_since_his_login(
    login_at: int | None, versions: list[dict[str, Any]], who: str, outcome: str
) -> None:
    """SS-LOGIN: a share that is gone, or has not begun to count, is not listed as one that is held."""
    documents = [
        {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcement": True}},
        *versions,
    ]
    if login_at is not None:
        session = {"system": "streamsets", "kind": "Session", "name": who, "spec": {"login_at": login_at}}
        documents.append(session)
    snapshot, subject = policy.compile_documents(documents), {"type": "user", "id": who}
    asked = {"action": {"name": "pipeline.view"}, "resource": {"type": "pipeline", "id": "pipeline:p"}}
    request = {"id": "r", "system": "streamsets", "subject": subject, "time": 9, **asked}
    assert policy.decide(snapshot, request).outcome == outcome
    assert bool(what_subject_can(snapshot, "streamsets", subject, 9)) is (outcome == "allow")


BLANK = {"id": "user:dana", "properties": {"groups": [" ops"]}}
WRONG_SUBJECTS = [
    ("lenses6", {"id": "user:dana "}, "subject.id 'user:dana ' has a blank at an end"),
    ("lenses6", BLANK, "groups: ' ops' has a blank at an end"),
    ("lenses5", BLANK, "groups: ' ops' has a blank at an end"),
    ("cdap", BLANK, "groups: ' ops' has a blank at an end"),
    ("cdap", {"id": "dana", "properties": {"roles": [3]}}, "roles must be a list of texts"),
    ("kafka-acls", {"id": "dana"}, "subject.id"),
    ("streamsets", {"id": "dana", "properties": {"organization": 3}}, "organization must be an organization's id"),
    ("ververica", {"id": "dana", "properties": {"token": "t"}}, "token must be a mapping of claims"),
]


@pytest.mark.parametrize(("system", "subject", "message"), WRONG_SUBJECTS)
@pytest.mark.timeout(10)
def test_a_subject_that_is_malformed_is_refused_for_that_by_the_first_probe(
    system: str, subject: dict[str, Any], message: str
) -> None:
    documents = [{"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcement": True}}]
    snapshot = policy.compile_documents(documents)
    with pytest.raises(MalformedRequest, match=re.escape(message)):
        what_subject_can(snapshot, system, {"type": "user", **subject}, 9)
    assert unknown_subject(snapshot, system, {"type": "user", **subject}, 9) == []
