"""`policy log | show | get --at | rollback | status` on a broker, with the changes that the job's reader writes."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from policy import to_text
from streaming.kafka.authorship import Authorship
from streaming.kafka.publish import PolicyRecord, await_visible, policy_producer, publish, write
from streaming.records.formats import shorten_id
from streaming.settings import Settings
from streaming.snapshots.at_offsets import read_document_log
from streaming.snapshots.policies import Policies
from streaming.topics import TopicNames
from tests.brokers import await_transaction_markers
from tests.cli.documents import GROUP, ROLE, readers_folder
from tests.cli.lockkeeper import Command, Outcome
from tests.waiting import wait_until

pytestmark = pytest.mark.stream


class Session:
    """The command on the topics of one test, and the job's reader, which writes the changes topic."""

    def __init__(self, lockkeeper: Command, config: Path, settings: Settings, folder: Path) -> None:
        self._lockkeeper, self._config, self.settings, self.folder = lockkeeper, str(config), settings, folder
        self._policies = Policies(settings, {})
        self._producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
        self.written = 0

    def __call__(self, command: str, *arguments: str) -> Outcome:
        return self._lockkeeper("policy", command, *arguments, "--config", self._config)

    def apply(self, *arguments: str, author: str = "dana") -> str:
        """Apply the folder; returns the id of the change, which is written."""
        shown = self("apply", str(self.folder), "--prune", "--author", author, *arguments)
        assert shown.code == 0, shown.err
        return self.change_of(shown)

    def change_of(self, shown: Outcome) -> str:
        """The id of the change that a command has printed, once it is written."""
        [line] = [line for line in shown.lines if line.startswith("change ")]
        self.write_changes()
        return line.removeprefix("change ")

    def write_changes(self) -> None:
        """What the job does between batches."""
        self._policies.catch_up(30)
        wait_until(lambda: self._policies.unanalysed() == {} or self._policies.has_news, "the change is compared")
        for topic, key, value, headers in self._policies.pending():
            self._producer.produce(topic, value, key, headers=headers)
        assert self._producer.flush(30) == 0
        self._policies.published()

    def publish(self, values: Mapping[bytes, bytes], by: Authorship | None = None) -> None:
        """Publish records of lenses6 as any program can, in one transaction; the job writes the change."""
        topic, change = self.settings.topics.policies["lenses6"], (by or Authorship()).with_id()
        records = [PolicyRecord(topic, key, value, change.headers()) for key, value in values.items()]
        await_visible(self.settings, write(policy_producer(self.settings, {"lenses6"}), records))
        self.write_changes()

    def produce_unreadable_record(self) -> None:
        """Put on the changes topic what names an Avro schema that nobody knows."""
        self._producer.produce(self.settings.topics.changes, b"\0\0\0\0\1x")
        assert self._producer.flush(30) == 0

    def keys(self) -> list[str]:
        """The keys of what stands."""
        return [record["key"] for record in self("get", "--json").records]

    def version(self) -> str:
        """The policy version that is live."""
        return read_document_log(self.settings).newest().version

    def close(self) -> None:
        """End the reader."""
        self._policies.close()


@pytest.fixture
def session(
    lockkeeper: Command, config: Path, settings: Settings, topics: TopicNames, tmp_path: Path
) -> Iterator[Session]:
    """A session with a folder of policies: user:dana may get the details of the topic orders."""
    assert settings.topics == topics
    folder = readers_folder(tmp_path / "policies")
    with contextlib.closing(Session(lockkeeper, config, settings, folder)) as opened:
        opened.write_changes()  # the first start is over: what comes is a change
        yield opened


def role(name: str, topic: str = "t") -> bytes:
    """A role as a record's value."""
    return json.dumps(yaml.safe_load(ROLE.format(name="x", topic=topic)) | {"name": name}).encode()


def widen(folder: Path, topic: str = "*") -> None:
    """Let the readers read everything of a service."""
    (folder / "role.yaml").write_text(ROLE.format(name="order-readers", topic=topic))


