"""A candidate: a folder of documents that is tried on live requests beside the policies in force, and decides nothing.

What the folder has stands in the place of the live documents of the same keys; all others are the live ones. Where
older versions count, those of a document that the folder has do not.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pyspark.core.broadcast import Broadcast

from policy import (
    DocumentStore,
    FilesRefused,
    Located,
    Outcome,
    Snapshot,
    all_systems,
    document_files,
    identify,
    read_documents,
    refusals,
)
from streaming.ops.tally import OTHER, Compared
from streaming.records.packing import Packed

log = structlog.get_logger()

Stamp = tuple[tuple[str, int, int], ...]
"""The folder's files with their times of change (ns) and sizes (bytes): while it is the same, so are they."""


def with_documents(live: DocumentStore, documents: Iterable[Any], at: int) -> DocumentStore:
    """The live documents with others in their places, as if published at `at` (ms). `live` stays as it is."""
    store, values = DocumentStore(systems=live.systems), list(documents)
    store.histories = dict(live.histories)
    for value in values:
        store.histories.pop(identify(value), None)
    for order, value in enumerate(values):
        store.put(value, at, order)
    return store


class Candidate:
    """Follows a folder. One that cannot be read is logged once, and the last good one stays.

    `broadcast`: Spark's function for that. `limit`: of a document, bytes.
    """

    def __init__(self, folder: Path, limit: int, broadcast: "Callable[[Any], Broadcast[Snapshot]]") -> None:
        self._folder, self._limit, self._send = folder, limit, broadcast
        self._stamp: Stamp | None = None
        self._documents: list[Located] = []
        self._live: Snapshot | None = None
        self._replaced: list[Broadcast[Snapshot]] = []
        self.number = 0
        self.broadcast: Broadcast[Snapshot] | None = None

    def follow(self, store: DocumentStore, live: Snapshot) -> None:
        """Broadcast the candidate policies again when the folder or live policies changed; None: there is none."""
        changed = self._reread()
        if not self._documents or (live is self._live and not changed):
            return
        self._live = live
        values = (document.value for document in self._documents)
        snapshot = Snapshot(with_documents(store, values, time.time_ns() // 1_000_000))
        if self.broadcast is not None:
            self._replaced.append(self.broadcast)
        self.number, self.broadcast = self.number + 1, self._send(snapshot)
        log.info("candidate policies in use", version=snapshot.version, documents=len(self._documents))

    def _reread(self) -> bool:
        """Read the folder if it changed; whether it was read."""
        try:
            stamp = _stamp_of(self._folder)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            documents = read_documents(self._folder)
            errors = refusals(documents, self._limit)
        except (FilesRefused, OSError) as error:
            documents, errors = [], [str(error)]
        if errors:
            log.error("candidate policies are invalid; the previous ones stay in use", errors=errors[:10])
            return False
        self._documents = documents
        return True

    def tidy(self) -> None:
        """After a commit: destroy what no batch can need any more."""
        while self._replaced:
            self._replaced.pop().destroy()


def _stamp_of(folder: Path) -> Stamp:
    found = ((file, file.stat()) for file in document_files(folder))
    return tuple((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in found)


SAMPLES = 3  # differences of an Arrow batch that are shown


class _Context(msgspec.Struct):
    outcome: Outcome


class _ComparedDecision(msgspec.Struct):
    id: str
    system: str
    context: _Context


_read = msgspec.json.Decoder(_ComparedDecision).decode


def compare(live: Packed, candidate: Packed) -> Compared:
    """The decisions of both on the same records, in JSON."""
    counts: Counter[tuple[str, str, str]] = Counter()
    samples: list[tuple[bytes, bytes]] = []
    others = {then.id: (then, other) for then, other in _decisions(candidate)}
    for now, one in _decisions(live):
        then, other = others[now.id]
        system = now.system if now.system in all_systems() else OTHER
        counts[system, now.context.outcome, then.context.outcome] += 1
        if now.context.outcome != then.context.outcome and len(samples) < SAMPLES:
            samples.append((one, other))
    return Compared([(*labels, count) for labels, count in counts.items()], samples)


def _decisions(packed: Packed) -> Iterator[tuple[_ComparedDecision, bytes]]:
    return ((_read(value), value) for value in packed.decisions())
