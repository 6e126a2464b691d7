"""Records of the documents' topics: what comes into force, what is refused, and what the history keeps."""

import json
from typing import Any

import pytest

from policy import decide
from policy.store.documents import DocumentStore
from policy.store.overlay import layer_of
from policy.store.snapshot import Snapshot
from streaming.kafka.reader import TopicLog
from streaming.snapshots.documents import DocumentRecord, History, Loader, Refused
from tests.stream.world import request, role

TOPIC = "policies"
ROLE = role("r", "kafka:topic:a/b/c")


def _record(value: Any, offset: int = 0, key: bytes = b"Role/r") -> DocumentRecord:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return DocumentRecord(TOPIC, key, data, offset, 1000 + offset)


class DocumentHistory:
    """A policy topic's records going into a library, and its history beside it."""

    def __init__(self, topic_id: str = "id-1") -> None:
        self.store = DocumentStore()
        self.loader = Loader(self.store, "lenses6", 1 << 20)
        self.history = History("history", {"lenses6": TOPIC}, 1 << 20, {TOPIC: TopicLog(topic_id)})

    def take(self, record: DocumentRecord) -> Refused | None:
        """Add a record as the job does."""
        key = self.loader.key_of(record)
        if key is not None:
            self.history.note(key, record)
        return self.loader.take(record)

    def changes(self) -> list[Any]:
        """What the history would write of versions."""
        return [result for result in self.history.changes(self.store) if not (result[1] or b"").startswith(b"topic/")]

    def statements(self) -> list[Any]:
        """The statements in force."""
        [document_history] = self.store.histories.values()
        current = document_history.in_force
        return (
            [] if current is None or current.document is None else (current.document.spec or {}).get("statements", [])
        )


@pytest.mark.parametrize(
    "text", [json.dumps(ROLE).encode(), b"system: lenses6\nkind: Role\nname: r\nspec: {statements: []}"]
)
def test_json_and_yaml_come_into_force(text: bytes) -> None:
    document_history = DocumentHistory()
    assert document_history.take(_record(text)) is None
    assert document_history.store.rejected() == ()


def test_an_empty_value_deletes() -> None:
    document_history = DocumentHistory()
    document_history.take(_record(ROLE))
    assert document_history.take(_record(b"", 1)) is None
    assert document_history.statements() == []


REFUSED = {
    "neither JSON nor YAML": (b"{", b"Role/r", ""),
    "a list": (b"[]", b"Role/r", "a mapping, not list"),
    "another name": ({**ROLE, "name": "other"}, b"Role/r", "lenses6/Role/other"),
    "another kind": (ROLE, b"Group/r", "lenses6/Role/r"),
    "another system": ({**ROLE, "system": "cdap"}, b"Role/r", "cdap/Role/r"),
    "too big": (b"#" * (1 << 20) + b"#", b"Role/r", "1048577 bytes; at most 1048576"),
    "a time of its own": ({**ROLE, "effective_at": 1}, b"Role/r", "effective_at"),
    "an unknown field": ({**ROLE, "enforcment": True}, b"Role/r", "enforcment"),
    "a key without a kind": (ROLE, b"r", "is not <kind>/<name>"),
    "a key that is not UTF-8": (ROLE, b"\xff", "is not <kind>/<name>"),
}


