"""A password or certificate that was replaced: who reads both at its start ends, and says why."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from starlette.testclient import TestClient

from streaming.access_changes import running as access_changes
from streaming.broker import HOST, EmbeddedBroker
from streaming.console.live import console
from streaming.errors import JobStopped
from streaming.kafka import clients
from tests.brokers import TestBroker
from tests.java_archive import embedded_broker
from tests.serve.test_serve import serving, settings_of
from tests.stream.certificates import Authority
from tests.stream.running import Job
from tests.stream.secured_broker import SecuredBroker, add_logins, broker_config, broker_ports
from tests.stream.world import World, group, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream
END_SECONDS = 60.0


class RestartableBroker:
    """A broker with logins over TLS, where everybody who logs in may do everything."""

    def __init__(self, folder: Path) -> None:
        *ports, controller = broker_ports()
        self.folder = folder / "ca"
        self.folder.mkdir()
        authority = Authority(self.folder)
        config = {**broker_config(authority, ports, controller), "allow.everyone.if.no.acl.found": "true"}
        self.embedded: EmbeddedBroker = embedded_broker(port=ports[0], config=config, data_dir=folder / "data")
        self.embedded.start()
        admin = AdminClient({"bootstrap.servers": self.embedded.bootstrap_servers})
        self.secured = SecuredBroker(admin, authority, *(f"{HOST}:{port}" for port in ports))

    def restart(self) -> None:
        """So that its clients connect again."""
        self.embedded.stop()
        self.embedded.start()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[RestartableBroker]:
    """With the login `rotating`."""
    broker = RestartableBroker(tmp_path)
    add_logins(broker.secured.admin, ["rotating"])
    yield broker
    broker.embedded.stop()


@pytest.fixture
def world(
    kafka: RestartableBroker, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    """On that broker. What runs in this process ends after 3 s without a login."""
    monkeypatch.setattr(clients, "LOGIN_REFUSED_SECONDS", 3.0)
    return World(TestBroker(kafka.embedded.bootstrap_servers), fresh_name("rotated"), str(tmp_path / "checkpoint"))


def _replace_password(kafka: RestartableBroker) -> None:
    add_logins(kafka.secured.admin, ["rotating"], "another")


def _replace_authority(kafka: RestartableBroker) -> None:
    """The files are replaced, as in a pod whose secret has changed."""
    Authority(kafka.folder).issue("broker")


@pytest.mark.parametrize(
    ("replace", "why"), [(_replace_password, "uthentication failed"), (_replace_authority, "certificate verify failed")]
)
def test_a_server_ends_with_the_cause_for_its_supervisor_to_start_it_with_the_new_one(
    replace: Callable[[RestartableBroker], None],
    why: str,
    kafka: RestartableBroker,
    world: World,
) -> None:
    """It was not ready for good, alive, and no line named the cause."""
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    world.publish(group("readers", "user:dana"))
    secured = kafka.secured
    reached = {"bootstrap_servers": secured.scram, "kafka": secured.kafka("rotating")}
    with serving(msgspec.structs.replace(settings_of(world), **reached)) as running:
        assert running.decision() is True
        kafka.restart()
        wait_until(lambda: running.server._follower.unread_since is None, "the policies are read", END_SECONDS)
        assert running.failure == [], "a restart of the broker alone ends nothing"
        replace(kafka)
        kafka.restart()
        wait_until(lambda: not running.thread.is_alive(), "it ends", END_SECONDS)
    [failure] = running.failure
    assert "Kafka refuses the login" in str(failure)
    assert why in str(failure)


@pytest.mark.long
def test_so_does_a_job_without_requests(kafka: RestartableBroker, world: World) -> None:
    """It was not ready for good, and alive: without a login it gets no request by which Spark would fail."""
    job = Job(kafka.secured.by_password(world.settings, "rotating"))
    try:
        job.await_start()
        _replace_authority(kafka)
        kafka.restart()
        assert job.await_end() != 0
        assert "Kafka refuses the login" in job.why
        assert "certificate verify failed" in job.why
    finally:
        job.kill()


@pytest.mark.long
@pytest.mark.parametrize("has_started", [True, False])
def test_so_does_what_follows_access_changes(
    has_started: bool,
    kafka: RestartableBroker,
    world: World,
) -> None:
    """Refused at its start, it tried again for good."""
    settings, stop, ready = kafka.secured.by_password(world.settings, "rotating"), Event(), Event()
    if not has_started:
        _replace_password(kafka)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(access_changes.run, settings, stop, ready.set)
        try:
            if has_started:
                wait_until(lambda: ready.is_set() or ended.done(), "it is ready", END_SECONDS)
                _replace_password(kafka)
                kafka.restart()
            failure = ended.exception(4 * END_SECONDS)
        finally:
            stop.set()
    assert isinstance(failure, JobStopped)
    assert "Kafka refuses the login" in str(failure)


@pytest.mark.long
@pytest.mark.parametrize("has_read", [True, False])
def test_so_does_the_console(
    has_read: bool,
    kafka: RestartableBroker,
    world: World,
) -> None:
    settings, stop = kafka.secured.by_password(world.settings, "rotating"), Event()
    if not has_read:
        _replace_password(kafka)

    def run() -> None:
        with console(settings, stop) as app:
            if has_read:
                client = TestClient(app, base_url="http://localhost:8090")
                wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read", END_SECONDS)
                _replace_password(kafka)
                kafka.restart()
            wait_until(stop.is_set, "it ends", END_SECONDS)

    with pytest.raises(JobStopped, match=r"Kafka refuses the login.*uthentication failed"):
        run()
