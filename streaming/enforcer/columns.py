"""Decisions of the short way as a lot: what differs between them in columns, all else once for those that share it."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.enforcer.plans import Answered
from streaming.enforcer.texts import Codes, Numbers
from streaming.enforcer.wire import NO_TEXT, Lot, Part, Picked

MOMENT_AND_OFFSETS_BYTES = len("2026-11-21T00:00:00.000Z") + 2 * len(str(2**63))


class Frame(msgspec.Struct, frozen=True):
    """What all decisions on records of one partition in one batch begin and end with."""

    head: bytes
    tail: bytes


def layout(frame: Frame, number: Any, asker: Any, system: Any, at: Any, told: Any, evaluations: Any = b"") -> Any:
    """The texts that make a decision record: bytes, or parts of a lot.

    `number`: the offset; `asker`: the request's id, as JSON; `at`: its time; `told`: the texts of the answer and its
    request, as `Answer` has them.
    """
    begin = (frame.head, number, b'","request_id":', asker, b',"system":', system, b',"time":"', at, b'",')
    return *begin, *told, frame.tail, number, b"}}", evaluations, b"}"


class Beside(msgspec.Struct, frozen=True):
    """What a decision record has of its request's record. `times`: as texts."""

    keys: pa.BinaryArray
    offsets: Numbers
    times: Picked
    headers: pa.BinaryArray


def sizes(frame: Frame, answered: Answered) -> Numbers:
    """How many bytes each decision record has at most."""
    around = b"".join(layout(frame, b"", b"", msgspec.json.encode(answered.system), b"", ()))
    told = np.array([told.size for told in answered.told], np.int64)
    times = np.array([len(told.pieces) for told in answered.told], np.int64)  # once in the echo, too
    echoes = np.array([len(echo.before) + len(echo.after) for echo in answered.echoes], np.int64)
    shared: Numbers = told[answered.answers] + echoes[answered.askers] + (len(around) + MOMENT_AND_OFFSETS_BYTES)
    return shared + _lengths(answered.ids) + times[answered.answers] * _lengths(answered.resources)


def lot_of(frame: Frame, answered: Answered, beside: Beside) -> Lot:
    """The decisions."""
    number = pa.array(beside.offsets).cast(pa.string()).cast(pa.binary())
    before, after = (
        Picked(pa.array(texts, pa.binary()), answered.askers)
        for texts in zip(*((echo.before, echo.after) for echo in answered.echoes), strict=True)
    )
    told = *_answers(answered), before, answered.resources, after
    parts = layout(frame, number, answered.ids, msgspec.json.encode(answered.system), beside.times, told)
    return Lot(beside.keys, beside.headers, parts, answered.rows.astype(np.int32))


def _answers(answered: Answered) -> Iterator[Part]:
    """The answers: their pieces, and the resource's id between each two of them."""
    for number, texts in enumerate(itertools.zip_longest(*(told.pieces for told in answered.told))):
        if number:
            yield _where([text is not None for text in texts], answered)
        yield Picked(pa.array(texts, pa.binary()), answered.answers)


def _where(answers: list[bool], answered: Answered) -> Part:
    """The ids of the resources of those records whose answer is among these."""
    if all(answers):
        return answered.resources
    rows: Codes = np.arange(len(answered.rows), dtype=np.int32)
    return Picked(answered.resources, np.where(np.array(answers)[answered.answers], rows, np.int32(NO_TEXT)))


def _lengths(texts: pa.BinaryArray) -> Numbers:
    lengths: Numbers = pc.binary_length(texts).to_numpy().astype(np.int64)
    return lengths
