"""What a viewer of some systems is told of the others: nothing, also not by what the systems have in common."""

import html
import threading
import time

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient

from policy import compile_documents
from streaming.console.changes import history_seen_by
from streaming.console.guard import Guard, Tokens
from streaming.console.in_force import InForce
from streaming.console.overview import Overview
from streaming.console.pages import Pages, StaticFiles
from streaming.console.pulse import Instance, Look, Pulse
from streaming.console.server import application
from streaming.console.signing_in import SignedIn
from streaming.console.unseen import FOR_OPERATORS, UnseenTopics
from streaming.console.viewer import EVERYTHING, Viewer
from streaming.decision_log.status import GroupStatus, Status, TopicStatus
from streaming.kafka.clients import admin_client
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read
from streaming.records.change import DocumentChange, PolicyChange, PolicyState
from streaming.serve.authentication import LOCAL
from streaming.snapshots.logged import ChangeHistory, LoggedChange, NoSuchChange
from tests.console.decided import client_of
from tests.console.test_in_force import SETTINGS, follower, in_force, pages_alone, site_of

__all__ = ["follower", "in_force", "pages_alone"]  # fixtures

CARL = Viewer("carl", frozenset({"cdap"}))
TOPICS = SETTINGS.topics.policy_topics()
HIDDEN, SEEN = TOPICS["lenses6"], TOPICS["cdap"]
REFUSED = f"The console may not read:\nkafka-acls --topic {HIDDEN} --operation Read"


class As:
    """Everybody is this viewer."""

    routes: list[BaseRoute] = []

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer

    def viewer(self, _request: HTTPConnection) -> Viewer:
        return self._viewer


def _change(id_: str, system: str) -> LoggedChange:
    state = PolicyState({TOPICS[system]: {"0": 1}}, "sha256:1")
    documents = (DocumentChange(f"{system}/Kind/a", "added", 1),)
    said = {"id": id_, "system": system, "time": "2026-11-28T10:00:00Z", "before": state, "after": state}
    part = PolicyChange(**said, documents=documents, documents_count=1)
    return LoggedChange(id_, [part], [], f"name-of-{id_}")


def test_a_change_is_named_among_those_that_the_viewer_sees() -> None:
    """HEAD~1 would count the others; that several ids begin so would say that there is another."""
    hidden = [_change(id_, "lenses6") for id_ in ("abcd-1", "ffff-1", "ffff-2")]
    every = ChangeHistory([_change("abcd-2", "cdap"), *hidden[:2], _change("eeee-1", "cdap"), hidden[2]])
    seen = history_seen_by(CARL, every)
    assert [seen.find(text).id for text in ("HEAD", "HEAD~1", "abcd")] == ["eeee-1", "abcd-2", "abcd-2"]
    for text in ("HEAD~2", "ffff", "ffff-1", "name-of-ffff-1"):
        with pytest.raises(NoSuchChange):
            seen.find(text)
    assert history_seen_by(EVERYTHING, every).find("HEAD").id == "ffff-2"


@pytest.mark.parametrize(
    ("topic", "said"),
    [(HIDDEN, f"'{HIDDEN}' is not a policy topic"), (SEEN, f"offset 9 of {SEEN}-0 is beyond the newest, 4")],
)
def test_how_far_a_topic_is_read_is_said_of_those_that_the_viewer_sees(
    follower: Follower, pages_alone: Guard, topic: str, said: str
) -> None:
    offsets = {HIDDEN: {"0": 7}, SEEN: {"0": 4}}
    follower.read = Read(compile_documents([]), time.monotonic(), offsets, -1, offsets)
    inner = pages_alone._app
    assert isinstance(inner, SignedIn)
    client = client_of(Guard(SignedIn(inner._app, As(CARL), Pages(StaticFiles())), LOCAL))
    fields = {"system": "cdap", "subject": "dana", "action": "dataset.read", "resource": "dataset:a.b"}
    asked = {**fields, "more": f"context: {{min_policy_offsets: {{{topic}: {{'0': 9}}}}}}"}
    page = html.unescape(client.get("/ask", params=asked).text)
    assert 'class="tag error"' in page
    assert said in page
    assert "the newest, 7" not in page