@pytest.mark.parametrize(("value", "key", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_the_document_its_place_says_is_refused_and_the_one_before_stays(
    value: Any, key: bytes, why: str
) -> None:
    document_history = DocumentHistory()
    document_history.take(_record(ROLE))
    refused = document_history.take(_record(value, 1, key))
    assert refused is not None
    assert (refused.topic, refused.offset) == (TOPIC, 1)
    assert why in "; ".join(refused.errors)
    held = next(held for known, held in document_history.store.histories.items() if str(known) == "lenses6/Role/r")
    assert held.in_force is not None
    assert held.in_force.order == 0


def test_a_record_whose_key_names_no_document_has_one_name_in_alerts_and_answers() -> None:
    document_history = DocumentHistory()
    refused = document_history.take(_record(ROLE, key=b"r"))
    assert refused is not None
    assert refused.document == "lenses6/?/r"
    decision = decide(Snapshot(document_history.store), request("r", "dana", "orders"))
    assert decision.reasons[0].message.startswith("lenses6/?/r was refused")


def test_facts_have_keys_with_their_system_and_policies_no_place_among_them() -> None:
    loader = Loader(DocumentStore(facts_only=True), None, 1 << 20)
    refused = loader.take(_record(ROLE, key=b"lenses6/Role/r"))
    assert refused is not None
    assert "does not belong in the facts topic" in refused.errors[0]


def test_the_history_keeps_the_last_good_version_while_the_newest_is_refused() -> None:
    document_history = DocumentHistory()
    document_history.take(_record(ROLE, 3))
    assert document_history.changes() == []
    document_history.take(_record(b"{", 4))
    headers = [("at", b"1003"), ("next", b"4"), ("format", b"1"), ("topic-id", b"id-1")]
    added = [("history", b"lenses6/Role/r/3", json.dumps(ROLE).encode(), headers)]
    assert document_history.changes() == added
    document_history.history.written(document_history.store)
    assert document_history.changes() == []


def test_the_history_lets_go_of_a_version_that_a_newer_good_one_replaced() -> None:
    document_history = DocumentHistory()
    for offset, value in enumerate((ROLE, b"{")):
        document_history.take(_record(value, offset))
    document_history.history.written(document_history.store)
    document_history.take(_record(role("r", "kafka:topic:x/y/z"), 2))
    for held in document_history.store.histories.values():
        held.forget_before(None)
    assert document_history.changes() == [("history", b"lenses6/Role/r/0", None, [])]


def test_what_the_history_keeps_is_read_back_with_its_offset_and_time() -> None:
    """The policy topic may still have it: then it is the same version, not another."""
    before, after = DocumentHistory(), DocumentHistory()
    for offset, value in enumerate((ROLE, b"{")):
        before.take(_record(value, offset))
    [(_, key, text, headers)] = before.changes()
    kept = after.history.read_back(key or b"", text, headers)
    assert kept is not None
    assert kept.record == _record(ROLE, 0)
    after.take(kept.record)
    for record in (_record(ROLE, 0), _record(b"{", 1)):
        after.take(record)
    assert after.statements() == before.statements() == ROLE["spec"]["statements"]
    assert Snapshot(after.store).version == Snapshot(before.store).version
    assert after.changes() == []


def _restarted(kept: list[Any], *records: DocumentRecord) -> DocumentHistory:
    """A job that starts with what the history and the policy topic still hold."""
    document_history = DocumentHistory()
    for _, key, value, headers in kept:
        version = document_history.history.read_back(key or b"", value, headers)
        assert version is not None
        document_history.take(version.record)
    for record in records:
        document_history.take(record)
    document_history.history.close_gaps(document_history.store, 2000)
    return document_history


def _kept_below_a_refused_version() -> list[Any]:
    document_history = DocumentHistory()
    for offset, value in enumerate((ROLE, b"{")):
        document_history.take(_record(value, offset))
    return list(document_history.changes())


def test_a_kept_version_whose_successor_is_known_stays_in_force() -> None:
    document_history = _restarted(_kept_below_a_refused_version(), _record(b"{", 1))
    assert document_history.statements() == ROLE["spec"]["statements"]


def test_a_kept_version_does_not_come_back_when_the_deletion_after_it_was_compacted_away() -> None:
    """While the job was away, somebody deleted the document, and Kafka has forgotten even the deletion."""
    document_history = _restarted(_kept_below_a_refused_version())
    assert document_history.statements() == []


def test_a_kept_version_does_not_stand_in_for_a_lost_good_one_below_a_newer_refused_one() -> None:
    """Between the two were others that compaction took: what was in force is not known, so no request is allowed."""
    document_history = _restarted(_kept_below_a_refused_version(), _record(b"{", 7))
    [held] = document_history.store.histories.values()
    assert document_history.statements() == []
    assert held.broken


def test_below_a_newer_refused_one_a_lost_version_may_have_denied_anybody() -> None:
    """Also where the refused one can be read and names somebody else."""
    refused = {**role("r", "kafka:topic:x/y/z"), "spec": {"wrong": "user:eve"}}
    document_history = _restarted(_kept_below_a_refused_version(), _record(refused, 7))
    [(key, offset, at)] = document_history.history.lost_versions
    assert (str(key), offset) == ("lenses6/Role/r", 1)
    assert at > 1000, "after the deletion that stands at the same offset"
    others = _restarted(_kept_below_a_refused_version(), _record(ROLE, 6), _record(refused, 7))
    assert others.history.lost_versions == [], "a good one is in force"


def test_up_to_where_a_job_has_read_is_written_once_and_read_back_of_the_same_topic_alone() -> None:
    before, positions = DocumentHistory(), {(TOPIC, 0): 7, ("facts", 0): 9}
    [(topic, key, value, headers)] = [
        result for result in before.history.changes(before.store, positions) if result[1] != f"topic/{TOPIC}".encode()
    ]
    assert (topic, key, value) == ("history", f"read/{TOPIC}".encode(), b"7")
    before.history.written(before.store)
    for end in (7, 0):  # it never goes back, as before all is read
        assert before.history.changes(before.store, {(TOPIC, 0): end}) == []
    for topic_id, kept_until in (("id-1", {TOPIC: 7}), ("id-2", {})):
        after = DocumentHistory(topic_id)
        assert after.history.read_back(key or b"", value, headers) is None
        assert after.history.kept_until == kept_until


def test_a_log_is_ordered_by_offsets_even_where_its_clock_ran_backwards() -> None:
    document_history = DocumentHistory()
    document_history.take(_record(ROLE, 0))
    document_history.take(DocumentRecord(TOPIC, b"Role/r", b"", 1, 5))
    assert document_history.statements() == []


def _started(topic_id: str, kept: list[Any], *records: DocumentRecord) -> DocumentHistory:
    """A job that starts with kept versions, and with a policy topic of this id."""
    document_history = DocumentHistory(topic_id)
    for _, key, value, headers in kept:
        version = document_history.history.read_back(key or b"", value, headers, trusted=())
        if version is not None:
            document_history.take(version.record)
    for record in records:
        document_history.take(record)
    document_history.history.close_gaps(document_history.store, 2000)
    return document_history


FROM_0_1_0 = [("at", b"1000"), ("next", b"1"), ("format", b"1")]


@pytest.mark.parametrize("older", [False, True], ids=["of this version", "of 0.1.0, which named no topic id"])
def test_a_kept_version_of_a_deleted_topic_grants_nothing_under_the_re_created_one(older: bool) -> None:
    """Though the new topic has the same document at the offset of its successor, refused: it has no good version."""
    [(topic, key, value, headers)] = _kept_below_a_refused_version()
    kept = [(topic, key, value, FROM_0_1_0 if older else headers)]
    document_history = _started("id-2", kept, _record(b"{", 1))
    assert document_history.statements() == []
    assert document_history.changes() == [("history", key, None, [])], "it leaves the history topic"
    document_history.history.written(document_history.store)
    assert document_history.changes() == []


def test_a_version_of_the_re_created_topic_replaces_the_kept_one_with_the_same_offset() -> None:
    kept, other = _kept_below_a_refused_version(), role("r", "kafka:topic:x/y/z")
    document_history = _started("id-2", kept, _record(other, 0), _record(b"{", 1))
    assert document_history.statements() == other["spec"]["statements"]
    [(_, key, value, headers)] = document_history.changes()
    assert (key, json.loads(value), dict(headers)["topic-id"]) == (b"lenses6/Role/r/0", other, b"id-2")


def test_the_logs_that_were_read_are_kept_and_read_back() -> None:
    document_history = DocumentHistory()
    [(topic, key, value, _)] = document_history.history.changes(document_history.store)
    assert (topic, key, value) == ("history", b"topic/policies", b"id-1")
    assert _started("id-1", [(topic, key, value, [])]).history.known_logs == {TOPIC: TopicLog("id-1")}
    document_history.history.written(document_history.store)
    assert document_history.history.changes(document_history.store) == []


@pytest.mark.parametrize("key", [b"", b"nothing", b"lenses6/Role/r/x", b"unknown/Role/r/1", b"\xff/1"])
def test_what_is_not_ours_on_the_history_topic_is_left_alone(key: bytes) -> None:
    document_history = DocumentHistory()
    assert document_history.history.read_back(key, b"{}", [("at", b"1"), ("next", b"2")]) is None
    assert document_history.changes() == []


MEMBERS = {"roles": ["none"], "members": ["user:dana"]}
BANNED = {"system": "lenses6", "kind": "Group", "name": "banned", "spec": MEMBERS}

KEYED = {  # a refused record of a policy topic -> whom it affects, beside many others
    "the key's kind is misspelt": (b"group/banned", BANNED, {"*"}),
    "the key has no kind": (b"banned", BANNED, {"*"}),
    "the key has no name": (b"Group/", BANNED, {"*"}),
    "the key is empty": (b"", BANNED, {"*"}),
    "the key is no text": (b"\xff", BANNED, {"*"}),
    "another kind inside": (b"Role/banned", BANNED, {"role:banned", "claim:banned", "user:dana"}),
    "kind: group inside": (b"Group/banned", {**BANNED, "kind": "group"}, {"claim:banned", "user:dana"}),
    "another system inside": (b"Group/banned", {**BANNED, "system": "lenses 6"}, {"claim:banned", "user:dana"}),
    "another name inside": (b"Group/b", BANNED, {"claim:b", "claim:banned", "role:banned", "user:dana"}),
    "name: true inside": (b"Group/banned", {**BANNED, "name": True}, {"claim:banned", "user:dana"}),
    "a list inside": (b"Group/banned", [BANNED], {"claim:banned", "user:dana"}),
    "an unreadable group": (b"Group/banned", b"{", {"*"}),
    "an unreadable role": (b"Role/banned", b"{", {"role:banned"}),
}


@pytest.mark.parametrize(("key", "value", "bound"), KEYED.values(), ids=KEYED.keys())
def test_a_refused_record_affects_whom_its_key_and_its_document_name(key: bytes, value: Any, bound: set[str]) -> None:
    """Where neither can be read, every request of the topic's system; a restart after compaction finds the same."""
    before, after = DocumentHistory(), DocumentHistory()
    for offset in (0, 1):
        assert before.take(_record(value, offset, key)) is not None
    after.take(_record(value, 1, key))
    for document_history in (before, after):
        policy_sets = Snapshot(document_history.store).policy_sets
        assert policy_sets["lenses6"].broken.keys() >= bound
        assert ("*" in policy_sets["lenses6"].broken) is (bound == {"*"})
        assert not policy_sets["cdap"].broken
    assert Snapshot(before.store).version == Snapshot(after.store).version


@pytest.mark.parametrize("key", [key for key, _, _ in KEYED.values()], ids=KEYED.keys())
def test_an_empty_value_under_the_same_key_lifts_it_and_is_harmless_before(key: bytes) -> None:
    document_history, empty = DocumentHistory(), Snapshot(DocumentStore())
    assert document_history.take(_record(b"", 0, key)) is None
    assert not Snapshot(document_history.store).policy_sets["lenses6"].broken
    assert document_history.take(_record(b"{", 1, key)) is not None
    assert Snapshot(document_history.store).policy_sets["lenses6"].broken
    assert document_history.take(_record(b"", 2, key)) is None
    document_history.store.forget_before({"lenses6": None})
    snapshot = Snapshot(document_history.store)
    assert (snapshot.policy_sets["lenses6"].broken, snapshot.rejected, snapshot.version) == ({}, (), empty.version)
    assert not document_history.store.histories


def test_a_record_of_an_unknown_kind_does_not_hold_back_the_history() -> None:
    document_history = DocumentHistory()
    for offset, (key, value) in enumerate(((b"Grop/x", b"{"), (b"x", b"{"), (b"Grop/x", b"["), (b"x", b"["))):
        document_history.take(_record(value, offset, key))
    for _, key, value, headers in document_history.changes():
        kept = DocumentHistory()
        version = kept.history.read_back(key or b"", value, headers)
        assert version is not None
        assert kept.take(version.record) is not None
        assert "*" in Snapshot(kept.store).policy_sets["lenses6"].broken


def test_what_stands_on_the_facts_topic_under_a_wrong_key_changes_no_policy() -> None:
    loader = Loader(DocumentStore(facts_only=True), None, 1 << 20)
    for key in (b"lenses6/Role/r", b"x", b"\xff"):
        assert loader.take(_record(ROLE, key=key)) is not None
    assert not layer_of(loader.store).refused_documents("lenses6")
    assert loader.take(_record(ROLE, key=b"lenses6/Rle/r")) is not None
    [bound] = layer_of(loader.store).refused_documents("lenses6").values()
    assert bound == {"*"}
