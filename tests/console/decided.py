"""A console over a real job for tests: what was decided, the addresses of its pages, and clients that ask for them."""

import html
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient
from starlette.types import ASGIApp

from tests.brokers import TestBroker
from tests.console.site import ORIGIN
from tests.stream.running import running
from tests.stream.world import SYSTEM, World, group, request, role

HTML = {"accept": "text/html"}
SECRET = "hidden-3141592653"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202eevil\u0007'\"{{7*191}}"
READERS, FROZEN = role("readers", "kafka:topic:prod/*"), role("frozen", "kafka:topic:prod/main/audit", effect="deny")
ASKED = (("dana", "orders"), ("dana", "audit"), ("erik", "orders"))
PAGES = ("/overview", "/decisions", "/alerts", "/changes", "/ask", "/access", "/draft")
DRAFT = """\
kind: Role
name: readers
spec:
  statements:
    - {effect: deny, action: "kafka:*", resource: "kafka:topic:prod/main/orders"}
"""
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


def asked_requests() -> list[dict[str, Any]]:
    audit = {"resource": {"type": "lrn", "id": "kafka:topic:prod/main/audit"}}
    evaluations = [{}, {"action": {"name": "kafka:DeleteTopic"}}, {}, audit]
    several = request("batch", "dana", "orders", evaluations=evaluations)
    strange = request(HOSTILE[:200], HOSTILE, f"{HOSTILE}{'x' * 9000}")
    return [
        request("r-1", "dana", "orders"),
        request("r-2", "dana", "audit"),
        request("r-3", "erik", "orders"),
        several,
        strange,
    ]


def opens_root(message: Any) -> bool:
    return b"Role/root" in message.value() and b'"widens"' in message.value()


def write_hostile_records(world: World) -> None:
    """An alert and a change as nobody but the job could write them."""
    state = {"policy_offsets": {world.policies: {"0": 0}}, "policy_version": HOSTILE}
    said = dict.fromkeys(("id", "author", "commit", "reason"), HOSTILE)
    documents = [{"key": f"{SYSTEM}/Role/{HOSTILE}", "change": "changed", "offset": 0}]
    counted = {"documents": documents, "documents_count": 1}
    change = {**said, "system": SYSTEM, "time": "2026-11-21T10:00:00Z", "before": state, "after": state, **counted}
    for topic, value in ((world.names.alerts, HOSTILE_ALERT), (world.names.changes, change)):
        world.producer.produce(topic, json.dumps(value).encode())
    assert world.producer.flush(30) == 0


def client_of(app: ASGIApp) -> TestClient:
    return TestClient(app, base_url=ORIGIN, raise_server_exceptions=False, follow_redirects=False)


def question_address(user: str, topic: str, **more: str) -> str:
    fields = {
        "subject": f"user:{user}",
        "action": "kafka:GetTopicDetails",
        "resource": f"kafka:topic:prod/main/{topic}",
    }
    return f"/ask?{urlencode({'system': SYSTEM, **fields, **more})}"


def addresses_in(text: str, page: str = "decisions") -> list[str]:
    return [html.unescape(found) for found in re.findall(rf'href="(/{page}/[^"]+)"', text)]


def addresses_of(client: TestClient, page: str) -> list[str]:
    return addresses_in(client.get(f"/{page}").text, page)


def every_page(client: TestClient) -> Iterator[tuple[str, str]]:
    addresses = [one for page in ("decisions", "changes", "alerts") for one in addresses_of(client, page)]
    addresses += [f"{one}?compare=1" for one in addresses if one.startswith("/changes")]
    strange = question_address(HOSTILE, HOSTILE, who="1", groups=HOSTILE, more=HOSTILE)
    more = (
        "/access?subject=user:dana",
        f"/access?system={SYSTEM}",
        "/access?resource=kafka:topic:prod/main/orders",
        f"/access?{urlencode({'resource': HOSTILE, 'more': HOSTILE, 'system': SYSTEM})}",
        f"/draft?document={SYSTEM}/Role/readers",
        question_address("dana", "orders", who="1"),
        strange,
        "/playground",
        "/nothing",
        "/decisions/x",
    )
    for address in (*PAGES, *addresses, *more):
        yield address, client.get(address, headers={"accept": "text/html"}).text


def draft_token(client: TestClient) -> str:
    return html.unescape(re.findall(r'name="token" value="([^"]+)"', client.get("/draft").text)[0])


def post_draft(app: ASGIApp, documents: str, system: str = SYSTEM, **more: str) -> Any:
    client = client_of(app)
    fields = {"token": draft_token(client), "system": system, "documents": documents, **more}
    return client.post("/draft", data=fields, headers={"origin": ORIGIN, "sec-fetch-site": "same-origin"})


def client_of_viewer(app: ASGIApp, name: str) -> TestClient:
    client = TestClient(app, ORIGIN, raise_server_exceptions=False, follow_redirects=False, client=("127.0.0.1", 4000))
    client.headers["x-user"] = name
    return client


def decided_world(broker: TestBroker, checkpoint: str) -> World:
    """Decisions of a real job; afterwards the deny is lifted, so that today's answer is another one."""
    found = World(broker, f"console-{time.time_ns()}", checkpoint)
    both = {**group("readers", "user:dana"), "spec": {"roles": ["readers", "frozen"], "members": ["user:dana"]}}
    for document in (READERS, FROZEN, both):
        found.publish(document)
    with running(found.settings):
        found.send(asked_requests())
        decisions = found.reader(found.names.decisions)
        decisions.until(lambda records: len(records) >= len(asked_requests()), "all requests are decided", 180)
        for document in (ADMINS, ROOT):
            found.publish(document)
        alerts, changes = found.reader(found.names.alerts), found.reader(found.names.changes)
        alerts.until(lambda records: bool(records), "the escalation is an alert", 60)
        changes.until(lambda records: any(map(opens_root, records)), "what it opens is known", 60)
    found.delete("Role/frozen")
    write_hostile_records(found)
    return found