def _refused(_request: Request) -> Response:
    raise HTTPException(503, REFUSED)


@pytest.mark.parametrize(("viewer", "message"), [(CARL, FOR_OPERATORS), (EVERYTHING, REFUSED)])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_an_error_names_no_topic_of_a_system_that_is_not_seen(viewer: Viewer, message: str, accept: str) -> None:
    pages, static = Pages(StaticFiles()), StaticFiles()
    app = application([Route("/x", _refused)], pages, static, UnseenTopics(SETTINGS).text_for)
    client = TestClient(SignedIn(app, As(viewer), pages), raise_server_exceptions=False)
    answer = client.get("/x", headers={"accept": accept})
    shown = html.unescape(answer.text) if accept == "text/html" else answer.json()["problem"]["message"]
    assert (answer.status_code, message in shown, HIDDEN in shown) == (503, True, viewer is EVERYTHING)


@pytest.mark.parametrize(
    "text",
    [
        f"{HIDDEN} at offset 5: compaction may have removed what was in force then",
        "lenses6/Role/secret: refused, and its last good version may have been removed",
        f"cdap: {HIDDEN} at offset 5: kept from offset 6 on",
    ],
)
def test_why_policies_are_no_longer_known_names_nothing_that_is_not_seen(text: str) -> None:
    """A decision rests on the offsets of all policy topics, so what lacks may be of any system."""
    unseen = UnseenTopics(SETTINGS)
    assert (unseen.text_for(CARL, text), unseen.text_for(EVERYTHING, text)) == (FOR_OPERATORS, text)
    own = f"{SEEN} at offset 5: compaction may have removed what was in force then"
    assert [unseen.text_for(CARL, each) for each in (own, "cdap/Grant/a: refused")] == [own, "cdap/Grant/a: refused"]


def _look() -> Look:
    topics = (TopicStatus(HIDDEN, 1, 78, 0, 5), TopicStatus(SEEN, 1, 4, 0, 5))
    group = GroupStatus("job", 1, "c", None, topics)
    problems = (f"{HIDDEN}: an open transaction hides 3 records from readers", "the monitor is away")
    instances = (Instance("serve-of-lenses", "sha256:2", 5.0),)
    return Look((), (), instances, Status(1, group, group, None, {HIDDEN: 5, SEEN: 5}, problems), REFUSED, 1)


@pytest.fixture
def overview(follower: Follower, in_force: InForce) -> Overview:
    stop = threading.Event()
    pulse = Pulse(SETTINGS, admin_client(SETTINGS), stop)
    pulse.look = _look()
    offsets = {HIDDEN: {"0": 7}}
    follower.read = Read(compile_documents([]), time.monotonic(), offsets, -1, offsets)
    return Overview(site_of(in_force, Pages(StaticFiles(), token=Tokens().of)), pulse, stop)


@pytest.mark.parametrize(("viewer", "waiting"), [(CARL, 3), (EVERYTHING, 80)])
def test_the_overview_says_nothing_of_what_is_not_seen(overview: Overview, viewer: Viewer, waiting: int) -> None:
    event = overview._render(viewer).decode()
    page = html.unescape(event)
    is_all = viewer is EVERYTHING
    told = (HIDDEN, "hides 3 records", "serve-of-lenses", "sha256:", "Lenses 6")
    assert [text in page for text in told] == [is_all] * len(told)
    assert f"{waiting} records to read" in page
    assert "the monitor is away" in page
    assert "CDAP" in page


def test_alerts_that_cannot_be_read_are_not_said_to_be_none(overview: Overview) -> None:
    """Kafka is away here: who is on duty took it for a quiet hour."""
    alerts = overview._render(EVERYTHING).decode().split('id="alerts"')[1].split("</section>")[0]
    assert ("Not known" in alerts, "episode" in alerts, "none" in alerts) == (True, False, False)