def test_a_change_is_listed_shown_and_taken_back(session: Session) -> None:
    first = session.apply("--reason", "readers")
    version = session.version()
    widen(session.folder)
    second = session.apply("--reason", "more for readers", author="eve")
    listed = session("log")
    assert [line.split("  ")[0] for line in listed.lines] == [second[:12], first[:12]]
    assert "eve" in listed.lines[0]
    assert "lenses6 ~1  more for readers" in listed.lines[0]
    assert "lenses6 +2  readers" in listed.lines[1]
    for options, found in (
        (["--author", "EVE"], [second]),
        (["--document", "Group/readers"], [first]),
        (["--document", "lenses6/Role/order-readers"], [second, first]),
        (["--system", "cdap"], []),
        (["--since", "1h", "--limit", "1"], [second]),
        (["--since", "2100-01-01T00:00:00Z"], []),
    ):
        expected_code = 2 if "2100" in options[-1] else 0
        shown = session("log", *options, "--json")
        assert (shown.code, [record["id"] for record in shown.records]) == (expected_code, found), options
    shown = session("show", second[:8])
    assert shown.code == 0, shown.err
    assert "author  eve (claimed)" in shown.lines
    assert "  ~ lenses6/Role/order-readers  changed, offset 3" in shown.lines
    gained = "role:order-readers allow kafka:Get* on kafka:topic:prod/main/*"
    assert f"  +! lenses6/Role/order-readers: {gained}" in shown.lines
    opened = "role:order-readers may kafka:Get* on kafka:topic:prod/main/* (lenses6/Role/order-readers statement 0)"
    assert f"  {opened}" in shown.lines
    undone = session("rollback", second, "--author", "dana")
    assert undone.lines[0] == "restored  lenses6/Role/order-readers"
    third = session.change_of(undone)
    assert session.version() == version
    session.produce_unreadable_record()
    logged = session("log", "--json")
    assert "a record of the changes topic cannot be read" in logged.err, "and not among the results"
    newest = logged.records[0]
    assert (newest["id"], newest["parts"][0]["reason"]) == (third, f"rollback of {second}")
    assert session.change_of(session("rollback", third)), "a rollback is a change, and can be undone"
    assert session.version() != version


@pytest.mark.long
def test_a_rollback_deletes_what_the_change_added_and_brings_back_what_it_deleted(session: Session) -> None:
    session.apply()
    before = session("get").out
    (session.folder / "group.yaml").unlink()
    (session.folder / "new.yaml").write_text(GROUP.format(name="new", role="order-readers"))
    change = session.apply()
    undone = session("rollback", change)
    assert undone.lines[:2] == ["deleted   lenses6/Group/new", "restored  lenses6/Group/readers"]
    strip = [{**one} for one in yaml.safe_load_all(session("get").out)]
    assert strip == [*yaml.safe_load_all(before)]


def test_a_rollback_is_refused_when_a_later_change_touched_a_document_unless_forced(session: Session) -> None:
    session.apply()
    version = session.version()
    widen(session.folder, "pay*")
    change = session.apply()
    widen(session.folder, "a*")
    session.apply()
    refused = session("rollback", change)
    assert refused.code == 1
    assert "later changes touched lenses6/Role/order-readers" in refused.err
    assert session("rollback", change, "--force").code == 0
    assert session.version() == version


def test_changes_that_were_published_at_the_same_time_are_taken_back_each_by_itself(
    session: Session, admin: AdminClient
) -> None:
    """Publishers of one and of several systems do not fence each other, so their records may alternate."""
    session.publish({f"Role/{name}".encode(): role(name, "own") for name in "xyz"})
    publishers = [policy_producer(session.settings, systems) for systems in ({"lenses6"}, {"lenses6", "cdap"})]
    changes = [Authorship(author=author).with_id() for author in ("dana", "eve")]
    for producer in publishers:
        producer.init_transactions(30)
        producer.begin_transaction()
    for name, number in (("x", 0), ("y", 1), ("z", 0)):
        headers: Any = changes[number].headers()
        publishers[number].produce(
            session.settings.topics.policies["lenses6"], role(name, "*"), f"Role/{name}", 0, headers=headers
        )
        assert publishers[number].flush(30) == 0
    for producer in reversed(publishers):
        producer.commit_transaction(30)
    await_transaction_markers(admin, [(session.settings.topics.policies["lenses6"], 0)])
    session.write_changes()
    for change, taken_back, left in ((changes[1], "y", "xz"), (changes[0], "xyz", "")):
        undone = session("rollback", change.change)
        assert undone.code == 0, undone.err
        documents = {record["key"][-1]: record["document"] for record in session("get", "--json").records}
        assert documents == {name: json.loads(role(name, "*" if name in left else "own")) for name in "xyz"}, taken_back
        session.write_changes()


def test_a_record_that_is_published_again_with_the_same_content_is_no_later_change(session: Session) -> None:
    """A rollback was refused for it, to which no change was listed that could be rolled back first."""
    session.publish({b"Role/a": role("a"), b"Role/b": role("b")})
    session.publish({b"Role/a": role("a"), b"Role/b": json.dumps(json.loads(role("b")), indent=1).encode()})
    assert "Role/a" not in session("show", "HEAD").out
    assert "it changed no document" in session("rollback", "HEAD").err
    shown = session("rollback", "HEAD~1")
    assert (shown.code, shown.lines[:2]) == (0, ["deleted   lenses6/Role/a", "deleted   lenses6/Role/b"]), shown.err


