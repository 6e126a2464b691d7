"""Which changes the policy topics hold, and the records that say so: without a broker."""

import json
from typing import Any

import pytest

from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.kafka.authorship import Authorship
from streaming.kafka.clients import Partition
from streaming.records.change import DocumentChange, PolicyChange, PolicyState, change_record
from streaming.records.formats import shorten_id
from streaming.settings import Settings
from streaming.snapshots.change_log import MOST_AT_START, ChangeLog
from streaming.snapshots.documents import DocumentRecord, Loader, policy_key
from streaming.topics import ALWAYS_FITS
from tests.stream.world import LOOKS_BACK, SYSTEM, group, role

SETTINGS = Settings()
TOPICS = SETTINGS.topics.policy_topics()
TOPIC = TOPICS[SYSTEM]
COMMITTED = {(topic, 0): 0 for topic in TOPICS.values()}
NOBODY, ANNA, BEN = Authorship(), Authorship("a", "anna", "c1", "why"), Authorship("b", "ben")


class Reading:
    """A job's reading of the policy topics."""

    def __init__(self, published: dict[Partition, int] | None = None) -> None:
        self.store = DocumentStore()
        self.log = ChangeLog(SETTINGS, COMMITTED if published is None else published, "sha256:none")
        self._ends = dict.fromkeys(TOPICS.values(), 0)
        self.version = ""

    def read(self, *records: Any, by: Authorship = NOBODY, topic: str = TOPIC, skip: int = 0) -> None:
        """Read documents, keys to delete, or bytes for what is no document of the key Role/broken."""
        system = next(s for s, t in TOPICS.items() if t == topic)
        loader = Loader(self.store, system, 1 << 20)
        self._ends[topic] += skip
        for value in records:
            key = value if isinstance(value, str) else "Role/broken" if isinstance(value, bytes) else _key(value)
            data = b"" if isinstance(value, str) else value if isinstance(value, bytes) else json.dumps(value).encode()
            record = DocumentRecord(topic, key.encode(), data, self._ends[topic], 1000 + self._ends[topic])
            named = policy_key(record.key, system)
            self.log.note(named, record, by, self.store)
            refused = loader.take(record)
            self.log.noted(named, refused is not None, self.store)
            self._ends[topic] += 1

    def close(self) -> list[dict[str, Any]]:
        """The ends are reached; what the next transaction writes, which is committed."""
        self.version = Snapshot(self.store).version
        self.log.close(self.version, {topic: {"0": end - 1} for topic, end in self._ends.items()})
        found = [json.loads(value or b"") for _, _, value, _ in self.log.pending()]
        self.log.published()
        return found


def _key(document: dict[str, Any]) -> str:
    return f"{document['kind']}/{document['name']}"


def _offsets(newest: int) -> dict[str, dict[str, int]]:
    return {topic: {"0": newest if topic == TOPIC else -1} for topic in TOPICS.values()}


def changed(record: dict[str, Any]) -> dict[str, str]:
    """How each document changed, by kind and name."""
    return {one["key"].partition("/")[2]: one["change"] for one in record["documents"]}


def test_a_record_whose_key_names_no_document_is_refused_and_its_deletion_is_a_change() -> None:
    """Until it is deleted all requests of the system are errors: the log said that no document changed."""
    job, misnamed = Reading(), {**role("x", "*"), "kind": ""}
    job.read(misnamed)
    [refused] = job.close()
    job.read("/x")
    [removed] = job.close()
    assert [changed(refused), changed(removed)] == [{"?//x": "refused"}, {"?//x": "removed"}]


def test_a_change_has_its_author_its_documents_and_what_was_in_force_around_it() -> None:
    job = Reading()
    job.read(role("x", "*"), role("y", "*"), by=ANNA)
    [record] = job.close()
    assert record == {
        "id": "a",
        "system": SYSTEM,
        "time": "1970-01-01T00:00:01.000Z",
        "author": "anna",
        "commit": "c1",
        "reason": "why",
        "before": {"policy_offsets": _offsets(-1)},
        "after": {"policy_offsets": _offsets(1), "policy_version": job.version},
        "documents": [
            {"key": f"{SYSTEM}/Role/x", "change": "added", "offset": 0},
            {"key": f"{SYSTEM}/Role/y", "change": "added", "offset": 1},
        ],
        "documents_count": 2,
    }
    assert job.close() == []


