"""The console over a real job: past decisions under the policies of their moment and of today, questions, access."""

import contextlib
import html
import itertools
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from streaming.authentication_settings import ConsoleSettings, OidcSettings, ProxySettings
from streaming.console import overview, pulse
from streaming.console.live import console
from streaming.kafka.clients import last_stable_offsets, partitions_of
from streaming.settings import SchemaRegistry, TracingSettings
from tests.brokers import TestBroker
from tests.console.conftest import served
from tests.console.site import ORIGIN
from tests.console.visit import DESK, PHONE, is_too_wide, violations, visit
from tests.stream.running import running
from tests.stream.world import LOOKS_BACK, SYSTEM, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]

HTML = {"accept": "text/html"}
SECRET = "hidden-3141592653"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202eevil\u0007'\"{{7*191}}"
READERS, FROZEN = role("readers", "kafka:topic:prod/*"), role("frozen", "kafka:topic:prod/main/audit", effect="deny")
ASKED = (("dana", "orders"), ("dana", "audit"), ("erik", "orders"))
PAGES = ("/overview", "/decisions", "/alerts", "/changes", "/ask", "/access")
ROOT = {**role("root"), "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}}
ADMINS = {**group("admins", "user:trent"), "spec": {"roles": ["root"], "members": ["user:trent"]}}
HOSTILE_ALERT = {
    "id": HOSTILE,
    "kind": HOSTILE,
    "severity": HOSTILE,
    "time": HOSTILE,
    "subject": HOSTILE,
    "message": HOSTILE,
    "evidence": [HOSTILE, {"document": HOSTILE, "topic": HOSTILE, "offset": 1}, {HOSTILE: HOSTILE}, {"system": SYSTEM}],
}


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
        for document in (ADMINS, ROOT):
            found.publish(document)
        alerts, changes = found.reader(found.names.alerts), found.reader(found.names.changes)
        alerts.until(lambda records: bool(records), "the escalation is an alert", 60)
        changes.until(lambda records: any(map(_opens_root, records)), "what it opens is known", 60)
    found.delete("Role/frozen")
    _write_hostile_records(found)
    return found


def _opens_root(message: Any) -> bool:
    return b"Role/root" in message.value() and b'"widens"' in message.value()


def _write_hostile_records(world: World) -> None:
    """An alert and a change as nobody but the job could write them."""
    state = {"policy_offsets": {world.policies: {"0": 0}}, "policy_version": HOSTILE}
    said = dict.fromkeys(("id", "author", "commit", "reason"), HOSTILE)
    documents = [{"key": f"{SYSTEM}/Role/{HOSTILE}", "change": "changed", "offset": 0}]
    counted = {"documents": documents, "documents_count": 1}
    change = {**said, "system": SYSTEM, "time": "2026-11-21T10:00:00Z", "before": state, "after": state, **counted}
    for topic, value in ((world.names.alerts, HOSTILE_ALERT), (world.names.changes, change)):
        world.producer.produce(topic, json.dumps(value).encode())
    assert world.producer.flush(30) == 0


@pytest.fixture(scope="module")
def app(world: World) -> Iterator[ASGIApp]:
    """The console, with a secret in each setting that may hold one."""
    settings = msgspec.structs.replace(
        world.settings,
        kafka={"sasl.password": SECRET, "ssl.key.password": SECRET},
        source={"kafka.sasl.jaas.config": SECRET},
        spark={"spark.hadoop.fs.s3a.secret.key": SECRET},
        schema_registry=SchemaRegistry("http://localhost:1", "registry", SECRET),
        console=ConsoleSettings(oidc=OidcSettings(client_secret=SECRET)),
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


def _addresses(text: str, page: str = "decisions") -> list[str]:
    return [html.unescape(found) for found in re.findall(rf'href="(/{page}/[^"]+)"', text)]


def _escalation(client: TestClient) -> str:
    """The page of the alert about a change that gives somebody everything."""
    [address] = _addresses(client.get("/alerts", params={"kind": "privilege-escalation"}).text, "alerts")
    return address


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
    readers = next(row for row in page.split("<tr") if f"{SYSTEM}/Role/readers statement 0" in row)
    assert "<time" in readers, "when it decided last"
    assert "no document names it" in client.get("/access", params={"subject": "user:nobody"}).text


def test_statements_that_decided_nothing_lately_are_listed_first(client: TestClient) -> None:
    rows = client.get("/access", params={"system": SYSTEM}).text.split("<tr>")[1:]
    used = {row.split("</bdi>")[0].rpartition(">")[2]: "<time" in row for row in rows if "statement" in row}
    assert used == {f"{SYSTEM}/Role/root statement 0": False, f"{SYSTEM}/Role/readers statement 0": True}
    assert list(used.values()) == [False, True]
    assert "No document of this language" in client.get("/access", params={"system": "cdap"}).text


def test_a_form_completes_the_names_of_documents(client: TestClient) -> None:
    page = client.get(_ask("dana", "orders")).text
    assert '<option value="user:dana">' in page.split('id="subjects"')[1]
    assert "<option" not in client.get("/ask", params={"system": "none"}).text.split('id="subjects"')[1]


def test_the_changes_are_listed_and_each_says_who_gained_and_lost(client: TestClient) -> None:
    page = client.get("/changes").text
    assert len(_addresses(page, "changes")) >= 2
    for filter_, number in (
        ({"document": "Role/root"}, 1),
        ({"document": f"{SYSTEM}/Role/root"}, 1),
        ({"author": "<script>"}, 1),
        ({"system": "cdap"}, 0),
        ({"until": "2020-01-01T00:00:00Z"}, 0),
    ):
        addresses = _addresses(client.get("/changes", params=filter_).text, "changes")
        assert len(addresses) == number, filter_
    assert 'role="alert">' in client.get("/changes", params={"since": "yesterday"}).text
    [address] = _addresses(client.get("/changes", params={"document": "Role/root"}).text, "changes")
    gained = client.get(address).text
    assert "user:trent" in gained.split('id="gave"')[1].split('id="opens"')[0]
    assert "may * on *" in gained.split('id="opens"')[1].split('id="documents"')[0]
    assert re.search(r'class="plus"><td class="n">\+</td><td><code>kind: Role', gained)
    assert f"lockkeeper policy rollback {address.rpartition('/')[2]}" in gained


def test_a_change_shows_which_of_the_newest_requests_it_turns(client: TestClient) -> None:
    changes = _addresses(client.get("/changes", params={"document": "Role/frozen"}).text, "changes")
    page = client.get(changes[-1], params={"compare": "1"}).text.split('id="turned"')[1]
    assert "requests of the language are answered otherwise" in page
    assert "user:trent" not in page


def test_an_alert_leads_to_the_change_that_opened_it(client: TestClient) -> None:
    page = client.get(_escalation(client)).text
    assert f"{SYSTEM}/Role/root" in page
    evidence = page.split('id="evidence"')[1]
    [change] = set(_addresses(evidence, "changes"))
    assert "user:trent" in client.get(change).text
    for filter_, number in (({"severity": "low"}, 0), ({"subject": "nobody"}, 0), ({"system": "cdap"}, 0)):
        assert len(_addresses(client.get("/alerts", params=filter_).text, "alerts")) == number, filter_


def test_nothing_that_is_not_there_is_an_error_of_the_server(client: TestClient) -> None:
    assert client.get("/decisions/nothing-0-1").status_code == 404
    for page in ("decisions", "changes", "alerts"):
        assert client.get(f"/{page}/nothing").status_code == 404
    assert client.get("/decisions/" + quote(HOSTILE, safe="")).status_code == 404
    for page in PAGES:
        response = client.get(
            page, params=dict.fromkeys(("subject", "system", "action", "since", "more"), HOSTILE * 60)
        )
        assert response.status_code == 200, page
        assert "<script>document" not in response.text


def _every(client: TestClient, page: str) -> list[str]:
    return _addresses(client.get(f"/{page}").text, page)


def _every_page(client: TestClient) -> Iterator[tuple[str, str]]:
    addresses = [one for page in ("decisions", "changes", "alerts") for one in _every(client, page)]
    addresses += [f"{one}?compare=1" for one in addresses if one.startswith("/changes")]
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


@pytest.fixture(scope="module")
def others(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ASGIApp]:
    """The console for a viewer who may see one system, of which nothing was decided, and for one who sees all."""
    access = tmp_path_factory.mktemp("access") / "viewers.yaml"
    access.write_text("viewers: {a: {systems: [streamsets], subjects: [carl]}, b: {systems: ['*'], subjects: [olga]}}")
    proxy = ProxySettings(addresses=("127.0.0.1",), header="X-User")
    chosen = ConsoleSettings(access=str(access), proxy=proxy, url="https://console.example.com")
    with console(msgspec.structs.replace(world.settings, console=chosen), threading.Event()) as found:
        olga = _viewer(found, "olga")
        wait_until(lambda: olga.get("/access?subject=user:dana").status_code != 503, "the policies are read")
        yield found


def _viewer(app: ASGIApp, name: str) -> TestClient:
    client = TestClient(app, ORIGIN, raise_server_exceptions=False, follow_redirects=False, client=("127.0.0.1", 4000))
    client.headers["x-user"] = name
    return client


def test_a_viewer_sees_its_systems_alone_on_every_page(others: ASGIApp, client: TestClient) -> None:
    seen = [one for one, text in _every_page(client) if "Role/" in text and one not in ("/decisions/x", "/nothing")]
    assert {one.split("/")[1].split("?")[0] for one in seen} >= {"decisions", "alerts", "changes", "access", "ask"}
    carl, olga = _viewer(others, "carl"), _viewer(others, "olga")
    for address in seen:
        answer, whole = carl.get(address, headers=HTML), olga.get(address, headers=HTML)
        without_form = re.sub(r"(?s)<form class=.tools.*?</form>", "", answer.text)
        assert "Role/" not in without_form, address
        assert "Lenses 6" not in answer.text, address
        assert (whole.status_code, "Role/" in whole.text) == (200, True), address
        if re.match(r"/(decisions|alerts|changes)/", address):
            assert answer.status_code == 404, address
    assert "system: choose one" in carl.get(_ask("dana", "orders", who="1")).text
    for name in (SYSTEM, "Lenses6", ""):  # the request may name a system of its own
        hidden = carl.get(_ask("dana", "orders", system=LOOKS_BACK, who="1", more=f"{{system: '{name}'}}")).text
        assert "names another language" in html.unescape(hidden), name
        assert "Role/" not in hidden
    assert "No language has a statement" in carl.get("/access", params={"subject": "user:dana"}).text


def test_a_stream_shows_its_viewers_systems_alone(others: ASGIApp) -> None:
    with served(others) as address:
        seen = {name: _first_event(address, name) for name in ("carl", "olga")}
        assert {name: "Lenses 6" in text for name, text in seen.items()} == {"carl": False, "olga": True}
        assert all("StreamSets" in text for text in seen.values())
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/overview/events", timeout=20)


def _first_event(address: str, name: str) -> str:
    asked = urllib.request.Request(f"{address}/overview/events", headers={"x-user": name})
    with urllib.request.urlopen(asked, timeout=20) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        return b"".join(itertools.takewhile(lambda line: b"As of" not in line, stream)).decode()


def test_streams_are_bounded_and_each_has_a_deadline(app: ASGIApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_STREAMS", 0)
    assert _client(app).get("/overview/events").status_code == 503
    monkeypatch.setattr(overview, "MOST_STREAMS", 1)
    monkeypatch.setattr(overview, "STREAM_SECONDS", 0.0)
    for _ in range(3):  # each leaves room when it ends
        assert _client(app).get("/overview/events").status_code == 200


def test_another_host_sees_nothing(client: TestClient) -> None:
    for page in PAGES:
        refused = client.get(page, headers={"host": "evil.example"})
        assert (refused.status_code, "dana" in refused.text) == (403, False)
        assert "frame-ancestors 'none'" in client.get(page).headers["content-security-policy"]


def test_each_page_is_answered_again_and_again(client: TestClient) -> None:
    """And how long that takes, as a figure."""
    lists = [_every(client, page)[0] for page in ("decisions", "changes", "alerts")]
    addresses = (*PAGES, *lists, _ask("dana", "orders"))
    times = {address[:14]: min(_milliseconds(client, address) for _ in range(5)) for address in addresses}
    print("ms", times)
    assert len(times) == len(addresses)


def _milliseconds(client: TestClient, address: str) -> int:
    began = time.perf_counter()
    assert client.get(address).status_code == 200
    return round((time.perf_counter() - began) * 1000)


def test_a_first_visit_loads_little(client: TestClient) -> None:
    sizes = {}
    for page in (*PAGES, *(_every(client, name)[0] for name in ("decisions", "changes", "alerts")), "/playground"):
        whole = client.get(page)
        files = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', whole.text))
        loaded = [client.get(file, headers={"accept-encoding": "gzip"}) for file in files]
        sizes[page[:12]] = len(whole.content) + sum(int(file.headers["content-length"]) for file in loaded)
    print("bytes", sizes)
    assert max(sizes.values()) <= 100_000


def test_the_journey_from_a_deny_to_its_statement(browser: Browser, site_address: str) -> None:
    with visit(browser, f"{site_address}/decisions") as page:
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


def test_the_journey_from_an_alert_to_the_change_that_opened_it(browser: Browser, site_address: str) -> None:
    with visit(browser, f"{site_address}/alerts") as page:
        page.get_by_label("Kind").select_option("privilege-escalation")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("row").filter(has_text="Role/root").get_by_role("link").click()
        page.get_by_role("link", name="the change", exact=True).first.click()
        expect(page.get_by_role("heading", name="Who gained and lost")).to_be_visible()
        expect(page.get_by_role("region", name="Grants, memberships and facts")).to_contain_text("user:trent")
        expect(page.locator("tr.plus").first).to_be_visible()
        expect(page.locator(".command")).to_contain_text("lockkeeper policy rollback")
        page.get_by_role("link", name="Decide them by the policies before and after").click()
        expect(page.locator("#turned ~ .note")).to_contain_text("of the newest")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    browser: Browser, site_address: str, client: TestClient, size: dict[str, int], scheme: str
) -> None:
    first = _addresses(client.get("/decisions", params={"request_id": "r-2"}).text)
    strange = _every(client, "decisions")
    others = [*_every(client, "alerts"), *_every(client, "changes")[:2], *_every(client, "changes")[-1:]]
    pages = [
        "/decisions",
        "/decisions?subject=nobody",
        *first,
        *strange[:1],
        _ask("erik", "orders"),
        "/access?subject=user:dana",
        "/overview",
        "/alerts",
        "/changes",
        *others,
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


def test_the_overview_counts_what_is_decided_by_a_bounded_sample(world: World, app: ASGIApp) -> None:
    client = _client(app)
    [decision] = [one for one in world.everything(world.names.decisions) if one["request_id"] == "r-1"]
    for _ in range(3 * pulse.SAMPLE):
        world.producer.produce(world.names.decisions, json.dumps(decision).encode(), partition=0)
    assert world.producer.flush(30) == 0
    wait_until(lambda: "Counted by a sample" in client.get("/overview").text, "the decisions are counted")
    page = client.get("/overview").text
    assert world.settings.job_name in page.split('id="instances"')[1]
    assert 'class="chart"' in page
    assert re.search(r"of the last day:\s*<a", page), "the escalation is among the alerts"
