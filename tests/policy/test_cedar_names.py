"""Cedar's entities in commands: as policies write them, with the escapes of Cedar, and back."""

import json

import cedarpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.systems.cedar.uid import Uid, text_of, uid_of_text
from policy.testing import CaseFileError, full_request
from tests.examples import examples


def parsed(text: str) -> Uid | None:
    """The entity as the library parses it in a policy; None: it does not."""
    try:
        read = json.loads(cedarpy.policies_to_json_str(f"permit(principal == {text}, action, resource);"))
    except ValueError:
        return None
    entity = read["staticPolicies"]["policy0"]["principal"]["entity"]
    return entity["type"], entity["id"]


WRITTEN = [
    *(
        r"a\"b",
        r"\\",
        r"\'",
        r"\n\r\t\0",
        r"\x41\x7f",
        r"\u{1F600}",
        r"\u{4_1}",
        r"\u{41_}",
        r"\u{4__1}",
        "é",
        "a\nb",
        "",
    ),
    *(
        r"\x80",
        r"\u{D800}",
        r"\u{110000}",
        r"\u{0000041}",
        r"\u{_41}",
        r"\u{}",
        r"\q",
        "\\",
        'a"b',
        r"\*",
        "a\rb",
        r"\u41",
    ),
]


@pytest.mark.parametrize("written", WRITTEN)
def test_an_id_in_a_command_is_what_cedar_parses(written: str) -> None:
    assert uid_of_text(f'App::User::"{written}"') == parsed(f'App::User::"{written}"')


pieces = st.sampled_from((*WRITTEN, "a", "{", "}", "_", "u", "x", "4", "F", "\\u{", "\\x", "'", '\\"'))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(pieces, max_size=4).map("".join))
def test_any_id_in_a_command_is_what_cedar_parses(written: str) -> None:
    assert uid_of_text(f'User::"{written}"') == parsed(f'User::"{written}"')


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=8))
def test_what_is_shown_can_be_entered_again(id_: str) -> None:
    """In messages, differences and searches."""
    assert uid_of_text(text_of(("User", id_))) == parsed(text_of(("User", id_))) == ("User", id_)


def test_commands_take_subject_and_resource_with_escapes() -> None:
    asked = {"subject": r'User::"a\"b"', "action": "read", "resource": r'App::Doc::"\u{e9}\\"'}
    found = full_request(asked, "cedar")
    assert found["subject"] == {"type": "User", "id": 'a"b'}
    assert found["resource"] == {"type": "App::Doc", "id": "é\\"}


@pytest.mark.parametrize("text", ['User::"a"b"', r'User::"a\q"', 'User::"a', 'if::"a"'])
def test_what_only_looks_like_an_entity_is_refused_and_not_taken_for_an_id(text: str) -> None:
    with pytest.raises(CaseFileError, match="is not an entity as Cedar writes it"):
        full_request({"subject": text, "action": "read", "resource": "plan"}, "cedar")
