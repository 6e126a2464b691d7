"""Policy at offsets: the snapshot of any time that the log still holds, and `NoLongerKnown` for every other."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from policy import compile_documents, decide
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown, Retention
from streaming.snapshots.documents import LOST, DocumentRecord, Loader, kept_version
from streaming.snapshots.record_log import APART_MS
from streaming.topics import DAY_MS, TopicNames

NAMES = TopicNames()
POLICIES = NAMES.policy_topics()["lenses6"]
LAG = 7 * DAY_MS
NOW = 1_800_000_000_000
OLD = NOW - 30 * DAY_MS  # compaction may have removed what was superseded then
YOUNG = NOW - DAY_MS


def role(name: str, *topics: str, effect: str = "allow") -> dict[str, Any]:
    resources = [f"kafka:topic:prod/main/{topic}" for topic in topics]
    statement = {"effect": effect, "action": ["kafka:ReadTopicData"], "resource": resources}
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": [statement] if topics else []}}


def group(name: str, *members: str) -> dict[str, Any]:
    spec = {"roles": [name], "members": list(members)}
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": spec}


DANA = group("readers", "user:dana")


def may_read(snapshot: Snapshot, topic: str = "orders") -> str:
    request = {
        "id": "r",
        "system": "lenses6",
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:ReadTopicData"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
    }
    return decide(snapshot, request).outcome


def put(offset: int, document: Any, at: int, key: str | None = None) -> DocumentRecord:
    """A record of the policy topic; `document` None deletes, bytes are taken as they are."""
    data = document if isinstance(document, bytes) else b"" if document is None else json.dumps(document).encode()
    name = key or f"{document['kind']}/{document['name']}"
    return DocumentRecord(POLICIES, name.encode(), data, offset, at)


def log_of(records: Iterable[DocumentRecord], end: int, **retention: Retention) -> DocumentLog:
    """A log opened NOW with these records, whose policy topic ends at `end`."""
    known = {POLICIES: Retention(LAG), NAMES.facts: Retention(LAG), NAMES.history: Retention(LAG)}
    log = DocumentLog(
        NAMES, 1 << 20, NOW, {**known, **{POLICIES if k == "policies" else k: v for k, v in retention.items()}}
    )
    for record in records:
        log.add(record)
    log.read_to({(topic, 0): end if topic == POLICIES else 0 for topic in log.topics})
    return log


def at(log: DocumentLog, offset: int, moment: int | None = None) -> Snapshot:
    return log.snapshot_at({POLICIES: {"0": offset}}, -1, moment)


def test_every_state_of_a_young_log_is_that_of_its_documents() -> None:
    """Compared with a library that stopped reading there: outcome, version and rejected documents."""
    documents = [DANA, role("readers", "orders"), b"{", role("readers", "carts"), None, role("readers", "orders")]
    records = [put(n, d, YOUNG + n, "Group/readers" if n == 0 else "Role/readers") for n, d in enumerate(documents)]
    log = log_of(records, end=len(records))
    expected = ["deny", "allow", "allow", "deny", "deny", "allow"]
    for offset in [*range(6), *reversed(range(6))]:
        store = DocumentStore()
        for record in records[: offset + 1]:
            Loader(store, "lenses6", 1 << 20).take(record)
        snapshot, other = at(log, offset), Snapshot(store)
        assert may_read(snapshot) == expected[offset]
        assert snapshot.version == other.version
    assert may_read(at(log, -1)) == "deny"
    assert at(log, -1).version == compile_documents([]).version


def test_the_offset_of_a_transaction_marker_names_what_was_published_before_it() -> None:
    log = log_of([put(0, DANA, YOUNG), put(1, role("readers", "orders"), YOUNG), put(3, role("readers"), YOUNG)], end=5)
    assert may_read(at(log, 2)) == "allow"
    assert may_read(at(log, 4)) == "deny"


def test_the_end_of_the_log_is_known_however_old_it_is() -> None:
    log = log_of([put(3, DANA, OLD), put(7, role("readers", "orders"), OLD)], end=9)
    assert may_read(at(log, 8)) == "allow"


def test_before_a_change_that_compaction_may_have_worked_on_nothing_is_known() -> None:
    """The role may have said something else at offset 3: that record would be gone."""
    log = log_of([put(3, DANA, OLD), put(7, role("readers", "orders"), OLD)], end=9)
    for offset in (3, 5):
        with pytest.raises(NoLongerKnown, match="compaction may have removed"):
            at(log, offset)


def test_old_documents_before_a_young_change_are_known() -> None:
    log = log_of([put(3, DANA, OLD), put(7, role("readers", "orders"), OLD), put(9, role("readers"), YOUNG)], end=11)
    assert may_read(at(log, 8)) == "allow"
    assert may_read(at(log, 9)) == "deny"


def test_over_a_gap_that_may_be_a_removed_deletion_nothing_is_known_without_the_moment() -> None:
    """A deletion at 8 that was removed by itself leaves the same log: only the time of the question tells."""
    log = log_of([put(3, DANA, OLD), put(7, role("readers", "orders"), OLD), put(10, role("readers"), YOUNG)], end=12)
    with pytest.raises(NoLongerKnown):
        at(log, 7)
    with pytest.raises(NoLongerKnown):
        at(log, 7, moment=OLD)
    assert may_read(at(log, 7, moment=YOUNG)) == "allow"


def test_a_moment_does_not_vouch_for_offsets_that_were_passed_long_before() -> None:
    log = log_of([put(3, DANA, OLD), put(7, role("readers", "orders"), OLD)], end=9)
    with pytest.raises(NoLongerKnown):
        at(log, 3, moment=YOUNG)


def test_what_was_seen_after_the_log_was_opened_is_known_without_any_lag() -> None:
    log = log_of([put(3, DANA, OLD)], end=4, policies=Retention(0))
    log.add(put(4, role("readers", "orders"), NOW))
    log.add(put(5, role("readers"), NOW + 1))
    log.read_to({(POLICIES, 0): 6})
    assert [may_read(at(log, offset)) for offset in (3, 4, 5)] == ["deny", "allow", "deny"]


def test_offsets_beyond_the_end_are_those_of_another_topic() -> None:
    with pytest.raises(NoLongerKnown, match="created again"):
        at(log_of([put(0, DANA, YOUNG)], end=1), 5)


def test_a_log_whose_beginning_was_deleted_says_nothing() -> None:
    log = log_of([put(3, DANA, YOUNG)], end=4, policies=Retention(LAG, start=2))
    with pytest.raises(NoLongerKnown, match="below offset 2 were deleted"):
        at(log, 3)


def test_a_log_is_complete_when_nothing_can_have_been_removed() -> None:
    assert log_of([], end=0).complete
    assert log_of([put(0, DANA, YOUNG), put(5, DANA, YOUNG)], end=6).complete
    assert not log_of([put(0, DANA, OLD), put(5, DANA, YOUNG)], end=6).complete
    assert not log_of([put(1, DANA, YOUNG)], end=2).complete, "what stood at 0 may have been older, and deleted"
    assert not log_of([], end=3).complete


def test_a_topic_that_is_not_in_the_settings_is_not_guessed() -> None:
    with pytest.raises(NoLongerKnown, match="elsewhere"):
        log_of([], end=0).snapshot_at({"elsewhere": {"0": 1}}, -1)


def add_kept(log: DocumentLog, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    """Take a record of the history topic, as a reader of it does."""
    version = kept_version(NAMES.policy_topics(), key, value, headers, NAMES.history)
    if version is not None:
        log.add_kept(version)


def _kept(log: DocumentLog, record: DocumentRecord, successor: int, *more: tuple[str, bytes]) -> None:
    headers = [("at", b"%d" % record.at), ("next", b"%d" % successor), ("format", b"1"), *more]
    add_kept(log, b"lenses6/%b/%d" % (record.key, record.offset), record.value, headers)


def _compacted(kept: DocumentRecord | None, *records: DocumentRecord, end: int, history_lag: int = LAG) -> DocumentLog:
    known = {POLICIES: Retention(LAG), NAMES.facts: Retention(LAG), NAMES.history: Retention(history_lag)}
    log = DocumentLog(NAMES, 1 << 20, NOW, known)
    if kept is not None:
        _kept(log, kept, 5)
    for record in records:
        log.add(record)
    log.read_to({(topic, 0): end if topic == POLICIES else 0 for topic in log.topics})
    return log


GOOD = put(2, role("readers", "orders"), OLD)
BROKEN = put(5, b"{", OLD, "Role/readers")


def test_the_last_good_version_of_a_refused_document_comes_from_the_history() -> None:
    log = _compacted(GOOD, put(0, DANA, OLD), BROKEN, end=6)
    assert may_read(at(log, 5)) == "allow"


@pytest.mark.parametrize(("topic_id", "outcome"), [(b"this", "allow"), (b"before", "error")])
def test_what_was_kept_of_a_topic_that_was_re_created_since_is_not_of_this_one(topic_id: bytes, outcome: str) -> None:
    log = DocumentLog(NAMES, 1 << 20, NOW, {POLICIES: Retention(LAG, topic_id="this"), NAMES.history: Retention(LAG)})
    _kept(log, GOOD, 5, ("topic-id", topic_id))
    for record in (put(0, DANA, OLD), BROKEN):
        log.add(record)
    log.read_to({(topic, 0): 6 if topic == POLICIES else 0 for topic in log.topics})
    assert may_read(at(log, 5)) == outcome


def test_a_kept_version_whose_successor_is_lost_is_not_in_force_again() -> None:
    """The record at 5 was followed by others, which are gone; what stands now is refused."""
    log = _compacted(GOOD, put(0, DANA, OLD), put(8, b"{", OLD, "Role/readers"), end=9)
    assert may_read(at(log, 8)) == "error"


def test_what_stood_where_a_successor_is_lost_may_have_denied_anybody() -> None:
    """Also where what follows is refused, can be read, and names nobody but eve."""
    refused = {**role("readers"), "spec": {"wrong": "user:eve"}}
    log = _compacted(GOOD, put(0, DANA, OLD), put(8, refused, OLD, "Role/readers"), end=9)
    snapshot = at(log, 8)
    assert LOST in [error for rejected in snapshot.rejected for error in rejected.errors]
    assert may_read(snapshot) == "error"


def test_a_refused_document_without_any_good_version_binds_as_long_as_it_is_refused() -> None:
    """The job would have kept a good one on the history topic."""
    log = _compacted(None, put(0, DANA, OLD), BROKEN, end=6)
    assert may_read(at(log, 5)) == "error"


def test_once_it_is_replaced_the_good_version_may_have_left_the_history() -> None:
    later = put(6, role("readers"), YOUNG)
    assert may_read(at(_compacted(GOOD, put(0, DANA, OLD), BROKEN, later, end=7), 5)) == "allow"
    assert may_read(at(_compacted(None, put(0, DANA, OLD), BROKEN, later, end=7), 5)) == "error", "no record of any"
    short = _compacted(None, put(0, DANA, OLD), BROKEN, later, end=7, history_lag=0)
    with pytest.raises(NoLongerKnown, match="lenses6/Role/readers: refused"):
        at(short, 5)


def test_the_offsets_of_a_moment_are_those_of_the_newest_records_by_then() -> None:
    log = log_of(
        [put(0, DANA, YOUNG), put(1, role("readers", "orders"), YOUNG + 5), put(3, role("readers"), YOUNG + 9)], end=5
    )
    found = [log.policies_at(YOUNG + after).offsets[POLICIES]["0"] for after in (-1, 0, 5, 8, 9, 100)]
    assert found == [-1, 0, 2, 2, 4, 4]


def test_the_documents_of_one_change_come_into_force_together_when_the_last_one_has_come() -> None:
    """They are published in one transaction, of which nobody reads a part. Other changes come for themselves."""
    folder = [role("readers", "orders"), role("writers"), role("owners")]
    times = [(5, "a"), (6, "a"), (8, "a"), (9, "b"), (9 + APART_MS, "b"), (10 + APART_MS, "b"), (11 + APART_MS, "")]
    records = [put(0, DANA, YOUNG)]
    for number, (after, change) in enumerate(times, 1):
        record = put(number + (number > 3), folder[number % 3], YOUNG + after)
        records.append(msgspec.structs.replace(record, change=change))
    log = log_of(records, end=10)
    spans = [log.policies_at(YOUNG + after) for after in (0, 4, 5, 7, 8, 9, 8 + APART_MS, 9 + APART_MS, 10 + APART_MS)]
    assert [span.offsets[POLICIES]["0"] for span in spans] == [0, 0, 0, 0, 4, 4, 4, 6, 7]
    assert [(span.since - YOUNG, (span.until or 0) - YOUNG) for span in spans[:4]] == [(0, 8)] * 4
    last = spans[-1]
    assert (last.since - YOUNG, (last.until or 0) - YOUNG) == (10 + APART_MS, 11 + APART_MS)
    ends = [log.next_change({POLICIES: {"0": offset}}) for offset in (-1, 0, 2, 3, 4, 8)]
    assert [end and end - YOUNG for end in ends] == [0, 8, 8, 9 + APART_MS, 9 + APART_MS, None]
    log.forget_before(YOUNG + 6)
    assert log.policies_at(YOUNG + 8).offsets[POLICIES]["0"] == 4
    assert log.policies_at(YOUNG + 7).offsets[POLICIES]["0"] == 0


@pytest.mark.parametrize(
    ("changes", "offsets", "expected"),
    [
        ("abab", (0, 1, 2, 3), (-1, -1, -1, 5)),
        ("abba", (0, 1, 2, 3), (-1, -1, -1, 5)),
        ("abb", (0, 1, 3), (0, 0, 5)),  # the marker of the first one stands between two records of the second one
        ("aba", (0, 1, 3), (-1, -1, 5)),
        ("ab-a", (0, 1, 2, 3), (-1, -1, -1, 5)),  # in no change: published without a transaction
        ("aa", (0, 2), (1, 5)),  # two transactions that name one change
        ("aba", (0, 2, 4), (1, 3, 5)),
        ("aba", (0, 1, 4), (0, 3, 5)),  # both have ended before the third one
    ],
)
def test_of_transactions_whose_records_alternate_no_part_is_in_force(
    changes: str, offsets: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    records = [
        msgspec.structs.replace(put(offset, role(f"r{offset}"), YOUNG + number), change=change.strip("-"))
        for number, (change, offset) in enumerate(zip(changes, offsets, strict=True))
    ]
    log = log_of(records, end=6)
    in_force = tuple(log.policies_at(YOUNG + number).offsets[POLICIES]["0"] for number in range(len(records)))
    assert in_force == expected


def test_a_clock_that_runs_backwards_does_not_reorder_the_log() -> None:
    log = log_of(
        [put(0, DANA, YOUNG + 9), put(1, role("readers", "orders"), YOUNG), put(2, role("readers"), YOUNG + 10)], end=3
    )
    assert log.policies_at(YOUNG + 9).offsets[POLICIES]["0"] == 1


@pytest.mark.parametrize("wrong", [-DAY_MS, -3, 0, DAY_MS])
def test_what_producers_have_dated_is_not_known_of_any_moment_before_the_broker_dates(wrong: int) -> None:
    """The topic had CreateTime once: a clock ahead hid what came later, and one behind what came before."""
    claimed = [put(1, role("readers", "orders"), YOUNG + 5 + wrong), put(2, role("writers"), YOUNG + 6 + wrong)]
    claimed = [msgspec.structs.replace(record, by_producer=True) for record in claimed]
    records = [put(0, DANA, YOUNG), *claimed, put(3, role("readers"), YOUNG + 9)]
    log = log_of(records, end=4)
    for moment in (YOUNG - 1, YOUNG, YOUNG + 5, YOUNG + 8):
        with pytest.raises(NoLongerKnown, match="dated by their producers"):
            log.policies_at(moment)
    assert [log.policies_at(moment).offsets[POLICIES]["0"] for moment in (YOUNG + 9, NOW)] == [3, 3]
    with pytest.raises(NoLongerKnown, match="dated by their producers"):
        log_of(records[:3], end=3).policies_at(NOW - 1)
    assert log_of(records[:3], end=3).policies_at(NOW).offsets[POLICIES]["0"] == 2


def test_the_offsets_of_a_moment_below_the_cutoff_are_not_known() -> None:
    log = log_of([put(0, DANA, OLD), put(1, role("readers"), OLD + 5)], end=2)
    with pytest.raises(NoLongerKnown, match=r"at 20\d\d-\d\d-\d\dT.*Z: compaction may have removed"):
        log.policies_at(OLD + 6)


def _login(offset: int, at: int, login_at: int) -> DocumentRecord:
    session = {"system": "streamsets", "kind": "Session", "name": "miguel", "spec": {"login_at": login_at}}
    return DocumentRecord(NAMES.facts, b"streamsets/Session/miguel", json.dumps(session).encode(), offset, at)


def test_facts_have_offsets_of_their_own_and_a_snapshot_does_not_change() -> None:
    log = log_of([], end=0)
    for offset, login_at in enumerate((100, 200, 300)):
        log.add(_login(offset, NOW + offset, login_at))
    log.read_to({(NAMES.facts, 0): 3})
    snapshots = [log.snapshot_at({}, offset) for offset in (2, 0, 1)]
    logins = [snapshot.policy_sets["streamsets"].facts.get("Session", "miguel") for snapshot in snapshots]
    assert [login.login_at for login in logins] == [300, 100, 200]
    assert log.snapshot_at({}, None).policy_sets["streamsets"].facts.get("Session", "miguel") is None


def test_without_a_lag_facts_of_before_the_opening_are_not_known() -> None:
    log = DocumentLog(NAMES, 1 << 20, NOW, {})
    for offset, login_at in enumerate((100, 200)):
        log.add(_login(3 * offset, NOW - 10, login_at))
    log.read_to({(topic, 0): 4 if topic == NAMES.facts else 0 for topic in log.topics})
    with pytest.raises(NoLongerKnown, match=NAMES.facts):
        log.snapshot_at({}, 0)
    assert log.snapshot_at({}, None).version == log.snapshot_at({}, 3).version


def test_forgetting_bounds_the_memory_and_the_past() -> None:
    records = [put(n, role("readers", *(["orders"] if n % 2 else [])), YOUNG + n) for n in range(1, 10)]
    log = log_of([put(0, DANA, YOUNG), *records], end=10)
    before = [may_read(at(log, offset)) for offset in range(5, 10)]
    log.forget_before(YOUNG + 5)
    assert [may_read(at(log, offset)) for offset in range(5, 10)] == before
    with pytest.raises(NoLongerKnown, match="kept from offset 5 on"):
        at(log, 4)
    assert sum(len(one.records) for one in log._logs.values()) == 4
