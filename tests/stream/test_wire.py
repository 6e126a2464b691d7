"""Columnar batches hold what was put into them, however few texts encode it."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.records import packing
from streaming.records.packing import (
    DECISIONS,
    ColumnarBatch,
    Outgoing,
    Packed,
    columnar_batches,
    encode_headers,
    pack,
)
from tests.stream.packed import read_packed

USUAL = [("content-type", b"application/json")]
TEXT = st.one_of(st.sampled_from([b"", b"{", b"\0\xff", "→".encode()]), st.binary(max_size=5))
OWN = st.lists(st.tuples(st.sampled_from(["traceparent", "", "→"]), st.none() | TEXT), max_size=2).map(encode_headers)


def _texts(texts: list[bytes | None]) -> Any:
    return pa.array(texts, pa.binary())


@st.composite
def batches(draw: st.DrawFn) -> ColumnarBatch:
    """Any columnar batch, its columns slices of others as Arrow likes to have them."""
    size = draw(st.integers(1, 5))

    def column(text: st.SearchStrategy[bytes]) -> Any:
        found = draw(st.lists(st.none() | text, min_size=size + 2, max_size=size + 2))
        return _texts(found)[1 : size + 1]

    return ColumnarBatch(column(TEXT), column(OWN), column(TEXT))


@given(batches())
def test_a_packed_batch_has_the_same_records(columns: ColumnarBatch) -> None:
    topic, usual, records = read_packed(pack("decisions", USUAL, columns))
    assert (topic, usual) == ("decisions", USUAL)
    keys, values, headers = map(list, zip(*records, strict=True))
    assert keys == columns.keys.to_pylist()
    assert values == columns.values.to_pylist()
    assert [None if own is None else encode_headers(own) for own in headers] == columns.headers.to_pylist()


RECORDS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2]), st.none() | TEXT, st.none() | TEXT, st.none() | st.just(USUAL))
)


@given(RECORDS, st.integers(1, 20))
def test_records_one_by_one_are_all_in_batches_those_of_a_topic_in_order(records: list[Outgoing], most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packing, "COLUMNAR_BATCH_BYTES", most)
        made = [(number, columns) for number, columns in columnar_batches(records)]
    for topic in range(3):
        found = [
            record for number, columns in made for record in read_packed(pack("t", [], columns))[2] if number == topic
        ]
        assert found == [(key, value, headers) for number, key, value, headers in records if number == topic]


def test_a_batch_of_whole_values_ends_when_it_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "COLUMNAR_BATCH_BYTES", 10)
    records: list[Outgoing] = [(n % 2, b"k", b"1234", None) for n in range(10)]
    assert [(number, len(columns.keys)) for number, columns in columnar_batches(records)] == [
        (0, 2),
        (1, 2),
        (0, 2),
        (1, 2),
        (0, 1),
        (1, 1),
    ]


def test_others_keep_their_positions_in_any_batch() -> None:
    others: list[Outgoing] = [(DECISIONS, None, b"2", None), (1, None, b"letter", None), (DECISIONS, None, b"7", None)]
    packed = Packed([], others, [2, 5, 7])
    made = {number: columns.positions for number, columns in packed.batches()}
    assert {number: positions.tolist() for number, positions in made.items() if positions is not None} == {
        DECISIONS: [2, 7],
        1: [5],
    }


def test_what_lies_under_a_null_is_not_written() -> None:
    """Arrow may leave anything there."""
    _, offsets, content = _texts([b"gone", b"there"]).buffers()
    texts = pa.BinaryArray.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\2"), offsets, content])
    assert texts.to_pylist() == [None, b"there"]
    assert read_packed(pack("t", [], ColumnarBatch(texts, _texts([None, None]), _texts([b"v", b"v"]))))[2] == [
        (None, b"v", None),
        (b"there", b"v", None),
    ]
