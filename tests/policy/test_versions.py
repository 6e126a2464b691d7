"""Documents that say from when on they are in force, and times that may not be claimed (contracts, "Policy document").

Everything is asked of both evaluators.
"""

import itertools
from typing import Any

import pytest

import policy
from policy.analysis.diff import compare
from policy.analysis.impact import Who, who_can
from policy.analysis.lint import lint
from policy.core.decision import Decision
from policy.core.model import Membership, StatementId, Unanswerable
from policy.core.request import CLAIMS
from policy.core.times import Window
from policy.evaluation import reference
from policy.evaluation.explain import route
from policy.store.delta import PolicySetChange
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot

TIMELESS = CLAIMS - {"time"}
BEFORE, FROM = 99, 100

Document = dict[str, Any]


def document(system: str, kind: str, name: str, effective_at: int | None = None, /, **spec: Any) -> Document:
    """A document, in force from a moment on."""
    dated = {} if effective_at is None else {"effective_at": effective_at}
    return {"system": system, "kind": kind, "name": name, "spec": spec, **dated}


def role(effect: str, effective_at: int | None = None, name: str = "r", **more: Any) -> Document:
    """A role that allows or denies all of Kafka."""
    statements = [{"effect": effect, "action": "kafka:*", "resource": "kafka:*"}]
    return document("lenses6", "Role", name, effective_at, statements=statements) | more


def group(*members: str, roles: tuple[str, ...] = ("r",), name: str = "g", effective_at: int | None = None) -> Document:
    """A group of these members with these roles."""
    return document("lenses6", "Group", name, effective_at, roles=list(roles), members=list(members))


ALLOWED = [group("user:dana"), role("allow")]
ASK = {
    "id": "r",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:ListTopic"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
}


def asking(system: str, subject: str, action: str, resource: str, **more: Any) -> Document:
    """A request."""
    of = {"type": resource.partition(":")[0], "id": resource, **more.pop("of", {})}
    fields = {
        "subject": {"type": "user", "id": subject, **more.pop("by", {})},
        "action": {"name": action},
        "resource": of,
    }
    return {"id": "r", "system": system, **fields, **more}


def answer(
    documents: list[Document] | Snapshot, request: Document, at: int | None = None, trust: frozenset[str] = CLAIMS
) -> Decision:
    """The decision, once both evaluators agree."""
    snapshot = documents if isinstance(documents, Snapshot) else policy.compile_documents(documents)
    timed = request if at is None else {**request, "time": at}
    decision = policy.decide(snapshot, timed, trust=trust)
    assert all(reason.code != "internal-error" for reason in decision.reasons), decision.reasons
    slow = reference.decide(snapshot, timed, trust=trust)
    assert slow == ([item.outcome for item in decision.evaluations] or decision.outcome)
    return decision


def outcomes(documents: list[Document], request: Document = ASK, *moments: int | None) -> list[str]:
    """The answers just before and at the moment, or at these."""
    return [answer(documents, request, moment).outcome for moment in moments or (BEFORE, FROM)]


# What a time is, where it is not trusted


def test_a_time_that_may_not_be_claimed_opens_nothing() -> None:
    """A role that has expired: the request cannot choose a moment before that."""
    documents = [group("user:dana"), role("allow", valid_until=FROM)]
    assert outcomes(documents) == ["allow", "deny"]
    decision = answer(documents, ASK, BEFORE, TIMELESS)
    assert (decision.outcome, decision.reasons[0].code) == ("error", "time-needed")
    assert answer(ALLOWED, ASK, BEFORE, TIMELESS).allowed, "where it does not matter, nothing needs a time"


