"""What every commit costs does not grow with the documents that are held."""

import json

from policy.store.documents import DocumentStore
from streaming.kafka.reader import TopicLog
from streaming.snapshots.documents import DocumentRecord, History, Loader
from tests.stream.world import role
from tests.work import work

TOPIC = "policies"


def _commit(documents: int) -> int:
    """Work of the history for one change and two commits, beside as many documents as are kept."""
    store, names = DocumentStore(), {"lenses6": TOPIC}
    history, loader = (
        History("history", names, 1 << 20, {TOPIC: TopicLog("id")}),
        Loader(store, "lenses6", 1 << 20),
    )

    def read(name: str, offset: int, value: bytes) -> None:
        record = DocumentRecord(TOPIC, f"Role/{name}".encode(), value, offset, offset)
        key = loader.key_of(record)
        assert key is not None
        history.note(key, record)
        loader.take(record)

    def commit() -> int:
        written = history.changes(store)
        history.written(store)
        return len(written)

    for number in range(documents):
        read(f"r{number}", 2 * number, json.dumps(role(f"r{number}", "kafka:topic:a/b/c")).encode())
        read(f"r{number}", 2 * number + 1, b"{")
    dropped = store.forget_before({"lenses6": None})
    history.settle(store, dropped)
    assert commit() == documents + 1
    read("r0", 2 * documents, b"[")
    dropped = store.forget_before({"lenses6": None})
    changed = work(lambda: history.settle(store, dropped))
    written: list[int] = []
    changed += work(lambda: written.append(commit()))
    changed += work(lambda: written.append(commit()))
    assert written == [1, 0], "the version that was refused first is kept too, once"
    return changed


def test_a_commit_costs_what_changed_and_not_what_is_held() -> None:
    few, many = _commit(10), _commit(1000)
    assert many <= 1.5 * few, "a hundred times the documents, one of them changed"
