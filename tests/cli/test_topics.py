"""Topics: made with the right settings, and refused when a setting would break a promise."""

from collections.abc import Mapping

import msgspec
import pytest
import structlog
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from streaming.application import check_cluster, refuse_or_warn
from streaming.cli.access_changes import check_access
from streaming.cli.browser import check_access as check_console_access
from streaming.cli.failure import Failure
from streaming.errors import CannotStart
from streaming.kafka.manifests import topic_manifests
from streaming.kafka.topics import Problem, check_topics, create_topics, explained_problems, fix_topics, problems_of
from streaming.settings import Settings
from streaming.topics import (
    DEFAULT_SYSTEMS,
    KEEPS_NEWEST,
    KEEPS_VERSIONS,
    Sizes,
    TopicNames,
    dead_letters_of,
    topic_specs,
)
from tests.brokers import TestBroker
from tests.waiting import wait_until

GOOD_POLICY_TOPIC = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "min.compaction.lag.ms": "604800000",
}


def test_the_default_names_are_those_of_the_contract() -> None:
    names = {spec.name for spec in topic_specs(TopicNames())}
    policies = {f"authz.policies.{system}.v1" for system in DEFAULT_SYSTEMS}
    events = {
        f"authz.{name}.v1"
        for name in ("requests", "audit", "decisions", "verdicts", "alerts", "changes", "access-changes")
    }
    dead_letters = {"authz.requests.v1.dlq", "authz.audit.v1.dlq"}
    assert names == {*policies, *events, *dead_letters, "authz.facts.v1", "authz.history.v1"}


def test_a_configured_policy_topic_takes_the_place_of_the_default_and_the_others_stay() -> None:
    topics = TopicNames(policies={"lenses6": "iam"}).policy_topics()
    assert topics["lenses6"] == "iam"
    assert all(topics[system] == f"authz.policies.{system}.v1" for system in DEFAULT_SYSTEMS if system != "lenses6")


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (KEEPS_NEWEST, ["compact"], ["delete", "compact,delete", "", None]),
        (KEEPS_VERSIONS, ["604800000", "604800001"], ["604799999", "0", "-1", "", None]),
    ],
)
def test_a_rule_holds_for_the_right_settings_alone(rule: object, good: list[str], bad: list[str | None]) -> None:
    """An unknown setting is a wrong one."""
    assert isinstance(rule, type(KEEPS_NEWEST))
    assert [rule.holds(value) for value in good] == [True] * len(good)
    assert [rule.holds(value) for value in bad] == [False] * len(bad)


@pytest.mark.parametrize(("replication", "expected"), [(-1, None), (1, None), (2, None), (3, "2"), (5, "2")])
def test_a_new_topic_of_three_replicas_acknowledges_what_two_have(replication: int, expected: str | None) -> None:
    """Kafka's default is one: `acks=all` would wait for the leader alone while its followers are away."""
    for spec in topic_specs(TopicNames()):
        assert (spec.new_topic(6, replication).config or {}).get("min.insync.replicas") == expected, spec.name
    if replication > 0:
        manifests = topic_manifests(Settings(), "kafka", 6, replication)
        assert {topic["spec"]["config"].get("min.insync.replicas") for topic in manifests} == {expected}


@pytest.mark.parametrize(
    ("replicas", "found", "warns"),
    [
        *((1, "1", False), (2, "1", False), (3, "1", True), (3, None, True), (3, "2", False), (3, "3", False)),
        (5, "1", True),
    ],
)
def test_three_replicas_of_which_one_acknowledges_are_warned_of(replicas: int, found: str | None, warns: bool) -> None:
    """Not refused: topics of clusters that run are so. One replica on one machine is as good as it gets there."""
    for spec in topic_specs(TopicNames()):
        wanted = spec.new_topic(1, replicas).config or {}
        settings = {**wanted, "min.insync.replicas": found}
        problems = list(problems_of(spec, 1, replicas, settings))
        assert [(problem.setting, problem.value) for problem in problems] == [("min.insync.replicas", "2")] * warns
        assert not any(problem.refused for problem in problems)
        for problem in problems:
            assert f"min.insync.replicas is {found} instead of 2 or more" in str(problem)


