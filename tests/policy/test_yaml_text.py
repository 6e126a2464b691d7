"""What is written as YAML is read back as the same data, whatever characters and line ends it has."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policy import dump_yaml, is_exact
from tests.examples import examples

MARKS = "ab \n\t#:|>-'\"\r\u2028\x85é\u202e{}[]&*!%@`,?~"
texts = st.text(alphabet=st.sampled_from(MARKS), max_size=30)


@settings(max_examples=examples(500), deadline=None)
@given(texts, st.booleans())
def test_texts_of_any_characters_are_read_back(text: str, escaped: bool) -> None:
    for value in ({"a": text}, {"spec": {"policies": text, "more": [text, {"b": text}]}}):
        assert is_exact(value, dump_yaml(value, escaped))


def test_several_lines_are_written_as_lines() -> None:
    text = "// owners\npermit (principal, action, resource);\n"
    written = dump_yaml({"spec": {"policies": text}})
    assert written == "spec:\n  policies: |\n    // owners\n    permit (principal, action, resource);\n"
