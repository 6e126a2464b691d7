"""Changes of policies: what each opens and widens, reported once.

The committed offset of a policy topic says what was read. Below it lies the baseline, however much was reported of it;
from it on every record is a change, also one published while the job was away. So a first start, for which nothing is
committed, reports no escalation, but which organizations enforce nothing. A topic is read in the order of its log,
so a document says before its first change what it said when the reading came to that record.

What is read in one go is one change: several transactions read together are compared by where they began and ended.
What came and went in between was in force for no request, and is not reported; nor is what compaction took.

What a change opens may take long to work out, and decisions must not wait for it. So changes are compared in a thread,
one after the other, with a bound on the work of each, and alerts go into a transaction once they are there. Until then
a change is *unanalysed*. Beside the committed offset of its topic stands at which offset each unanalysed change begins:
after a restart, also after a kill, the records from there on are compared again, change by change as before. A commit
that no longer names a change is the one with its alerts, so none is lost and none is written twice.
"""

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import structlog

from policy import CompiledDocument, DocumentStore, Key, PolicySet, Snapshot, Work, all_systems, to_text
from policy.analysis import Analysis, Edit, Escalation, Widenings, analyse, grant_text, open_to_everyone, refused, said
from streaming.kafka.clients import Partition
from streaming.records.change import ChangeWidens, widens_record
from streaming.records.formats import Result
from streaming.settings import Settings
from streaming.snapshots.alerts import (
    enforcement_disabled,
    incomplete_escalation,
    privilege_escalation,
    unknown_escalation,
)
from streaming.snapshots.documents import DocumentRecord, PublishedDocument

log = structlog.get_logger()

MOST_STEPS = 500_000  # of the work for one change: some seconds
MOST_UNANALYSED = 20  # changes of a topic; further ones are compared together with the last of them
STOP_SECONDS = 5.0

Unanalysed = Mapping[str, Sequence[int]]
"""By policy topic, the offsets at which changes begin whose alerts are not written yet, ascending."""


class _Changed(msgspec.Struct):
    """A document since the last comparison: what it said then, and since its first and newest records."""

    before: CompiledDocument
    first: PublishedDocument
    newest: PublishedDocument
    changes: dict[str, None]  # the ids, in order
    after: CompiledDocument = CompiledDocument()
    refused_before: frozenset[str] | None = None
    refused_after: frozenset[str] | None = None


class _Change(msgspec.Struct):
    """Documents of one system that changed together. `policy_set`: the system's after them; `start`: its first offset.

    `merged`: how many changes were read after it and are compared together with it.
    """

    system: str
    topic: str
    start: int
    documents: dict[Key, _Changed]
    policy_set: Callable[[], PolicySet]
    merged: int = 0

    def add(self, later: "_Change") -> None:
        """Go on to the state after a later change."""
        for key, document in later.documents.items():
            earlier = self.documents.setdefault(key, document)
            earlier.newest, earlier.after, earlier.refused_after = (
                document.newest,
                document.after,
                document.refused_after,
            )
            earlier.changes.update(document.changes)
        self.policy_set, self.merged = later.policy_set, self.merged + 1


