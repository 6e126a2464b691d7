"""The console over a real job: past decisions under the policies of their moment and of today, questions, access."""

import html
import itertools
import json
import re
import time
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.console.decided import (
    HOSTILE,
    PAGES,
    addresses_in,
    addresses_of,
    asked_requests,
    question_address,
)
from tests.stream.world import SYSTEM, World

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]


def _escalation(client: TestClient) -> str:
    """The page of the alert about a change that gives somebody everything."""
    [address] = addresses_in(client.get("/alerts", params={"kind": "privilege-escalation"}).text, "alerts")
    return address


def test_the_newest_decisions_are_first_and_each_filter_counts(client: TestClient) -> None:
    page = client.get("/decisions").text
    assert len(addresses_in(page)) == len(asked_requests())
    for filter_, number in (
        ({"subject": "user:dana"}, 3),
        ({"subject": "user:d*"}, 3),
        ({"outcome": "deny"}, 3),
        ({"request_id": "r-1"}, 1),
        ({"document": f"{SYSTEM}/Role/frozen"}, 2),
        ({"resource": "kafka:topic:prod/main/audit"}, 2),
        ({"system": "cdap"}, 0),
        ({"until": "2020-01-01T00:00:00Z"}, 0),
        ({"since": "1h", "subject": "user:erik"}, 1),
    ):
        found = addresses_in(client.get("/decisions", params=filter_).text)
        assert len(found) == number, filter_
    assert 'role="alert">since: ' in client.get("/decisions", params={"since": "yesterday"}).text
    assert 'role="alert">since 0h: ' in client.get("/decisions", params={"since": "0h"}).text
    assert 'role="alert">until: ' in client.get("/decisions", params={"until": "yesterday"}).text


def test_a_decision_is_shown_as_of_its_moment_and_as_of_today(client: TestClient) -> None:
    [address] = addresses_in(client.get("/decisions", params={"request_id": "r-2"}).text)
    client.get(address)  # documents are read on, not again
    page = client.get(address).text
    then, today = page.split('id="today"')
    assert f"denied by {SYSTEM}/Role/frozen statement 0" in then
    assert "Evaluated again under the policies of its moment: the same as recorded." in then
    assert f"allowed by {SYSTEM}/Role/readers statement 0" in today
    determining = today.split("Determining: ")[1]
    assert f"{SYSTEM}/Role/frozen" in determining
    assert re.search(r'class="decides"><td class="n">\d+</td><td><code>  - effect: deny', determining)


def test_the_page_of_a_batch_says_so_and_has_each_determining_statement_once(client: TestClient) -> None:
    """A thousand evaluations may be decided by the same statement."""
    [address] = addresses_in(client.get("/decisions", params={"request_id": "batch"}).text)
    page = client.get(address).text
    assert "and others: a batch of 4" in page.split("</h1>")[0]
    assert [page.count(f'Determining: <bdi class="name">{SYSTEM}/Role/{role}<') for role in ("readers", "frozen")] == [
        1,
        1,
    ]


def test_asking_shows_the_tree_who_else_can_and_what_is_nearest(client: TestClient) -> None:
    assert "has a blank at an end" in client.get(question_address("dana ", "orders")).text
    assert "has a blank at an end" in client.get(question_address("dana", "orders ")).text
    assert client.get(question_address("dana", "x" * 2000)).status_code == 400
    allowed = client.get(question_address("dana", "orders", who="1")).text
    assert "(user:dana → group:readers → role:readers)" in allowed
    assert "any principal that claims" in allowed.split('id="who"')[1]
    denied = client.get(question_address("erik", "orders")).text
    assert "✘ deny" in denied
    assert "Nearest" in denied
    assert "system: choose one" in client.get("/ask?subject=a&system=none").text
    assert "more: not YAML" in client.get(question_address("dana", "orders", more="[")).text


def test_the_access_of_a_subject_has_its_path(client: TestClient) -> None:
    page = client.get("/access", params={"subject": "user:dana"}).text
    assert "kafka:GetTopicDetails on kafka:topic:prod/*" in page
    assert "user:dana → group:readers → role:readers" in page
    readers = next(row for row in page.split("<tr") if f"{SYSTEM}/Role/readers statement 0" in row)
    assert "<time" in readers, "when it decided last"
    assert "no document names it" in client.get("/access", params={"subject": "user:nobody"}).text


def test_the_access_to_a_resource_has_who_may_do_what_by_which_path(client: TestClient) -> None:
    page = client.get("/access", params={"resource": "kafka:topic:prod/main/orders"}).text
    rows = [row for row in page.split("<tr") if "user:dana" in row]
    assert any("kafka:GetTopicDetails" in row and "user:dana → group:readers → role:readers" in row for row in rows)
    assert any("user:trent" in row and "kafka:DeleteTopic" in row for row in page.split("<tr"))
    assert "No language has a statement" in client.get("/access", params={"resource": "nothing"}).text
    chosen = client.get("/access", params={"resource": "nothing", "system": SYSTEM}).text
    assert 'class="hint"' in chosen
    [address] = addresses_in(client.get("/decisions", params={"request_id": "r-1"}).text)
    [others] = re.findall(r'href="(/access\?[^"]+)"', client.get(address).text)
    assert "user:trent" in client.get(html.unescape(others)).text