@pytest.mark.parametrize("id_", ["a", ""])
def test_what_says_something_else_of_itself_is_a_change_of_its_own(id_: str) -> None:
    """Of records read together with one id, or one after the other without, all had the author of the first."""
    job = Reading()
    job.read(role("x", "*"), by=Authorship(id_, "anna"))
    job.read(role("y", "*"), by=Authorship(id_, "mallory"))
    job.read(role("z", "*"), by=Authorship(id_, "mallory"))
    first, second = job.close()
    assert (first["author"], changed(first)) == ("anna", {"Role/x": "added"})
    assert (second["author"], changed(second)) == ("mallory", {"Role/y": "added", "Role/z": "added"})
    assert second["before"] == first["after"] == {"policy_offsets": _offsets(0)}
    assert (first["id"], second["id"]) == (("a", "a") if id_ else (f"{TOPIC}-0", f"{TOPIC}-1"))


def test_what_a_document_became_is_said_and_what_is_published_unchanged_is_left_out() -> None:
    job = Reading()
    job.read(role("same", "*"), role("other", "*"), role("gone", "*"))
    job.close()
    job.read(role("same", "*"), role("other", "kafka:*"), "Role/gone", "Role/never", role("new", "*"), b"{", by=BEN)
    [record] = job.close()
    assert changed(record) == {
        "Role/other": "changed",
        "Role/gone": "removed",
        "Role/new": "added",
        "Role/broken": "refused",
    }


def test_a_good_version_after_a_refused_one_is_a_change_though_it_says_what_was_in_force() -> None:
    job = Reading()
    job.read({**role("broken", "*")})
    job.close()
    job.read(b"{")
    assert [changed(record) for record in job.close()] == [{"Role/broken": "refused"}]
    job.read(role("broken", "*"))
    assert [changed(record) for record in job.close()] == [{"Role/broken": "changed"}]


def test_headers_tell_changes_of_one_reading_apart_and_only_their_ends_have_a_version() -> None:
    job = Reading()
    job.read(role("x", "*"))
    [first] = job.close()
    job.read(role("x", "kafka:topic:*"), by=ANNA)
    job.read(role("x", "schemas:*"), by=BEN)
    one, two = job.close()
    assert (one["id"], two["id"]) == ("a", "b")
    assert one["before"] == first["after"]
    assert one["after"] == two["before"]
    assert one["after"]["policy_offsets"][TOPIC] == {"0": 1}
    assert "policy_version" not in one["after"]
    assert two["after"]["policy_version"] == job.version


def test_where_records_of_changes_alternate_none_of_a_change_was_in_force_before_it() -> None:
    """As of transactions that were open at the same time, or where an id of an earlier change was chosen again."""
    job = Reading()
    job.read(role("x", "*"))
    [earlier] = job.close()
    for name, author in (("x", ANNA), ("y", BEN), ("z", ANNA)):
        job.read(role(name, "kafka:topic:*"), by=author, skip=2)
    one, two = job.close()
    assert (one["id"], two["id"]) == ("a", "b")
    assert one["before"] == earlier["after"]
    assert one["after"] == {"policy_offsets": _offsets(9)}
    assert two["before"] == {"policy_offsets": _offsets(5)}
    assert two["after"] == {"policy_offsets": _offsets(9), "policy_version": job.version}


def test_without_headers_the_marker_between_transactions_tells_them_apart() -> None:
    job = Reading()
    job.read(role("x", "*"), role("y", "*"))
    job.read(role("z", "*"), skip=1)
    assert [(record["id"], len(record["documents"])) for record in job.close()] == [
        (f"{TOPIC}-0", 2),
        (f"{TOPIC}-3", 1),
    ]


def test_a_change_of_several_systems_has_a_record_for_each_with_one_id() -> None:
    job = Reading()
    job.read(role("x", "*"), by=ANNA)
    organization = {"system": LOOKS_BACK, "kind": "Organization", "name": "shop", "spec": {}}
    job.read(organization, by=ANNA, topic=TOPICS[LOOKS_BACK])
    assert {(record["id"], record["system"]) for record in job.close()} == {("a", SYSTEM), ("a", LOOKS_BACK)}


