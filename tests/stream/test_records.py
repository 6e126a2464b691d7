"""What stands beside a value is taken apart as Spark's plan put it together, and nothing is mistaken for another."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.enforcer.source import Records, Row, decode_headers
from tests.stream.arrow import AT, Sent, records_at, records_batch

TEXTS = st.binary(max_size=20) | st.text("{[a", max_size=9).map(str.encode)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), TEXTS), min_size=1, max_size=3)
SENT = st.tuples(st.none() | TEXTS, st.none() | TEXTS, HEADERS)


def _row(offset: int, at: int, sent: Sent) -> Row:
    key, value, headers = sent
    return key, value, headers and [{"key": name, "value": header_value} for name, header_value in headers], offset, at


@given(st.lists(SENT, min_size=1, max_size=20), st.data())
def test_every_record_is_what_was_sent(sent: list[Sent], data: st.DataObject) -> None:
    times = [AT + data.draw(st.integers(-(10**6), 10**6)) for _ in sent]
    first = data.draw(st.integers(0, len(sent) - 1))
    batch = records_at((*record, at) for record, at in zip(sent, times, strict=True)).slice(first)
    records, expected = Records(batch), list(map(_row, range(len(sent)), times, sent))[first:]
    assert list(records.rows()) == expected
    assert (records.topic, records.partition) == ("requests", 0)
    assert records.keys.to_pylist() == [key for key, *_ in expected]
    assert records.offsets.tolist() == list(range(first, len(sent)))
    assert records.longest_key == max(len(key or b"") for key, *_ in expected)
    texts = records.header_texts()
    assert [text and (decode_headers(text) or None) for text in texts] == [row[2] or None for row in expected]
    some = data.draw(st.lists(st.integers(0, len(expected) - 1), unique=True))
    assert list(records.rows(np.array(some, np.int64))) == [expected[number] for number in some]


@pytest.mark.parametrize("place", [("requests", 1), ("others", 0), ("requestz", 0)])
def test_records_of_several_partitions_are_refused(place: tuple[str, int]) -> None:
    mixed = [records_batch([(None, b"{}", None)]), records_at([(None, b"{}", None, AT)], *place)]
    with pytest.raises(RuntimeError, match="minPartitions"):
        Records(pa.Table.from_batches(mixed).combine_chunks().to_batches()[0])
