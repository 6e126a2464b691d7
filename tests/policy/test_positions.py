"""A finding is placed at the line and column of the field that it names."""

from pathlib import Path

import pytest

from policy.store.positions import Positions
from policy.store.publishable import refusals, warnings_of
from policy.store.repository import FilesRefused, read_documents

TWO = """\
# two documents
system: lenses6
kind: Group
name: readers
spec:
  roles: [readers]
---
system: lenses6
kind: Role
name: readers
valid_until: 2026-13-45
spec:
  statements:
    - effect: allow
      action: kafka:ReadTopicData
      resource: kafka:topic:prod/main/*
    - effect: allow
      actions: kafka:ReadTopicData
      resource: kafka:topic:prod/main/*
"""


@pytest.mark.parametrize(
    ("message", "statement", "place"),
    [
        ("statements[1].actions: unknown field", None, "18:7"),
        ("statements[1].action: required; must be a list of texts", None, "17:7"),  # where the statement begins
        ("statements[0]: action kafka:ReadTopicDatas: no such operation", None, "15:7"),
        ("valid_until: '2026-13-45' is not RFC 3339", None, "11:1"),
        ("spec: required; must be a mapping", None, "12:1"),
        ("covered by another statement", 1, "17:7"),
    ],
)
def test_the_place_of_a_finding(tmp_path: Path, message: str, statement: int | None, place: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    role = read_documents(file)[1]
    assert str(Positions().find(role, message, statement)) == f"{file}:{place}"


CEDAR = """\
system: cedar
kind: PolicySet
name: documents
spec:
  policies: |

    // A comment is no policy.
    @id("owner")
    permit (principal, action, resource)
    when { resource.owner == principal };
    permit (principal == ?principal, action, resource);
  links:
    - {templateId: "documents#1", newId: a, values: {"?principal": {type: User, id: dana}}}
    - {templateId: "documents#1", newId: b, values: {"?principal": {type: User, id: erik}}}
"""


@pytest.mark.parametrize(
    ("message", "statement", "line"),
    [
        ("", 0, 8),
        ("", 1, 11),
        ("", 2, 13),
        ("", 3, 14),
        ("", 4, 1),
        ("policies[1]: line 6: unexpected", None, 11),
        ("policies: required", None, 5),
        ("links[1].newId: is taken", None, 14),
    ],
)
def test_statements_of_one_text_have_their_lines_in_it(
    tmp_path: Path, message: str, statement: int | None, line: int
) -> None:
    file = tmp_path / "cedar.yaml"
    file.write_text(CEDAR)
    [located] = read_documents(file)
    assert Positions().find(located, message, statement).line == line


def test_a_text_whose_lines_are_not_those_of_the_file_has_the_line_of_its_field(tmp_path: Path) -> None:
    file = tmp_path / "cedar.yaml"
    for text in ('"permit (principal,\\n action, resource);"', ">\n    permit (principal, action,\n    resource);"):
        file.write_text(f"system: cedar\nkind: PolicySet\nname: documents\nspec:\n  policies: {text}\n")
        assert Positions().find(read_documents(file)[0], "", 0).line == 5
        assert Positions().find(read_documents(file)[0], "", 1).line == 1
    file.write_text("system: cedar\nkind: PolicySet\nname: documents\nspec:\n  policies: |\n    permit (\n")
    assert Positions().find(read_documents(file)[0], "", 0).line == 1


@pytest.mark.parametrize("message", ["nothing of a field", "missing: nowhere there", "a b: no path"])
def test_without_a_field_it_is_the_place_of_the_document(tmp_path: Path, message: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    role = read_documents(file)[1]
    assert Positions().find(role, message) == role.place


def test_json_and_json_lines_have_places_too(tmp_path: Path) -> None:
    document = '{"system": "lenses6", "kind": "Group", "name": "n", "spec": {"role": []}}'
    for name, text, line in (
        ("one.json", f"\n{document}\n", 2),
        ("list.json", f"[{document.replace('role', 'roles')},\n{document}]", 2),
        ("lines.jsonl", f"{document.replace('role', 'roles')}\n\n{document}\n", 3),
    ):
        file = tmp_path / name
        file.write_text(text)
        last = read_documents(file)[-1]
        assert str(Positions().find(last, "role: unknown field")) == f"{file}:{line}:{document.index('role') or 0}"


def test_a_file_that_is_gone_or_different_leaves_the_place_of_the_document(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    role = read_documents(file)[1]
    for text in ("", "{", None):
        file.unlink() if text is None else file.write_text(text)
        assert Positions().find(role, "spec: wrong") == role.place


def test_what_publishing_refuses_and_warns_of_has_its_place(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    assert [refusal.partition(": ")[0] for refusal in refusals(read_documents(file), 1 << 20)] == [f"{file}:11:1"]
    sound = TWO.replace("valid_until: 2026-13-45\n", "").replace("actions: kafka:Read", "action: kafka:Raed")
    file.write_text(sound)
    assert refusals(read_documents(file), 1 << 20) == []
    [warning] = warnings_of(read_documents(file))
    assert warning.startswith(f"{file}:17:7: lenses6/Role/readers: statements[1]: ")


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("a:\n  - b: 1\n   c: 2\n", "3:4", "Check the indentation"),
        ("a: 1\n  b: 2\n", "2:4", "Check the indentation"),
        ("a:\n\t- b\n", "2:1", "spaces, not with tabs"),
        ("a: @b\n", "1:4", "in quotes"),
    ],
)
def test_yaml_that_cannot_be_read_says_where_and_what_to_try(tmp_path: Path, text: str, place: str, hint: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(FilesRefused, match=hint) as refused:
        read_documents(file)
    assert refused.value.errors[0].startswith(f"{file}:{place}:")


def test_fields_beside_an_empty_spec_are_to_be_indented(tmp_path: Path) -> None:
    file = tmp_path / "flat.yaml"
    file.write_text("system: lenses6\nkind: Group\nname: n\nspec:\nroles: [r]\n")
    assert f"{file}:5:1: lenses6/Group/n: roles: unknown field: indent it under `spec`" in refusals(
        read_documents(file), 1 << 20
    )
