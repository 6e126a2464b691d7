"""The snapshots at the policy offsets that answered records name, for the workers.

As a rule these are the offsets of a snapshot that the job holds. Others are rebuilt from the document log, within a
budget: producers that name many offsets make their own answers unverified, and no batch slow.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from policy import MalformedRequest, Snapshot
from streaming.records.answered import offsets_in, offsets_key
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.broadcasts import WorkBudget
from streaming.topics import Offsets

if TYPE_CHECKING:
    from pyspark.core.broadcast import Broadcast

    from streaming.snapshots.broadcasts import PublishedSnapshot

log = structlog.get_logger()

MOST = 256  # rebuilt snapshots are held, of which a batch may rebuild as many …
GRANTS_HELD = 200_000  # … with so many grants together
AT_ONCE_SECONDS = 5.0  # of work, before there is none left
KNOWN = 512  # different offsets
HELD_SECONDS = 600.0

Records = tuple[tuple[str, int], ...]
"""The offset of the newest record of each policy topic."""


class ResolvedOffsets(msgspec.Struct, frozen=True):
    """The snapshot at some offsets. `number`: of a snapshot of this run; `rebuilt`: else the index of its broadcast.

    `superseded`: by policy topic, when the first record beyond the offsets came (ms); none: there is none yet.
    """

    number: int
    rebuilt: int
    superseded: Mapping[str, int]


class _Rebuilt:
    def __init__(self, broadcast: "Broadcast[Snapshot]", grants: int, at: float) -> None:
        self.broadcast, self.grants, self.rebuilt_at = broadcast, grants, at


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
        self._documents, self._send, self._most, self._clock = documents, send, most, clock
        self._known: dict[bytes, Offsets] = {}
        self._published: dict[int, Records] = {}  # by number
        self._rebuilt: dict[Records, _Rebuilt] = {}
        self._gone: list[Broadcast[Snapshot]] = []
        self._budget = WorkBudget(AT_ONCE_SECONDS, clock)
        self._rebuilds = self._grants = 0  # of one call of `resolve`

    def follow(self, published: "Sequence[PublishedSnapshot]", offsets: Offsets) -> None:
        """Note which snapshots of the present there are; the last one is of these offsets."""
        newest = published[-1].number
        if newest not in self._published:
            self._published[newest] = self._documents.newest_records(offsets)
        held = {one.number for one in published}
        self._published = {number: records for number, records in self._published.items() if number in held}
        self._known[offsets_key(offsets)] = offsets

    def broadcasts(self) -> "list[Broadcast[Snapshot]]":
        """Of the rebuilt snapshots, in the order of their indexes."""
        return [one.broadcast for one in self._rebuilt.values()]

    def named(self) -> dict[bytes, ResolvedOffsets]:
        """What is known now, by the JSON of the offsets."""
        numbers = {records: number for number, records in self._published.items()}
        indexes = {records: index for index, records in enumerate(self._rebuilt)}
        found: dict[bytes, ResolvedOffsets] = {}
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
            found[text] = ResolvedOffsets(numbers.get(records, -1), indexes.get(records, -1), superseded)
        return found

    def resolve(self, texts: Iterable[bytes]) -> bool:
        """Look for the snapshots of these offsets, as far as the budget goes; whether any is known that was not.

        `texts`: JSON, those that most records name first.
        """
        before, self._rebuilds, self._grants = self._held(), 0, 0
        for text in dict.fromkeys(texts):
            try:
                offsets = offsets_in(text)
                records = self._documents.checked_records(offsets)
            except (NoLongerKnown, MalformedRequest) as error:
                log.debug("policies that an answer names are not known", error=str(error))
                continue
            if records not in self._published.values() and records not in self._rebuilt:
                if self._rebuilds >= self._most or self._grants >= GRANTS_HELD or not self._budget.has_time():
                    continue
                if not self._rebuild(records, offsets):
                    continue
            self._known.pop(text, None)
            self._known[text] = offsets
        while len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return bool(self._held() - before)

    def _held(self) -> set[bytes]:
        return set(self._known)

    def _rebuild(self, records: Records, offsets: Offsets) -> bool:
        began = self._clock()
        try:
            snapshot = self._documents.snapshot_at(offsets, None)
        except NoLongerKnown as error:
            log.debug("policies that an answer names cannot be rebuilt", error=str(error))
            return False
        finally:
            self._budget.spend(self._clock() - began)
        grants = _grants_of(snapshot)
        self._rebuilds, self._grants = self._rebuilds + 1, self._grants + grants
        while self._rebuilt and self._is_full(grants):
            self._gone.append(self._rebuilt.pop(next(iter(self._rebuilt))).broadcast)
        self._rebuilt[records] = _Rebuilt(self._send(snapshot.without_findings()), grants, self._clock())
        return True

    def _is_full(self, grants: int) -> bool:
        held = sum(one.grants for one in self._rebuilt.values())
        return len(self._rebuilt) >= self._most or held + grants > GRANTS_HELD

    def tidy(self) -> None:
        """After a commit: let go of what was rebuilt a while ago."""
        while self._gone:
            self._gone.pop().destroy()
        for records, rebuilt in list(self._rebuilt.items()):
            if self._clock() - rebuilt.rebuilt_at > HELD_SECONDS:
                self._gone.append(self._rebuilt.pop(records).broadcast)


def _grants_of(snapshot: Snapshot) -> int:
    """How large a snapshot is."""
    return sum(sum(map(len, policy_set.grants.values())) for policy_set in snapshot.policy_sets.values())
