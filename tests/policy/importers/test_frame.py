"""What holds for every importer: the same bytes again, sound documents, nothing that crashes one."""

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.core.document import identify
from policy.core.plain_data import read_yaml
from policy.importers import ImportInput, Source, sources, translate
from policy.importers.frame import Document, document
from policy.importers.inputs import MAX_INPUT
from policy.importers.written import state_of, to_text
from policy.store.repository import FilesRefused
from tests.policy.importers.running import DATA, as_json, findings_of_level, fixture, imported

EXPORTS = {
    "cdap": "grants.csv",
    "kafka-acls": "kafka-acls.json",
    "lenses5": "lenses5.yaml",
    "lenses6": "lenses6.yaml",
    "ranger": "ranger.json",
    "streamsets": "objects.csv",
    "ververica": "values.yaml",
}


def test_every_source_has_an_export_here() -> None:
    """So that the tests below are about all of them."""
    assert set(EXPORTS) == set(sources())
    assert {file.name for file in DATA.iterdir()} >= set(EXPORTS.values())


@pytest.mark.parametrize("source", EXPORTS)
def test_importing_again_gives_the_same_bytes_and_they_read_back_as_the_documents(source: str) -> None:
    """By the reader of policy files."""
    found = imported(source, fixture(EXPORTS[source]))
    written = to_text(source, found.documents)
    assert written == to_text(source, imported(source, fixture(EXPORTS[source])).documents)
    assert [part.value for part in read_yaml(written)] == list(found.documents)
    assert found.documents
    assert not found.errors


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
odd_texts = st.sampled_from(
    ["no", "1e5", "010", "~", "", "<<", "=", "*x", "&x", "!x", "2026-01-01", "\u202eevil", "a\nb", "# x", "'"]
)


@given(st.lists(st.tuples(st.one_of(texts, odd_texts.filter(bool)), st.one_of(texts, odd_texts)), max_size=4))
@settings(deadline=None)
def test_any_text_reads_back_as_it_was(pairs: list[tuple[str, str]]) -> None:
    """Also what YAML would take for something else, and what cannot be seen."""
    documents = [document("cdap", "Grant", name, {"user": value, value or "x": [value]}) for name, value in pairs]
    written = to_text("cdap", documents)
    assert [part.value for part in read_yaml(written)] == documents
    assert "\u202e" not in written


def test_a_file_is_known_as_written_edited_or_foreign() -> None:
    """By the sum in its first line."""
    written = to_text("cdap", imported("cdap", fixture("grants.csv")).documents)
    assert state_of("cdap", written) == "written"
    assert state_of("cdap", written.replace("READ", "ADMIN")) == "edited"
    assert state_of("cdap", written + "---\n") == "edited"
    assert state_of("ranger", written) == "foreign"
    assert state_of("cdap", "") == "foreign"


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
words = st.sampled_from(
    [
        "policies",
        "resources",
        "global",
        "name",
        "policy",
        "roles",
        "groups",
        "items",
        "namespaces",
        "initialAccessFileContent",
    ]
)


@pytest.mark.parametrize("source", EXPORTS)
@given(value=st.one_of(junk, st.dictionaries(words, junk), st.lists(st.dictionaries(words, junk), max_size=3)))
@settings(max_examples=60, deadline=None)
def test_nothing_crashes_an_importer(source: str, value: object) -> None:
    """Wrong types everywhere: refused as a file, or documents that lockkeeper takes."""
    with contextlib.suppress(FilesRefused):
        imported(source, as_json(value))


@pytest.mark.parametrize("source", EXPORTS)
@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b'"', b"a: [" * 5000, b"\x00", b"[" * 100_000, b"x" * (MAX_INPUT + 1)]
)
@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_what_cannot_be_read_is_refused_with_its_file(source: str, data: bytes, name: str) -> None:
    """Empty, not UTF-8, not closed, nested without end, too big."""
    with pytest.raises(FilesRefused, match=name):
        translate(sources()[source], [ImportInput(name, data)])


def made_of(system: str, *documents: Document) -> Source:
    """A source that gives these documents."""
    return Source(system, "", lambda *_: documents)


def test_a_document_that_lockkeeper_refuses_is_never_given() -> None:
    """With denies in the system nothing is: it may have held one."""
    good, bad = document("cdap", "Backend", "b", {"admins": ["x"]}), document("cdap", "Backend", "c", {"admins": 17})
    found = translate(made_of("cdap", good, bad), [])
    assert found.documents == (good,)
    assert findings_of_level(found, "warning")
    role, broken = (document("lenses6", "Role", name, {"statements": value}) for name, value in (("r", []), ("s", 17)))
    assert translate(made_of("lenses6", role, broken), []).documents == ()


def test_two_documents_of_one_name_leave_nothing_and_the_same_one_twice_is_one() -> None:
    one, other = (document("cdap", "Backend", "b", {"admins": [name]}) for name in ("x", "y"))
    assert translate(made_of("cdap", one, other), []).documents == ()
    assert translate(made_of("cdap", one, one), []).documents == (one,)


@pytest.mark.parametrize("source", EXPORTS)
def test_documents_come_by_kind_and_name(source: str) -> None:
    """So that a difference of two files is one of what they say."""
    documents = imported(source, fixture(EXPORTS[source])).documents
    keys = [identify(one) for one in documents]
    assert all(a < b for a, b in itertools.pairwise(keys))