def test_run_starts_with_a_warning_and_refuses_what_breaks_a_promise() -> None:
    spec = topic_specs(TopicNames())[0]
    good = {**(spec.new_topic(6, 3).config or {}), "min.insync.replicas": "1"}
    with structlog.testing.capture_logs() as logged:
        refuse_or_warn(problems_of(spec, 6, 3, good))
    [event] = logged
    assert event["log_level"] == "warning"
    assert f"topic {spec.name}: min.insync.replicas is 1 instead of 2 or more" in event["problem"]
    assert "--add-config min.insync.replicas=2" in event["problem"]
    with pytest.raises(CannotStart, match=r"cleanup\.policy is compact instead of delete") as refused:
        refuse_or_warn(problems_of(spec, 6, 3, {**good, "cleanup.policy": "compact"}))
    assert "min.insync" not in str(refused.value)


@pytest.mark.stream
def test_created_topics_pass_the_check_and_a_second_creation_makes_nothing(
    admin: AdminClient, names: TopicNames
) -> None:
    made = create_topics(admin, names, partitions=3)
    assert sorted(made) == sorted(spec.name for spec in topic_specs(names))
    assert check_topics(admin, names) == []
    assert create_topics(admin, names) == []
    partitions = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=10).topics.items()}
    assert partitions[names.requests[0]] == partitions[names.decisions] == 3
    assert {partitions[topic] for topic in (*names.policy_topics().values(), names.facts, names.history)} == {1}


@pytest.mark.stream
def test_created_topics_can_be_used_at_once(broker: TestBroker, admin: AdminClient, names: TopicNames) -> None:
    """Kafka answers a creation before the partitions have their leaders: the next command would fail."""
    made = create_topics(admin, names)
    fresh = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    end: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = fresh.list_offsets({TopicPartition(topic, 0): end for topic in made})
    assert {future.result(10).offset for future in asked.values()} == {0}


@pytest.mark.stream
def test_topics_that_do_not_exist_are_problems_that_say_how_to_make_them(admin: AdminClient, names: TopicNames) -> None:
    problems = check_topics(admin, names)
    assert sorted(problem.topic for problem in problems) == sorted(spec.name for spec in topic_specs(names))
    [line] = explained_problems(problems, refused=True)
    assert all(spec.name in line for spec in topic_specs(names) if spec.name != names.access_changes)
    assert line.endswith("missing: the job reads or writes it. To fix it: lockkeeper topics create")


@pytest.mark.stream
def test_the_topic_of_access_changes_is_needed_by_the_command_that_writes_it_alone(
    broker: TestBroker, admin: AdminClient, names: TopicNames
) -> None:
    create_topics(admin, names)
    admin.delete_topics([names.access_changes])[names.access_changes].result(30)
    wait_until(lambda: names.access_changes not in admin.list_topics(timeout=30).topics, "it is deleted")
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, topics=names, systems=names.systems)
    check_cluster(settings)  # as `run` does before it starts
    [warned] = check_topics(admin, names)
    assert (warned.topic, warned.refused) == (names.access_changes, False)
    assert str(warned).endswith("lockkeeper access-changes reads or writes it. To fix it: lockkeeper topics create")
    with pytest.raises(Failure, match="no such topic"):
        check_access(settings)
    admin.create_topics([NewTopic(names.access_changes, 1, 1, config={"cleanup.policy": "compact"})])
    wait_until(lambda: names.access_changes in admin.list_topics(timeout=30).topics, "it is there")
    check_cluster(settings)
    with pytest.raises(Failure, match=r"cleanup\.policy is compact instead of delete"):
        check_access(settings)


@pytest.mark.stream
def test_the_console_does_not_start_without_a_topic_that_its_overview_counts(
    broker: TestBroker, admin: AdminClient, names: TopicNames
) -> None:
    """It did, and showed Kafka's error in place of the overview."""
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, topics=names, systems=names.systems)
    create_topics(admin, names)
    check_console_access(settings)
    admin.delete_topics([names.audit[0]])[names.audit[0]].result(30)
    wait_until(lambda: names.audit[0] not in admin.list_topics(timeout=30).topics, "it is deleted")
    with pytest.raises(Failure, match=f"{names.audit[0]}: no such topic"):
        check_console_access(settings)


