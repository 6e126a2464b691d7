"""Who gains and loses by a change: the subjects and claims behind the principals that documents name."""

from collections.abc import Iterable, Iterator

import msgspec

from policy.analysis.diff import Difference, Sides, sides_of
from policy.analysis.opened import Edits, OpenedGrant
from policy.core.model import Grant
from policy.store.snapshot import Snapshot

LOOKED_AT = 1000  # of those whom one difference concerns, the first by name


class Concerned(msgspec.Struct, frozen=True):
    """A difference, with those who may do more by it and those who may do less, sorted."""

    difference: Difference
    gain: tuple[str, ...] = ()
    lose: tuple[str, ...] = ()


def effects(old: Snapshot, new: Snapshot) -> list[Concerned]:
    """The differences of two snapshots, each with those whose access it changes.

    They are subjects and claims. One that has the same by another grant, before or after, is left out. Of a statement
    of an engine, those that it names. Nobody for a fact.
    """
    return [entry for sides in sides_of(old, new) for entry in concerned_on(sides)]


def concerned_on(sides: Sides) -> Iterator[Concerned]:
    """The same of one system."""
    for difference, opens, closes, names in sides.differences():
        gain = (*(names if difference.widens else ()), *_behind(sides.forth, opens))
        lose = (*(names if difference.narrows else ()), *_behind(sides.back, closes))
        yield Concerned(difference, gain, lose)


def _behind(edits: Edits, opens: Iterable[OpenedGrant]) -> list[str]:
    """The people behind the principals for whom grants open something, as far as they do so for them too."""
    grants: dict[str, dict[Grant, None]] = {}
    for entry in opens:
        grants.setdefault(entry.who, {})[entry.grant] = None
    gainers: set[str] = set()
    for who, several in grants.items():
        effect = next(iter(several)).effect
        for name in edits.people([who])[:LOOKED_AT]:
            if name not in gainers and any(edits.opened_for(name, effect, several)):
                gainers.add(name)
    return sorted(gainers)
