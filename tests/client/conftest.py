"""One running job for all tests of the client."""

import time
from collections.abc import Callable, Iterator

import pytest

from streaming.client import Client, Connection
from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import World, group

PATIENCE = 120.0  # seconds for an answer: the job's first batch is slow on a busy machine


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a running job in it."""
    name = f"client-{time.time_ns()}"
    made = World(broker, name, str(tmp_path_factory.mktemp(name) / "checkpoint"))
    with running(made.settings):
        yield made


@pytest.fixture(scope="module")
def connection(world: World) -> Connection:
    """The connection to that world."""
    return Connection.of(world.settings)


@pytest.fixture(scope="module")
def client(connection: Connection) -> Iterator[Client]:
    """A client of that job."""
    with Client(connection, timeout=PATIENCE) as made:
        yield made


@pytest.fixture
def user(world: World, fresh_name: Callable[[str], str]) -> str:
    """Somebody who holds the role of their own name, which does not exist yet."""
    name = fresh_name("user")
    world.publish(group(name, f"user:{name}"))
    return name
