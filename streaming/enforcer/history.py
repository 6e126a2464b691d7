"""What compaction takes from a policy topic and a restart needs: kept as it came, on the history topic.

Needed are all versions that the library holds of a document but the newest, which the policy topic itself keeps:
the last good one below a refused one, and those that logins and active jobs look back to. The facts topic has no
history: after compaction a refused fact without a good version is `error`, never an allow.

A kept version was superseded by another, whose offset is written beside it. Where that one is known no more (the
job was away while both topics were compacted), the kept version must not come back into force: see `close_gaps`.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from policy.documents import Key
from policy.library import Library
from streaming.enforcer.documents import Record
from streaming.enforcer.formats import FORMAT, check_format
from streaming.enforcer.wire import Result
from streaming.topic_specs import DAY_MS

AT, NEXT, FORM = "at", "next", "format"
KEPT_BY_TOPIC_MS = 7 * DAY_MS  # what was superseded since then, every policy topic still holds (topic_specs)
CLOCKS_DIFFER_MS = 60 * 60 * 1000
NO_DOCUMENT = b"?"  # stands for one too large to be kept: refused again when it is read back
Place = tuple[Key, int]  # a version of a document: the document, and the version's offset


class History:
    """Knows what is on the history topic, and what must be added and taken away.

    `names`: the policy topic of each system.
    """

    def __init__(self, topic: str, names: Mapping[str, str], max_bytes: int) -> None:
        self._topic, self._names, self._max_bytes = topic, names, max_bytes
        self._versions: dict[Place, Record] = {}
        self._written: set[Place] = set()
        self._successors: dict[Place, int] = {}

    def note(self, key: Key, record: Record) -> None:
        """Hold a version that was read, until it is known whether anybody will need it."""
        self._versions[key, record.offset] = record

    def read_back(self, key: bytes, value: bytes | None, headers: Iterable[Any]) -> Record | None:
        """The version that a record of the history topic keeps; None for a deletion or what is not ours.

        Raises CannotStart for one of a newer lockkeeper: read amiss, it could bring back what was revoked.
        """
        place = _place(key)
        told = dict(headers)
        if place is None or place[0].system not in self._names:
            return None
        check_format(int(told.get(FORM, 1)), f"the record {key!r} of {self._topic}")
        if value is None or not {AT, NEXT} <= told.keys():
            self._written.discard(place)
            self._successors.pop(place, None)
            return None
        self._written.add(place)
        self._successors[place] = int(told[NEXT])
        document, offset = place
        short = f"{document.kind}/{document.name}".encode()
        return Record(self._names[document.system], short, value, offset, int(told[AT]))

    def close_gaps(self, library: Library, now: int) -> None:
        """Once all topics are read: end kept versions whose successor is lost, and say from when all is known.

        `now`: ms.
        """
        for (key, offset), successor in self._successors.items():
            shelf = library.shelves.get(key)
            at = {version.order: version.at for version in shelf.versions} if shelf else {}
            if offset in at and successor not in at:
                library.delete(key, at[offset], successor)
                following = min((order for order in at if order > successor), default=offset)
                library.lost_before(at[following], key)
        self._successors.clear()
        for key, shelf in library.shelves.items():
            if shelf.versions[0].at < now - KEPT_BY_TOPIC_MS + CLOCKS_DIFFER_MS:
                library.lost_before(shelf.versions[0].at, key)

    def settle(self, library: Library) -> None:
        """Let go of versions that the library does not hold any more."""
        held = {(key, v.order) for key, shelf in library.shelves.items() for v in shelf.versions}
        self._versions = {place: record for place, record in self._versions.items() if place in held}

    def changes(self, library: Library) -> list[Result]:
        """What to write so that the topic holds what is needed, and nothing else; see `written`."""
        needed = self._needed(library)
        added = [self._to_keep(place, needed[place]) for place in sorted(needed.keys() - self._written)]
        return added + [(self._topic, _key(place), None, []) for place in sorted(self._written - needed.keys())]

    def written(self, library: Library) -> None:
        """Note that the transaction with these changes was committed."""
        self._written = set(self._needed(library))

    def _needed(self, library: Library) -> dict[Place, int]:
        """The versions to keep, each with the offset of its successor."""
        several = ((key, shelf.versions) for key, shelf in library.shelves.items() if len(shelf.versions) > 1)
        pairs = ((key, older.order, newer.order) for key, held in several for older, newer in itertools.pairwise(held))
        return {(key, older): newer for key, older, newer in pairs if (key, older) in self._versions}

    def _to_keep(self, place: Place, successor: int) -> Result:
        record = self._versions[place]
        value = record.value if len(record.value) <= self._max_bytes else NO_DOCUMENT
        headers = [(AT, b"%d" % record.at), (NEXT, b"%d" % successor), (FORM, b"%d" % FORMAT)]
        return self._topic, _key(place), value, headers


def _key(place: Place) -> bytes:
    return f"{place[0]}/{place[1]}".encode()


def _place(key: bytes) -> Place | None:
    try:
        path, _, offset = key.decode().rpartition("/")
        return Key(*path.split("/", 2)), int(offset)
    except (UnicodeDecodeError, ValueError, TypeError):
        return None