def test_a_rollback_does_not_delete_what_was_refused_before(session: Session) -> None:
    """It may have held a deny: requests were errors, and without the document they would be allowed."""
    session.apply()
    session.publish({b"Role/other": b"{"}, Authorship(reason="broken"))
    session.publish({b"Role/other": role("other"), b"Role/more": role("more")}, Authorship(reason="correct"))
    stands = session.keys()
    for arguments in ((), ("--force",)):
        refused = session("rollback", "HEAD", *arguments)
        assert refused.code == 1
        assert "nothing was published: what lenses6/Role/other held before was refused" in refused.err
    assert session.keys() == stands
    shown = session("rollback", "HEAD~1", "--force")
    assert (shown.code, shown.lines[0]) == (0, "deleted   lenses6/Role/other"), "before that there was none"


def test_a_record_with_an_empty_key_is_deleted_by_its_key(session: Session) -> None:
    """All requests of the system are errors while it stands."""
    session.apply()
    for take_away in (("delete", "lenses6/"), ("apply", str(session.folder), "--prune"), ("rollback", "HEAD")):
        session.publish({b"": role("x")})
        assert not all(record["document"] for record in session("get", "--json").records)
        shown = session(*take_away)
        assert shown.code == 0, shown.err
        session.write_changes()
        assert session("get", "--json").code == 0, take_away


def test_names_that_are_too_long_to_be_shown_are_rolled_back_whole(session: Session) -> None:
    """A document whose own name is the shortened one of another, and keys that are no names, stay apart."""
    session.apply()
    long = "n" * 3000
    shown = shorten_id(f"lenses6/Role/{long}")
    alike = shown.removeprefix("lenses6/Role/")
    session.publish({f"Role/{alike}".encode(): role(alike)})
    session.publish({f"Role/{long}".encode(): role(long), b"Role/\xff": b"{}"})
    undone = session("rollback", "HEAD", "--json")
    assert undone.code == 0, undone.err
    assert set(session.keys()) == {"lenses6/Role/order-readers", "lenses6/Group/readers", f"lenses6/Role/{alike}"}
    session.write_changes()
    session.publish({f"Role/{long}".encode(): role(long, "a")})
    session.publish({f"Role/{long}".encode(): role(long, "b")})
    assert session("rollback", "HEAD").lines[0] == f"restored  lenses6/Role/{long}"
    listed = session("log", "--document", f"Role/{long}", "--json").records
    assert len(listed) == 4
    assert {document["key"] for one in listed for document in one["parts"][0]["documents"]} >= {shown}
    as_shown = session("log", "--document", shown, "--json").records
    assert [change["name"] for change in listed if change not in as_shown] == [], "as `policy show` names it"


def test_the_id_that_a_publisher_chose_does_not_stand_for_another_change(session: Session) -> None:
    first = session.apply(author="dana")
    widen(session.folder)
    session.publish({b"Role/other": role("other")}, Authorship(first[:12], "eve"))
    listed = [line.split("  ")[0] for line in session("log").lines]
    for command in ("show", "rollback"):
        refused = session(command, first[:12])
        assert refused.code == 1
        assert "it may be one of 2 changes" in refused.err
        assert first in refused.err
        assert "eve" in refused.err
    refused = session("get", "--at", first[:12])
    assert (refused.code, "it may be one of 2 changes" in refused.err) == (1, True)
    for id_, author in zip(listed, ["eve", "dana"], strict=True):
        assert f"author  {author} (claimed)" in session("show", id_).lines


def test_head_is_not_taken_back_while_newer_documents_wait_for_the_job(session: Session) -> None:
    session.apply()
    widen(session.folder, "pay*")
    session.apply()
    version = session.version()
    widen(session.folder, "a*")
    assert session("apply", str(session.folder)).code == 0
    refused = session("rollback", "HEAD")
    assert (refused.code, "HEAD is not the newest change" in refused.err) == (1, True)
    assert "are in no change yet: the job has not read them" in session("log").err
    session.write_changes()
    assert "are in no change yet" not in session("log").err
    assert session("rollback", "HEAD").code == 0
    assert session.version() == version


def test_changes_are_listed_where_policies_cannot_be_read(session: Session, admin: AdminClient) -> None:
    change = session.apply()
    gone = session.settings.topics.policies["cdap"]
    admin.delete_topics([gone])[gone].result(30)
    wait_until(lambda: gone not in admin.list_topics(timeout=10).topics, "the topic is deleted")
    listed = session("log")
    assert (listed.code, [line.split("  ")[0] for line in listed.lines]) == (0, [change[:12]])
    assert "it is unknown whether the job has read all documents" in listed.err
    assert gone in listed.err


