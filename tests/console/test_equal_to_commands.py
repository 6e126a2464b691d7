"""The console's pages say of the same topics what the commands say, also of names that are made to be misread."""

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
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from streaming.console.live import console
from streaming.kafka.publish import publish
from streaming.kafka.topics import create_topics
from streaming.settings import Settings
from streaming.terminal import one_line
from tests.brokers import TestBroker
from tests.cli.lockkeeper import Command
from tests.cli.test_questions import Decided
from tests.console.conftest import served
from tests.console.decided import addresses_in, client_of, post_draft
from tests.console.test_answers_of_commands import NAMES, ORDERS, ROLE, documents, items, role, texts
from tests.console.visit import visit
from tests.stream.world import LOOKS_BACK, SYSTEM, topic_names
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]


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


@pytest.mark.parametrize("name", [*NAMES, "user:olga"])
def test_the_access_of_a_subject_is_that_of_what_can(run: Callable[..., Any], client: TestClient, name: str) -> None:
    page = client.get("/access", params={"system": "lenses6", "subject": name}).text
    records = run("what-can", "--live", "--system", "lenses6", "--subject", name, "--allow-unknown", "--json").records
    if not records:
        assert 'role="alert"' in page
        return
    [permissions] = records
    rows = re.findall(r"<tr[^>]*>\s*<td>(.*?)</tr>", page, re.DOTALL)
    assert len(rows) == len(permissions)
    for row, permission in zip(rows, permissions, strict=True):
        text = " ".join(texts(row))
        assert permission["grant"]["effect"] in text
        assert " ".join(one_line(permission["route"]).split()) in text


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


def test_findings_and_differences_are_those_of_lint_and_diff(
    run: Callable[..., Any], client: TestClient, app: ASGIApp, tmp_path: Path
) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    (folder / "live.yaml").write_text(run("policy", "get", "lenses6").out)
    findings = run("policy", "lint", str(folder), "--json").records
    page = client.get("/access", params={"system": "lenses6"}).text
    listed = items(page.split('<ul class="evidence">')[1].split("</ul>")[0])
    assert findings
    assert len(listed) == len(findings)
    draft = role(ROLE, ("deny", "kafka:*", ORDERS))
    (tmp_path / "draft.yaml").write_text(yaml.safe_dump(draft, allow_unicode=True))
    diff = run("policy", "diff", "live", str(tmp_path / "draft.yaml"), "--json").records[0]
    shown = post_draft(app, yaml.safe_dump(draft, allow_unicode=True), "lenses6").text
    turned = re.search(r"(\d+) of the newest (\d+) requests", shown)
    assert turned is not None
    assert (int(turned[1]), int(turned[2])) == (len(diff["changes"]), diff["requests"])
    text = " ".join(texts(shown))
    for difference in diff["differences"]:
        assert " ".join(one_line(difference["text"]).split()) in text


def test_a_name_that_is_typed_is_what_is_asked_and_shown(browser: Browser, app: ASGIApp) -> None:
    """In a browser: typed, asked, followed to its access and to its decisions, and asked again from one of these."""
    with served(app) as site:
        for name in NAMES:
            with visit(browser, f"{site}/ask?system=lenses6") as page:
                page.get_by_label("Subject", exact=True).fill(name)
                page.get_by_label("Action", exact=True).fill("kafka:GetTopicDetails")
                page.get_by_label("Resource", exact=True).fill(ORDERS)
                page.get_by_role("button", name="Ask", exact=True).click()
                is_reader = name.startswith("user:")
                expect(page.get_by_role("heading", name="now")).to_contain_text("allow" if is_reader else "")
                assert page.get_by_label("Subject", exact=True).input_value() == name
                assert name in page.locator(".tree").first.inner_text()
                page.get_by_role("link", name="Past decisions about it").click()
                expect(page.get_by_role("row")).to_have_count(2)
                page.get_by_role("row").nth(1).get_by_role("link").click()
                page.get_by_role("link", name="Change it and ask again").click()
                assert page.get_by_label("Subject", exact=True).input_value() == name
                page.get_by_role("link", name="What else can this subject?").click()
                assert page.get_by_label("Subject", exact=True).input_value() == name
                assert page.title().endswith("lockkeeper")
