"""The console over a real job: past decisions under the policies of their moment and of today, questions, access."""

import contextlib
import html
import re
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from streaming.console.live import console
from streaming.kafka.clients import last_stable_offsets, partitions_of
from streaming.settings import SchemaRegistry, TracingSettings
from tests.brokers import TestBroker
from tests.console.conftest import served
from tests.console.site import ORIGIN
from tests.console.visit import DESK, PHONE, is_too_wide, violations, visit
from tests.stream.running import running
from tests.stream.world import SYSTEM, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]

SECRET = "hidden-3141592653"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202eevil\u0007'\"{{7*191}}"
READERS, FROZEN = role("readers", "kafka:topic:prod/*"), role("frozen", "kafka:topic:prod/main/audit", effect="deny")
ASKED = (("dana", "orders"), ("dana", "audit"), ("erik", "orders"))
PAGES = ("/decisions", "/ask", "/access")


def _asked() -> list[dict[str, Any]]:
    several = request("batch", "dana", "orders", evaluations=[{}, {"action": {"name": "kafka:DeleteTopic"}}])
    strange = request(HOSTILE[:200], HOSTILE, f"{HOSTILE}{'x' * 9000}")
    return [
        request("r-1", "dana", "orders"),
        request("r-2", "dana", "audit"),
        request("r-3", "erik", "orders"),
        several,
        strange,
    ]


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Decisions of a real job; afterwards the deny is lifted, so that today's answer is another one."""
    found = World(broker, f"console-{time.time_ns()}", (tmp_path_factory.mktemp("job") / "checkpoint").as_uri())
    both = {**group("readers", "user:dana"), "spec": {"roles": ["readers", "frozen"], "members": ["user:dana"]}}
    for document in (READERS, FROZEN, both):
        found.publish(document)
    with running(found.settings):
        found.send(_asked())
        decisions = found.reader(found.names.decisions)
        decisions.until(lambda records: len(records) >= len(_asked()), "all requests are decided", 180)
    found.delete("Role/frozen")
    return found


@pytest.fixture(scope="module")
def app(world: World) -> Iterator[ASGIApp]:
    """The console, with a secret in each setting that may hold one."""
    settings = msgspec.structs.replace(
        world.settings,
        kafka={"sasl.password": SECRET, "ssl.key.password": SECRET},
        source={"kafka.sasl.jaas.config": SECRET},
        spark={"spark.hadoop.fs.s3a.secret.key": SECRET},
        schema_registry=SchemaRegistry("http://localhost:1", "registry", SECRET),
        tracing=TracingSettings(endpoint=f"http://user:{SECRET}@localhost:1/"),
    )
    with console(settings, threading.Event()) as found:
        client = _client(found)
        wait_until(lambda: client.get("/access?subject=user:dana").status_code != 503, "the policies are read")
        yield found


def _client(app: ASGIApp) -> TestClient:
    return TestClient(app, base_url=ORIGIN, raise_server_exceptions=False, follow_redirects=False)


@pytest.fixture(scope="module")
def client(app: ASGIApp) -> TestClient:
    return _client(app)


@pytest.fixture(scope="module")
def site_address(app: ASGIApp) -> Iterator[str]:
    with served(app) as found:
        yield found


def _ask(user: str, topic: str, **more: str) -> str:
    fields = {
        "subject": f"user:{user}",
        "action": "kafka:GetTopicDetails",
        "resource": f"kafka:topic:prod/main/{topic}",
    }
    return f"/ask?{urlencode({'system': SYSTEM, **fields, **more})}"


def _addresses(text: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r'href="(/decisions/[^"]+)"', text)]


def test_the_newest_decisions_are_first_and_each_filter_counts(client: TestClient) -> None:
    page = client.get("/decisions").text
    assert len(_addresses(page)) == len(_asked())
    for filter_, number in (
        ({"subject": "user:dana"}, 3),
        ({"subject": "user:d*"}, 3),
        ({"outcome": "deny"}, 3),
        ({"request_id": "r-1"}, 1),
        ({"document": f"{SYSTEM}/Role/frozen"}, 1),
        ({"resource": "kafka:topic:prod/main/audit"}, 1),
        ({"system": "cdap"}, 0),
        ({"until": "2020-01-01T00:00:00Z"}, 0),
        ({"since": "1h", "subject": "user:erik"}, 1),
    ):
        found = _addresses(client.get("/decisions", params=filter_).text)
        assert len(found) == number, filter_
    assert 'role="alert">since: ' in client.get("/decisions", params={"since": "yesterday"}).text


def test_a_decision_is_shown_as_of_its_moment_and_as_of_today(client: TestClient) -> None:
    [address] = _addresses(client.get("/decisions", params={"request_id": "r-2"}).text)
    client.get(address)  # documents are read on, not again
    page = client.get(address).text
    then, today = page.split('id="today"')
    assert f"denied by {SYSTEM}/Role/frozen statement 0" in then
    assert "Evaluated again under the policies of its moment: the same as recorded." in then
    assert f"allowed by {SYSTEM}/Role/readers statement 0" in today
    determining = today.split("Determining: ")[1]
    assert f"{SYSTEM}/Role/frozen" in determining
    assert re.search(r'class="decides"><td class="n">\d+</td><td><code>  - effect: deny', determining)