class Changes:
    """Notes changes while the policy topics are read, and has them compared when they are read to their ends.

    ``systems``: the system of each policy topic; ``published``: the committed offsets, ``unanalysed``: what stands
    beside them, see above.
    """

    def __init__(
        self,
        settings: Settings,
        systems: Mapping[str, str],
        published: Mapping[Partition, int],
        unanalysed: Unanalysed | None = None,
    ) -> None:
        self._alerts_topic, self._changes_topic = settings.topics.alerts, settings.topics.changes
        self._most_bytes, self._systems = settings.limits.record_out, systems
        self._published = {topic: published[topic, 0] for topic in systems if (topic, 0) in published}
        self._boundaries: dict[str, deque[int]] = {}
        for topic, (start, *others) in (unanalysed or {}).items():
            if topic in self._published:
                self._boundaries[topic] = deque([*others, self._published[topic]])
                self._published[topic] = start
        self._before = {topic: tuple(starts) for topic, starts in (unanalysed or {}).items()}
        self._is_read = False  # to the ends, once
        self._changed: dict[Key, _Changed] = {}
        self._unpublished: list[Result] = []
        self._analysis = _Analysis(self._found)

    def note(self, key: Key, record: DocumentRecord, store: DocumentStore, change: str = "") -> None:
        """Note a record of a policy topic that is about to be put into the document store; `change`: its id."""
        published = self._published.get(record.topic)
        if published is None or record.offset < published:
            return
        self._close_before(record, store)
        newest = PublishedDocument(str(key), record.topic, record.offset, record.at)
        changed = self._changed.get(key)
        if changed is None:
            history = store.histories.get(key)
            noted = _Changed(said(history), newest, newest, {change: None}, refused_before=refused(history))
            self._changed[key] = noted
        else:
            changed.newest = newest
            changed.changes[change] = None

    def _close_before(self, record: DocumentRecord, store: DocumentStore) -> None:
        """After a restart: compare the changes of before it one by one, though they are read in one go."""
        boundaries = self._boundaries.get(record.topic)
        while boundaries and record.offset >= boundaries[0]:
            boundaries.popleft()
            if any(document.first.topic == record.topic for document in self._changed.values()):
                system = self._systems[record.topic]
                self._close(system, store, functools.partial(_policy_set_of, system, store.copy()))

    def compare(self, store: DocumentStore, snapshot: Snapshot) -> None:
        """The topics are read to their ends, of which the snapshot was taken: see what has changed."""
        for system in set(self._systems.values()):
            self._close(system, store, functools.partial(snapshot.policy_sets.__getitem__, system))
        for topic in self._systems.keys() - self._published.keys():
            self._unpublished += self._baseline(topic, store, snapshot)
            self._published[topic] = 0
        self._is_read = True

    def _close(self, system: str, store: DocumentStore, policy_set: Callable[[], PolicySet]) -> None:
        """Have what was noted of a system compared."""
        documents = {key: document for key, document in self._changed.items() if key.system == system}
        for key, document in documents.items():
            del self._changed[key]
            history = store.histories.get(key)
            document.after, document.refused_after = said(history), refused(history)
        if documents:
            first = min((document.first for document in documents.values()), key=lambda record: record.offset)
            self._analysis.put(_Change(system, first.topic, first.offset, documents, policy_set))

    def _found(self, change: _Change) -> list[Result]:
        """The alerts, and what it widens. Whatever goes wrong here must not stop decisions, nor pass in silence."""
        try:
            analysis = self._analyse(change)
            return [*self._alerts(change, analysis), self._widens(change, analysis.widenings)]
        except Exception as error:
            documents = list(map(str, change.documents))
            log.exception("what a change opens could not be worked out; please report it", documents=documents)
            why = type(error).__name__  # its text may hold what documents say
            unknown = [
                unknown_escalation(self._alerts_topic, document.newest, why) for document in change.documents.values()
            ]
            return [*unknown, self._widens(change, Widenings(complete=False))]

    def _analyse(self, change: _Change) -> Analysis:
        since = min(document.first.at for document in change.documents.values())
        work = Work(MOST_STEPS, self._analysis.give_way)
        return analyse(all_systems()[change.system], change.policy_set(), _edits(change), since, work)

    def _widens(self, change: _Change, widenings: Widenings) -> Result:
        ordered = sorted(change.documents.values(), key=lambda document: document.newest.offset)
        ids = tuple(dict.fromkeys(id_ for document in ordered for id_ in document.changes))
        widens = ChangeWidens(
            id=next(reversed(ordered[-1].changes)),
            system=change.system,
            time=to_text(ordered[-1].newest.at),
            changes=ids,
            widens=widenings.found,
            widens_count=len(widenings.found),
            complete=widenings.complete,
        )
        return widens_record(self._changes_topic, widens, self._most_bytes)

    def _alerts(self, change: _Change, analysis: Analysis) -> Iterator[Result]:
        """One alert for each record that opened something, the last one where several together did."""
        published = {document.newest.document: document.newest for document in change.documents.values()}
        by_record: dict[PublishedDocument, list[Escalation]] = {}
        for escalation in analysis.escalations:
            last = max((published[cause] for cause in escalation.causes), key=lambda record: record.offset)
            by_record.setdefault(last, []).append(escalation)
        for record, escalations in sorted(by_record.items(), key=lambda pair: pair[0].offset):
            off = [escalation for escalation in escalations if escalation.kind == "enforcement"]
            others = [escalation for escalation in escalations if escalation.kind != "enforcement"]
            if off:
                yield enforcement_disabled(
                    self._alerts_topic, record, [grant for escalation in off for grant in escalation.grants]
                )
            if others:
                yield privilege_escalation(self._alerts_topic, record, others, published)
        if not analysis.complete or change.merged:
            last = max(published.values(), key=lambda record: record.offset)
            yield incomplete_escalation(
                self._alerts_topic, last, sorted(published), analysis.complete, change.merged, analysis.escalations
            )

    def _baseline(self, topic: str, store: DocumentStore, snapshot: Snapshot) -> Iterator[Result]:
        """What a first start reports: where nothing is enforced."""
        system = self._systems[topic]
        for grant in open_to_everyone(all_systems()[system], snapshot.policy_sets[system]):
            key = Key(*grant.statement_id.document.split("/", 2))
            current = store.histories[key].in_force
            assert current is not None, "it grants something"
            record = PublishedDocument(str(key), topic, current.order, current.at)
            yield enforcement_disabled(self._alerts_topic, record, [grant_text(grant)])

    def pending(self) -> list[Result]:
        """The alerts that the next transaction must write: of the changes that are compared by now.

        Before the first reading is complete there are none: what is unanalysed then is what was before this run.
        """
        if self._is_read:
            self._unpublished += self._analysis.take_alerts()
        return list(self._unpublished)

    def unanalysed(self) -> dict[str, tuple[int, ...]]:
        """What the same transaction must commit beside the offsets; to be asked for after `pending`."""
        if not self._is_read:
            return dict(self._before)
        starts: dict[str, tuple[int, ...]] = {}
        for change in self._analysis.unfinished():
            starts[change.topic] = (*starts.get(change.topic, ()), change.start)
        return starts

    def published(self) -> None:
        """Note that a transaction with all of `pending` was committed."""
        self._unpublished.clear()

    @property
    def has_news(self) -> bool:
        """Whether some change was compared since `pending` was asked for."""
        return self._is_read and self._analysis.has_news

    @property
    def is_idle(self) -> bool:
        """Whether all changes that were read are compared."""
        return self._analysis.is_idle

    def close(self) -> None:
        """End the comparison under way: the next start begins it again."""
        self._analysis.close()


