"""Changes of policies: what each opens, told once.

The committed offset of a policy topic tells what was told. Below it lies the baseline, however much was told of it;
from it on every record is a change, also one published while the job was away. So a first start, for which nothing is
committed, tells of no escalation, but which organizations enforce nothing. A topic is read in the order of its log,
so a document says before its first change what it said when the reading came to that record.

What is read in one go is one change: several transactions read together are compared by where they began and ended.
What came and went in between was in force for no request, and is not told; nor is what compaction took.
"""

from collections.abc import Iterator, Mapping

import msgspec
import structlog

from policy.documents import Key
from policy.edits import Edit, said
from policy.escalation import Escalation, escalations, open_to_everyone
from policy.library import Library
from policy.model import Reading
from policy.snapshot import Snapshot
from policy.systems import all_systems
from policy.wording import grant_text
from streaming.enforcer.alerts import Published, enforcement_disabled, privilege_escalation, unknown_escalation
from streaming.enforcer.documents import Record
from streaming.enforcer.kafka import Partition
from streaming.enforcer.wire import Result

log = structlog.get_logger()


class _Changed(msgspec.Struct):
    """A document since the last comparison: what it said then, the first time it changed, and its newest record."""

    before: Reading
    since: int
    newest: Published


class Changes:
    """Notes changes while the policy topics are read, and compares when they are read to their ends.

    ``systems``: the system of each policy topic; ``told``: the committed offsets, see above.
    """

    def __init__(self, alerts_topic: str, systems: Mapping[str, str], told: Mapping[Partition, int]) -> None:
        self._alerts_topic, self._systems = alerts_topic, systems
        self._told = {topic: told[topic, 0] for topic in systems if (topic, 0) in told}
        self._changed: dict[Key, _Changed] = {}
        self._untold: list[Result] = []

    def note(self, key: Key, record: Record, library: Library) -> None:
        """Note a record of a policy topic that is about to be put into the library."""
        told = self._told.get(record.topic)
        if told is None or record.offset < told:
            return
        newest = Published(str(key), record.topic, record.offset, record.at)
        known = self._changed.get(key)
        if known is None:
            self._changed[key] = _Changed(said(library.shelves.get(key)), record.at, newest)
        else:
            known.newest = newest

    def compare(self, library: Library, snapshot: Snapshot) -> None:
        """The topics are read to their ends, of which the snapshot was taken: see what has changed."""
        for system in set(self._systems.values()):
            changed = {key: one for key, one in self._changed.items() if key.system == system}
            if changed:
                self._untold += self._found(system, changed, library, snapshot)
        self._changed.clear()
        for topic in self._systems.keys() - self._told.keys():
            self._untold += self._baseline(topic, library, snapshot)
            self._told[topic] = 0

    def _found(
        self, system: str, changed: Mapping[Key, _Changed], library: Library, snapshot: Snapshot
    ) -> list[Result]:
        """The alerts. Whatever goes wrong here must not stop decisions, nor pass in silence."""
        try:
            return list(self._alerts(system, changed, library, snapshot))
        except Exception as error:
            log.exception("what a change opens could not be worked out; please report it", documents=list(changed))
            why = type(error).__name__  # its text may hold what documents say
            return [unknown_escalation(self._alerts_topic, one.newest, why) for one in changed.values()]

    def _alerts(
        self, system: str, changed: Mapping[Key, _Changed], library: Library, snapshot: Snapshot
    ) -> Iterator[Result]:
        """One alert for each record that opened something, the last one where several together did."""
        edits = [Edit(str(key), one.before, said(library.shelves.get(key))) for key, one in changed.items()]
        since = min(one.since for one in changed.values())
        opened = escalations(all_systems()[system], snapshot.realms[system], edits, since)
        published = {one.newest.document: one.newest for one in changed.values()}
        by_record: dict[Published, list[Escalation]] = {}
        for one in opened:
            last = max((published[cause] for cause in one.causes), key=lambda record: record.offset)
            by_record.setdefault(last, []).append(one)
        for record, found in sorted(by_record.items(), key=lambda pair: pair[0].offset):
            off = [one for one in found if one.kind == "enforcement"]
            others = [one for one in found if one.kind != "enforcement"]
            if off:
                yield enforcement_disabled(self._alerts_topic, record, [grant for one in off for grant in one.grants])
            if others:
                yield privilege_escalation(self._alerts_topic, record, others, published)

    def _baseline(self, topic: str, library: Library, snapshot: Snapshot) -> Iterator[Result]:
        """What a first start tells: where nothing is enforced."""
        system = self._systems[topic]
        for grant in open_to_everyone(all_systems()[system], snapshot.realms[system]):
            key = Key(*grant.origin.document.split("/", 2))
            current = library.shelves[key].in_force
            assert current is not None, "it grants something"
            record = Published(str(key), topic, current.order, current.at)
            yield enforcement_disabled(self._alerts_topic, record, [grant_text(grant)])

    def untold(self) -> list[Result]:
        """The alerts that the next transaction must write."""
        return list(self._untold)

    def told(self) -> None:
        """Note that a transaction with all of `untold` was committed."""
        self._untold.clear()
