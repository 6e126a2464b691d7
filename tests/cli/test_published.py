"""What `policy get` prints is what `policy apply` accepts, and says the same: hostile names, values, and keys."""

import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy import Located, Place, all_systems, read_documents, refusals
from streaming.cli.policies import _Application, _only_record, show_yaml
from streaming.cli.published import with_refusals
from streaming.cli.restoring import _drift
from streaming.kafka.committed import RecordKey, Stored, stored
from streaming.settings import Settings
from tests.policy.strategies import cdap, cedar, kafka_acls, lenses5, lenses6, streamsets, ververica

SETTINGS = Settings(systems=tuple(all_systems()))
SYSTEMS = (cdap, cedar, kafka_acls, lenses5, lenses6, streamsets, ververica)
SPECIAL = (
    *["~", "?", "-", ":", "#", ",", "&", "*", "!", "|", ">", "%", "@", "`", "'", '"', "\\", "{", "}", "[", "]"],
    *(
        [
            "null",
            "Null",
            "true",
            "yes",
            "No",
            "on",
            "off",
            "1e5",
            "1e-5",
            "-1",
            "+1",
            "0",
            "010",
            "0x10",
            "0o7",
            "1_000",
            "1.0",
            ".5",
            "5.",
            "1:30",
            "2026-01-01",
            "=",
            "<<",
            ".inf",
            "NaN",
        ]
    ),
    *(
        [
            "---",
            "...",
            "a:\\",
            "b",
            "#c",
            "'a",
            '"b',
            "a\\nb",
            "-",
            "?",
            "&a",
            "*a",
            "!!str",
            "%YAML",
            "[a",
            "{a}",
            "a,b",
            "#",
            "$x",
        ]
    ),
    *(
        " a",
        "a ",
        "a: b",
        "a #b",
        "- a",
        "a\nb",
        "a\n\n b\n",
        "\ta",
        "a\tb",
        "\x07",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeff",
    ),
    *(
        "\u202e",
        "a\xa0b",
        "a\u3164b",
        "\ue000",
        "❤\ufe0f",
        "\u200b",
        "é",
        "e\u0301",
        "漢字",
        "😀",
        "\U000e0001",
        "x" * 200,
        "x " * 80,
        "123456789012345678901234",
    ),
)
NUMBERS = (
    0,
    -1,
    10**17,
    10**18,
    10**20,
    10**300,
    0.1,
    1e-7,
    1e16,
    1e22,
    1e300,
    5e-324,
    0.12345678901234568,
    -0.0,
    True,
    None,
)

