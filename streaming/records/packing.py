"""Records on their way out: packed where they are made, unpacked by `Sender.java` as they are handed to Kafka.

A decision has some nine hundred bytes, of which a hundred are its own. So records travel in columnar batches, which
hold once what many of them share. Each record has its position among the records of its Arrow batch. The sender sorts
by it: decisions with one key come in the order of their requests, also from different columnar batches.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming.records.formats import Headers

Codes = npt.NDArray[np.int32]
"""Places in a list of what records share."""

DECISIONS, VERDICTS = 0, 1  # numbers of these topics among a batch's outputs

COLUMNAR_BATCH_BYTES = 64 << 20  # of records whose values are copied whole; at least one record, however large
SIZE_BYTES = 8  # in front of what is compressed: its size before
EACH, ONE = -1, -2  # in place of indices: each record has its own text; all have the only one
NO_TEXT = -1  # among indices

Topic = TypeVar("Topic", str, int)
"""Its name, or its number among a batch's outputs."""

Outgoing = tuple[int, bytes | None, bytes | None, Headers | None]
"""Number of the topic, key, value, headers. Headers None: the content type alone."""


class DictionaryColumn(NamedTuple):
    """Texts that records share. `indices`: of each record's text; NO_TEXT: none."""

    texts: pa.BinaryArray
    indices: Codes


Part: TypeAlias = "bytes | pa.BinaryArray | DictionaryColumn"
"""A piece of all values of a columnar batch: the same for all, each its own, or a shared one."""


class ColumnarBatch(NamedTuple):
    """Records for one topic, as columns. `headers`: as `encode_headers` has them; null: the usual ones.

    A value is what its parts say one after the other, nulls left out; it is null where the first part is.
    `positions`: of the records in their Arrow batch, ascending; None: 0 and up.
    """

    keys: pa.BinaryArray
    headers: pa.BinaryArray
    parts: Sequence[Part]
    positions: Codes | None = None

    def before(self, position: int) -> "ColumnarBatch":
        """Those of the records whose positions are below this one."""
        positions = np.arange(len(self.keys), dtype=np.int32) if self.positions is None else self.positions
        count = int(np.searchsorted(positions, position))
        if count == len(self.keys):
            return self
        heads = {id(part): _head(part, count) for part in self.parts}  # what stands in many values is packed once
        parts = [heads[id(part)] for part in self.parts]
        return ColumnarBatch(self.keys[:count], self.headers[:count], parts, positions[:count])

    def values(self) -> Iterator[bytes | None]:
        """The values one by one, as `Sender.java` puts them together, only slower."""
        rows = zip(*(_texts(part, len(self.keys)) for part in self.parts), strict=True)
        return (None if texts[0] is None else b"".join(filter(None, texts)) for texts in rows)


def _head(part: Part, count: int) -> Part:
    if isinstance(part, bytes):
        return part
    return DictionaryColumn(part.texts, part.indices[:count]) if isinstance(part, DictionaryColumn) else part[:count]


def _texts(part: Part, records: int) -> Iterable[bytes | None]:
    if isinstance(part, bytes):
        return itertools.repeat(part, records)
    if isinstance(part, DictionaryColumn):
        texts = [*part.texts.to_pylist(), None]
        return [texts[number] for number in part.indices.tolist()]
    encoded: list[bytes | None] = part.to_pylist()
    return encoded


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
    return ColumnarBatch(keys, headers, (values,), np.array(positions, np.int32))


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

    def decisions(self) -> Iterator[bytes]:
        """All decision records."""
        values = (batch.values() for number, batch in self.batches() if number == DECISIONS)
        return (value for value in itertools.chain.from_iterable(values) if value is not None)


_codec = pa.Codec("lz4_raw")


def pack(topic: str, usual: Headers, batch: ColumnarBatch) -> bytes:
    """A columnar batch as `Sender.java` reads it, compressed, since records are much alike.

    Numbers are little-endian and have 4 bytes. First comes the topic, then the usual headers, keys, headers, positions;
    then how many columns of texts there are and they themselves; the same of indices, which have a number for each
    record; and of parts, which are two numbers: of the column, and of the indices, or EACH or ONE.
    """
    columns: list[pa.BinaryArray] = []
    indices: list[Codes] = []
    parts: list[int] = []
    for part in _merged(batch.parts):
        if isinstance(part, bytes):
            parts += _place(pa.array([part], pa.binary()), columns), ONE
        elif isinstance(part, DictionaryColumn):
            parts += _place(part.texts, columns), _place(part.indices, indices)
        else:
            parts += _place(part, columns), EACH
    before = (encode_text(topic.encode()), encode_headers(usual), *_column(batch.keys), *_column(batch.headers))
    encoded = itertools.chain.from_iterable(map(_column, columns))
    indexed = (column.astype("<i4").tobytes() for column in indices)
    chain = _number(len(parts) // 2), np.array(parts, "<i4").tobytes()
    positions = np.arange(len(batch.keys)) if batch.positions is None else batch.positions
    first = (*before, positions.astype("<i4").tobytes(), _number(len(columns)))
    plain = b"".join((*first, *encoded, _number(len(indices)), *indexed, *chain))
    compressed: bytes = _codec.compress(plain, asbytes=True)
    return len(plain).to_bytes(SIZE_BYTES, "little") + compressed


def _merged(parts: Sequence[Part]) -> Iterator[Part]:
    """The same with what all share in as few parts as can be."""
    for same, run in itertools.groupby(parts, lambda part: isinstance(part, bytes)):
        if same:
            yield b"".join(part for part in run if isinstance(part, bytes))
        else:
            yield from run


def _place(thing: Any, held: list[Any]) -> int:
    """Where a thing, which may be part of many values, is held once."""
    for number, other in enumerate(held):
        if other is thing:
            return number
    held.append(thing)
    return len(held) - 1


def encode_headers(headers: Headers) -> bytes:
    """How many there are, then name and value of each."""
    texts = (text for name, value in headers for text in (name.encode(), value))
    return b"".join((_number(len(headers)), *map(encode_text, texts)))


def encode_text(text: bytes) -> bytes:
    """A text as headers have it: its length, then its bytes."""
    return _number(len(text)) + text


def _number(number: int) -> bytes:
    return number.to_bytes(4, "little")


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
