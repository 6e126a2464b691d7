"""Reading documents from files: what they say, where they stand, and what is refused."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policy.core.plain_data import Unreadable, decode_text, read_json, read_value, read_yaml
from policy.store.repository import FilesRefused, read_documents

NOBODY = 65534
ROLE = "system: lenses6\nkind: Role\nname: {name}\nspec: {{statements: []}}\n"


def _yaml(text: str) -> Any:
    (part,) = read_yaml(text)
    return part.value


def _written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _refusal(path: Path) -> tuple[str, ...]:
    with pytest.raises(FilesRefused) as refused:
        read_documents(path)
    return refused.value.errors


@pytest.mark.parametrize(
    "text",
    ["2026-11-21", "2026-11-21T10:00:00Z", "no", "on", "yes", "y", "010", "0x1F", "12:30:45", "1_000", ".inf", ".nan"],
)
def test_yaml_text_that_older_yaml_takes_for_something_else_stays_text(text: str) -> None:
    assert _yaml(f"a: {text}") == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("7", 7),
        ("-7", -7),
        ("1.5e3", 1500.0),
    ],
)
def test_yaml_constants_and_numbers_are_values(text: str, value: object) -> None:
    found = _yaml(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ['"true"', "'7'", '"null"', "'*'", "'&x'", '""'])
def test_what_stands_in_quotes_is_text(text: str) -> None:
    assert _yaml(f"a: {text}") == {"a": text[1:-1]}


def test_whole_numbers_too_large_to_be_exact_stay_text() -> None:
    assert _yaml("a: 99999999999999999999") == {"a": "99999999999999999999"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: duplicate key 'a'"),
        ("a:\n  b: {c: 1, c: 2}", "line 2: duplicate key 'c'"),
        ("1: x", "line 1: the key 1 is not text"),
        ("a: &x 1\nb: *x", "line 1: an anchor, &x, is not supported"),
        ("a: *x", r"line 1: an alias, \*x, is not supported"),
        ("action: *", r"line 1: not YAML.*A text that begins with \* or & needs quotes"),
        ("a: !!python/object:os.system x", "line 1: a tag, .*, is not supported"),
        ("a: !!timestamp 2026-11-21", "line 1: a tag, .*, is not supported"),
        ("ok: 1\na: b: c", "line 2: not YAML: mapping values are not allowed"),
        ("a: [1", "line 2: not YAML"),
        ("a: \x01", "not YAML: unacceptable character"),
    ],
)
def test_yaml_that_says_more_than_it_shows_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1e999}', "1e999 is too large for a number: put it in quotes if it is text"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": 1\n"b": 2}', "line 2: not JSON"),
        ("9" * 5000, "digits"),
    ],
)
def test_json_that_is_ambiguous_or_no_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        read_json(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("opening", ["[", "- ", '{"a": '])
def test_deep_nesting_is_refused_at_once_however_deep(opening: str) -> None:
    """libyaml alone needs minutes for this, and Python's JSON reader exhausts the stack."""
    for read in (read_yaml, read_json):
        with pytest.raises(Unreadable):
            read(opening * 500_000)


def test_bytes_that_are_not_utf8_are_refused_with_place() -> None:
    with pytest.raises(Unreadable, match="line 2: byte 2 is not UTF-8"):
        decode_text(b"a\n\xc3\xff")  # the sequence breaks at its first byte, after "a\n"


@pytest.mark.parametrize(
    "data", [b'{"a": {"b": 1}}', b"a: {b: 1}\n", b"---\na:\n  b: 1\n", b'\xef\xbb\xbf{"a": {"b": 1}}']
)
def test_the_value_of_a_record_may_be_json_or_yaml(data: bytes) -> None:
    assert read_value(data) == {"a": {"b": 1}}


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"-Infinity", b"9" * 5000])
def test_json_with_a_number_that_cannot_be_read_is_refused_and_not_read_as_text(number: bytes) -> None:
    """Read as YAML it would be text, and a record would say something else than the same JSON in a file."""
    for data in (number, b'{"a": [1, %s]}' % number):
        with pytest.raises(Unreadable, match="number"):
            read_value(data)


@pytest.mark.parametrize("data", [b"a: 1\n---\nb: 2\n", b"", b"# nothing\n", b'{"a": 1}{"a": 2}', b"\xff"])
def test_a_record_that_is_not_one_value_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        read_value(data)


