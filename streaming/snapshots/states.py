"""The documents at some offsets of their topics, each state made of the nearest one that is at hand.

A later state is made by the records between, an earlier one by reading again the documents that these records are of.
Policies are compiled in the same way: at the cost of the documents that are others than in the nearest state.
"""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policy import Compiler, DocumentHistory, DocumentStore, Key, Version, all_systems, layer_of
from streaming.snapshots.documents import LOST, DocumentRecord, Loader, key_of
from streaming.snapshots.record_log import RecordLog
from streaming.topics import NOTHING_READ

SNAPSHOTS_CACHED = 8
ALL_VERSIONS = dict.fromkeys(all_systems(), NOTHING_READ)  # a retention floor before all times


class State(msgspec.Struct):
    """The documents at some offsets (by topic), those of them without any good version, and what was compiled."""

    offsets: dict[str, int]
    store: DocumentStore
    refused: tuple[Key, ...] = ()
    compiled: Any = None


class States:
    """The last few states, and the oldest one (`base`), from which all others can be made.

    `logs`: the records of each topic; `systems`: whose documents they are, None for facts; `max_bytes`: of a document;
    `gaps`: deletions that stand for a successor which is lost, by topic and offset.
    """

    def __init__(
        self,
        base: State,
        logs: Mapping[str, RecordLog],
        systems: Mapping[str, str | None],
        max_bytes: int,
        gaps: set[tuple[str, int | None]],
    ) -> None:
        self.base = base
        self.topics = tuple(base.offsets)
        self._logs, self._systems, self._max_bytes, self._gaps = logs, systems, max_bytes, gaps
        self._cached: collections.deque[State] = collections.deque(maxlen=SNAPSHOTS_CACHED)
        self._elsewhere: Compiler | None = None

    def share(self, compiler: Compiler) -> None:
        """Take over versions that were read elsewhere, and what was compiled of them. It must not change any more."""
        self._elsewhere = compiler

    def at(self, offsets: Mapping[str, int]) -> State:
        """The state at the offsets of records, or of the base."""
        wanted = dict(offsets)
        states = sorted((self.base, *self._cached), key=lambda state: self._distance(state, wanted))
        nearest = states[0]
        if nearest.offsets == wanted:
            return nearest
        state = self._earlier(nearest, wanted) if _is_before(wanted, nearest.offsets) else None
        if state is None:
            nearest = next(earlier for earlier in states if _is_before(earlier.offsets, wanted))
            state = self.later(nearest, wanted)
        if isinstance(nearest.compiled, Compiler):
            state.compiled = nearest.compiled.following(state.store)
        self._cached.append(state)
        return state

    def policies(self, state: State) -> Compiler:
        """The policies of a state, compiled."""
        if state.compiled is None:
            near = self._elsewhere
            state.compiled = Compiler(state.store) if near is None else near.following(state.store)
        compiler: Compiler = state.compiled
        return compiler

    def facts(self, state: State) -> Any:
        """The layer of facts of a state."""
        if state.compiled is None:
            state.compiled = layer_of(state.store)
        return state.compiled

    def restart(self, base: State) -> None:
        """Begin at a later state."""
        self.base = base
        self._cached.clear()

    def _distance(self, state: State, wanted: Mapping[str, int]) -> tuple[bool, int]:
        """How many records lie between; those that are before in one topic and behind in another come last."""
        aside = not (_is_before(state.offsets, wanted) or _is_before(wanted, state.offsets))
        return aside, sum(
            abs(self._logs[topic].count(state.offsets[topic]) - self._logs[topic].count(offset))
            for topic, offset in wanted.items()
        )

    def later(self, state: State, offsets: Mapping[str, int]) -> State:
        """The state with the records up to these offsets."""
        store, touched = state.store.copy(), dict[Key, None]()
        for topic, offset in offsets.items():
            self._load(store, topic, self._logs[topic].between(state.offsets[topic], offset), touched)
        store.forget_before(ALL_VERSIONS)
        return self._state(state, offsets, store, touched)

    def _load(self, store: DocumentStore, topic: str, records: list[DocumentRecord], touched: dict[Key, None]) -> None:
        loader = Loader(store, self._systems[topic], self._max_bytes, self._read_elsewhere)
        for record in records:
            loader.take(record)
            if (key := loader.key_of(record)) is not None:
                touched[key] = None
                self._mark_lost(store, key, record)

    def _read_elsewhere(self, key: Key, record: DocumentRecord) -> Version | None:
        """The very same version, as it was read elsewhere."""
        history = None if self._elsewhere is None else self._elsewhere.store.histories.get(key)
        versions = () if history is None else history.versions
        same = (version for version in versions if version.order == record.offset and version.at == record.at)
        return next((version for version in same if version.good and not version.deleted), None)

    def _mark_lost(self, store: DocumentStore, key: Key, record: DocumentRecord) -> None:
        """Versions before the first one that is known may be missing, as at a start of the job."""
        document_history = store.histories.get(key)
        if document_history is None:
            return
        before = document_history.versions[-2].order if len(document_history.versions) > 1 else None
        first_known = before is None and not self._logs[record.topic].all_seen_above(record.offset, record.at)
        if first_known or (record.topic, before) in self._gaps:
            store.lost_before(record.at, key)
        if before is not None and (record.topic, before) in self._gaps and not document_history.newest.good:
            store.refuse(key, [LOST], max(record.at, document_history.versions[-2].at + 1), before)

    def _state(self, near: State, offsets: Mapping[str, int], store: DocumentStore, touched: dict[Key, None]) -> State:
        """`touched`: the documents that are others than in a state nearby."""
        histories = store.histories
        refused = [key for key in near.refused if key not in touched]
        refused += [key for key in touched if key in histories and histories[key].in_force is None]
        return State(dict(offsets), store, tuple(refused))

    def _earlier(self, state: State, offsets: Mapping[str, int]) -> State | None:
        """The state without the records beyond these offsets; None: it must be made of what was before them.

        The documents that these records are of are read again, from the base on.
        """
        past, touched = DocumentStore(state.store.facts_only, state.store.systems), dict[Key, None]()
        for topic, offset in offsets.items():
            beyond = self._logs[topic].between(offset, state.offsets[topic])
            keys = [key_of(record.key, self._systems[topic]) for record in beyond]
            documents = [key for key in keys if key is not None]
            if len(documents) < len(keys):  # a record that may be any document
                return None
            touched |= dict.fromkeys(documents)
            self._read_again(past, topic, offset, documents, {record.key for record in beyond})
            deleted = {key for key, record in zip(documents, beyond, strict=True) if not record.value}
            if any(_has_facts(past.histories.get(key)) for key in deleted):
                return None  # of facts that two documents say, the later document counts: it may be another one
        past.forget_before(ALL_VERSIONS)
        if past.nameless or state.store.nameless:
            return None
        store = state.store.copy()
        for key in touched:
            store.replace(key, past.histories.get(key))
        return self._state(state, offsets, store, touched)

    def _read_again(
        self, past: DocumentStore, topic: str, offset: int, documents: Iterable[Key], record_keys: set[bytes]
    ) -> None:
        """Some documents of a topic as they were at an offset."""
        for key in documents:
            if (before := self.base.store.histories.get(key)) is not None:
                past.replace(key, before.copy())
        records = self._logs[topic].between(self.base.offsets[topic], offset)
        self._load(past, topic, [record for record in records if record.key in record_keys], {})


def _is_before(offsets: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether some offsets lie before others in each topic, or are the same."""
    return all(offset <= others[topic] for topic, offset in offsets.items())


def _has_facts(document_history: DocumentHistory | None) -> bool:
    return document_history is not None and any(version.compiled.facts for version in document_history.versions)
