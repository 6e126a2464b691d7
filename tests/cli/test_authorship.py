"""Changes say who made them, and publishers at one moment follow each other: `policy apply | delete`."""

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from streaming.cli.authorship import AuthorshipOptions
from streaming.cli.expected import check_expected
from streaming.cli.failure import Failure
from streaming.kafka.authorship import CHANGE, MOST, Authorship, authorship_of
from streaming.kafka.committed import committed_records, read_stored
from streaming.kafka.publish import (
    PolicyRecord,
    Publication,
    PublisherFenced,
    PublishFailed,
    policy_producer,
    publish,
    publish_prepared,
    write,
)
from streaming.settings import Settings, check_settings
from streaming.snapshots.at_offsets import read_document_log
from streaming.snapshots.policies import Policies
from streaming.topics import TopicNames
from tests.cli.documents import ROLE, readers_folder
from tests.cli.lockkeeper import Command
from tests.docs.pages import ROOT

ROLE_VALUE = {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": []}}
PROCESSES = ("anna", "ben", "cleo", "dan")


def _produce(settings: Settings, key: str, value: bytes, headers: list[tuple[str, bytes]]) -> int:
    """Publish a document as any producer may. Returns its offset."""
    producer, offsets = Producer({"bootstrap.servers": settings.bootstrap_servers}), list[int]()
    producer.produce(
        settings.topics.policy_topics()["lenses6"],
        value,
        key,
        headers=headers,
        on_delivery=lambda _, message: offsets.append(message.offset()),
    )
    assert producer.flush(30) == 0
    return offsets[0]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with the policies of `readers_folder` committed by Dana."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text("[user]\nname = Carl\nemail = carl@example.com\n")
    folder = readers_folder(tmp_path / "policies")
    for arguments in (
        ["init", "--quiet"],
        ["add", "."],
        ["commit", "--quiet", "-m", "Readers may read\n\nMore.", "--author", "Dana <dana@example.com>"],
    ):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder


def head(folder: Path) -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_clean_checkout_says_author_commit_and_reason(repository: Path) -> None:
    found = AuthorshipOptions().authorship(Settings(), repository)
    assert (found.author, found.commit, found.reason) == (
        "Dana <dana@example.com>",
        head(repository),
        "Readers may read",
    )


def test_files_that_differ_from_the_commit_are_not_its_authors(repository: Path) -> None:
    (repository / "new.yaml").write_text(ROLE.format(name="new", topic="t"))
    found = AuthorshipOptions().authorship(Settings(), repository)
    assert (found.author, found.commit, found.reason) == (
        "Carl <carl@example.com>",
        f"{head(repository)}-dirty",
        "",
    )


def test_options_take_precedence_over_git(repository: Path) -> None:
    found = AuthorshipOptions("erin", "c0ffee", "because").authorship(Settings(), repository)
    assert (found.author, found.commit, found.reason) == ("erin", "c0ffee", "because")


@pytest.mark.parametrize("name", ["author", "commit", "reason"])
def test_a_setting_requires_what_a_change_must_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    settings = check_settings({"policy": {"require": [name]}})
    with pytest.raises(Failure, match=f"policy.require requires --{name}"):
        AuthorshipOptions().authorship(settings, tmp_path)
    assert getattr(AuthorshipOptions(**{name: "x"}).authorship(settings), name) == "x"


def test_headers_are_read_back_bounded_and_never_fail() -> None:
    made = Authorship("c", "dana ü", "", "why")
    assert authorship_of(made.headers()) == made
    assert authorship_of([("lockkeeper-author", b"\xff"), ("lockkeeper-reason", b"x" * 9999), ("other", None)]) == (
        Authorship("", "\ufffd", "", "x" * MOST)
    )
    assert authorship_of([("lockkeeper-author", None)]) == authorship_of(None) == Authorship()
    with pytest.raises(ValueError, match="reason: 1025 characters; at most 1024"):
        Authorship(reason="x" * 1025).headers()


@pytest.mark.stream
class TestOnKafka:
    """What stands on the topics."""

    def test_all_records_of_an_apply_have_its_headers(
        self, lockkeeper: Command, config: Path, settings: Settings, topics: TopicNames, tmp_path: Path
    ) -> None:
        shown = lockkeeper(
            *("policy", "apply", str(readers_folder(tmp_path / "policies")), "--config", str(config)),
            *("--author", "dana", "--commit", "c1", "--reason", "first"),
        )
        change = shown.lines[-2].removeprefix("change ")
        assert [authorship_of(r.headers()) for r in records(settings)] == 2 * [
            Authorship(change, "dana", "c1", "first")
        ]
        gone = lockkeeper("policy", "delete", "lenses6/Group/readers", "--config", str(config), "--author", "erin")
        last = authorship_of([*records(settings)][-1].headers())
        assert (last.change, last.author) == (gone.lines[-2].removeprefix("change "), "erin")
        assert last.change != change

    def test_expect_refuses_what_is_no_longer_live(
        self, lockkeeper: Command, config: Path, settings: Settings, topics: TopicNames, tmp_path: Path
    ) -> None:
        folder = readers_folder(tmp_path / "policies")
        apply = ("policy", "apply", str(folder), "--config", str(config))
        first = lockkeeper(*apply).lines[-2].removeprefix("change ")
        version = read_document_log(settings).newest().version
        (folder / "more.yaml").write_text(ROLE.format(name="more", topic="t"))
        second = lockkeeper(*apply, "--expect", version).lines[-2].removeprefix("change ")
        for old in (version, first):
            refused = lockkeeper(*apply, "--expect", old)
            assert refused.code == 1
            assert "nothing was published" in refused.err
            assert f"is live, not {old}" in refused.err
        assert len([*records(settings)]) == 2 + 1
        assert lockkeeper(*apply, "--expect", second).code == 0
        # Whoever takes the id of a change does not pass for it.
        for number, headers in enumerate(([(CHANGE, second.encode())], [], [])):
            document = ROLE.format(name=f"taken-{number}", topic="*").encode()
            offset = _produce(settings, f"Role/taken-{number}", document, headers)
            refused = lockkeeper(*apply, "--expect", second)
            assert refused.code == 1
            assert "nothing was published" in refused.err
        named = f"{settings.topics.policy_topics()['lenses6']}-{offset - 1}"
        assert lockkeeper(*apply, "--expect", named).code == 0, "what the job calls records without a header"

    def test_the_newest_change_of_a_topic_is_its_last_whatever_its_time_is(
        self, settings: Settings, topics: TopicNames, admin: AdminClient
    ) -> None:
        """As after another broker, whose clock is behind, has taken the lead of its partition."""
        topic = settings.topics.policy_topics()["lenses6"]
        by_producer = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
        [altered] = admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[by_producer])]
        ).values()
        altered.result(30)
        producer, now = Producer({"bootstrap.servers": settings.bootstrap_servers}), int(time.time() * 1000)
        for change, at in ((b"older", now), (b"newer", now - 5_000)):
            producer.produce(topic, b"{}", b"Role/r", headers=[(CHANGE, change)], timestamp=at)
            assert producer.flush(30) == 0
        check_expected(settings, ["lenses6"], "newer")
        with pytest.raises(Failure, match="newer is live, not older"):
            check_expected(settings, ["lenses6"], "older")

    def test_a_publisher_that_is_fenced_prepares_again_and_publishes(
        self, settings: Settings, topics: TopicNames
    ) -> None:
        seen: list[int] = []

        def prepare() -> Publication:
            seen.append(len(read_stored(settings, ["lenses6"])))
            if len(seen) == 1:
                publish(settings, [{**ROLE_VALUE, "name": "other"}])
            return Publication([ROLE_VALUE])

        publish_prepared(settings, ["lenses6"], prepare)
        assert seen == [0, 1]
        assert [stored.key for stored in read_stored(settings, ["lenses6"])] == ["lenses6/Role/other", "lenses6/Role/r"]

    def test_one_that_is_fenced_while_it_writes_is_told_so_and_no_other_line_of_it_is_shown(
        self, settings: Settings, topics: TopicNames, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """`produce` says no more than that there was a fatal error: it would count as refused, and not be repeated."""
        producer, other = (policy_producer(settings, ["lenses6"]) for _ in range(2))
        deadline = time.monotonic() + 30

        def until_fenced() -> Iterator[PolicyRecord]:
            other.init_transactions(30)
            while time.monotonic() < deadline:
                yield PolicyRecord(settings.topics.policy_topics()["lenses6"], b"Role/r", b"{}")

        with pytest.raises(PublisherFenced) as fenced:
            write(producer, until_fenced())
        assert "_FENCED" in str(fenced.value.__cause__)
        assert [*records(settings)] == []
        del producer
        shown, logged = capfd.readouterr()
        # Clients of other tests in this process may still be looking for their brokers.
        assert (shown, [line for line in logged.splitlines() if "|FAIL|" not in line]) == ("", [])

    def test_too_long_a_reason_publishes_nothing(self, settings: Settings, topics: TopicNames) -> None:
        with pytest.raises(PublishFailed, match="nothing was published: reason: 2000 characters"):
            publish(settings, [ROLE_VALUE], authorship=Authorship(reason="x" * 2000))
        assert [*records(settings)] == []

    @pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.long)])
    def test_four_processes_that_apply_at_once_all_land_whole_in_one_order(
        self, config: Path, settings: Settings, topics: TopicNames, tmp_path: Path, count: int
    ) -> None:
        command = [sys.executable, "-m", "tests.cli.apply_process", str(config), str(tmp_path)]
        processes = [
            subprocess.Popen([*command, who, str(count)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for who in PROCESSES
        ]
        assert [process.communicate()[1].decode()[-500:] for process in processes if process.wait()] == []
        found = [authorship_of(record.headers()) for record in records(settings)]
        assert found[::2] == found[1::2]  # each change is whole, with no other within it
        assert Counter(change.author for change in found[::2]) == dict.fromkeys(PROCESSES, count)
        for who in PROCESSES:
            assert [c.reason for c in found[::2] if c.author == who] == [f"change {n}" for n in range(count)]
        assert len({change.change for change in found}) == 4 * count
        with contextlib.closing(Policies(settings, {})) as policies:  # as a job reads them
            policies.catch_up(30)
            made = [json.loads(v or b"") for t, _, v, _ in policies.pending() if t == settings.topics.changes]
        assert [(one["id"], one["author"]) for one in made] == [(one.change, one.author) for one in found[::2]]


def records(settings: Settings) -> Iterator[Message]:
    """The committed records of lenses6's policies."""
    return committed_records(settings, [settings.topics.policy_topics()["lenses6"]])