def test_a_folder_gives_every_document_with_its_place_in_order_of_the_files(tmp_path: Path) -> None:
    several = _written(
        tmp_path, "b/roles.yaml", ROLE.format(name="r1") + "---\n# nothing\n---\n" + ROLE.format(name="r2")
    )
    listed = _written(tmp_path, "c.yml", "- name: l1\n- name: l2\n")
    single = _written(tmp_path, "a.json", '{"name": "j1"}')
    lines = _written(tmp_path, "d.jsonl", '{"name": "n1"}\n\n{"name": "n2"}\n')
    for hidden in (".git/x.yaml", "b/.hidden.yaml", "README.md"):
        _written(tmp_path, hidden, "name: never\n")
    found = [(document.value["name"], str(document.place)) for document in read_documents(tmp_path)]
    assert found == [
        ("j1", f"{single}:1 (document 1)"),
        ("r1", f"{several}:1 (document 1)"),
        ("r2", f"{several}:8 (document 2)"),
        ("l1", f"{listed}:1 (document 1)"),
        ("l2", f"{listed}:2 (document 2)"),
        ("n1", f"{lines}:1 (document 1)"),
        ("n2", f"{lines}:3 (document 2)"),
    ]


def test_a_json_list_is_many_documents_distinguished_by_number(tmp_path: Path) -> None:
    file = _written(tmp_path, "all.json", '[{"name": "a"}, {"name": "b"}]')
    assert [str(document.place) for document in read_documents(file)] == [
        f"{file} (document 1)",
        f"{file} (document 2)",
    ]


def test_every_unreadable_file_of_a_folder_is_named(tmp_path: Path) -> None:
    _written(tmp_path, "good.yaml", "name: a\n")
    twice = _written(tmp_path, "twice.yaml", "name: a\nname: b\n")
    lines = _written(tmp_path, "lines.jsonl", '{"name": "a"}\n{"name"\n')
    errors = _refusal(tmp_path)
    assert len(errors) == 2
    assert errors[0].startswith(f"{lines}:2: not JSON")
    assert errors[1].startswith(f"{twice}:2: duplicate key 'name'")


def test_a_path_without_documents_is_refused_saying_what_is_read(tmp_path: Path) -> None:
    """An empty folder must not pass for a policy that was read."""
    assert "no documents; they are read from files ending in .json" in _refusal(tmp_path)[0]
    assert "there is no such file or folder" in _refusal(tmp_path / "missing.yaml")[0]
    assert "the name must end in" in _refusal(_written(tmp_path, "roles.txt", "name: a\n"))[0]
    empty = _written(tmp_path, "empty.yaml", "# nothing yet\n")
    assert _refusal(empty) == (f"{empty}: no documents",)


def test_a_file_of_a_folder_that_cannot_be_read_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    """It may hold a deny."""
    _written(tmp_path, "good.yaml", "name: a\n")
    (tmp_path / "folder.yaml").mkdir()
    dangling = tmp_path / "dangling.yaml"
    dangling.symlink_to(tmp_path / "gone.yaml")
    assert _refusal(tmp_path) == (f"{dangling}: No such file or directory",)


@contextlib.contextmanager
def _without_privileges() -> Iterator[None]:
    """Root may read every folder."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_folder_in_a_folder_that_cannot_be_read_is_an_error_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written(tmp_path, "good.yaml", "name: a\n")
    (tmp_path / "team").mkdir(mode=0o000)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above it are closed to others
    with _without_privileges():
        assert _refusal(Path()) == ("team: Permission denied",)


def test_a_link_to_a_folder_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    """But for hidden ones, as a ConfigMap of Kubernetes has."""
    _written(tmp_path, "good.yaml", "name: a\n")
    (tmp_path / "..data").symlink_to(tmp_path / ".elsewhere")
    (tmp_path / ".elsewhere").mkdir()
    assert [located.value for located in read_documents(tmp_path)] == [{"name": "a"}]
    team = tmp_path / "team"
    team.symlink_to(tmp_path / ".elsewhere")
    assert _refusal(tmp_path) == (
        f"{team}: links to folders are not followed: put the folder there, or links to files",
    )