plain = st.recursive(
    st.one_of(st.sampled_from(SPECIAL), st.sampled_from(NUMBERS), st.text(max_size=20)),
    lambda parts: st.one_of(st.lists(parts, max_size=3), st.dictionaries(st.sampled_from(SPECIAL), parts, max_size=3)),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document of any system, as it is or with special text and numbers anywhere in it."""
    document = copy.deepcopy(draw(st.sampled_from(draw(draw(st.sampled_from(SYSTEMS)).documents()) or [{}])))
    for _ in range(draw(st.integers(0, 2))):
        _spoil(draw, document)
    if document.get("system") == "lenses6" and isinstance(document.get("spec"), dict) and draw(st.booleans()):
        document["spec"][draw(st.sampled_from(["metadata", "description"]))] = draw(plain)
    return document


def _spoil(draw: st.DrawFn, value: Any) -> None:
    while isinstance(value, dict | list) and value:
        at = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        if not isinstance(value[at], dict | list) or draw(st.integers(0, 4)) == 0:
            value[at] = draw(plain)
            return
        value = value[at]


def records(found: list[tuple[bytes, bytes]], system: str = "lenses6") -> list[Stored]:
    """Records of a policy topic, as `policy get` sees them."""
    return with_refusals(
        SETTINGS, [stored(RecordKey(system, key), "t", at, at, value) for at, (key, value) in enumerate(found)]
    )


def shown(found: list[Stored], refused: bool = False) -> tuple[str, list[str]]:
    """What `policy get` prints, and what it reports."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        reports = [text for one in found if (text := show_yaml(one, refused)) is not None]
    return out.getvalue(), reports


def read_back(text: str, folder: Path) -> list[Any]:
    """The documents of a text, which `policy apply` accepts."""
    file = folder / "got.yaml"
    file.write_text(text, encoding="utf-8")
    found = read_documents(file, may_be_empty=True)
    assert refusals(found, SETTINGS.limits.document) == []
    return [one.value for one in found]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(documents(), st.booleans(), st.booleans())
def test_what_get_prints_is_what_apply_accepts_and_says_the_same(
    tmp_path: Path, document: dict[str, Any], refused: bool, own_key: bool
) -> None:
    name = f"{document.get('kind')}/{document.get('name') if own_key else 'another'}"
    try:
        value = json.dumps(document, ensure_ascii=False).encode()
        key = name.encode()
    except UnicodeEncodeError:
        return
    found = records([(key, value)], str(document.get("system") or "lenses6"))
    text, reports = shown(found, refused)
    back = read_back(text, tmp_path)
    assert len(back) + len(reports) == 1
    if back:
        assert json.dumps(back[0], sort_keys=True) == json.dumps(document, sort_keys=True)
        assert found[0].error is None


@pytest.mark.parametrize(("live", "written"), [(True, 1), (1, True), (0, False)])
def test_what_python_takes_for_the_same_is_not_the_same_document(live: Any, written: Any) -> None:
    """`true` and 1 are two values to Cedar: what takes a right away by one for the other was never published."""

    def staff(level: Any) -> dict[str, Any]:
        entity = {"uid": {"type": "User", "id": "dana"}, "attrs": {"clerk": level}, "parents": []}
        return {"system": "cedar", "kind": "Entities", "name": "staff", "spec": {"entities": [entity]}}

    [stands] = records([(b"Entities/staff", json.dumps(staff(live)).encode())], "cedar")
    assert stands.error is None
    for document, is_same in ((staff(live), True), (staff(written), False)):
        application = _Application(SETTINGS, [Located(Place("staff.yaml"), document)])
        assert application._is_in_force(stands) is is_same
        assert (_drift({stands.key: document}, {stands.key: stands}) == []) is is_same


GOOD = b'{"system": "lenses6", "kind": "Role", "name": "good", "spec": {"statements": []}}'


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (b"Role/other", GOOD, "its topic and key say lenses6/Role/other"),
        (b"Role/good", GOOD.replace(b"spec", b"specs"), "specs: unknown field"),
        (b"Role/good", GOOD.replace(b"lenses6", b"cdap"), "it says cdap/Role/good"),
        (b"Role/good", b"- a\n- b", "a document is a mapping"),
        (b"Role/good", b"[{}]", "a document is a mapping"),
        (b"Role/good", GOOD[:-1] + b', "effective_at": 0}', "effective_at"),
        (b"Role/good", GOOD[:-2] + b', "metadata": {"n": 1e300}}}', "YAML cannot hold"),
        (b"Role/good\xff", GOOD, "is not <kind>/<name>"),
        (b"readers", GOOD, "is not <kind>/<name>"),
        (b"Role/good", GOOD + b" " * (1 << 20), "at most"),
    ],
)
def test_what_is_refused_is_left_out_and_reported(key: bytes, value: bytes, why: str, tmp_path: Path) -> None:
    found = records([(b"Role/good", GOOD), (key, value)])
    text, [report] = shown(found)
    assert why in report
    assert read_back(text, tmp_path) == [json.loads(GOOD)]
    commented, _ = shown(found, refused=True)
    assert read_back(commented, tmp_path) == [json.loads(GOOD)], "shown as a comment, which apply ignores"
    assert "# refused: " in commented


@pytest.mark.parametrize("name", ["lenses6/?/readers", "lenses6/readers"])
def test_a_record_whose_key_names_no_document_is_deleted_by_the_name_in_answers_and_alerts_too(name: str) -> None:
    stored_records = records([(b"Role/good", GOOD), (b"readers", GOOD)])
    assert _only_record(stored_records, name) == RecordKey("lenses6", b"readers")


def test_a_value_that_ends_its_comment_publishes_nothing(tmp_path: Path) -> None:
    for end in ("\n", "\r", "\x85", "\u2028", "\u2029", "\x0b", "\x0c"):
        spoilt = f"{{a: 1{end}---{end}system: lenses6".encode()
        text, _ = shown(records([(f"Role/x{end}--- {{}}".encode(), spoilt)]), refused=True)
        assert read_back(text, tmp_path) == [], repr(end)


@pytest.mark.parametrize("special", [*SPECIAL, *NUMBERS], ids=repr)
def test_special_values_come_back_as_they_are_or_are_left_out(special: Any, tmp_path: Path) -> None:
    """As a name, a key, and a value: text that YAML would take for a number, a comment or a mark stays text."""
    role = json.loads(GOOD)
    role["spec"]["metadata"] = {"value": special, "list": [special, [special]], str(special): {"": special}}
    found = records([(b"Role/good", json.dumps(role).encode())])
    assert found[0].error is None
    text, reports = shown(found)
    back = read_back(text, tmp_path)
    assert json.dumps(back) == json.dumps([] if reports else [role])
    assert not reports or isinstance(special, int | float)
    named = {**json.loads(GOOD), "name": str(special)}
    found = records([(f"Role/{special}".encode(), json.dumps(named).encode())])
    assert read_back(shown(found)[0], tmp_path) == ([named] if found[0].error is None else [])