def test_statements_that_decided_nothing_lately_are_listed_first(client: TestClient) -> None:
    rows = client.get("/access", params={"system": SYSTEM}).text.split("<tr>")[1:]
    used = {row.split("</bdi>")[0].rpartition(">")[2]: "<time" in row for row in rows if "statement" in row}
    assert used == {f"{SYSTEM}/Role/root statement 0": False, f"{SYSTEM}/Role/readers statement 0": True}
    assert list(used.values()) == [False, True]
    assert "No document of this language" in client.get("/access", params={"system": "cdap"}).text


def test_a_form_completes_the_names_of_documents(client: TestClient) -> None:
    page = client.get(question_address("dana", "orders")).text
    assert '<option value="user:dana">' in page.split('id="subjects"')[1]
    assert "<option" not in client.get("/ask", params={"system": "none"}).text.split('id="subjects"')[1]


def test_the_changes_are_listed_and_each_says_who_gained_and_lost(client: TestClient) -> None:
    page = client.get("/changes").text
    assert len(addresses_in(page, "changes")) >= 2
    for filter_, number in (
        ({"document": "Role/root"}, 1),
        ({"document": f"{SYSTEM}/Role/root"}, 1),
        ({"author": "<script>"}, 1),
        ({"system": "cdap"}, 0),
        ({"until": "2020-01-01T00:00:00Z"}, 0),
    ):
        addresses = addresses_in(client.get("/changes", params=filter_).text, "changes")
        assert len(addresses) == number, filter_
    assert 'role="alert">' in client.get("/changes", params={"since": "yesterday"}).text
    [address] = addresses_in(client.get("/changes", params={"document": "Role/root"}).text, "changes")
    gained = client.get(address).text
    assert "user:trent" in gained.split('id="gave"')[1].split('id="opens"')[0]
    assert "may * on *" in gained.split('id="opens"')[1].split('id="documents"')[0]
    assert re.search(r'class="plus"><td class="n">\+</td><td><code>kind: Role', gained)
    assert f"lockkeeper policy rollback {address.rpartition('/')[2]}" in gained


def test_a_change_shows_which_of_the_newest_requests_it_turns(client: TestClient) -> None:
    changes = addresses_in(client.get("/changes", params={"document": "Role/frozen"}).text, "changes")
    page = client.get(changes[-1], params={"compare": "1"}).text.split('id="turned"')[1]
    assert "requests of the language are answered otherwise" in page
    assert "user:trent" not in page


def test_an_alert_leads_to_the_change_that_opened_it(client: TestClient) -> None:
    page = client.get(_escalation(client)).text
    assert f"{SYSTEM}/Role/root" in page
    evidence = page.split('id="evidence"')[1]
    [change] = set(addresses_in(evidence, "changes"))
    assert "user:trent" in client.get(change).text
    for filter_, number in (({"severity": "low"}, 0), ({"subject": "nobody"}, 0), ({"system": "cdap"}, 0)):
        assert len(addresses_in(client.get("/alerts", params=filter_).text, "alerts")) == number, filter_


def test_the_overview_leads_to_the_alerts_of_the_last_day(client: TestClient, world: World) -> None:
    old = {"id": "old", "kind": "denial-burst", "severity": "critical", "subject": "user:a", "message": "", "time": ""}
    two_days_ago = time.time_ns() // 1_000_000 - 2 * 24 * 3600 * 1000
    world.producer.produce(world.names.alerts, json.dumps(old).encode(), timestamp=two_days_ago)
    assert world.producer.flush(30) == 0
    counted = re.findall(
        r'<a href="(/alerts\?severity=[^"]+)"><span[^>]*>\w+</span> (\d+)', client.get("/overview").text
    )
    assert counted, "the escalation is among the alerts"
    for address, count in counted:
        assert len(addresses_in(client.get(html.unescape(address)).text, "alerts")) == int(count), address


def test_nothing_that_is_not_there_is_an_error_of_the_server(client: TestClient) -> None:
    assert client.get("/decisions/nothing-0-1").status_code == 404
    for page in ("decisions", "changes", "alerts"):
        assert client.get(f"/{page}/nothing").status_code == 404
    assert client.get("/decisions/" + quote(HOSTILE, safe="")).status_code == 404
    for page, times in itertools.product(PAGES, (1, 60)):
        fields = dict.fromkeys(("subject", "system", "action", "since", "more"), HOSTILE * times)
        response = client.get(page, params=fields)
        is_refused = times > 1 and page != "/overview"  # which reads no field
        assert response.status_code == (400 if is_refused else 200), page
        assert "<script>document" not in response.text


def test_each_page_is_answered_again_and_again(client: TestClient) -> None:
    """And how long that takes, as a figure."""
    lists = [addresses_of(client, page)[0] for page in ("decisions", "changes", "alerts")]
    addresses = (*PAGES, *lists, question_address("dana", "orders"))
    times = {address[:14]: min(_milliseconds(client, address) for _ in range(5)) for address in addresses}
    print("ms", times)
    assert len(times) == len(addresses)


def _milliseconds(client: TestClient, address: str) -> int:
    began = time.perf_counter()
    assert client.get(address).status_code == 200
    return round((time.perf_counter() - began) * 1000)


def test_a_first_visit_loads_little(client: TestClient) -> None:
    sizes = {}
    for page in (
        *PAGES,
        *(addresses_of(client, name)[0] for name in ("decisions", "changes", "alerts")),
        "/playground",
    ):
        whole = client.get(page)
        files = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', whole.text))
        loaded = [client.get(file, headers={"accept-encoding": "gzip"}) for file in files]
        sizes[page[:12]] = len(whole.content) + sum(int(file.headers["content-length"]) for file in loaded)
    print("bytes", sizes)
    assert max(sizes.values()) <= 100_000
