"""Grants and memberships as bytes, for snapshots on their way to where decisions are made.

What many share, such as patterns and statement ids, is written once, and all of it by msgspec. A pickle of the objects
themselves takes ten times as long, and a change of policies waits for it.
"""

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from policy.core.model import EFFECTS, Grant, Membership, StatementId
from policy.core.pattern import Part, Pattern
from policy.core.times import ALWAYS, Window


class _Packed(msgspec.Struct, array_like=True):
    """``owners``: whose items they are, and how many. ``rows``: of each item the numbers of its parts in the tables, as
    `GRANT` and `MEMBERSHIP` have them: to read them makes no list of them all.

    The tables: ``patterns``: of each, whether it is open and the numbers of its ``parts``; ``statement_ids``: of each,
    the number of its document among the ``texts``, and its statement.
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
    """Distinct items, numbered in the order in which they came."""

    def __init__(self) -> None:
        self._by_value: dict[Any, int] = {}
        self._by_id: dict[int, int] = {}  # of items that live as long as this: most come again as the same object

    def number(self, item: Any) -> int:
        number = self._by_id.get(id(item))
        if number is None:
            number = self._by_id[id(item)] = self._by_value.setdefault(item, len(self._by_value))
        return number

    def items(self) -> list[Any]:
        return list(self._by_value)


class _Tables:
    """The tables of what is being packed."""

    def __init__(self) -> None:
        self.patterns, self.statement_ids, self.windows, self.texts = _Table(), _Table(), _Table(), _Table()

    def pack(self, items: Mapping[str, Sequence[Any]], rows: bytes) -> bytes:
        parts, texts = _Table(), self.texts
        patterns = [(pattern.open, [parts.number(part) for part in pattern.parts]) for pattern in self.patterns.items()]
        ids = [(texts.number(id_.document), id_.statement) for id_ in self.statement_ids.items()]
        owners = [(owner, len(owned)) for owner, owned in items.items()]
        return _encode(_Packed(parts.items(), patterns, ids, self.windows.items(), texts.items(), owners, rows))


def pack_grants(grants: Mapping[str, Sequence[Grant]]) -> bytes:
    """Grants by principal."""
    tables, rows = _Tables(), bytearray()
    for grant in itertools.chain.from_iterable(grants.values()):
        rows += GRANT.pack(
            EFFECTS.index(grant.effect),
            tables.patterns.number(grant.permission),
            tables.patterns.number(grant.object),
            tables.statement_ids.number(grant.statement_id),
            tables.windows.number(grant.window),
        )
    return tables.pack(grants, bytes(rows))


def unpack_grants(packed: bytes) -> list[Grant]:
    """The reverse, one after the other."""
    unpacked = _decode(packed)
    patterns, statement_ids, windows = _patterns(unpacked), _statement_ids(unpacked), _windows(unpacked)
    rows = zip(_owners(unpacked), GRANT.iter_unpack(unpacked.rows), strict=True)
    return [
        Grant(
            principal,
            EFFECTS[effect],
            patterns[permission],
            patterns[object_],
            statement_ids[statement_id],
            windows[window],
        )
        for principal, (effect, permission, object_, statement_id, window) in rows
    ]


def pack_memberships(memberships: Mapping[str, Sequence[Membership]]) -> bytes:
    """Memberships by member."""
    tables, rows = _Tables(), bytearray()
    for membership in itertools.chain.from_iterable(memberships.values()):
        rows += MEMBERSHIP.pack(
            tables.texts.number(membership.principal),
            tables.statement_ids.number(membership.statement_id),
            tables.windows.number(membership.window),
        )
    return tables.pack(memberships, bytes(rows))


def unpack_memberships(packed: bytes) -> list[Membership]:
    """The reverse, one after the other."""
    unpacked = _decode(packed)
    texts, statement_ids, windows = unpacked.texts, _statement_ids(unpacked), _windows(unpacked)
    rows = zip(_owners(unpacked), MEMBERSHIP.iter_unpack(unpacked.rows), strict=True)
    return [
        Membership(member, texts[principal], statement_ids[statement_id], windows[window])
        for member, (principal, statement_id, window) in rows
    ]


def _owners(unpacked: _Packed) -> Iterator[str]:
    """The owner of each row."""
    return itertools.chain.from_iterable(itertools.starmap(itertools.repeat, unpacked.owners))


def _patterns(unpacked: _Packed) -> list[Pattern]:
    parts = unpacked.parts
    return [Pattern(tuple([parts[number] for number in numbers]), is_open) for is_open, numbers in unpacked.patterns]


def _statement_ids(unpacked: _Packed) -> list[StatementId]:
    return [StatementId(unpacked.texts[document], statement) for document, statement in unpacked.statement_ids]


def _windows(unpacked: _Packed) -> list[Window]:
    """The unbounded window is compared by identity."""
    return [ALWAYS if window == ALWAYS else window for window in unpacked.windows]
