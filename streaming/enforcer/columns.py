"""Decisions of the short way as columns: the workers send what differs between them, the driver puts them together.

A decision has some nine hundred bytes, of which a hundred are its own: where the request lies, its id, key and time,
the resource's id, and the number of its answer. An answer is sent once for all records of a batch that share it.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.enforcer.headers import Headers
from streaming.enforcer.plans import Answered
from streaming.enforcer.texts import Numbers

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Headers).decode

MOMENT_AND_OFFSETS_BYTES = len("2026-11-21T00:00:00.000Z") + 2 * len(str(2**63))
TOGETHER = 20_000  # records put together at a time
LARGEST = (1 << 30) // TOGETHER  # bytes of a record that is sent so: a column of Arrow's holds up to 2 GiB

Decisions = tuple[list[bytes | None], list[bytes], list[Headers | None] | None]
"""Keys, values and headers of records; headers None: the content type alone, for one of them or for all."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """What all decisions on records of one partition in one batch begin and end with."""

    head: bytes
    tail: bytes


def layout(frame: Frame, number: Any, asker: Any, system: Any, at: Any, told: Any, evaluations: Any = b"") -> Any:
    """The texts that make a decision record: bytes, or columns of them.

    `number`: the offset; `asker`: the request's id, as JSON; `at`: its time; `told`: the texts of the answer and its
    request, as `Answer` has them.
    """
    begin = (frame.head, number, b'","request_id":', asker, b',"system":', system, b',"time":"', at, b'",')
    return *begin, *told, frame.tail, number, b"}}", evaluations, b"}"


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """Decisions on requests to one system. `records`, `answers` and `echoes`: Arrow streams of one batch each."""

    frame: Frame
    system: bytes
    records: bytes
    answers: bytes
    echoes: bytes


class Beside(msgspec.Struct, frozen=True):
    """What a decision record has of its request's record, as columns. `times`: as text."""

    keys: pa.BinaryArray
    offsets: pa.Int64Array
    times: pa.BinaryArray
    headers: pa.BinaryArray


def sizes(frame: Frame, answered: Answered) -> Numbers:
    """How many bytes each decision record has at most."""
    around = b"".join(layout(frame, b"", b"", msgspec.json.encode(answered.system), b"", ()))
    told = np.array([told.size for told in answered.told], np.int64)
    times = np.array([len(told.pieces) for told in answered.told], np.int64)  # once in the echo, too
    echoes = np.array([len(echo.before) + len(echo.after) for echo in answered.echoes], np.int64)
    shared: Numbers = told[answered.answers] + echoes[answered.askers] + (len(around) + MOMENT_AND_OFFSETS_BYTES)
    return shared + _lengths(answered.ids) + times[answered.answers] * _lengths(answered.resources)


def columns_of(frame: Frame, answered: Answered, beside: Beside) -> Columns:
    """The decisions."""
    pieces = itertools.zip_longest(*(told.pieces for told in answered.told))
    answers = {str(number): pa.array(column, pa.binary()) for number, column in enumerate(pieces)}
    echoes = {
        "before": pa.array([echo.before for echo in answered.echoes], pa.binary()),
        "after": pa.array([echo.after for echo in answered.echoes], pa.binary()),
    }
    records = {
        "key": beside.keys,
        "offset": beside.offsets,
        "at": beside.times,
        "headers": beside.headers,
        "id": answered.ids,
        "resource": answered.resources,
        "answer": pa.array(answered.answers),
        "asker": pa.array(answered.askers),
    }
    sent = (pa.RecordBatch.from_pydict(columns) for columns in (records, answers, echoes))
    return Columns(frame, msgspec.json.encode(answered.system), *map(_write, sent))


def decisions_of(columns: Columns) -> Iterator[Decisions]:
    """The records to write, some thousands at a time."""
    records, answers, echoes = map(_read, (columns.records, columns.answers, columns.echoes))
    for start in range(0, len(records), TOGETHER):
        yield _put_together(columns, records.slice(start, TOGETHER), answers, echoes)


def _put_together(
    columns: Columns, records: pa.RecordBatch, answers: pa.RecordBatch, echoes: pa.RecordBatch
) -> Decisions:
    number = records["offset"].cast(pa.string()).cast(pa.binary())
    pieces = (column.take(records["answer"]) for column in answers.columns)
    answer = pc.binary_join_element_wise(*pieces, records["resource"], null_handling="skip")
    before, after = (echoes[name].take(records["asker"]) for name in ("before", "after"))
    told = (answer, before, records["resource"], after)
    parts = layout(columns.frame, number, records["id"], columns.system, records["at"], told)
    texts = (pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in (*parts, b""))
    values = pc.binary_join_element_wise(*texts)
    return records["key"].to_pylist(), values.to_pylist(), _headers(records["headers"])


def _headers(column: pa.BinaryArray) -> list[Headers | None] | None:
    if column.null_count == len(column):
        return None
    return [told and _decode(told) for told in column.to_pylist()]


def encode_headers(headers: Headers) -> bytes:
    """Headers as a cell of `Beside.headers`."""
    return _encode(headers)


def _lengths(texts: pa.BinaryArray) -> Numbers:
    lengths: Numbers = pc.binary_length(texts).to_numpy().astype(np.int64)
    return lengths


def _write(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _read(stream: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(stream).read_next_batch()
