"""`lockkeeper topics`: what it made, kept and finds wrong."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.topics import TopicNames, topic_specs
from tests.cli.lockkeeper import Command

pytestmark = pytest.mark.stream


def test_create_makes_the_topics_and_the_second_time_keeps_them(
    lockkeeper: Command, config: Path, names: TopicNames
) -> None:
    expected = [spec.name for spec in topic_specs(names)]
    assert lockkeeper("topics", "check", "--config", str(config)).code == 1
    first = lockkeeper("topics", "create", "--config", str(config))
    assert (first.code, first.lines, first.err) == (0, [f"made   {name}" for name in expected], "")
    second = lockkeeper("topics", "create", "--config", str(config))
    assert (second.code, second.lines, second.err) == (0, [f"kept   {name}" for name in expected], "")
    assert lockkeeper("topics", "check", "--config", str(config)).code == 0


def test_a_wrong_setting_fails_with_how_to_mend_it_and_mend_mends_it(
    lockkeeper: Command, config: Path, names: TopicNames, admin: AdminClient
) -> None:
    topic = names.policy_topics()["lenses6"]
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "delete"})])[topic].result(10)
    found = lockkeeper("topics", "create", "--config", str(config))
    assert found.code == 1
    assert f"wrong  {topic}" in found.lines
    assert f"topic {topic}: cleanup.policy is delete instead of compact: documents would be deleted" in found.err
    assert "`lockkeeper topics create --mend`" in found.err
    corrected = lockkeeper("topics", "create", "--mend", "--config", str(config), "--json")
    assert corrected.code == 0
    assert corrected.records == [{"topics": {spec.name: "kept" for spec in topic_specs(names)}, "problems": []}]


def test_the_job_refuses_topics_that_would_break_a_promise(
    lockkeeper: Command, config: Path, names: TopicNames, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic(names.facts, 2, 1)])[names.facts].result(10)
    lockkeeper("topics", "create", "--config", str(config))
    shown = lockkeeper("run", "--config", str(config))
    assert shown.code == 1
    assert f"topic {names.facts}: it has 2 partitions instead of 1" in shown.err
    assert f"topic {names.facts}: message.timestamp.type is CreateTime instead of LogAppendTime" in shown.err


def test_a_missing_topic_that_only_another_command_needs_is_missing_and_not_kept(
    lockkeeper: Command, config: Path, names: TopicNames, admin: AdminClient
) -> None:
    assert lockkeeper("topics", "create", "--config", str(config)).code == 0
    admin.delete_topics([names.access_changes])[names.access_changes].result(10)
    checked = lockkeeper("topics", "check", "--config", str(config))
    assert checked.code == 0
    assert f"missing  {names.access_changes}" in checked.lines
    assert f"warning: topic {names.access_changes}: missing" in checked.err