@pytest.mark.stream
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"cleanup.policy": "delete"}, "cleanup.policy is delete instead of compact"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy is compact,delete instead of compact"),
        (
            {"message.timestamp.type": "CreateTime"},
            "message.timestamp.type is CreateTime instead of LogAppendTime",
        ),
        ({"min.compaction.lag.ms": "1000"}, "min.compaction.lag.ms is 1000 instead of 604800000 or more"),
    ],
)
def test_a_policy_topic_with_a_wrong_setting_is_found_and_mended(
    admin: AdminClient, names: TopicNames, wrong: Mapping[str, str], expected: str
) -> None:
    topic = names.policy_topics()["lenses6"]
    _create(admin, topic, 1, {**GOOD_POLICY_TOPIC, **wrong})
    create_topics(admin, names)
    problems = check_topics(admin, names)
    assert [(problem.topic, problem.wrong) for problem in problems] == [(topic, expected)]
    (setting,) = wrong
    assert f"--entity-name {topic} --add-config {setting}={GOOD_POLICY_TOPIC[setting]}" in problems[0].fix
    fix_topics(admin, problems)
    assert check_topics(admin, names) == []


@pytest.mark.stream
def test_a_policy_topic_of_two_partitions_is_found_and_no_setting_mends_it(
    admin: AdminClient, names: TopicNames
) -> None:
    topic = names.policy_topics()["lenses6"]
    _create(admin, topic, 2, GOOD_POLICY_TOPIC)
    create_topics(admin, names)
    problem = _only(check_topics(admin, names))
    assert (problem.topic, problem.wrong) == (topic, "it has 2 partitions instead of 1")
    fix_topics(admin, [problem])
    assert _only(check_topics(admin, names)) == problem


@pytest.mark.stream
def test_event_topics_that_compact_or_that_clients_date_are_found(admin: AdminClient, names: TopicNames) -> None:
    """A compacted request topic loses requests; one dated by clients lets them choose the moment."""
    _create(admin, names.requests[0], 2, {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"})
    create_topics(admin, names)
    assert [(problem.topic, problem.setting) for problem in check_topics(admin, names)] == [
        (names.requests[0], "cleanup.policy"),
        (names.requests[0], "message.timestamp.type"),
    ]


@pytest.mark.stream
def test_a_decision_topic_too_small_for_the_largest_answer_is_found(admin: AdminClient, names: TopicNames) -> None:
    """A transaction with a record that the topic refuses would fail for ever."""
    _create(admin, names.decisions, 1, {"max.message.bytes": "1048588"})
    create_topics(admin, names)
    problem = _only(check_topics(admin, names))
    assert (problem.topic, problem.setting) == (names.decisions, "max.message.bytes")


@pytest.mark.stream
def test_topics_are_as_large_as_the_configured_limits(admin: AdminClient, names: TopicNames) -> None:
    """The history topic must hold a document and its metadata."""
    create_topics(admin, names)
    larger = {problem.topic for problem in check_topics(admin, names, Sizes(record_out=8 << 20, document=2 << 20))}
    dead_letters = {dead_letters_of(topic) for topic in (*names.requests, *names.audit)}
    outputs = {names.decisions, names.verdicts, names.alerts, names.changes, names.access_changes}
    assert larger == {*outputs, names.history, *dead_letters}


@pytest.mark.stream
def test_one_topic_for_two_purposes_is_found(admin: AdminClient, names: TopicNames) -> None:
    """Decisions in a request topic would be requests."""
    looped = msgspec.structs.replace(names, decisions=names.requests[0])
    create_topics(admin, looped)
    problem = next(problem for problem in check_topics(admin, looped) if problem.topic == names.requests[0])
    assert problem.wrong == "the configuration names it for 2 purposes"


def _create(admin: AdminClient, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config))])[topic].result(10)


def _only(problems: list[Problem]) -> Problem:
    (problem,) = problems
    return problem
