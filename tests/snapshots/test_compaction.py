"""Whatever compaction has removed: a snapshot is the one that the job had, or no longer known."""

import random

import pytest

from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.kafka.reader import TopicLog
from streaming.records.formats import Result
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown, Retention
from streaming.snapshots.documents import CLOCKS_DIFFER_MS, DocumentRecord, History, Loader
from tests.snapshots.test_at_offsets import DANA, LAG, NAMES, NOW, POLICIES, add_kept, at, may_read, put, role

LOG = TopicLog("topic-id")
DOCUMENTS = (role("readers", "orders"), role("readers", "carts"), role("readers"), b"{", None)


def _published(rng: random.Random) -> tuple[list[DocumentRecord], int]:
    """Some versions of two roles over a month, with gaps where a transaction's marker stands; and the log's end."""
    records, offset, time = [put(0, DANA, NOW - 31 * LAG // 7)], 0, NOW - 30 * LAG // 7
    for _ in range(rng.randint(1, 10)):
        offset, time = offset + rng.choice((1, 1, 2)), time + rng.randint(0, LAG)
        if time < NOW:
            name = rng.choice(("readers", "writers"))
            records.append(
                put(offset, rng.choice(DOCUMENTS[3:] if name == "writers" else DOCUMENTS), time, f"Role/{name}")
            )
    return records, records[-1].offset + 1 + rng.randint(0, 1)


def _run_job(records: list[DocumentRecord]) -> tuple[dict[int, Snapshot], list[tuple[int, Result]]]:
    """The snapshot of a job that reads each record as it comes, by offset; and what it writes to the history, when."""
    store, history = DocumentStore(), History(NAMES.history, NAMES.policy_topics(), 1 << 20, {POLICIES: LOG})
    loader, snapshots, written = Loader(store, "lenses6", 1 << 20), {-1: Snapshot(DocumentStore())}, []
    for record in records:
        key = loader.key_of(record)
        assert key is not None
        history.note(key, record)
        loader.take(record)
        snapshots[record.offset] = Snapshot(store)
        history.settle(store, store.forget_before({"lenses6": None}))
        written += [(record.at, change) for change in history.changes(store)]
        history.written(store)
    return snapshots, written


def _compacted(records: list[DocumentRecord], rng: random.Random, lag: int) -> list[DocumentRecord]:
    """What the cleaner leaves after it went up to some place: the newest of each key, perhaps without deletions."""
    cleanable = [record for record in records if record.at < NOW - lag]
    cleaned = cleanable[: rng.randint(0, len(cleanable))]
    newest = {record.key: record for record in cleaned}
    drops_deletions = rng.random() < 0.5
    left = [r for r in cleaned if newest[r.key] is r and not (drops_deletions and not r.value)]
    return left + records[len(cleaned) :]


@pytest.mark.parametrize("history_lag", [0, pytest.param(LAG, marks=pytest.mark.long)])
def test_a_rebuilt_snapshot_is_that_of_the_job_or_no_longer_known(history_lag: int) -> None:
    known = unknown = 0
    for seed in range(400):
        rng = random.Random(seed)
        records, end = _published(rng)
        snapshots, written = _run_job(records)
        retention = {POLICIES: Retention(LAG, topic_id=LOG.id), NAMES.history: Retention(history_lag)}
        log = DocumentLog(NAMES, 1 << 20, NOW, retention)
        kept = [
            DocumentRecord("", key or b"", value or b"", n, at) for n, (at, (_, key, value, _)) in enumerate(written)
        ]
        for record in _compacted(kept, rng, history_lag):
            add_kept(log, record.key, record.value or None, written[record.offset][1][3])
        for record in _compacted(records, rng, LAG):
            log.add(record)
        log.read_to({(topic, 0): end if topic == POLICIES else 0 for topic in log.topics})
        for offset in rng.sample(range(-1, end), end + 1):
            newest = max(known_offset for known_offset in snapshots if known_offset <= offset)
            following = next((record.at for record in records if record.offset > offset), NOW)
            moment = rng.choice((None, following - CLOCKS_DIFFER_MS))
            try:
                rebuilt = at(log, offset, moment)
            except NoLongerKnown:
                unknown += 1
                continue
            known += 1
            assert rebuilt.version == snapshots[newest].version, (seed, offset)
            assert may_read(rebuilt) == may_read(snapshots[newest]), (seed, offset)
    assert known > 400
    assert unknown > 400
