"""The snapshots at the policy offsets that answered records name, for the workers.

As a rule these are the offsets of a snapshot that the job holds. Others are rebuilt from the document log, within a
budget: producers that name many offsets make their own answers unverified, and no batch slow.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog
from pyspark.core.broadcast import Broadcast

from policy import MalformedRequest, Snapshot
from streaming.records.answered import offsets_in, offsets_key
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.broadcasts import PublishedSnapshot
from streaming.snapshots.rebuilt import RebuiltSnapshots
from streaming.topics import Offsets

log = structlog.get_logger()

MOST = 256  # rebuilt snapshots are held, of which a batch may rebuild as many …
GRANTS_HELD = 200_000  # … with so many grants together
AT_ONCE_SECONDS = 5.0  # of work, before there is none left
KNOWN = 512  # different offsets

Records = tuple[tuple[str, int], ...]
"""The offset of the newest record of each policy topic."""


class ResolvedOffsets(msgspec.Struct, frozen=True):
    """The snapshot at some offsets. `number`: of a snapshot of this run; `rebuilt`: else the index of its broadcast.

    `superseded`: by policy topic, when the first record beyond the offsets came (ms); none: there is none yet.
    """

    number: int
    rebuilt: int
    superseded: Mapping[str, int]


class NamedOffsets:
    """Knows offsets by their `offsets_key`. `documents`: see `Policies.documents`.

    `send`: Spark's function to broadcast a snapshot. `most`: so many rebuilt snapshots are held. `clock`: seconds.
    """

    def __init__(
        self,
        documents: DocumentLog,
        send: "Callable[[Snapshot], Broadcast[Snapshot]]",
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._documents, self._most = documents, most
        self._known: dict[bytes, Offsets] = {}
        self._published: dict[int, Records] = {}  # by number
        self._rebuilt = RebuiltSnapshots[Records](documents, send, most, GRANTS_HELD, AT_ONCE_SECONDS, clock)
        self._rebuilds = self._grants = 0  # of one call of `resolve`

    def follow(self, published: Sequence[PublishedSnapshot], offsets: Offsets) -> None:
        """Note which snapshots of the present there are; the last one is of these offsets."""
        newest = published[-1].number
        if newest not in self._published:
            self._published[newest] = self._documents.newest_records(offsets)
        numbers = {snapshot.number for snapshot in published}
        self._published = {number: records for number, records in self._published.items() if number in numbers}
        self._known[offsets_key(offsets)] = offsets

    def broadcasts(self) -> "list[Broadcast[Snapshot]]":
        """Of the rebuilt snapshots, in the order of their indexes."""
        return [rebuilt.broadcast for rebuilt in self._rebuilt.held.values()]

    def named(self) -> dict[bytes, ResolvedOffsets]:
        """What is known now, by the JSON of the offsets."""
        numbers = {records: number for number, records in self._published.items()}
        indexes = {records: index for index, records in enumerate(self._rebuilt.held)}
        resolved: dict[bytes, ResolvedOffsets] = {}
        for text, offsets in list(self._known.items()):
            try:
                records = self._documents.checked_records(offsets)
            except NoLongerKnown:
                del self._known[text]
                continue
            if records not in numbers and records not in indexes:
                del self._known[text]
                continue
            superseded = self._documents.superseded(offsets)
            resolved[text] = ResolvedOffsets(numbers.get(records, -1), indexes.get(records, -1), superseded)
        return resolved

    def resolve(self, texts: Iterable[bytes]) -> bool:
        """Look for the snapshots of these offsets, as far as the budget goes; whether any is known that was not.

        `texts`: JSON, those that most records name first.
        """
        before, self._rebuilds, self._grants = set(self._known), 0, 0
        for text in dict.fromkeys(texts):
            try:
                offsets = offsets_in(text)
                records = self._documents.checked_records(offsets)
            except (NoLongerKnown, MalformedRequest) as error:
                log.debug("policies that an answer names are not known", error=str(error))
                continue
            if records not in self._published.values() and records not in self._rebuilt.held:
                if self._rebuilds >= self._most or self._grants >= GRANTS_HELD or not self._rebuilt.has_time():
                    continue
                if not self._rebuild(records, offsets):
                    continue
            self._known.pop(text, None)  # to be the last one: those that were named longest ago go first
            self._known[text] = offsets
        while len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return not before.issuperset(self._known)

    def _rebuild(self, records: Records, offsets: Offsets) -> bool:
        try:
            rebuilt = self._rebuilt.rebuild(records, offsets)
        except NoLongerKnown as error:
            log.debug("policies that an answer names cannot be rebuilt", error=str(error))
            return False
        self._rebuilds, self._grants = self._rebuilds + 1, self._grants + rebuilt.grants
        return True

    def tidy(self) -> None:
        """After a commit: let go of what was rebuilt a while ago."""
        self._rebuilt.tidy()
