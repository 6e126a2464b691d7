"""Records on their way out: packed by the workers, many in one cell, and unpacked by the driver."""

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from streaming.enforcer.columns import Columns, Decisions, decisions_of
from streaming.enforcer.headers import Headers

Outgoing = tuple[int, bytes | None, bytes | None, Headers | None]
"""Which of the batch's output topics, key, value, headers. Headers None: the content type of decisions alone."""

DECISIONS, VERDICTS = 0, 1  # numbers of these topics among a batch's outputs
SIZE_BYTES = 8  # in front of what is compressed: its size before


class Packed(msgspec.Struct, array_like=True):
    """The records that come of an Arrow batch.

    `columns`: decisions by the short way; `keys` and `values`: other decisions with no other header than the content
    type; `others`: all else.
    """

    columns: list[Columns] = []
    keys: list[bytes | None] = []
    values: list[bytes] = []
    others: list[Outgoing] = []

    def add(self, number: int, key: bytes | None, value: bytes | None, headers: Headers | None) -> None:
        """Append a record, given as an `Outgoing`."""
        if number == DECISIONS and headers is None and value is not None:
            self.keys.append(key)
            self.values.append(value)
        else:
            self.others.append((number, key, value, headers))

    def decisions(self) -> Iterator[Decisions]:
        """All decisions but those among `others`."""
        for columns in self.columns:
            yield from decisions_of(columns)
        if self.keys:
            yield self.keys, self.values, None


_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(Packed)
_codec = pa.Codec("lz4")


def pack(packed: Packed) -> bytes:
    """Many records as one value, compressed: alike as they are, they become a tenth, and are copied many times."""
    plain = _pack.encode(packed)
    compressed: bytes = _codec.compress(plain, asbytes=True)
    return len(plain).to_bytes(SIZE_BYTES) + compressed


def unpack(data: bytes) -> Packed:
    """What `pack` packed."""
    size = int.from_bytes(data[:SIZE_BYTES])
    return _unpack.decode(_codec.decompress(memoryview(data)[SIZE_BYTES:], size, asbytes=True))