@pytest.mark.long
def test_a_rollback_is_refused_when_the_history_no_longer_has_the_content(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when all that is known was published long ago, and compaction may have been there."""
    session.apply()
    widen(session.folder)
    change = session.apply()
    monkeypatch.setattr("streaming.snapshots.at_offsets.read_retention", lambda _settings: {})
    monkeypatch.setattr("streaming.snapshots.record_log.CLOCKS_DIFFER_MS", 10**12)
    refused = session("rollback", change)
    assert refused.code == 1
    assert f"what was in force before {change} is not known any more" in refused.err
    assert "compaction may have removed" in refused.err


def test_get_at_a_change_a_version_or_a_time_is_what_was_in_force_then(session: Session) -> None:
    first = session.apply()
    version = session.version()
    then = yaml.safe_load_all(session("get").out)
    documents = [*then]
    widen(session.folder)
    session.apply()
    [newest, *_] = session("log", "--json").records
    for point in (first, version, version[:20], _earlier(newest)):
        shown = session("get", "--at", point)
        assert shown.code == 0, (point, shown.err)
        assert [*yaml.safe_load_all(shown.out)] == documents, point
    assert session("get", "lenses6/Group", "--at", first).code == 0
    unknown = session("get", "--at", "sha256:0000")
    assert (unknown.code, "no change on" in unknown.err) == (1, True)
    assert "no such change" in session("get", "--at", "ffffffff").err


def test_get_at_a_time_at_which_producers_dated_the_records_is_not_known(session: Session, admin: AdminClient) -> None:
    """The topic had CreateTime: by a clock that was ahead, the newest documents would not be there yet."""
    topic, ahead = session.settings.topics.policies["lenses6"], int(time.time() * 1000) + 3_600_000
    _date(admin, topic, "CreateTime")
    producer = Producer({"bootstrap.servers": session.settings.bootstrap_servers})
    producer.produce(topic, role("first"), b"Role/first", timestamp=ahead)
    assert producer.flush(30) == 0
    produced = to_text(time.time_ns() // 1_000_000)
    refused = session("get", "--at", produced)
    assert (refused.code, "dated by their producers" in refused.err) == (1, True), refused.err
    _date(admin, topic, "LogAppendTime")
    session.apply()
    [newest, *_] = session("log", "--json").records
    shown = session("get", "--at", newest["parts"][0]["time"])
    assert (shown.code, shown.out) == (0, session("get").out), shown.err


def _date(admin: AdminClient, topic: str, by: str) -> None:
    entry = ConfigEntry("message.timestamp.type", by, incremental_operation=AlterConfigOpType.SET)
    [altered] = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values()
    altered.result(30)


def _earlier(change: dict[str, Any]) -> str:
    from policy import to_ms, to_text

    return to_text(to_ms(change["parts"][0]["time"]) - 1)


def test_status_says_where_what_is_live_is_not_what_is_written(session: Session) -> None:
    session.apply()
    assert session("status", str(session.folder)).code == 0
    widen(session.folder)
    (session.folder / "group.yaml").write_text(GROUP.format(name="new", role="order-readers"))
    shown = session("status", str(session.folder))
    assert shown.code == 1
    assert [line[:26].rstrip() for line in shown.lines] == [
        "+ lenses6/Group/new",
        "- lenses6/Group/readers  l",
        "~ lenses6/Role/order-reade",
    ]
    assert "2 documents, 3 different from what is live" in shown.err
    assert json.loads(session("status", str(session.folder), "--json").out)["documents"] == 2


@pytest.mark.long
def test_of_a_hundred_changes_all_are_listed_and_the_last_is_taken_back_where_nothing_came_after(
    session: Session,
) -> None:
    """Each changes two of ten roles; what the rollback leaves is what the 99th left, in every document."""
    for number in range(100):
        roles = (ROLE.format(name=f"role-{n % 10}", topic=f"t{number}") for n in (number, 3 * number + 1))
        publish(session.settings, map(yaml.safe_load, roles), authorship=Authorship(author=f"author-{number}"))
        if number == 98:
            before = session.version()
    session.write_changes()
    listed = session("log", "--limit", "200", "--json").records
    assert [one["parts"][0]["author"] for one in listed] == [f"author-{number}" for number in reversed(range(100))]
    assert session.version() != before
    assert session("rollback", listed[0]["id"]).code == 0
    assert session.version() == before
    assert session("rollback", listed[50]["id"]).code == 1, "later changes touched the same documents"
