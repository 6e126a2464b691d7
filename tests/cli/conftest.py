"""Fixtures for the command line's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from policy.systems import all_systems
from streaming.kafka.topics import create_topics
from streaming.settings import Settings, load_settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.cli.lockkeeper import Command


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, to be called with its arguments."""
    return Command(capsys, monkeypatch)


@pytest.fixture
def admin(broker: TestBroker) -> AdminClient:
    """A client that may create and alter topics."""
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def names(fresh_name: Callable[[str], str]) -> TopicNames:
    """Names that no other test uses."""
    prefix = fresh_name("topics")
    policies = {system: f"{prefix}.policies.{system}" for system in all_systems()}
    single = {
        field: f"{prefix}.{field}"
        for field in ("facts", "history", "decisions", "verdicts", "alerts", "changes", "access_changes")
    }
    return TopicNames((f"{prefix}.requests",), (f"{prefix}.audit",), policies=policies, **single)


@pytest.fixture
def config(broker: TestBroker, names: TopicNames, fresh_name: Callable[[str], str], tmp_path: Path) -> Path:
    """A configuration that names the broker and fresh topics, which are not there yet."""
    topics = {name: list(value) if isinstance(value, tuple) else value for name, value in _fields(names).items()}
    given = {"bootstrap_servers": broker.bootstrap_servers, "job_name": fresh_name("job"), "topics": topics}
    file = tmp_path / "lockkeeper.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    return file


def _fields(names: TopicNames) -> dict[str, object]:
    return {field: getattr(names, field) for field in names.__struct_fields__}


@pytest.fixture
def settings(config: Path) -> Settings:
    """The settings of `config`."""
    return load_settings(config, {})


@pytest.fixture
def topics(admin: AdminClient, names: TopicNames) -> TopicNames:
    """The topics of `config`, created."""
    create_topics(admin, names, partitions=2)
    return names
