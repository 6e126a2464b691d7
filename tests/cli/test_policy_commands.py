"""`lockkeeper policy apply | get | delete`: all or nothing, and what comes back is what was published."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from policy.store.repository import read_documents
from streaming.cli.policies import _Application
from streaming.kafka.committed import read_stored
from streaming.kafka.publish import (
    UNKNOWN_OFFSET,
    PolicyRecord,
    Publication,
    PublisherFenced,
    PublishFailed,
    _are_adjacent,
    _Attempts,
    policy_producer,
    publish,
    resolve_unknown_offsets,
    write,
)
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.cli.documents import BROKEN, GROUP, ROLE, readers_folder
from tests.cli.lockkeeper import Command, Outcome

pytestmark = pytest.mark.stream


class Policies:
    """`lockkeeper policy` on the topics of one test."""

    def __init__(self, lockkeeper: Command, config: Path, topics: TopicNames) -> None:
        self._lockkeeper = lockkeeper
        self._config = str(config)
        self.topic = topics.policy_topics()["lenses6"]

    def __call__(self, command: str, *arguments: str) -> Outcome:
        return self._lockkeeper("policy", command, *arguments, "--config", self._config)

    def keys(self) -> list[str]:
        """The keys of what stands."""
        return [record["key"] for record in self("get", "--json").records]


@pytest.fixture
def policies(lockkeeper: Command, config: Path, topics: TopicNames) -> Policies:
    """The command, with empty topics."""
    return Policies(lockkeeper, config, topics)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good policies, order-readers and readers."""
    return readers_folder(tmp_path / "policies")


def test_what_was_applied_is_read_back_and_can_be_applied_again(
    policies: Policies, folder: Path, tmp_path: Path
) -> None:
    assert policies("apply", str(folder)).code == 0
    back = policies("get")
    assert back.code == 0
    published = {document["name"]: document for _, document in read_documents(folder)}
    assert {document["name"]: document for document in yaml.safe_load_all(back.out)} == published
    again = tmp_path / "again.yaml"
    again.write_text(back.out)
    assert policies("apply", str(again)).code == 0


def test_apply_prints_the_offset_of_the_last_record_for_requests_to_demand(
    policies: Policies, folder: Path, settings: Settings
) -> None:
    first = policies("apply", str(folder), "--json")
    assert first.records == [{policies.topic: {"0": 1}}]
    (folder / "more.yaml").write_text(GROUP.format(name="readers-too", role="order-readers"))
    plain = policies("apply", str(folder))
    newest = max(stored.offset for stored in read_stored(settings, ["lenses6"]))
    offset, change, summary = plain.lines
    assert offset == f"{policies.topic}, partition 0: up to offset {newest}"
    assert re.fullmatch("change [0-9a-f]{32}", change)
    assert summary == "1 published, 2 unchanged, 0 deleted"


def test_a_folder_is_one_transaction(policies: Policies, folder: Path, settings: Settings) -> None:
    """Two records and one marker: were each record a transaction of its own, a marker would stand between them."""
    policies("apply", str(folder))
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": "counting"})
    low, high = consumer.get_watermark_offsets(TopicPartition(policies.topic, 0), timeout=10)
    consumer.close()
    assert (low, high) == (0, 3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken.yaml", BROKEN, "broken.yaml:6:3: lenses6/Role/broken: enforcment"),
        ("twice.yaml", "kind: Role\nkind: Group\n", "twice.yaml:2: duplicate key 'kind'"),
        ("dated.yaml", ROLE.format(name="d", topic="t") + "effective_at: 5\n", "effective_at: not on Kafka"),
        ("again.yaml", ROLE.format(name="order-readers", topic="t"), "is also in"),
        ("large.yaml", ROLE.format(name="x" * (1 << 20), topic="t"), "at most 1048576"),
        ("text.yaml", "just text\n", "text.yaml:1 (document 1)"),
    ],
)
def test_nothing_is_published_when_one_document_is_wrong(
    policies: Policies, folder: Path, name: str, text: str, message: str
) -> None:
    (folder / name).write_text(text)
    shown = policies("apply", str(folder))
    assert shown.code == 1
    assert message in shown.err
    assert policies.keys() == []


