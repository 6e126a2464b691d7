"""A state that is made of one nearby, before or after it, is the one that is made of all records up to it."""

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from policy.store import compiler as compiling
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.systems import all_systems
from streaming.console.comparison_program import Live, LiveDocuments
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown, Retention
from streaming.snapshots.documents import DocumentRecord, Loader
from streaming.topics import TopicNames
from tests.examples import examples
from tests.policy.test_answers import UNHURRIED
from tests.policy.test_compiler import contents_of
from tests.policy.test_properties import WRITTEN, dated
from tests.snapshots.test_at_offsets import LAG, NOW, YOUNG

NAMES = TopicNames(systems=tuple(all_systems()))


def records_of(system: str) -> st.SearchStrategy[list[DocumentRecord]]:
    """A log of documents: versions, deletions, and what is refused."""
    document = dated(system).filter(bool).map(lambda documents: documents[0])
    what = st.sampled_from(("put", "put", "put", "delete", "spoil", "unreadable"))
    entries = st.lists(st.tuples(what, document), min_size=1, max_size=12)
    gaps = st.integers(1, 2)
    return st.tuples(entries, st.lists(gaps, min_size=12, max_size=12)).map(lambda both: _records(system, *both))


def _records(system: str, entries: list[tuple[str, dict[str, Any]]], gaps: list[int]) -> list[DocumentRecord]:
    topic, records, offset = NAMES.policy_topics()[system], list[DocumentRecord](), 0
    for (what, document), gap in zip(entries, gaps, strict=False):
        document = {name: value for name, value in document.items() if name != "effective_at"}
        document = {**document, "spec": {"wrong": 1}} if what == "spoil" else document
        value = {"delete": b"", "unreadable": b"{"}.get(what, msgspec.json.encode(document))
        key = f"{document['kind']}/{document['name']}".encode()
        records.append(DocumentRecord(topic, key, value, offset, YOUNG + offset))
        offset += gap
    return records


def _log(records: list[DocumentRecord]) -> DocumentLog:
    log = DocumentLog(NAMES, 1 << 20, NOW, {topic: Retention(LAG) for topic in (*NAMES.policy_topics().values(),)})
    for record in records:
        log.add(record)
    ends = {(topic, 0): 0 for topic in log.topics}
    log.read_to({**ends, (records[0].topic, 0): records[-1].offset + 1})
    return log


def _compiled(records: list[DocumentRecord], system: str) -> Compiler:
    """What a follower of the same topic has compiled, with versions of its own."""
    store = DocumentStore(systems=NAMES.systems)
    for record in records:
        Loader(store, system, 1 << 20).take(record)
    store.forget_before(dict.fromkeys(all_systems()))
    return Compiler(store)


def _contents(log: DocumentLog, topic: str, offset: int) -> Any:
    try:
        snapshot = log.snapshot_at({topic: {"0": offset}}, None)
    except NoLongerKnown:
        return None
    documents = {str(key): record.offset for key, record in log.documents_at({topic: {"0": offset}}).items()}
    return contents_of(snapshot), snapshot.rejected, snapshot.warnings, documents


@pytest.mark.parametrize("system", WRITTEN)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_the_process_that_compares_drafts_has_what_is_in_force(system: str, data: st.DataObject) -> None:
    """All that a snapshot says, also of older versions where they count, and of whom refused documents affect."""
    records = data.draw(records_of(system))
    log, offsets = _log(records), {records[0].topic: {"0": records[-1].offset}}
    live = Live(system)
    live.take(LiveDocuments("a", tuple(map(pickle.dumps, log.histories_at(offsets).values()))))
    ours, expected = (contents_of(one)[2][system] for one in (live.snapshot, log.snapshot_at(offsets, None)))
    event(f"refused: {bool(expected[-1])}")
    assert ours == expected


@pytest.mark.parametrize("system", WRITTEN)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data(), by_change=st.booleans(), is_shared=st.booleans())
def test_in_whatever_order_they_are_asked_for(
    system: str, data: st.DataObject, by_change: bool, is_shared: bool
) -> None:
    """Compared with a log that knows no other state. Also where another reader has read some of it before."""
    records = data.draw(records_of(system))
    log, topic, end = _log(records), records[0].topic, records[-1].offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "WHOLE", 0 if by_change else 4)
        if is_shared:
            log.share(_compiled(records[: data.draw(st.integers(0, len(records)))], system))
        for offset in [end, *data.draw(st.lists(st.integers(-1, end), min_size=1, max_size=8))]:
            event("earlier" if offset < end else "newest")
            assert _contents(log, topic, offset) == _contents(_log(records), topic, offset)


def test_an_earlier_state_reads_those_documents_alone_that_have_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what another reader of the topic has read is not read again at all."""
    read: list[bytes] = []

    def reading(_loader: Loader, record: DocumentRecord) -> Any:
        read.append(record.key)
        return msgspec.json.decode(record.value)

    roles = [{"system": "lenses6", "kind": "Role", "name": f"r{n}", "spec": {"statements": []}} for n in range(30)]
    records = _records("lenses6", [("put", role) for role in (*roles, roles[3])], [1] * 31)
    elsewhere, topic = _compiled(records, "lenses6"), records[0].topic
    monkeypatch.setattr(Loader, "_read", reading)
    log = _log(records)
    for offset, count in ((30, 31), (29, 1)):
        read.clear()
        assert _contents(log, topic, offset) is not None
        assert len(read) == count
    assert read == [b"Role/r3"]
    read.clear()
    other = _log(records)
    other.share(elsewhere)
    assert _contents(other, topic, 30) is not None
    assert read == [b"Role/r3"], "the superseded version is known here alone"
