"""Answers by policies that cannot be read on say so: they are not called current."""

import contextlib
import html
import re
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from policy import FactOverlay, compile_documents
from streaming.console.alerts import AlertLog
from streaming.console.changes import ChangeLog
from streaming.console.console import LINKS, Console
from streaming.console.guard import Guard, Tokens
from streaming.console.in_force import InForce
from streaming.console.pages import Pages, StaticFiles
from streaming.console.reading import Cluster
from streaming.console.recent import RecentDecisions
from streaming.console.records import Records
from streaming.console.sandbox import Sandbox
from streaming.console.server import application
from streaming.console.signing_in import Local, SignedIn
from streaming.console.site import Site
from streaming.console.unseen import UnseenTopics
from streaming.kafka.clients import admin_client
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read
from streaming.serve.authentication import LOCAL
from streaming.settings import Settings
from streaming.terminal import escape
from tests.console.decided import READERS, client_of, question_address
from tests.stream.world import group

SETTINGS = Settings(bootstrap_servers="127.0.0.1:1")
BOUND = SETTINGS.serve.max_staleness_seconds
GROUP = {**group("readers", "user:dana"), "spec": {"roles": ["readers"], "members": ["user:dana"]}}


def _read(age: float) -> Read:
    return Read(compile_documents([READERS, GROUP]), time.monotonic() - age, {}, -1, {})


@pytest.fixture
def follower() -> Follower:
    """One that does not read: what it has read is set."""
    return Follower(SETTINGS, threading.Event(), lambda _read: None, lambda: None)


@pytest.fixture
def in_force(follower: Follower) -> InForce:
    return InForce(Cluster(SETTINGS, admin_client(SETTINGS)), follower, BOUND)


def site_of(in_force: InForce, pages: Pages) -> Site:
    """Without Kafka."""
    admin = admin_client(SETTINGS)
    logs = (ChangeLog(SETTINGS, admin), AlertLog(SETTINGS, admin), RecentDecisions(SETTINGS, admin))
    cluster, unseen = Cluster(SETTINGS, admin), UnseenTopics(SETTINGS)
    return Site(SETTINGS, pages, cluster, Records(SETTINGS, admin), *logs, in_force, FactOverlay, unseen)


@pytest.fixture
def pages_alone(in_force: InForce) -> Iterator[ASGIApp]:
    """The console's pages over it; those that read Kafka have none."""
    static, tokens = StaticFiles(), Tokens()
    pages = Pages(static, LINKS, tokens.of)
    site = site_of(in_force, pages)
    with (
        contextlib.closing(Sandbox(1, is_eager=False)) as sandbox,
        contextlib.closing(Console(site, tokens, sandbox)) as console,
    ):
        app = application(console.routes, pages, static)
        yield Guard(SignedIn(app, Local(), pages), LOCAL)


@pytest.fixture
def client(pages_alone: ASGIApp) -> TestClient:
    return client_of(pages_alone)


def test_policies_are_current_as_long_as_serve_would_decide_by_them(follower: Follower, in_force: InForce) -> None:
    for age, is_current in ((0.0, True), (BOUND - 2, True), (BOUND + 1, False), (90.0, False)):
        follower.read = _read(age)
        old = in_force.out_of_date()
        assert (old is None) == is_current, age
        assert old is None or (old.age == round(age) and "does Kafka answer?" in old.why)
    follower.read, follower.stuck = _read(0.0), 1
    stuck = in_force.out_of_date()
    assert stuck is not None
    assert "a transaction on their topics is not ended" in stuck.why


@pytest.mark.parametrize("page", [question_address("dana", "orders"), "/access?resource=kafka:topic:prod/main/orders"])
def test_a_page_says_how_old_its_policies_are(follower: Follower, client: TestClient, page: str) -> None:
    follower.read = _read(0.0)
    current = client.get(page).text
    assert "Not current" not in current
    follower.read = _read(90.0)
    old = client.get(page)
    assert old.status_code == 200
    assert f"could not be read for more than {BOUND:g} s: does Kafka answer? What follows" in html.unescape(old.text)
    assert re.search(r"read 9\d s ago", old.text), "90 s, and what the machine takes for the page"
    is_question = page.startswith("/ask")
    assert ("</span> now</h2>" in current, "</span> now</h2>" in old.text) == (is_question, False)
    assert ("by the policies of <time" in old.text) == is_question


def test_an_empty_form_says_nothing_of_the_policies(follower: Follower, client: TestClient) -> None:
    follower.read = _read(90.0)
    assert ["Not current" in client.get(page).text for page in ("/ask", "/access")] == [False, False]


def test_before_the_policies_were_read_a_page_says_why(follower: Follower, in_force: InForce) -> None:
    with pytest.raises(HTTPException, match="the policies are being read; load this page again") as first:
        in_force.snapshot()
    assert first.value.status_code == 503
    follower.unread_error = TimeoutError("127.0.0.1:1 is down")
    with pytest.raises(HTTPException, match="Kafka does not answer; load this page again") as away:
        in_force.snapshot()
    assert "127.0.0.1" not in away.value.detail


class _Inputs(HTMLParser):
    """What a browser has in the fields of forms, and to which pages links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values, self.links = list[tuple[str, str]](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        if tag == "input":
            self.values.append((named["name"] or "", named["value"] or ""))
        if tag == "a":
            self.links.append(named["href"] or "")


STRANGE = (
    "user:\u202eanad",
    "user:dana\u00a0",
    "user:a\u200db",
    "user:a\u0085b",
    "user:a\tb",
    "user:\ufeffdana",
    '{"id": "user:root"}',
    "user:\"'<script>&amp;&lt;",
    "user:\U000e0041",
    "user:" + "ü" * 400,
)


@pytest.mark.parametrize("name", STRANGE)
def test_a_form_and_each_link_of_its_answer_ask_about_the_very_name(
    follower: Follower, client: TestClient, name: str
) -> None:
    """What is shown of a name has its invisible characters as codes; what is sent again has them as they are."""
    follower.read = _read(0.0)
    fields = {"system": "lenses6", "subject": name, "action": "kafka:GetTopicDetails"}
    page = client.get("/ask", params={**fields, "resource": f"kafka:topic:prod/{name}/x"})
    found = _Inputs(page.text)
    assert dict(found.values)["subject"] == name
    assert dict(found.values)["resource"] == f"kafka:topic:prod/{name}/x"
    asked = [parse_qs(urlsplit(link).query) for link in found.links if "?" in link]
    assert {tuple(one["subject"]) for one in asked if "subject" in one} == {(name,)}
    assert {tuple(one["resource"]) for one in asked if "resource" in one} == {(f"kafka:topic:prod/{name}/x",)}
    assert ("not seen" in page.text) == (escape(name) != name or "\t" in name)
    assert "\u202e" not in page.text
