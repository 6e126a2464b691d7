"""Decisions as a lot: what differs between them in columns, all else once for those that share it."""

import itertools
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from streaming.enforcer.rendering import RenderedAnswer, RenderedRequest
from streaming.records.packing import NO_TEXT, Codes, ColumnarBatch, DictionaryColumn, Part

Shared = TypeVar("Shared")


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


class Answered:
    """Requests with their answers, as columns.

    `rows`: the numbers of their records, rising; `ids`, `resources`: as JSON, without escapes.
    """

    __slots__ = ("answers", "ids", "requests", "resources", "rows", "times")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.ids: list[bytes] = []
        self.resources: list[bytes] = []
        self.times: list[int] = []
        self.answers: list[RenderedAnswer] = []
        self.requests: list[RenderedRequest] = []

    def add(
        self, row: int, id_: bytes, resource: bytes, at: int, answer: RenderedAnswer, request: RenderedRequest
    ) -> None:
        """Append one."""
        self.rows.append(row)
        self.ids.append(id_)
        self.resources.append(resource)
        self.times.append(at)
        self.answers.append(answer)
        self.requests.append(request)


class Beside(msgspec.Struct, frozen=True):
    """What a decision record has of its request's record. `times`: as texts."""

    keys: pa.BinaryArray
    offsets: pa.Array
    times: DictionaryColumn
    headers: pa.BinaryArray


def lot_of(
    frame: Frame, answered: Answered, beside: Beside, which: Codes, answers: list[RenderedAnswer]
) -> ColumnarBatch:
    """The decisions. `which`: of the answers."""
    number = beside.offsets.cast(pa.string()).cast(pa.binary())
    ids = pa.array(answered.ids, pa.binary())
    resources = pa.array([text[1:-1] for text in answered.resources], pa.binary())
    of, requests = coded(answered.requests)
    system, before, after = (
        DictionaryColumn(pa.array(texts, pa.binary()), of)
        for texts in zip(*((request.system, request.before, request.after) for request in requests), strict=True)
    )
    told = *_answers(which, answers, resources), before, resources, after
    parts = layout(frame, number, ids, system, beside.times, told)
    return ColumnarBatch(beside.keys, beside.headers, parts, np.array(answered.rows, np.int32))


def _answers(which: Codes, answers: list[RenderedAnswer], resources: pa.BinaryArray) -> Iterator[Part]:
    """The answers: their pieces, and the resource's id between each two of them."""
    for number, texts in enumerate(itertools.zip_longest(*(answer.pieces for answer in answers))):
        if number:
            yield _where([text is not None for text in texts], which, resources)
        yield DictionaryColumn(pa.array(texts, pa.binary()), which)


def _where(answers: list[bool], which: Codes, resources: pa.BinaryArray) -> Part:
    """The ids of the resources of those records whose answer is among these."""
    if all(answers):
        return resources
    rows: Codes = np.arange(len(which), dtype=np.int32)
    return DictionaryColumn(resources, np.where(np.array(answers)[which], rows, np.int32(NO_TEXT)))


def coded(shared: list[Shared]) -> tuple[Codes, list[Shared]]:
    """Objects that are shared as codes: the places of the distinct ones in a list."""
    distinct = {id(one): one for one in shared}
    places = {number: place for place, number in enumerate(distinct)}
    codes = np.fromiter(map(places.__getitem__, map(id, shared)), np.int32, len(shared))
    return codes, list(distinct.values())
