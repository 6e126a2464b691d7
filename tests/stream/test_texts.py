"""Texts and their slots: found in columns as they are one by one."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from streaming.enforcer.texts import CHUNK, ID, RESOURCE, Shape, Texts, filled, shape_of

LONGEST = 200
WORDS = st.text("abø:/-", min_size=1, max_size=6)
VALUES = st.lists(
    st.one_of(
        st.none(),
        st.binary(max_size=12),
        st.text('ab"\\\n ø{}', max_size=20).map(str.encode),
        st.builds(
            lambda id_, resource, more: json.dumps({"id": id_, "more": more, "resource": {"id": resource}}).encode(),
            WORDS,
            WORDS,
            st.lists(WORDS, max_size=2),
        ),
        st.just(b'"' * (LONGEST + 1)),
    ),
    max_size=8,
)


def _is_plain(value: bytes | None) -> bool:
    if value is None or len(value) > LONGEST:
        return False
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return "\\" not in text and all(mark >= " " for mark in text)


@given(VALUES, st.integers(0, 2))
@example([b"a", b"\xff", b"b", b"\xc3", None, b"c"], 0)
def test_plain_are_those_that_are_one_by_one(values: list[bytes | None], start: int) -> None:
    """Also in a part of a column."""
    column = pa.array(values, pa.binary())[start:]
    assert Texts(column, LONGEST).plain.tolist() == [_is_plain(value) for value in values[start:]]


@given(VALUES, st.integers(0, 2), st.integers(-1, 8), st.integers(-1, 8))
def test_texts_are_cut_at_their_quotes(values: list[bytes | None], start: int, before: int, behind: int) -> None:
    """Whatever the shape: the pieces make the text, the slots have no quotes, and none is empty."""
    texts = Texts(pa.array(values, pa.binary())[start:], LONGEST)
    rows = np.flatnonzero(texts.plain)
    cut = texts.cut(Shape(before, behind), rows)
    slots = cut.piece(ID).to_pylist(), cut.piece(RESOURCE).to_pylist()
    for row, key, id_, resource in zip(cut.rows.tolist(), cut.keys().to_pylist(), *slots, strict=True):
        assert filled(key, id_[1:-1], resource) == values[start:][row]
        assert id_[:1] + id_[-1:] == b'""'
        assert id_[1:-1]
        assert resource
        assert b'"' not in id_[1:-1] + resource


@given(st.lists(st.tuples(WORDS, WORDS, st.lists(WORDS, max_size=2)), min_size=1, max_size=5))
def test_the_shape_of_one_text_finds_its_slots_in_a_column(asked: list[tuple[str, str, list[str]]]) -> None:
    values = [
        json.dumps({"id": id_, "more": more, "resource": {"id": resource}}, ensure_ascii=False).encode()
        for id_, resource, more in asked
    ]
    texts = Texts(pa.array(values, pa.binary()), LONGEST)
    for row, (id_, resource, _) in enumerate(asked):
        found = shape_of(values[row], id_.encode(), resource.encode())
        assert found is not None
        shape, key = found
        cut = texts.cut(shape, np.array([row]))
        assert cut.keys().to_pylist() == [key]
        assert cut.piece(RESOURCE).to_pylist() == [resource.encode()]
        assert filled(key, id_.encode(), resource.encode()) == values[row]


def test_a_shape_does_not_reach_into_the_texts_beside() -> None:
    value = b'{"id":"a","resource":{"id":"b"}}'
    texts = Texts(pa.array([value] * 3, pa.binary()), LONGEST)
    rows = np.arange(3)
    assert texts.cut(Shape(2, 0), rows).rows.tolist() == [0, 1, 2]
    for before, behind in ((-1, 0), (-4, 0), (2, -1), (2, -3), (2, 10), (10, 0)):
        assert not len(texts.cut(Shape(before, behind), rows).rows)


def test_a_text_without_its_ids_has_no_shape() -> None:
    for text in (b"", b"{}", b'{"id":"a"}', b'{"resource":{"id":"a"},"id":"b"}', b'{"id":"b","resource":"a"}'):
        assert shape_of(text, b"b", b"a") is None


def test_quotes_and_odd_characters_are_found_on_both_sides_of_a_chunk() -> None:
    for odd in (b"x", b"\\", b"\n"):
        value = b"." * (CHUNK - 2) + b'"a"' + odd
        texts = Texts(pa.array([b"first", value], pa.binary()), 2 * CHUNK)
        assert texts.plain.tolist() == [True, odd == b"x"]
        assert texts._quotes.tolist() == [5 + CHUNK - 2, 5 + CHUNK]
