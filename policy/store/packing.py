"""Grants and memberships as bytes, for snapshots on their way to where decisions are made.

What many share, such as patterns and origins, is written once, and all of it by msgspec. A pickle of the objects
themselves takes ten times as long, and a change of policies waits for it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.model import ALLOW, DENY, Effect, Grant, Membership, StatementId
from policy.core.pattern import Pattern
from policy.core.times import ALWAYS, Window

EFFECTS: tuple[Effect, ...] = (ALLOW, DENY)

Item = TypeVar("Item")


class _Packed(msgspec.Struct, array_like=True):
    """``owners``: whose items they are, and how many. ``rows``: of each item the places of its parts in the tables."""

    patterns: list[Pattern]
    origins: list[StatementId]
    windows: list[Window]
    texts: list[str]
    owners: list[tuple[str, int]]
    rows: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class _Table:
    """Distinct things with their places, in the order in which they came."""

    def __init__(self) -> None:
        self._by_value: dict[Any, int] = {}
        self._by_id: dict[int, int] = {}  # of things that live as long as this: most come again as the same object

    def place(self, thing: Any) -> int:
        place = self._by_id.get(id(thing))
        if place is None:
            place = self._by_id[id(thing)] = self._by_value.setdefault(thing, len(self._by_value))
        return place

    def things(self) -> list[Any]:
        return list(self._by_value)


def pack_grants(grants: Mapping[str, Sequence[Grant]]) -> bytes:
    """Grants by principal."""
    patterns, origins, windows, rows = _Table(), _Table(), _Table(), list[int]()
    for grant in itertools.chain.from_iterable(grants.values()):
        rows += (
            EFFECTS.index(grant.effect),
            patterns.place(grant.permission),
            patterns.place(grant.object),
            origins.place(grant.statement_id),
            windows.place(grant.window),
        )
    return _encode(_Packed(patterns.things(), origins.things(), windows.things(), [], _owners(grants), rows))


def unpack_grants(packed: bytes) -> dict[str, list[Grant]]:
    """The reverse."""
    unpacked = _decode(packed)
    patterns, origins, windows = unpacked.patterns, unpacked.origins, _windows(unpacked)
    return {
        principal: [
            Grant(
                principal,
                EFFECTS[effect],
                patterns[permission],
                patterns[object_],
                origins[statement_id],
                windows[window],
            )
            for effect, permission, object_, statement_id, window in rows
        ]
        for principal, rows in _rows(unpacked, 5)
    }


def pack_memberships(memberships: Mapping[str, Sequence[Membership]]) -> bytes:
    """Memberships by member."""
    texts, origins, windows, rows = _Table(), _Table(), _Table(), list[int]()
    for one in itertools.chain.from_iterable(memberships.values()):
        rows += texts.place(one.principal), origins.place(one.statement_id), windows.place(one.window)
    return _encode(_Packed([], origins.things(), windows.things(), texts.things(), _owners(memberships), rows))


def unpack_memberships(packed: bytes) -> dict[str, list[Membership]]:
    """The reverse."""
    unpacked = _decode(packed)
    texts, origins, windows = unpacked.texts, unpacked.origins, _windows(unpacked)
    return {
        member: [
            Membership(member, texts[principal], origins[statement_id], windows[window])
            for principal, statement_id, window in rows
        ]
        for member, rows in _rows(unpacked, 3)
    }


def _owners(items: Mapping[str, Sequence[Item]]) -> list[tuple[str, int]]:
    return [(owner, len(owned)) for owner, owned in items.items()]


def _rows(unpacked: _Packed, width: int) -> Iterator[tuple[str, Iterator[tuple[int, ...]]]]:
    """Each owner with the rows of its items, which are to be read before the next owner's."""
    rows = zip(*(unpacked.rows[column::width] for column in range(width)), strict=True)
    return ((owner, itertools.islice(rows, count)) for owner, count in unpacked.owners)


def _windows(unpacked: _Packed) -> list[Window]:
    """The unbounded window is compared by identity."""
    return [ALWAYS if window == ALWAYS else window for window in unpacked.windows]