def _edits(change: _Change) -> list[Edit]:
    return [
        Edit(str(key), document.before, document.after, document.refused_before, document.refused_after)
        for key, document in change.documents.items()
    ]


def _policy_set_of(system: str, store: DocumentStore) -> PolicySet:
    return Snapshot(store).policy_sets[system]


class _Analysis:
    """Compares changes in a thread, one after the other. The thread begins with the first of them.

    `find`: the alerts of a change.
    """

    def __init__(self, find: Callable[[_Change], list[Result]]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[_Change] = deque()
        self._current: _Change | None = None
        self._finished: list[tuple[_Change, list[Result]]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, change: _Change) -> None:
        """Have a change compared, together with the last one waiting where too many of its topic are."""
        with self._lock:
            waiting = [earlier for earlier in self._waiting if earlier.topic == change.topic]
            if len(waiting) >= MOST_UNANALYSED:
                log.warning("policies change faster than the changes are analysed", topic=change.topic)
                waiting[-1].add(change)
            else:
                self._waiting.append(change)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="policy-changes", daemon=True)
                self._thread.start()
            self._arrived.notify()

    def _run(self) -> None:
        with contextlib.suppress(_Closed):
            while (change := self._next()) is not None:
                alerts = self._find(change)
                with self._lock:
                    self._finished.append((change, alerts))
                    self._current = None

    def _next(self) -> _Change | None:
        with self._lock:
            while not self._waiting and not self._closed:
                self._arrived.wait()
            if self._closed:
                return None
            self._current = self._waiting.popleft()
            return self._current

    def give_way(self) -> None:
        """Let the driver's own threads, which wait for Python's lock, go first."""
        time.sleep(0)
        if self._closed:
            raise _Closed

    def take_alerts(self) -> list[Result]:
        """The alerts of the changes that were compared since; from now on these are finished."""
        with self._lock:
            finished, self._finished = self._finished, []
        return [alert for _, alerts in finished for alert in alerts]

    def unfinished(self) -> list[_Change]:
        """The changes whose alerts were not taken yet, in order."""
        with self._lock:
            current = [self._current] if self._current is not None else []
            return [*(change for change, _ in self._finished), *current, *self._waiting]

    @property
    def has_news(self) -> bool:
        """Whether there are changes to take."""
        return bool(self._finished)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compare."""
        with self._lock:
            return self._current is None and not self._waiting

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
            self._arrived.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)


class _Closed(BaseException):
    """The job ends: not an error of the comparison, which would make an alert of it."""