def test_what_lies_below_the_committed_offset_was_written_before() -> None:
    job = Reading({**COMMITTED, (TOPIC, 0): 2})
    job.read(role("x", "*"), by=ANNA)
    job.read(role("x", "kafka:topic:*"), role("y", "kafka:topic:*"), by=BEN)
    [record] = job.close()
    assert (record["id"], changed(record)) == ("b", {"Role/y": "added"})
    assert record["before"]["policy_offsets"][TOPIC] == {"0": 1}
    assert "policy_version" not in record["before"], "the job was away"


def test_the_first_start_writes_what_the_topics_hold_and_no_more_than_so_many() -> None:
    job = Reading({})
    job.read(role("x", "*"), role("y", "*"))
    job.read(group("x", "user:dana"), skip=5)  # compaction left a gap
    [record] = job.close()
    assert record["documents_count"] == 3
    assert record["before"]["policy_version"] == "sha256:none"
    many = Reading({})
    for number in range(MOST_AT_START + 2):
        many.read(role("x", f"kafka:topic:{number}/*"), by=Authorship(str(number)))
    assert [record["id"] for record in many.close()] == [str(number) for number in range(2, MOST_AT_START + 2)]


def test_a_reading_that_is_cut_short_makes_no_record_of_its_half() -> None:
    job = Reading()
    job.read(role("x", "*"), by=ANNA)
    assert list(job.log.pending()) == []
    job.read(role("y", "*"), by=ANNA)
    assert [record["documents_count"] for record in job.close()] == [2]


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_a_record_lists_as_many_documents_as_fit_and_counts_all(limit: int) -> None:
    documents = tuple(DocumentChange(f"lenses6/Role/{'x' * 900}-{n}", "added", n) for n in range(5000))
    change = PolicyChange(
        id="c" * 1024,
        system=SYSTEM,
        time="1970-01-01T00:00:01.000Z",
        author="ü" * 1024,
        before=PolicyState({}),
        after=PolicyState({}),
        documents=documents,
        documents_count=len(documents),
    )
    _, _, value, _ = change_record("t", change, limit)
    assert value is not None
    assert len(value) <= max(limit, ALWAYS_FITS)
    record = json.loads(value)
    assert (record["documents_count"], record["documents"][0]["offset"]) == (5000, 0)
    assert 10 < len(record["documents"]) <= 1000


def test_a_publisher_cannot_choose_an_id_of_the_job() -> None:
    reading = Reading()
    reading.read(role("a"))
    reading.read(role("b"), by=Authorship(f"{TOPIC}-0", "eve"), skip=1)
    reading.read(role("c"), by=Authorship(f"{TOPIC}-0x", "eve"))
    assert [one["id"] for one in reading.close()] == [f"{TOPIC}-0", f"{TOPIC}-2", f"{TOPIC}-0x"]


def test_documents_whose_names_read_the_same_stay_two() -> None:
    """A name that is too long is shortened; another document may have the shortened name as its own."""
    long = {**role("x"), "name": "n" * 3000}
    alike = {**role("x"), "name": shorten_id(f"lenses6/Role/{long['name']}").removeprefix("lenses6/Role/")}
    reading = Reading()
    reading.read(long, alike)
    [record] = reading.close()
    assert len({one["key"] for one in record["documents"]}) == 2
    assert record["documents_count"] == 2


def test_keys_that_are_no_text_stay_apart() -> None:
    store = DocumentStore()
    loader = Loader(store, SYSTEM, 1 << 20)
    for offset, key in enumerate((b"\xff", b"\\xff", b"\xfe")):
        loader.take(DocumentRecord(TOPIC, key, b"{}", offset, offset))
    loader.take(DocumentRecord(TOPIC, b"\\xff", b"", 3, 3))
    refused = {key.name for key, history in store.histories.items() if not history.newest.good}
    assert refused == {"\\xff", "\\xfe"}, "a deletion lifts the refusal of its own key alone"