def test_asking_shows_the_tree_who_else_can_and_what_is_nearest(client: TestClient) -> None:
    allowed = client.get(_ask("dana", "orders", who="1")).text
    assert "(user:dana → group:readers → role:readers)" in allowed
    assert "any principal that claims" in allowed.split('id="who"')[1]
    denied = client.get(_ask("erik", "orders")).text
    assert "✘ deny" in denied
    assert "Nearest" in denied
    assert "system: choose one" in client.get("/ask?subject=a&system=none").text
    assert "more: not YAML" in client.get(_ask("dana", "orders", more="[")).text


def test_the_access_of_a_subject_has_its_path(client: TestClient) -> None:
    page = client.get("/access", params={"subject": "user:dana"}).text
    assert "kafka:GetTopicDetails on kafka:topic:prod/*" in page
    assert "user:dana → group:readers → role:readers" in page
    assert "no document names it" in client.get("/access", params={"subject": "user:nobody"}).text


def test_nothing_that_is_not_there_is_an_error_of_the_server(client: TestClient) -> None:
    assert client.get("/decisions/nothing-0-1").status_code == 404
    assert client.get("/decisions/" + quote(HOSTILE, safe="")).status_code == 404
    for page in PAGES:
        response = client.get(
            page, params=dict.fromkeys(("subject", "system", "action", "since", "more"), HOSTILE * 60)
        )
        assert response.status_code == 200, page
        assert "<script>document" not in response.text


def _every_page(client: TestClient) -> Iterator[tuple[str, str]]:
    addresses = _addresses(client.get("/decisions").text)
    strange = _ask(HOSTILE, HOSTILE, who="1", groups=HOSTILE, more=HOSTILE)
    more = (
        "/access?subject=user:dana",
        _ask("dana", "orders", who="1"),
        strange,
        "/playground",
        "/nothing",
        "/decisions/x",
    )
    for address in (*PAGES, *addresses, *more):
        yield address, client.get(address, headers={"accept": "text/html"}).text


def test_no_page_has_a_secret_or_markup_of_somebody_else(client: TestClient) -> None:
    number = 0
    for address, text in _every_page(client):
        number += 1
        assert SECRET not in text, address
        assert "<script>document" not in text, address
        assert "<img src=x" not in text, address
        assert not {"\u202e", "\u0007"} & set(text), address
        assert "1337" not in text, address
        assert not re.search(r"<style|\sstyle=|javascript:", text), address
    assert number > 10


def test_the_console_writes_nothing_and_takes_get_alone(client: TestClient, world: World) -> None:
    topics = (*world.names.requests, world.names.decisions, world.names.history, world.policies)
    partitions = partitions_of(world.admin, topics)
    before = last_stable_offsets(world.admin, partitions)
    for address in (*PAGES, "/decisions/x"):
        for method in ("POST", "PUT", "DELETE"):
            assert client.request(method, address, headers={"origin": ORIGIN}).status_code == 405, address
    list(_every_page(client))
    assert last_stable_offsets(world.admin, partitions) == before


def test_another_host_sees_nothing(client: TestClient) -> None:
    for page in PAGES:
        refused = client.get(page, headers={"host": "evil.example"})
        assert (refused.status_code, "dana" in refused.text) == (403, False)
        assert "frame-ancestors 'none'" in client.get(page).headers["content-security-policy"]


def test_each_page_is_answered_again_and_again(client: TestClient) -> None:
    """And how long that takes, as a figure."""
    addresses = (*PAGES, *_addresses(client.get("/decisions").text)[:1], _ask("dana", "orders"))
    times = {address[:12]: min(_milliseconds(client, address) for _ in range(5)) for address in addresses}
    print("ms", times)
    assert len(times) == len(addresses)


def _milliseconds(client: TestClient, address: str) -> int:
    began = time.perf_counter()
    assert client.get(address).status_code == 200
    return round((time.perf_counter() - began) * 1000)


def test_the_journey_from_a_deny_to_its_statement(browser: Browser, site_address: str) -> None:
    with visit(browser, f"{site_address}/") as page:
        page.get_by_label("Subject").fill("user:dana")
        page.get_by_label("Outcome").select_option("deny")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Show").click()
        row = page.get_by_role("row").filter(has_text="audit")
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Determining")).to_contain_text(f"{SYSTEM}/Role/frozen statement 0")
        expect(page.locator("tr.decides")).to_contain_text("effect: deny")
        moment = page.locator("time").first
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", moment.get_attribute("title") or "")
        assert moment.inner_text() != moment.get_attribute("title")
        page.get_by_role("link", name="Change it and ask again").click()
        expect(page.get_by_role("heading", name="now")).to_contain_text("allow")
        page.get_by_role("link", name="Who else can?").click()
        expect(page.get_by_role("heading", name="Who can")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    browser: Browser, site_address: str, client: TestClient, size: dict[str, int], scheme: str
) -> None:
    first = _addresses(client.get("/decisions", params={"request_id": "r-2"}).text)
    strange = _addresses(client.get("/decisions").text)
    pages = [
        "/decisions",
        "/decisions?subject=nobody",
        *first,
        *strange[:1],
        _ask("erik", "orders"),
        "/access?subject=user:dana",
    ]
    with visit(browser, site_address + "/access", size, scheme) as page:
        for address in pages:
            page.goto(site_address + address)
            assert violations(page) == [], address
            assert not is_too_wide(page), address
            assert page.title().endswith("lockkeeper")


def test_without_kafka_a_page_says_so(world: World) -> None:
    away = msgspec.structs.replace(world.settings, bootstrap_servers="localhost:1")
    with contextlib.suppress(Exception), console(away, threading.Event()) as app:
        response = _client(app).get("/access", params={"subject": "user:dana"})
        assert response.status_code == 503
        assert "localhost:1" not in response.text
