"""What cannot be a document is refused and listed; it neither takes others down nor is forgotten."""

from typing import Any

import pytest

from policy import Snapshot, compile_documents, decide

ROLE = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}
NOTHING = {"statements": [{"effect": "deny", "action": "*", "resource": "*"}]}


def _lenses6(kind: str, name: Any, spec: Any, **more: Any) -> dict[str, Any]:
    return {"system": "lenses6", "kind": kind, "name": name, "spec": spec, **more}


def _group(*roles: str) -> dict[str, Any]:
    return _lenses6("Group", "staff", {"roles": list(roles), "members": ["user:dana"]})


def _outcome(snapshot: Snapshot) -> str:
    request = {
        "id": "r",
        "system": "lenses6",
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "iam:ListRoles"},
        "resource": {"type": "lrn", "id": "iam:role:x"},
    }
    return decide(snapshot, request).outcome


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
        (f"lenses6/Role/{role}", ("name: needed, as text that is not empty",))
    ]
    assert _outcome(snapshot) == "error"


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
