"""The values of many records as texts: which are plain, and where in all of them at once the slots of a shape stand.

A *slot* is the place of one of the two texts in which requests differ as a rule: their id, and their resource's id.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CHUNK = 1 << 16  # bytes looked through at a time: what fits into the processor's cache
QUOTE, BACKSLASH, SPACE = ord('"'), ord("\\"), ord(" ")

Numbers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
"""Places in a list of what there is but once."""

Rows = npt.NDArray[np.bool_]
"""Which of the records of a batch."""

# The pieces into which a text is cut: what stands around the slots, the id with its quotes, the resource's without.
PIECES = 6
BEFORE, ID, BETWEEN, RESOURCE, AFTER, BEYOND = range(PIECES)


class Shape(msgspec.Struct, frozen=True):
    """How some producer writes requests: so many quotes before those of the id, and behind those of the resource's."""

    before: int
    behind: int


class Texts:
    """The values of records, by their numbers.

    `plain`: which of them are UTF-8 without backslashes and control characters, of at most `longest` bytes. In these
    what stands between two quotes of JSON is what it says.
    """

    def __init__(self, values: pa.BinaryArray, longest: int) -> None:
        self._content = values.buffers()[2]
        self._ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        self.plain = values.is_valid().to_numpy(zero_copy_only=False) & (np.diff(self._ends) <= longest)
        for number in _undecodable(values):
            self.plain[number] = False
        quotes, odd = self._look_through()
        self.plain[np.searchsorted(self._ends, odd, side="right") - 1] = False
        self._quotes, self._first = quotes, np.searchsorted(quotes, self._ends)

    def _look_through(self) -> tuple[Numbers, Numbers]:
        """Where the quotes are, and the characters that are not plain."""
        content = np.frombuffer(self._content or b"", np.uint8)
        quotes, odd = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start in range(self._ends[0], self._ends[-1], CHUNK):
            chunk = content[start : min(start + CHUNK, self._ends[-1])]
            quotes.append(start + np.flatnonzero(chunk == QUOTE))
            strange = (chunk < SPACE) | (chunk == BACKSLASH)
            if strange.any():
                odd.append(start + np.flatnonzero(strange))
        return np.concatenate(quotes), np.concatenate(odd)

    def cut(self, shape: Shape, rows: Numbers) -> "Cut":
        """The texts of this shape among those with these numbers (rising), cut at the slots, which are not empty."""
        first, end = self._first[rows], self._first[rows + 1]
        opening, closing = first + shape.before, end - shape.behind - 1
        fits = (first <= opening) & (opening + 2 < closing) & (closing < end)
        rows, opening, closing = rows[fits], opening[fits], closing[fits]
        quotes = self._quotes
        bounds = np.empty((len(rows), PIECES), np.int32)
        bounds[:, 0], bounds[:, 5] = self._ends[rows], self._ends[rows + 1]
        bounds[:, 1], bounds[:, 2] = quotes[opening], quotes[opening + 1] + 1
        bounds[:, 3], bounds[:, 4] = quotes[closing - 1] + 1, quotes[closing]
        filled = (bounds[:, 2] - bounds[:, 1] > 2) & (bounds[:, 4] > bounds[:, 3])
        return Cut(rows[filled], bounds[filled], self._content)


class Cut:
    """Texts of one shape, cut into pieces. `rows`: their numbers."""

    def __init__(self, rows: Numbers, bounds: npt.NDArray[np.int32], content: pa.Buffer) -> None:
        self.rows = rows
        self._pieces = pieces_of(bounds, bounds[-1, -1] if len(rows) else np.int32(0), content)

    def piece(self, piece: int, which: Numbers | None = None) -> pa.BinaryArray:
        """One piece of every text, or of those at these places in `rows`."""
        places = np.arange(len(self.rows)) if which is None else which
        return self._pieces.take(pa.array(PIECES * places + piece))

    def keys(self) -> pa.BinaryArray:
        """What stands around the slots, with NUL in their place, which no plain text holds."""
        around = (self.piece(piece) for piece in (BEFORE, BETWEEN, AFTER))
        return pc.binary_join_element_wise(*around, pa.scalar(b"\0", pa.binary()))


def pieces_of(bounds: npt.NDArray[np.int32], end: np.int32, content: pa.Buffer) -> pa.BinaryArray:
    """What stands in a buffer between these places, one row of them after the other, and before `end`.

    They rise, and so cover all that is between the first and the last: nothing is copied.
    """
    offsets = np.append(bounds, end).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), bounds.size, [None, pa.py_buffer(offsets), content])


def shape_of(text: bytes, id_: bytes, resource: bytes) -> tuple[Shape, bytes] | None:
    """The shape of one text and its key, guessed from where its ids first stand: what is made of them has to be proved.

    None: it has no shape.
    """
    pieces = text.split(b'"')
    try:
        opened = _place_of(id_, pieces, 0)
        closed = _place_of(resource, pieces, pieces.index(b"resource", opened))
    except ValueError:
        return None
    around = pieces[:opened], [*pieces[opened + 1 : closed], b""], [b"", *pieces[closed + 1 :]]
    return Shape(opened - 1, len(pieces) - 2 - closed), b"\0".join(map(b'"'.join, around))


def _place_of(id_: bytes, pieces: Sequence[bytes], start: int) -> int:
    """The piece after `"id":` that is this id; raises ValueError."""
    place = pieces.index(id_, start + 2)
    while pieces[place - 2] != b"id":
        place = pieces.index(id_, place + 1)
    return place


def filled(key: bytes, id_: bytes, resource: bytes) -> bytes:
    """The text with this key and these ids, neither with quotes."""
    before, between, after = key.split(b"\0")
    return b"".join((before, b'"', id_, b'"', between, resource, after))


def _undecodable(values: pa.BinaryArray, first: int = 0) -> Iterator[int]:
    """The numbers of the values that are not UTF-8: few as a rule, and searched for by halves."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        half = len(values) // 2
        if not half:
            yield first
            return
        yield from _undecodable(values[:half], first)
        yield from _undecodable(values[half:], first + half)