def test_every_wrong_document_is_named(policies: Policies, folder: Path) -> None:
    (folder / "a.yaml").write_text(BROKEN)
    (folder / "b.yaml").write_text(BROKEN.replace("lenses6", "lenses7"))
    shown = policies("apply", str(folder))
    assert "nothing was published" in shown.err
    assert "a.yaml:6:3: lenses6/Role/broken" in shown.err
    assert "b.yaml:1:1: lenses7/Role/broken" in shown.err


def test_warnings_are_shown_with_their_place_and_stop_a_strict_apply(
    policies: Policies, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = folder / "odd.yaml"
    odd.write_text(ROLE.format(name="odd", topic="t").replace("kafka:Get*", "kafka:GetNothing"))
    for options, ci in ((["--strict"], ""), ([], "true")):
        monkeypatch.setenv("CI", ci)
        refused = policies("apply", str(folder), *options)
        assert refused.code == 1
        assert f"{odd}:" in refused.err
        assert policies.keys() == []
    for options, ci in (([], "false"), (["--no-strict"], "true")):
        monkeypatch.setenv("CI", ci)
        shown = policies("apply", str(folder), *options)
        assert shown.code == 0
        assert re.search(r"warning: .*odd\.yaml:\d+:\d+: lenses6/Role/odd: ", shown.err)


def test_documents_that_the_topics_hold_already_are_left_out(
    policies: Policies, folder: Path, settings: Settings
) -> None:
    """Applying a folder again changes nothing: no record, no change, and the offsets to demand are those in force."""
    first = policies("apply", str(folder), "--json").records
    before = read_stored(settings, ["lenses6"])
    again = policies("apply", str(folder))
    assert again.lines == [f"{policies.topic}, partition 0: up to offset 1", "0 published, 2 unchanged, 0 deleted"]
    assert policies("apply", str(folder), "--json").records == first
    assert read_stored(settings, ["lenses6"]) == before
    (folder / "more.yaml").write_text(GROUP.format(name="readers-too", role="order-readers"))
    assert policies("apply", str(folder)).out.endswith("1 published, 2 unchanged, 0 deleted\n")


def test_a_document_that_another_changed_is_published_again(policies: Policies, folder: Path) -> None:
    policies("apply", str(folder))
    changed = folder.parent / "changed.yaml"
    changed.write_text(GROUP.format(name="readers", role="another-role"))
    policies("apply", str(changed))
    assert policies("apply", str(folder)).out.endswith("1 published, 1 unchanged, 0 deleted\n")


def test_samples_are_published_to_topics_that_never_had_a_record_alone(policies: Policies, folder: Path) -> None:
    """Else starting a stack again would undo changes, revocations included."""
    assert policies("apply", str(folder), "--if-empty").out.endswith("2 published, 0 deleted\n")
    policies("delete", *policies.keys())
    again = policies("apply", str(folder), "--if-empty")
    assert (again.code, again.out) == (0, "0 published, 0 deleted\n")
    assert again.err == f"{policies.topic} is not empty: the documents of lenses6 are left out\n"
    assert policies.keys() == []


@pytest.mark.usefixtures("topics")
def test_samples_are_left_out_where_another_publisher_was_first(settings: Settings, folder: Path) -> None:
    """It is tried again while another one publishes: what was empty at first may be so no more."""
    samples = _Application(settings, read_documents(folder), prune=True, if_empty=True)
    assert len(samples.prepare().documents) == 2
    publish(settings, [{"system": "lenses6", "kind": "Role", "name": "first", "spec": {"statements": []}}])
    assert samples.prepare() == Publication([], [])
    assert samples.summary() == "0 published, 0 deleted"


def test_prune_deletes_what_the_folder_no_longer_has_and_only_of_its_systems(policies: Policies, folder: Path) -> None:
    policies("apply", str(folder))
    (folder / "role.yaml").write_text(ROLE.format(name="new", topic="t"))
    pruned = policies("apply", str(folder), "--prune")
    assert (pruned.code, pruned.err) == (0, "deleted lenses6/Role/order-readers\n")
    assert policies.keys() == ["lenses6/Group/readers", "lenses6/Role/new"]


def test_get_takes_a_system_a_kind_or_a_whole_key(policies: Policies, folder: Path) -> None:
    (folder / "more.yaml").write_text(GROUP.format(name="readers-too", role="order-readers"))
    policies("apply", str(folder))
    found = {key: [r["key"] for r in policies("get", key, "--json").records] for key in ("lenses6", "lenses6/Role")}
    assert found["lenses6"] == ["lenses6/Group/readers", "lenses6/Group/readers-too", "lenses6/Role/order-readers"]
    assert found["lenses6/Role"] == ["lenses6/Role/order-readers"]
    (record,) = policies("get", "lenses6/Group/readers", "--json").records
    assert (record["topic"], record["partition"], record["document"]["name"]) == (policies.topic, 0, "readers")


@pytest.mark.parametrize(
    ("key", "code", "message"),
    [
        ("lenses6/Role/order-reader", 1, "did you mean lenses6/Role/order-readers"),
        ("lenses6/Group/nothing/like/it/at/all", 1, "`lockkeeper policy get` lists what there is"),
        ("lenses7/Role/x", 2, "'lenses7' is not a system"),
    ],
)
def test_an_unknown_key_is_reported_with_what_is_near(
    policies: Policies, folder: Path, key: str, code: int, message: str
) -> None:
    policies("apply", str(folder))
    for command in ("get", "delete"):
        shown = policies(command, key)
        assert shown.code == code
        assert message in shown.err
    assert len(policies.keys()) == 2


def test_delete_removes_all_keys_or_none(policies: Policies, folder: Path) -> None:
    policies("apply", str(folder))
    both = ["lenses6/Role/order-readers", "lenses6/Group/readers"]
    assert policies("delete", both[0], "lenses6/Role/gone").code == 1
    assert policies("delete", both[0], "lenses6/Group").code == 2
    assert sorted(policies.keys()) == sorted(both)
    assert policies("delete", *both).lines[-1] == "2 deleted"
    assert policies.keys() == []


def test_a_document_that_cannot_be_read_is_reported_and_can_be_deleted(
    policies: Policies, folder: Path, settings: Settings
) -> None:
    policies("apply", str(folder))
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    producer.produce(policies.topic, b'{"a": 1, "a": 2}', b"Role/spoilt")
    assert producer.flush(10) == 0
    shown = policies("get")
    assert shown.code == 1
    assert f"lenses6/Role/spoilt: offset 3 of {policies.topic}: line 1: duplicate key 'a'" in shown.err
    assert len(list(yaml.safe_load_all(shown.out))) == 2
    assert policies("delete", "lenses6/Role/spoilt").code == 0
    assert policies("get").code == 0


def test_an_attempt_after_one_that_may_have_published_does_not_say_that_nothing_was() -> None:
    """Such as where another publisher fences the commit, and then Kafka goes away."""
    failures = [PublisherFenced("it may be published"), PublishFailed("nothing was published: no broker")]
    attempts = _Attempts(Settings(bootstrap_servers="127.0.0.1:1"), [], "change")

    def failing_attempt() -> NoReturn:
        raise failures.pop(0)

    with pytest.raises(PublishFailed, match=r"^it may be published.*run it again, which does no harm"):
        attempts.until_published(failing_attempt)
    failures.append(PublishFailed("nothing was published: no broker"))
    with pytest.raises(PublishFailed, match=r"^nothing was published"):
        _Attempts(Settings(bootstrap_servers="127.0.0.1:1"), [], "change").until_published(failing_attempt)


def test_a_transaction_that_was_not_committed_is_not_read_back(
    policies: Policies, folder: Path, settings: Settings
) -> None:
    policies("apply", str(folder))
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "transactional.id": f"{policies.topic}-t"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(policies.topic, json.dumps({"never": "seen"}).encode(), b"Role/never")
    assert producer.flush(10) == 0
    assert len(policies.keys()) == 2
    producer.abort_transaction(10)
    assert len(policies.keys()) == 2


def test_of_two_that_publish_at_once_the_first_publishes_nothing_and_is_reported(
    policies: Policies, folder: Path, settings: Settings
) -> None:
    """And what it had begun does not stand in anybody's way."""

    def interrupted() -> Iterator[PolicyRecord]:
        yield PolicyRecord(policies.topic, b"Role/never", b"{}")
        assert policies("apply", str(folder)).code == 0

    with pytest.raises(PublishFailed, match="another publisher was active at the same time and nothing"):
        write(policy_producer(settings, ["lenses6"]), interrupted())
    assert policies.keys() == ["lenses6/Group/readers", "lenses6/Role/order-readers"]


def test_of_two_whose_records_would_alternate_one_publishes_nothing_and_is_reported(
    policies: Policies, settings: Settings
) -> None:
    """Publishers of one and of several systems do not fence each other. Committed as A B A, consumers get half of A
    until B ends: Kafka gives out what is before the first record of an open transaction."""
    several, single = (policy_producer(settings, systems) for systems in (["lenses6", "cdap"], ["lenses6"]))
    single.init_transactions(10)
    single.begin_transaction()

    def interleaved_records() -> Iterator[PolicyRecord]:
        yield PolicyRecord(policies.topic, b"Role/order-readers", b"{}")
        assert several.flush(10) == 0
        single.produce(policies.topic, b"{}", b"Group/readers", partition=0)
        assert single.flush(10) == 0
        yield PolicyRecord(policies.topic, b"Role/never", b"{}")

    with pytest.raises(PublisherFenced, match="another publisher was active at the same time and nothing"):
        write(several, interleaved_records())
    single.commit_transaction(10)
    assert policies.keys() == ["lenses6/Group/readers"]
    records = [PolicyRecord(policies.topic, key, b"{}") for key in (b"Role/a", b"Role/b")]
    write(policy_producer(settings, ["lenses6", "cdap"]), records)
    assert len(policies.keys()) == 3


@pytest.mark.parametrize(
    ("offsets", "adjacent"),
    [([3, 4, 5], True), ([3, 5], False), ([3, UNKNOWN_OFFSET, 5], True), ([3, UNKNOWN_OFFSET, 4], False), ([7], True)],
)
def test_records_are_adjacent_as_far_as_kafka_says_their_offsets(offsets: list[int], adjacent: bool) -> None:
    assert _are_adjacent(offsets) == adjacent


def test_where_kafka_does_not_say_the_offset_of_what_it_has_taken_a_newer_one_is_demanded(
    policies: Policies, folder: Path, settings: Settings
) -> None:
    """Kafka calls a repeated batch a duplicate, and names no place. An older offset would let old answers pass."""
    [published] = policies("apply", str(folder), "--json").records
    demanded = resolve_unknown_offsets(settings, {policies.topic: {"0": UNKNOWN_OFFSET}})
    assert demanded[policies.topic]["0"] >= published[policies.topic]["0"]
    assert resolve_unknown_offsets(settings, published) == published


def test_topics_that_are_not_there_are_reported_with_how_to_make_them(
    lockkeeper: Command, config: Path, names: TopicNames, folder: Path
) -> None:
    shown = lockkeeper("policy", "apply", str(folder), "--config", str(config))
    assert shown.code == 1
    assert f"topic {names.policy_topics()['lenses6']} does not exist: run `lockkeeper topics create`" in shown.err
    shown = lockkeeper("policy", "get", "lenses6", "--config", str(config))
    assert shown.code == 1
    assert "no such topic" in shown.err
    assert "`lockkeeper topics create`" in shown.err