@pytest.mark.parametrize("trust", [CLAIMS, TIMELESS], ids=["not given", "not trusted"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_deadline_without_a_time_is_an_error(trust: frozenset[str], batch: bool) -> None:
    fields: Document = {"deadline": FROM} | ({"time": BEFORE} if trust == TIMELESS else {})
    request = {**ASK, **fields} | ({"evaluations": [{}, {"action": {"name": "kafka:DeleteTopic"}}]} if batch else {})
    decision = answer(ALLOWED, request, trust=trust)
    assert decision.outcome == "error"
    assert {item.reasons[0].code for item in decision.evaluations or (decision,)} == {"time-needed"}
    assert answer(ALLOWED, request, FROM).allowed
    assert answer(ALLOWED, request, FROM + 1).outcome == "error"


# Versions of one document


def test_a_document_is_in_force_from_its_moment_on() -> None:
    for documents in (
        [group("user:dana"), role("allow", FROM)],
        [group("user:dana", effective_at=FROM), role("allow")],
    ):
        assert outcomes(documents) == ["deny", "allow"]
        assert answer(documents, ASK).reasons[0].code == "time-needed"


def test_a_version_is_in_force_until_the_next_begins() -> None:
    """Whatever the order in which they are read."""
    versions = [
        role("allow"),
        role("deny", FROM),
        role("allow", 200),
        document("lenses6", "Role", "r", 300, statements=[]),
    ]
    for order in itertools.permutations(versions):
        expected = ["allow", "allow", "deny", "deny", "allow", "allow", "deny"]
        assert outcomes([group("user:dana"), *order], ASK, 0, BEFORE, FROM, 199, 200, 299, 300) == expected
    assert len({policy.compile_documents(order).version for order in itertools.permutations(versions)}) == 1


def test_the_version_of_a_snapshot_knows_when_its_documents_begin() -> None:
    found = {policy.compile_documents([role("allow", at)]).version for at in (None, FROM, 200)}
    assert len(found) == 3
    assert policy.compile_documents([role("allow", 0)]).version == policy.compile_documents([role("allow")]).version


def test_the_moment_0_is_since_ever() -> None:
    """Nothing can be asked for a moment before it, so no time is needed."""
    assert answer([group("user:dana"), role("allow", 0)], ASK).allowed


def test_a_validity_window_counts_within_its_version_alone() -> None:
    documents = [group("user:dana"), role("allow", FROM, valid_from=50, valid_until=150), role("deny", 200)]
    assert outcomes(documents, ASK, BEFORE, FROM, 149, 150, 200) == ["deny", "allow", "allow", "deny", "deny"]
    assert answer(documents, ASK, 150).reasons[0].code == "no-grant"


def test_a_refused_version_counts_from_its_own_moment_on() -> None:
    """Before it the earlier good one; from it on that one too; without one, whom it names gets an error."""
    broken = document("lenses6", "Role", "r", FROM, statements=[{"effect": "deny"}])
    assert outcomes([group("user:dana"), role("allow", 50), broken], ASK, 49, 50, FROM) == ["deny", "allow", "allow"]
    assert outcomes([group("user:dana"), broken, role("allow", 200)], ASK, BEFORE, FROM, 200) == [
        "deny",
        "error",
        "allow",
    ]
    assert answer([group("user:dana"), role("allow"), broken], ASK).allowed, "it is in force at every moment"
    assert answer([group("user:dana"), broken], ASK).outcome == "error"
    assert (
        answer([group("user:dana"), broken], {**ASK, "subject": {"type": "user", "id": "user:erik"}}).outcome == "deny"
    )


def test_a_moment_that_cannot_be_read_is_since_ever() -> None:
    broken = role("deny") | {"effective_at": "soon"}
    assert outcomes([group("user:dana"), broken, role("allow", FROM)]) == ["error", "allow"]


def test_two_versions_of_one_moment_are_refused() -> None:
    """Then the one before stays in force, and without one there is none."""
    twins = [role("allow", FROM), role("deny", FROM)]
    assert outcomes([group("user:dana"), *twins]) == ["deny", "error"]
    assert outcomes([group("user:dana"), role("allow"), *twins]) == ["allow", "allow"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_what_is_held_at_every_moment_needs_no_time(order: tuple[int, ...]) -> None:
    """A time-bound membership matters if it leads further, and not if it is a short cut, however it is come across."""
    statement_id, window = StatementId("x"), Window(FROM, None)
    ways = [
        Membership("a", "b", statement_id, window),
        Membership("a", "c", statement_id),
        Membership("c", "b", statement_id),
    ]
    policy_set = PolicySet().with_change(PolicySetChange(memberships=[ways[number] for number in order]))
    effective_principals = policy_set.effective_principals(("a",), None)
    assert (sorted(effective_principals.via), route(effective_principals.via, "b")) == (
        ["*", "a", "b", "c"],
        "a → c → b",
    )
    assert route(policy_set.effective_principals(("a",), FROM).via, "b") == "a → b"
    with pytest.raises(Unanswerable, match="time"):
        PolicySet().with_change(PolicySetChange(memberships=ways[:2])).effective_principals(("a",), None)


def test_a_log_orders_its_versions_whatever_its_clock_says() -> None:
    """A request may carry a moment before that of the newest policies, by another broker's clock."""
    store = policy.DocumentStore()
    for order, put in enumerate([group("user:dana"), role("allow"), role("deny")]):
        assert store.put(put, at=1000, order=order) is None
    assert answer(Snapshot(store), ASK, 5).outcome == "deny"
    assert answer(Snapshot(store), ASK).outcome == "deny"


# Facts and settings


NAMESPACE = {"properties": {"workspaceId": "w", "namespaceId": "n"}}
EDITOR = document(
    "ververica",
    "InitialAccess",
    "a",
    initialAccess=[
        {"userId": user, "workspaceId": "w", "namespaceId": "n", "role": "EDITOR"} for user in ("ed", "group:g")
    ],
)
WRITE = asking("ververica", "ed", "write", "job:x", of=NAMESPACE | {"type": "Job"})
TOKEN = asking(
    "ververica",
    "eve",
    "write",
    "job:x",
    of=NAMESPACE | {"type": "Job"},
    by={"properties": {"token": {"email": "eve", "g1": ["g"]}}},
)
OIDC = {"enabled": True, "groupsClaim": "g1"}
CONSUMERS = asking(
    "lenses5", "dana", "kafka-consumers.view", "billing", of={"properties": {"consumer_group": "billing"}}
)
LENSES5 = document(
    "lenses5",
    "Group",
    "g",
    members=["dana"],
    application=["Kafka Consumers / View"],
    namespaces=[{"connection": "k", "type": "Kafka", "datasets": ["a"], "permissions": ["Show Topic"]}],
)
LISTED = asking("cdap", "dana", "namespace.list", "namespace:n")
GRANTED = document("cdap", "Grant", "g", user="dana", entity="dataset:d", privileges=["READ"])
ADMIN = asking("cdap", "dana", "privilege.grant", "dataset:n.d")
STREAMSETS = [
    document("streamsets", "Organization", "o", enforcement=True),
    document("streamsets", "Object", "pipeline:p", type="pipeline", owner="eve", acl={"user:dana": ["READ"]}),
]
VIEW = asking("streamsets", "dana", "pipeline.view", "pipeline:p")


@pytest.mark.parametrize(
    ("always", "later", "request_", "expected"),
    [
        ([EDITOR], [document("ververica", "ReservedKinds", "k", FROM, kinds=["other"])], WRITE, ["deny", "allow"]),
        (
            [EDITOR, document("ververica", "ReservedKinds", "k", kinds=["other"])],
            [document("ververica", "ReservedKinds", "k", FROM, kinds=["Job"])],
            WRITE,
            ["allow", "deny"],
        ),
        (
            [EDITOR, document("ververica", "ReservedKinds", "k", kinds=["other"])],
            [document("ververica", "Authentication", "a", FROM, oidc=OIDC)],
            TOKEN,
            ["deny", "allow"],
        ),
        (
            [LENSES5],
            [document("lenses5", "ConsumerGroup", "billing", FROM, connection="k", topics=["a"])],
            CONSUMERS,
            ["error", "allow"],
        ),
        (
            [LENSES5, document("lenses5", "ConsumerGroup", "billing", connection="k", topics=["a"])],
            [document("lenses5", "ConsumerGroup", "billing", FROM, connection="k", topics=["a", "b"])],
            CONSUMERS,
            ["allow", "deny"],
        ),
        ([GRANTED], [document("cdap", "Entity", "dataset:d", FROM, parent="namespace:n")], LISTED, ["deny", "allow"]),
        ([], [document("cdap", "Backend", "b", FROM, admins=["dana"])], ADMIN, ["deny", "allow"]),
        (STREAMSETS[:1], [STREAMSETS[1] | {"effective_at": FROM}], VIEW, ["error", "allow"]),
        (STREAMSETS[1:], [STREAMSETS[0] | {"effective_at": FROM}], VIEW, ["deny", "allow"]),
        (
            STREAMSETS,
            [document("streamsets", "Object", "pipeline:p", FROM, type="pipeline", owner="eve")],
            VIEW,
            ["allow", "deny"],
        ),
    ],
)
def test_what_is_known_begins_at_its_moment_too(
    always: list[Document], later: list[Document], request_: Document, expected: list[str]
) -> None:
    """In every system; without a time that is an error, as the answer depends on it."""
    snapshot = policy.compile_documents([*later, *always])
    assert snapshot.rejected == ()
    assert outcomes([*later, *always], request_) == expected
    assert answer([*later, *always], request_).reasons[0].code == "time-needed"
    assert snapshot.policy_sets[request_["system"]].edges[-1:] == [FROM]


def test_a_login_in_the_future_does_not_count() -> None:
    """Nor what the user has from it on; in a log it has happened, whatever the clocks say."""
    shared = document(
        "streamsets", "Object", "pipeline:p", FROM, type="pipeline", owner="eve", acl={"group:g": ["READ"]}
    )
    login = document("streamsets", "Session", "dana", login_at=150, groups=["g"])
    documents = [
        STREAMSETS[0],
        document("streamsets", "Object", "pipeline:p", type="pipeline", owner="eve"),
        shared,
        login,
    ]
    assert outcomes(documents, VIEW, BEFORE, FROM, 149, 150) == ["deny", "deny", "deny", "allow"]
    early = [*STREAMSETS, shared, document("streamsets", "Session", "dana", login_at=FROM - 1)]
    assert outcomes(early, VIEW, BEFORE, FROM, 200) == ["allow", "allow", "allow"], "he holds what he held at his login"
    late = [*STREAMSETS, shared, document("streamsets", "Session", "dana", login_at=300)]
    assert outcomes(late, VIEW, BEFORE, FROM, 300) == ["allow", "deny", "deny"]
    policies, facts = policy.DocumentStore(), policy.DocumentStore(facts_only=True)
    for order, put in enumerate([STREAMSETS[0], {**shared, "effective_at": None}]):
        assert policies.put({name: part for name, part in put.items() if part is not None}, at=0, order=order) is None
    assert facts.put(login, at=151, order=0) is None
    assert answer(Snapshot(policies, facts), VIEW, 149).allowed


def test_a_run_in_the_future_does_not_freeze_anything() -> None:
    """Before it starts, the job's pipeline counts as it is."""
    fields = {"type": "pipeline", "owner": "eve", "pipeline_kind": "dc", "connections": []}
    documents = [
        STREAMSETS[0],
        document("streamsets", "Object", "pipeline:p", **fields),
        document("streamsets", "Object", "pipeline:p", 60, **fields, acl={"user:dana": ["READ"]}),
        document("streamsets", "Object", "engine:e", type="engine", owner="dana", engine_kind="dc", labels=["w"]),
        document("streamsets", "Object", "job:j", type="job", owner="dana", pipeline="p", labels=["w"]),
        document("streamsets", "ActiveJob", "job:j", started_at=50),
    ]
    monitor = asking("streamsets", "dana", "job.monitor", "job:j")
    assert outcomes(documents, monitor, 49, 61) == ["deny", "deny"]
    documents[-1] = document("streamsets", "ActiveJob", "job:j", started_at=FROM)
    documents[2] = document("streamsets", "Object", "pipeline:p", 60, **fields, acl={"user:dana": ["READ"]})
    documents.append(document("streamsets", "Object", "pipeline:p", 80, **fields))
    assert outcomes(documents, monitor, 59, 60, 79, 80, FROM) == ["deny", "allow", "allow", "deny", "deny"]


# Tools, which often have no time


def test_tools_take_versions_for_what_they_are() -> None:
    """Of two versions none covers the other; the moment is a difference; who can, is as of a moment."""
    versions = [group("user:dana"), role("allow"), role("allow", FROM)]
    assert [finding for finding in lint(versions) if finding.code == "covered"] == []
    old, new = (policy.compile_documents([group("user:dana"), role("allow", at)]) for at in (FROM, 200))
    assert {difference.document for difference in compare(old, new)} == {"lenses6/Role/r"}
    facts = [
        policy.compile_documents([document("cdap", "Entity", "namespace:n", at, parent=None)]) for at in (FROM, 200)
    ]
    assert [difference.sign for difference in compare(*facts)] == ["changed"]
    assert who_can(old, {**ASK, "time": BEFORE}).allowed == ()
    assert Who("user:dana") in who_can(old, {**ASK, "time": FROM}).allowed
