"""A question by a form is answered as it stands there, or the page says what of it does not count."""

import html
import json
import time
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from policy import compile_documents
from streaming.console import console
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read
from tests.console.decided import READERS, question_address
from tests.console.test_in_force import GROUP, client, follower, in_force, pages_alone

__all__ = ["client", "follower", "in_force", "pages_alone"]  # fixtures

TOPIC = "authz.policies.lenses6.v1"
NEAREST = "<h3>Nearest</h3>"


@pytest.fixture(autouse=True)
def _policies(follower: Follower) -> None:
    offsets = {TOPIC: {"0": 5}}
    follower.read = Read(compile_documents([READERS, GROUP]), time.monotonic(), offsets, -1, offsets)


def _ask(client: TestClient, user: str = "dana", **more: str) -> str:
    return html.unescape(client.get(question_address(user, "orders", **more)).text)


@pytest.mark.parametrize(
    ("more", "behind"),
    [
        (f"context: {{min_policy_offsets: {{{TOPIC}: {{'0': 5}}}}}}", ""),
        (f"context: {{min_policy_offsets: {{{TOPIC}: {{'0': 6}}}}}}", f"offset 6 of {TOPIC}-0 is beyond the newest, 5"),
        ("context: {min_policy_offsets: {other: {'0': 1}}}", "'other' is not a policy topic"),
        ("evaluations: [{context: {min_policy_offsets: {other: {'0': 1}}}}, {}]", "'other' is not a policy topic"),
    ],
)
def test_policies_that_are_older_than_the_question_wants_allow_nothing(
    client: TestClient, more: str, behind: str
) -> None:
    page = _ask(client, more=more, who="1")
    assert ('class="tag error"' in page, 'class="tag allow"' in page) == (bool(behind), not behind)
    assert behind in page
    assert (" allow: " in page or ">allow: " in page, "error: user:dana" in page) == (not behind, bool(behind))
    assert ('id="who"' in page) == (not behind)


def test_a_request_may_stand_in_more_alone(client: TestClient) -> None:
    page = html.unescape(client.get(question_address("dana", "orders")).text)
    parts = {
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
    }
    alone = html.unescape(client.get("/ask", params={"system": "lenses6", "more": json.dumps(parts)}).text)
    reasons = [shown.split("<h3>Decided by</h3>")[1].split("</ul>")[0] for shown in (page, alone)]
    assert reasons[0] == reasons[1]
    assert "lenses6/Role/readers" in reasons[0]


def test_a_batch_is_answered_also_where_one_asks_who_else_can(client: TestClient) -> None:
    """Who else can is a question of one action on one resource: it is not offered, and hides no answer."""
    page = _ask(client, more="evaluations: [{}, {action: {name: 'kafka:DeleteTopic'}}]", who="1")
    assert page.count('class="tree"') == 1
    assert 'class="tag deny"' in page or 'class="tag allow"' in page
    assert "Who else can?" not in page
    assert "not for a batch" not in page


@pytest.mark.parametrize(("user", "is_denied"), [("dana", False), ("erik", True)])
def test_what_is_nearest_is_not_left_out_in_silence(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, user: str, is_denied: bool
) -> None:
    assert (NEAREST in _ask(client, user)) == is_denied
    assert "Not looked for" not in _ask(client, user)
    monkeypatch.setattr(console, "MOST_NAMES", 1)
    page = _ask(client, user)
    assert (NEAREST in page) == is_denied
    assert ("Not looked for: there are more than 1 principals" in page) == is_denied


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        (question_address("dana", "orders", more="subject: {groups: [readers]}"), "subject: unknown field groups"),
        (question_address("dana", "orders", more="resource: {propertys: {}}"), "resource: unknown field propertys"),
        (question_address("dana", "orders", more="time: 2026-01-01T00:00:00Z"), "the answer is about now"),
        ("/access?system=lenses6&subject=user:dana&more=subject:+{groups:+[readers]}", "subject: unknown field groups"),
        ("/access?subject=user:dana&more=subject:+{groups:+[readers]}", "subject: unknown field groups"),
        (
            "/access?system=lenses6&resource=kafka:topic:a/b/c&more="
            + quote("context: {min_policy_offsets: {other: {'0': 1}}}"),
            "context.min_policy_offsets: nothing is compared with offsets here",
        ),
    ],
)
def test_what_would_not_count_is_refused(client: TestClient, address: str, problem: str) -> None:
    page = client.get(address)
    assert page.status_code == 200
    assert problem in html.unescape(page.text)
    assert 'class="tag allow"' not in page.text


def test_a_document_is_looked_for_by_its_very_name(client: TestClient) -> None:
    """`Role/readers ` with a blank at its end is another one than `Role/readers`."""
    page = client.get("/decisions", params={"document": "lenses6/Role/readers ", "since": "never"})
    assert 'value="lenses6/Role/readers "' in page.text
