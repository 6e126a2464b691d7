"""Grants and memberships as bytes, for snapshots on their way to where decisions are made.

What many share, such as patterns and statement ids, is written once, and all of it by msgspec. A pickle of the objects
themselves takes ten times as long, and a change of policies waits for it.
"""

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.model import EFFECTS, Grant, Membership, StatementId
from policy.core.pattern import Part, Pattern
from policy.core.times import ALWAYS, Window

Item = TypeVar("Item")


class _Packed(msgspec.Struct, array_like=True):
    """``owners``: whose items they are, and how many. ``rows``: of each item the places of its parts in the tables, as
    `GRANT` and `MEMBERSHIP` have them: to read them makes no list of them all.

    The tables: ``patterns``: of each, whether it is open and the places of its ``parts``; ``statement_ids``: of each,
    the place of its document among the ``texts``, and its statement.
    """

    parts: list[Part]
    patterns: list[tuple[bool, list[int]]]
    statement_ids: list[tuple[int, int | None]]
    windows: list[Window]
    texts: list[str]
    owners: list[tuple[str, int]]
    rows: bytes


GRANT = struct.Struct("<5i")  # effect, permission, object, statement_id, window
MEMBERSHIP = struct.Struct("<3i")  # principal, statement_id, window

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class _Table:
    """Distinct items with their places, in the order in which they came."""

    def __init__(self) -> None:
        self._by_value: dict[Any, int] = {}
        self._by_id: dict[int, int] = {}  # of items that live as long as this: most come again as the same object

    def place(self, item: Any) -> int:
        place = self._by_id.get(id(item))
        if place is None:
            place = self._by_id[id(item)] = self._by_value.setdefault(item, len(self._by_value))
        return place

    def items(self) -> list[Any]:
        return list(self._by_value)


def pack_grants(grants: Mapping[str, Sequence[Grant]]) -> bytes:
    """Grants by principal."""
    patterns, statement_ids, windows, rows = _Table(), _Table(), _Table(), bytearray()
    for grant in itertools.chain.from_iterable(grants.values()):
        rows += GRANT.pack(
            EFFECTS.index(grant.effect),
            patterns.place(grant.permission),
            patterns.place(grant.object),
            statement_ids.place(grant.statement_id),
            windows.place(grant.window),
        )
    return _pack(grants, rows, _Table(), statement_ids, windows, patterns)


def unpack_grants(packed: bytes) -> dict[str, list[Grant]]:
    """The reverse."""
    unpacked = _decode(packed)
    patterns, statement_ids, windows = _patterns(unpacked), _statement_ids(unpacked), _windows(unpacked)
    return {
        principal: [
            Grant(
                principal,
                EFFECTS[effect],
                patterns[permission],
                patterns[object_],
                statement_ids[statement_id],
                windows[window],
            )
            for effect, permission, object_, statement_id, window in rows
        ]
        for principal, rows in _rows(unpacked, GRANT)
    }


def pack_memberships(memberships: Mapping[str, Sequence[Membership]]) -> bytes:
    """Memberships by member."""
    texts, statement_ids, windows, rows = _Table(), _Table(), _Table(), bytearray()
    for one in itertools.chain.from_iterable(memberships.values()):
        rows += MEMBERSHIP.pack(
            texts.place(one.principal), statement_ids.place(one.statement_id), windows.place(one.window)
        )
    return _pack(memberships, rows, texts, statement_ids, windows, _Table())


def unpack_memberships(packed: bytes) -> dict[str, list[Membership]]:
    """The reverse."""
    unpacked = _decode(packed)
    texts, statement_ids, windows = unpacked.texts, _statement_ids(unpacked), _windows(unpacked)
    return {
        member: [
            Membership(member, texts[principal], statement_ids[statement_id], windows[window])
            for principal, statement_id, window in rows
        ]
        for member, rows in _rows(unpacked, MEMBERSHIP)
    }


def _pack(
    items: Mapping[str, Sequence[Item]],
    rows: bytearray,
    texts: _Table,
    statement_ids: _Table,
    windows: _Table,
    patterns: _Table,
) -> bytes:
    parts = _Table()
    shapes = [(pattern.open, [parts.place(part) for part in pattern.parts]) for pattern in patterns.items()]
    places = [(texts.place(statement_id.document), statement_id.statement) for statement_id in statement_ids.items()]
    owners = [(owner, len(owned)) for owner, owned in items.items()]
    return _encode(_Packed(parts.items(), shapes, places, windows.items(), texts.items(), owners, bytes(rows)))


def _rows(unpacked: _Packed, form: struct.Struct) -> Iterator[tuple[str, Iterator[tuple[int, ...]]]]:
    """Each owner with the rows of its items, which are to be read before the next owner's."""
    rows = form.iter_unpack(unpacked.rows)
    return ((owner, itertools.islice(rows, count)) for owner, count in unpacked.owners)


def _patterns(unpacked: _Packed) -> list[Pattern]:
    parts = unpacked.parts
    return [Pattern(tuple([parts[place] for place in places]), is_open) for is_open, places in unpacked.patterns]


def _statement_ids(unpacked: _Packed) -> list[StatementId]:
    return [StatementId(unpacked.texts[document], statement) for document, statement in unpacked.statement_ids]


def _windows(unpacked: _Packed) -> list[Window]:
    """The unbounded window is compared by identity."""
    return [ALWAYS if window == ALWAYS else window for window in unpacked.windows]
