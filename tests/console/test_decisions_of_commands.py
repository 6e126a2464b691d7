"""The console's pages about decisions say what the commands say, also of names that are made to be misread."""

import html
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import yaml
from confluent_kafka.admin import AdminClient
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from policy import compile_documents
from streaming.console.live import console
from streaming.console.records import NoSuchDecision, Records
from streaming.console.viewer import Viewer
from streaming.kafka.clients import topic_ids
from streaming.kafka.publish import publish
from streaming.kafka.topics import create_topics
from streaming.settings import Settings
from streaming.terminal import one_line
from tests.brokers import TestBroker
from tests.cli.lockkeeper import Command
from tests.cli.test_questions import Decided
from tests.console.decided import HTML, addresses_in, client_of
from tests.console.test_answers_of_commands import NAMES, ORDERS, documents, texts
from tests.stream.world import LOOKS_BACK, SYSTEM, topic_names
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]

REFUSED = "<b>refused</b>"


def _request(number: int, who: str, action: str = "kafka:GetTopicDetails", resource: str = ORDERS) -> dict[str, Any]:
    subject = {"type": "user", "id": who}
    asked = {"action": {"name": action}, "resource": {"type": "lrn", "id": resource}}
    return {"id": f"r-{number} {who}"[:200], "system": "lenses6", "subject": subject, **asked}


@pytest.fixture(scope="module")
def settings(broker: TestBroker) -> Settings:
    """Topics with documents and decided requests, of each name several."""
    prefix = f"equal-{time.time_ns()}"
    servers, systems = broker.bootstrap_servers, (SYSTEM, LOOKS_BACK)
    settings = Settings(job_name=prefix, bootstrap_servers=servers, systems=systems, topics=topic_names(prefix))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    create_topics(admin, settings.topics, partitions=1)
    decided = Decided(settings, admin, settings.topics)
    publish(settings, documents())
    for number, name in enumerate(NAMES):
        decided.send(_request(number, name), _request(number + 100, name, "kafka:DeleteTopic"))
    decided.send({"id": REFUSED, "system": SYSTEM}, b"no request", {"id": REFUSED, "system": LOOKS_BACK})
    decided.decide()
    return settings


@pytest.fixture(scope="module")
def app(settings: Settings) -> Iterator[ASGIApp]:
    """The console over them."""
    with console(settings, threading.Event()) as found:
        client = client_of(found)
        wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read")
        yield found


@pytest.fixture(scope="module")
def client(app: ASGIApp) -> TestClient:
    return client_of(app)


@pytest.fixture
def run(lockkeeper: Command, settings: Settings, tmp_path: Path) -> Callable[..., Any]:
    """A command with these settings."""
    file = tmp_path / "lockkeeper.yaml"
    topics = msgspec.to_builtins(settings.topics)
    topics.pop("systems", None)
    named = {"bootstrap_servers": settings.bootstrap_servers, "job_name": settings.job_name, "topics": topics}
    file.write_text(yaml.safe_dump({**named, "systems": list(settings.systems)}))
    return lambda *arguments: lockkeeper(*arguments, "--config", str(file))


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_the_decisions_about_a_subject_are_those_of_the_command(
    run: Callable[..., Any], client: TestClient, name: str
) -> None:
    page = client.get("/decisions", params={"subject": name, "since": "1h"}).text
    found = [one["id"] for one in run("decisions", "--subject", name, "--since", "1h", "--json").records]
    assert len(found) == 2
    assert [address.rpartition("/")[2] for address in addresses_in(page)] == list(reversed(found))
    explained = run("explain", "--decision", found[0], "--json").records
    decision = client.get(f"/decisions/{found[0]}").text
    assert one_line(explained[0]["trees"][0]["text"]) in " ".join(texts(decision.split('id="then"')[1]))
    [again] = set(re.findall(r'href="(/ask\?[^"]+)"', decision))
    asked = parse_qs(urlsplit(html.unescape(again)).query)
    assert asked["subject"] == [name]


def test_why_a_record_was_not_decided_is_found_by_its_request_and_by_the_id_of_its_decision(
    client: TestClient, settings: Settings
) -> None:
    """Of systems that are not seen, nothing is: neither that there is such a dead letter, nor what is wrong with it."""
    page = client.get("/decisions", params={"request_id": REFUSED})
    assert [" ".join(texts(page.text)).count(each) for each in ("is no request:", "subject")] == [2, 2]
    assert "is no request" not in client.get("/decisions", params={"request_id": "refused"}).text
    topic = settings.topics.requests[0]
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    ids = [f"{topic_ids(admin, [topic])[topic]}-0-{2 * len(NAMES) + number}" for number in range(4)]
    why = {id_: html.unescape(client.get(f"/decisions/{id_}", headers=HTML).text) for id_ in ids}
    assert [f".dlq-0 at offset {number}: " in why[id_] for number, id_ in enumerate(ids)] == [True] * 3 + [False]
    carl, log = Viewer("carl", frozenset({LOOKS_BACK})), Records(settings, admin)
    [own] = log.refused(REFUSED, carl)
    assert ".dlq-0 at offset 2: " in own
    for number, id_ in enumerate(ids):
        with pytest.raises(NoSuchDecision) as error:
            log.explained(id_, compile_documents([]), carl)
        assert ("no request" in str(error.value)) == (number == 2)
