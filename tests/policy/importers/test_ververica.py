"""Ververica: the values of its Helm chart mean the same as documents, and no secret gets out."""

import pytest

from policy.importers.written import to_text
from policy.store.repository import FilesRefused
from tests.policy.importers.running import (
    allows,
    documents,
    findings_of_level,
    fixture,
    imported,
    places,
    snapshot,
    text,
)

ENTRY = "userId: a@example.com, workspaceId: w, namespaceId: n, role: EDITOR"


def values(entries: str, more: str = "") -> str:
    """Values with these entries."""
    return f"global:\n  initialAccessFileContent:\n    initialAccess: [{entries}]\n{more}"


def reads(at: object, user: str, namespace: str, **more: object) -> bool:
    """Whether somebody may read in a namespace."""
    where = {"workspaceId": "defaultworkspace", "namespaceId": namespace}
    return allows(at, "ververica", user, "read", "x", type="Deployment", properties=where, **more)  # type: ignore[arg-type]


def test_assignments_mean_what_they_mean_on_the_platform() -> None:
    """By user, by group with its exact name, in one namespace or the workspace."""
    at = snapshot(imported("ververica", fixture("values.yaml")))
    assert reads(at, "alice@example.com", "default")
    assert not reads(at, "alice@example.com", "analytics")
    assert not reads(at, "Alice@example.com", "default")
    assert reads(at, "x", "analytics", groups=["équipe données"])
    assert not reads(at, "x", "default", groups=["équipe données"])
    assert reads(at, "x", "anything", groups=["platform-admins"])
    assert not reads(at, "group:platform-admins", "default")


def test_secrets_are_left_out_reported_and_never_shown() -> None:
    """Neither the documents nor the findings have them."""
    found = imported("ververica", fixture("values.yaml"))
    assert "global.authentication.oidc.clientSecret" in places(found, "note")
    assert "global.authentication.saml.keystorePassword" in places(found, "note")
    everything = to_text("ververica", found.documents) + "".join(map(str, found.findings))
    assert "do-not-print" not in everything
    assert documents(found)["Authentication/main"]["oidc"]["groupsClaim"] == "groups"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("userId: a, workspaceId: w, role: EDITOR", "VV-Q3"),
        ("userId: a, workspaceId: w, namespaceId: n, role: ADMIN", "VV-Q4"),
        ("userId: a, workspaceId: w, namespaceId: n, role: editor", "is not one of"),
        ("userId: a, namespaceId: n, role: EDITOR", "workspaceId: required"),
        ("userId: 17, workspaceId: w, namespaceId: n, role: EDITOR", "must be text"),
        (f"{ENTRY}, onlyOn: [Monday]", "onlyOn: unknown field"),
        ("userId: 'group:', workspaceId: w, namespaceId: n, role: EDITOR", "names no group"),
    ],
)
def test_an_assignment_that_is_ill_formed_is_left_out_alone(entry: str, why: str) -> None:
    """The others are imported."""
    found = imported("ververica", text(values(f"{{{entry}}}, {{{ENTRY.replace('a@', 'b@')}}}")))
    (finding,) = findings_of_level(found, "warning")
    assert finding.place == "global.initialAccessFileContent.initialAccess[0]"
    assert why in finding.why
    assert [one["userId"] for one in documents(found)["InitialAccess/main"]["initialAccess"]] == ["b@example.com"]


@pytest.mark.parametrize("field", ["enabled: false", "expires: '2026-01-01'", "disabled: true"])
def test_an_unknown_field_beside_the_assignments_leaves_them_out(field: str) -> None:
    """It may say that they are not in force; one that says nothing does not."""
    content = f"global:\n  initialAccessFileContent: {{initialAccess: [{{{ENTRY}}}], %s}}\n"
    translation = imported("ververica", text(content % field))
    assert not translation.documents
    assert "may restrict" in findings_of_level(translation, "warning")[0].why
    assert imported("ververica", text(content % "expires: null")).documents


def test_values_in_two_files_are_refused_since_helm_lets_one_replace_the_other() -> None:
    """Adding them up could bring back what the later file took away."""
    found = imported("ververica", text(values(f"{{{ENTRY}}}"), "a.yaml"), text(values(""), "b.yaml"))
    assert not found.documents
    assert [finding.file for finding in found.errors] == ["a.yaml", "b.yaml"]


def test_settings_that_cannot_be_converted_recognise_no_groups() -> None:
    """A text where true or false should be, two names for one setting."""
    saml = "{groupsAttribute: a, groups-attribute: b}"
    odd = f"  authentication:\n    oidc: {{enabled: 'yes', groupsClaim: g}}\n    saml: {saml}\n"
    found = imported("ververica", text(values(f"{{{ENTRY}}}", odd)))
    assert set(documents(found)) == {"InitialAccess/main"}
    assert places(found, "warning") == ["global.authentication.oidc", "global.authentication.saml"]


def test_values_about_other_things_are_reported_by_name() -> None:
    """So that a reader of the report sees what was not looked at."""
    found = imported("ververica", text("image: {tag: x}\nglobal: {imageRegistry: secret.example.com}\n"))
    assert "image, global.imageRegistry" in findings_of_level(found, "note")[0].why
    assert "nothing to import" in findings_of_level(found, "warning")[0].why
    assert "secret.example.com" not in "".join(map(str, found.findings))


@pytest.mark.parametrize(
    "odd", ["a: &x 1\nb: *x\n", "a: !!python/object:os.system x\n", "[" * 50 + "]" * 50, "a: 1\na: 2\n"]
)
def test_yaml_that_does_not_say_what_it_shows_is_refused(odd: str) -> None:
    """Anchors, tags, deep nesting, a key twice: with the line."""
    with pytest.raises(FilesRefused, match=r"input\.yaml:\d"):
        imported("ververica", text(odd))
