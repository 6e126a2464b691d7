"""What the console keeps from strangers, and from viewers of other systems, on every page."""

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
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from streaming.console import overview
from streaming.console.live import console
from streaming.kafka.clients import last_stable_offsets, partitions_of
from streaming.serve.server import bind
from tests.brokers import free_port
from tests.console.conftest import served
from tests.console.decided import (
    DRAFT,
    HOSTILE,
    HTML,
    PAGES,
    SECRET,
    client_of,
    client_of_viewer,
    draft_token,
    every_page,
    post_draft,
    question_address,
)
from tests.console.site import ORIGIN
from tests.stream.world import LOOKS_BACK, SYSTEM, World

SOON_SECONDS = 15.0  # it takes three on a quiet machine; a client of Kafka alone waits for thirty
WITHOUT_KAFKA = {
    "/overview": 200,
    "/decisions": 503,
    "/alerts": 503,
    "/alerts/x": 503,
    "/changes": 503,
    "/changes/x": 503,
    "/access?subject=user:dana": 503,
    f"/access?system={SYSTEM}": 503,
    f"/draft?document={SYSTEM}/Role/readers": 503,
}

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]


def _hostile_drafts(app: ASGIApp) -> Iterator[tuple[str, str]]:
    name = json.dumps(HOSTILE)
    for documents in (DRAFT, HOSTILE, f"kind: Role\nname: {name}\nspec: {{{name}: 1}}\n"):
        for system in (SYSTEM, HOSTILE):
            yield f"/draft {documents[:20]}", post_draft(app, documents, system, prune=HOSTILE).text
    statement = {"effect": "allow", "action": "*", "resource": "*"}
    roles = [{"kind": "Role", "name": "h", "spec": {"statements": [statement], "description": HOSTILE}}]
    groups = [{"kind": "Group", "name": "h", "spec": {"roles": ["h"], "members": [f"user:{HOSTILE}{'x' * 9000}"]}}]
    yield "/draft", post_draft(app, "---\n".join(json.dumps(document) + "\n" for document in (*roles, *groups))).text


def test_no_page_has_a_secret_or_markup_of_somebody_else(app: ASGIApp, client: TestClient) -> None:
    number = 0
    for address, text in itertools.chain(every_page(client), _hostile_drafts(app)):
        number += 1
        assert SECRET not in text, address
        assert "<script>document" not in text, address
        assert "<img src=x" not in text, address
        assert not {"\u202e", "\u0007"} & set(text), address
        assert "1337" not in text, address
        assert not re.search(r"<style|\sstyle=|javascript:", text), address
    assert number > 10


def test_the_console_writes_nothing_and_takes_get_alone(app: ASGIApp, client: TestClient, world: World) -> None:
    topics = (*world.names.requests, world.names.decisions, world.names.history, world.policies)
    partitions = partitions_of(world.admin, topics)
    before = last_stable_offsets(world.admin, partitions)
    for address in (*PAGES, "/decisions/x"):
        for method in ("POST", "PUT", "DELETE"):
            refused = 403 if (method, address) == ("POST", "/draft") else 405
            assert client.request(method, address, headers={"origin": ORIGIN}).status_code == refused, address
    list(every_page(client))
    assert post_draft(app, DRAFT).status_code == 200
    assert last_stable_offsets(world.admin, partitions) == before


def test_a_viewer_sees_its_systems_alone_on_every_page(others: ASGIApp, client: TestClient) -> None:
    seen = [one for one, text in every_page(client) if "Role/" in text and one not in ("/decisions/x", "/nothing")]
    assert {one.split("/")[1].split("?")[0] for one in seen} >= {"decisions", "alerts", "changes", "access", "ask"}
    carl, olga = client_of_viewer(others, "carl"), client_of_viewer(others, "olga")
    for address in seen:
        answer, whole = carl.get(address, headers=HTML), olga.get(address, headers=HTML)
        without_form = re.sub(r"(?s)<form class=.tools.*?</form>", "", answer.text)
        assert "Role/" not in without_form, address
        assert "Lenses 6" not in answer.text, address
        assert (whole.status_code, "Role/" in whole.text) == (200, True), address
        if re.match(r"/(decisions|alerts|changes)/", address):
            assert answer.status_code == 404, address
    assert "system: choose one" in carl.get(question_address("dana", "orders", who="1")).text
    for name in (SYSTEM, "Lenses6", ""):  # the request may name a system of its own
        hidden = carl.get(
            question_address("dana", "orders", system=LOOKS_BACK, who="1", more=f"{{system: '{name}'}}")
        ).text
        assert "names another language" in html.unescape(hidden), name
        assert "Role/" not in hidden
    assert "No language has a statement" in carl.get("/access", params={"subject": "user:dana"}).text
    of_resource = carl.get("/access", params={"resource": "kafka:topic:prod/main/orders"}).text
    assert ("StreamSets" in of_resource, "Role/" in of_resource) == (True, False)
    assert "user:dana" not in re.sub(r"(?s)<form class=.tools.*?</form>", "", of_resource)
    fields = {"token": draft_token(carl), "system": SYSTEM, "documents": DRAFT}
    same = {"origin": ORIGIN}
    assert "choose a language" in carl.post("/draft", data=fields, headers=same).text
    assert "would be answered otherwise" in olga.post("/draft", data=fields, headers=same).text


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
    assert client_of(app).get("/overview/events").status_code == 503
    monkeypatch.setattr(overview, "MOST_STREAMS", 1)
    monkeypatch.setattr(overview, "STREAM_SECONDS", 0.0)
    for _ in range(3):  # each leaves room when it ends
        assert client_of(app).get("/overview/events").status_code == 200


def test_another_host_sees_nothing(client: TestClient) -> None:
    for page in PAGES:
        refused = client.get(page, headers={"host": "evil.example"})
        assert (refused.status_code, "dana" in refused.text) == (403, False)
        assert "frame-ancestors 'none'" in client.get(page).headers["content-security-policy"]


@pytest.mark.parametrize("answers", [False, True], ids=["nobody listens", "nobody answers"])
def test_without_kafka_each_page_says_so_soon(world: World, answers: bool) -> None:
    with contextlib.ExitStack() as stack:
        server = f"localhost:{free_port()}"
        if answers:
            silent = stack.enter_context(contextlib.closing(bind("127.0.0.1", 0)))
            silent.listen()
            server = "{}:{}".format(*silent.getsockname())
        away = msgspec.structs.replace(world.settings, bootstrap_servers=server)
        client = client_of(stack.enter_context(console(away, threading.Event())))
        assert client.get(question_address("dana", "orders")).status_code == 503
        began = time.monotonic()
        with ThreadPoolExecutor(len(WITHOUT_KAFKA)) as pool:  # nor does one page wait for another
            for address, response in zip(WITHOUT_KAFKA, pool.map(client.get, WITHOUT_KAFKA), strict=True):
                assert time.monotonic() - began < SOON_SECONDS, address
                assert response.status_code == WITHOUT_KAFKA[address], address
                assert "Kafka does not answer" in response.text, address
                assert server not in response.text
