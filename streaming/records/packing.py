"""Records on their way out: packed where they are made, unpacked by `ColumnarBatch.java` as they are handed to Kafka.

Each record has its position among the records of its Arrow batch, and so the offset of the input record that it comes
from. Java sends in the order of these: decisions with one key come in the order of their requests, also from different
columnar batches.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming.records.formats import Headers

DECISIONS, VERDICTS = 0, 1  # numbers of these topics among a batch's outputs

COLUMNAR_BATCH_BYTES = 64 << 20  # of records whose values are copied whole; at least one record, however large
SIZE_BYTES = 8  # in front of what is compressed: its size before

Topic = TypeVar("Topic", str, int)
"""Its name, or its number among a batch's outputs."""

Outgoing = tuple[int, bytes | None, bytes | None, Headers | None]
"""Number of the topic, key, value, headers. Headers None: the content type alone."""


class ColumnarBatch(NamedTuple):
    """Records for one topic, as columns. `headers`: as `encode_headers` has them; null: the usual ones.

    `positions`: of the records in their Arrow batch, ascending; None: 0 and up.
    """

    keys: pa.BinaryArray
    headers: pa.BinaryArray
    values: pa.BinaryArray
    positions: npt.NDArray[np.int32] | None = None


def columnar_batches(
    records: Iterable[tuple[Topic, bytes | None, bytes | None, Headers | None]], positions: Iterable[int] | None = None
) -> Iterator[tuple[Topic, ColumnarBatch]]:
    """Records with topic, key, value and headers as columnar batches; those for one topic stay in order."""
    gathered: dict[Topic, list[Any]] = {}
    sizes: Counter[Topic] = Counter()
    for position, (topic, key, value, headers) in zip(positions or itertools.count(), records, strict=False):
        packed = encode_headers(headers) if headers else None
        gathered.setdefault(topic, []).append((key, value, packed, position))
        sizes[topic] += sum(len(text) for text in (key, value, packed) if text is not None)
        if sizes[topic] >= COLUMNAR_BATCH_BYTES:
            yield topic, _columnar_batch(gathered.pop(topic))
            del sizes[topic]
    yield from ((topic, _columnar_batch(rest)) for topic, rest in gathered.items())


def _columnar_batch(records: list[Any]) -> ColumnarBatch:
    *columns, positions = zip(*records, strict=True)
    keys, values, headers = (pa.array(column, pa.binary()) for column in columns)
    return ColumnarBatch(keys, headers, values, np.array(positions, np.int32))


class Packed(NamedTuple):
    """The output of an Arrow batch: decisions in columnar batches, and all other records one by one.

    `positions`: of the others, ascending; None: all records are among them. `decided`: how many of the records, from
    the first on, these are; None: all.
    """

    columnar: list[ColumnarBatch]
    others: list[Outgoing]
    positions: list[int] | None = None
    decided: int | None = None

    def batches(self) -> Iterator[tuple[int, ColumnarBatch]]:
        """All output as columnar batches, each with the number of its topic."""
        return itertools.chain(
            ((DECISIONS, batch) for batch in self.columnar), columnar_batches(self.others, self.positions)
        )


_codec = pa.Codec("lz4_raw")


def pack(topic: str, usual: Headers, batch: ColumnarBatch, offsets: npt.NDArray[np.int64] | None = None) -> bytes:
    """A columnar batch as Java reads it, compressed, since records are much alike.

    `offsets`: of the Arrow batch's records.

    Numbers are little-endian and have 4 bytes, offsets 8. First comes the topic, then the usual headers, keys, headers,
    values, and of each record the offset of the input record, or its position.
    """
    positions = np.arange(len(batch.keys)) if batch.positions is None else batch.positions
    numbers = positions if offsets is None else offsets[positions]
    columns = itertools.chain.from_iterable(map(_column, (batch.keys, batch.headers, batch.values)))
    plain = b"".join((encode_text(topic.encode()), encode_headers(usual), *columns, numbers.astype("<i8").tobytes()))
    compressed: bytes = _codec.compress(plain, asbytes=True)
    return len(plain).to_bytes(SIZE_BYTES, "little") + compressed


def encode_headers(headers: Headers) -> bytes:
    """How many there are, then name and value of each; the length of a null is -1."""
    texts = (text for name, value in headers for text in (name.encode(), value))
    return b"".join((_number(len(headers)), *map(encode_text, texts)))


def encode_text(text: bytes | None) -> bytes:
    """A text as headers have it: its length, then its bytes."""
    return _number(-1) if text is None else _number(len(text)) + text


def _number(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def _column(texts: pa.BinaryArray) -> tuple[bytes, bytes, bytes]:
    """How many texts, how long each is (-1: null), and all of them one after the other."""
    lengths = pc.fill_null(pc.binary_length(texts), -1).to_numpy().astype("<i4")
    return _number(len(texts)), lengths.tobytes(), _content(texts.drop_null() if texts.null_count else texts)


def _content(texts: pa.BinaryArray) -> bytes:
    if not len(texts):
        return b""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return bytes(memoryview(content or b"")[ends[0] : ends[-1]])
