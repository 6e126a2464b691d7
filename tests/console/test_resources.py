"""Who may do what with a resource, in each language, within a bound of time."""

import json
from typing import Any

import pytest
import yaml

from policy import Snapshot, compile_documents
from policy.analysis import who_can
from policy.testing import full_request
from streaming.console import resources
from streaming.console.pages import Pages, StaticFiles
from streaming.console.playground import load_examples
from streaming.console.resources import ResourceAnswer, resource_answers

EXAMPLES = dict(load_examples())
HOSTILE = "<script>document.title='owned'</script>\u202eevil\u0007"


def _snapshot(*systems: str) -> Snapshot:
    return compile_documents(
        {**one, "system": system} for system in systems for one in yaml.safe_load_all(EXAMPLES[system]["documents"])
    )


def _answers(resource: str, *systems: str, more: str = "") -> list[ResourceAnswer]:
    return resource_answers(_snapshot(*systems), list(systems), {"resource": resource, "more": more})


def _rendered(answers: list[ResourceAnswer], resource: str) -> str:
    return Pages(StaticFiles()).render("_resource.html.j2", answers=answers, fields={"resource": resource})


@pytest.mark.parametrize(
    ("system", "resource", "who", "action", "path"),
    [
        ("lenses6", "kafka:topic:prod/main/orders", "user:dana", "kafka:ReadTopicData", "user:dana → group:shop-team"),
        ("streamsets", "pipeline:orders", "miguel", "pipeline.export", "streamsets/Object/pipeline:orders statement 1"),
        ("cdap", "dataset:shop.orders", "dana", "dataset.read", "cdap/Grant/dana-reads-orders"),
        ("kafka-acls", "orders", "User:dana", "Read", "kafka-acls/Acls/shop statement 0"),
        ("cedar", 'Document::"plan"', "ola", "read", "cedar/PolicySet/documents statement 1"),
    ],
)
def test_each_language_says_who_may_do_what_by_which_path(
    system: str, resource: str, who: str, action: str, path: str
) -> None:
    [answer] = _answers(resource, system, more="resource: {type: Topic}" if system == "kafka-acls" else "")
    rows = [row for row in answer.rows if row.who is not None and row.who.name == who and action in row.actions]
    assert [row.effect for row in rows] == ["allow"]
    assert path in " ".join(f"{one} {one.route}" for one in rows[0].paths)
    page = _rendered([answer], resource)
    assert who in page
    assert action in page


def test_languages_that_know_nothing_of_it_are_left_out() -> None:
    systems = ("lenses6", "cdap", "streamsets")
    assert [one.title for one in _answers("dataset:shop.orders", *systems)] == ["CDAP"]
    assert _answers("nothing", *systems) == []
    assert "No language has a statement" in _rendered([], "nothing")


def test_a_chosen_language_says_what_is_missing() -> None:
    [answer] = _answers("Deployment:checkout", "ververica")
    assert "workspaceId" in answer.why or "properties" in answer.why
    assert answer.why.split()[0] in _rendered([answer], "")
    whole = "resource: {type: Deployment, properties: {workspaceId: w, namespaceId: n}}"
    assert [one.why for one in _answers("a", "ververica", more=whole)] == [""]
    [wrong] = _answers("a", "lenses6", more="resource: {id: b}")
    assert wrong.why.startswith("resource: ")
    [name] = _answers("{type: lrn, id: 'kafka:topic:prod/main/orders'}", "lenses6")
    assert name.rows == (), "what begins with a brace is a name"
    [several] = _answers("kafka:topic:a/b/c", "lenses6", more="evaluations: [{}, {}]")
    assert "not for a batch" in several.why
    [other] = _answers("kafka:topic:prod/main/orders", "lenses6", more="{system: cdap, subject: {id: a, type: b}}")
    assert (other.title, other.why, bool(other.rows)) == ("Lenses 6", "", True)


ORGANIZATIONS = [
    *({"kind": "Organization", "name": name, "spec": {"enforcement": True}} for name in ("acme", "other")),
    {
        "kind": "Object",
        "name": "pipeline:a",
        "spec": {"type": "pipeline", "owner": "rita", "organization": "acme", "acl": {"group:north": ["READ"]}},
    },
]


@pytest.mark.parametrize(
    "more",
    [
        {"organization": "acme"},
        {"organization": "other"},
        {"organization": "acme", "roles": ["Organization Administrator"]},
        {"subject": {"properties": {"organization": "acme"}}},
        {"subject": {"id": "rita", "type": "user", "properties": {"organization": "acme", "groups": ["north"]}}},
        {},
    ],
    ids=str,
)
def test_subjects_are_of_the_organization_that_is_named(more: dict[str, Any]) -> None:
    """As `who_can` asks: with the properties of the request's subject that others may have, too."""
    snapshot = compile_documents({**document, "system": "streamsets"} for document in ORGANIZATIONS)
    fields = {"resource": "pipeline:a", "more": json.dumps(more)}
    [answer] = resource_answers(snapshot, ["streamsets"], fields)
    asked = {"subject": "any", "action": "pipeline.view", "resource": "pipeline:a", **more}
    allowed = who_can(snapshot, full_request(asked, "streamsets")).allowed
    shown = [row.who for row in answer.rows if row.effect == "allow" and "pipeline.view" in row.actions]
    assert sorted(map(str, shown)) == sorted(map(str, allowed))
    organization = more.get("organization") or more.get("subject", {}).get("properties", {}).get("organization")
    assert bool(allowed) == (organization == "acme")
    assert answer.why == ""


def test_it_ends_when_its_time_is_up_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "SECONDS", 0.0)
    [answer] = _answers("kafka:topic:prod/main/orders", "lenses6")
    assert answer.asked < answer.reached <= answer.names
    assert "There was time for 0 of" in _rendered([answer], "")
    monkeypatch.undo()
    assert "There was time for" not in _rendered(_answers("kafka:topic:prod/main/orders", "lenses6"), "")


def test_hostile_names_are_text() -> None:
    group = {"roles": [HOSTILE], "members": [f"user:{HOSTILE}"]}
    roles = {"statements": [{"effect": "allow", "action": "kafka:*", "resource": "kafka:topic:prod/*"}]}
    documents = [
        {"system": "lenses6", "kind": "Role", "name": HOSTILE, "spec": roles},
        {"system": "lenses6", "kind": "Group", "name": "g", "spec": group},
    ]
    snapshot = compile_documents(documents)
    answers = resource_answers(snapshot, ["lenses6"], {"resource": "kafka:topic:prod/main/a", "more": ""})
    page = _rendered(answers, HOSTILE)
    assert not {"\u202e", "\u0007"} & set(page)
    assert "<script>" not in page
    assert snapshot.rejected or "owned" in page
