"""Policies, requests and what the job would write about them, without Kafka; and a report made of all of it."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from policy import DocumentStore, Snapshot, decide, to_text
from policy.analysis.usage import statements
from policy.core.document import identify
from streaming.history.records import ConsumerRecord
from streaming.history.span import Span
from streaming.report.decisions import StatementTotals, StoredVersion, Tally, find_unused
from streaming.report.gather import Report
from streaming.report.incidents import sum_up_alerts, sum_up_changes, sum_up_dead_letters
from streaming.report.requests import AnswerIndex, Replay, RequestAnalysis
from streaming.settings import DEFAULT_TRUST, MIB

BEGIN = 1_795_258_800_000  # 2026-11-21T11:00:00Z
HOUR = 3_600_000
SPAN = Span(BEGIN, BEGIN + 24 * HOUR)
REQUESTS, DECISIONS, ALERTS, DEAD = "requests", "decisions", "alerts", "requests.dlq"
TOPIC_ID = "topic-id"


def role(name: str, *statements: tuple[str, str, str]) -> dict[str, Any]:
    """A role with statements: effect, action and resource each."""
    listed = [{"effect": effect, "action": action, "resource": resource} for effect, action, resource in statements]
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": listed}}


def group(name: str, roles: list[str], *members: str) -> dict[str, Any]:
    """A group with roles."""
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": roles, "members": list(members)}}


def query(user: str, action: str, topic: str, **more: Any) -> dict[str, Any]:
    """May a user do something on a topic?"""
    return {
        "id": f"{user}-{action}-{topic}",
        "system": "lenses6",
        "subject": {"type": "user", "id": user},
        "action": {"name": f"kafka:{action}"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
        **more,
    }


def decision_record(request: dict[str, Any], answer: dict[str, Any], offset: int, **context: Any) -> dict[str, Any]:
    """What the job writes about the request at an offset."""
    source = {"topic": REQUESTS, "partition": 0, "offset": offset}
    about = {**answer["context"], "source": source, "policy_offsets": {"policies": {"0": 99}}, **context}
    head = {"id": f"{TOPIC_ID}-0-{offset}", "request_id": request["id"], "system": request["system"], "time": "?"}
    return {**head, **answer, "context": about}


def record(topic: str, offset: int, at: int, value: Any, key: str = "k") -> ConsumerRecord:
    """A record; bytes stand as they are, anything else becomes JSON."""
    return ConsumerRecord(
        topic, 0, offset, at, key.encode(), value if isinstance(value, bytes) else json.dumps(value).encode()
    )


class World:
    """Documents in force at offset 0 and up, and requests that are decided as they are asked."""

    def __init__(self, *documents: dict[str, Any], published: int = 0) -> None:
        store = DocumentStore()
        self.policies: list[ConsumerRecord] = []
        for offset, document in enumerate(documents):
            assert store.put(document, published, offset) is None
            key = f"{document['kind']}/{document['name']}"
            self.policies.append(record("policies", offset, published, document, key))
        self.snapshot = Snapshot(store)
        versions = {str(identify(d)): StoredVersion("policies", n, published) for n, d in enumerate(documents)}
        self.written = statements(self.snapshot)
        self.stored = {origin: versions[origin.document] for origin in self.written}
        self.requests: list[ConsumerRecord] = []
        self.decisions: list[ConsumerRecord] = []
        self.alerts: list[ConsumerRecord] = []
        self.dead: list[ConsumerRecord] = []

    def ask(self, request: dict[str, Any], times: int = 1, at: int = BEGIN, took: int = 0, **context: Any) -> None:
        """Send a request, some times, and decide it as the job does, so many ms later."""
        answer = decide(self.snapshot, request, trust=DEFAULT_TRUST).to_record()
        for _ in range(times):
            offset = len(self.requests)
            self.requests.append(record(REQUESTS, offset, at, request))
            decision = decision_record(request, answer, offset, **context) | {"time": to_text(at)}
            self.decisions.append(record(DECISIONS, offset, at + took, decision))

    def alert(self, at: int = BEGIN, **fields: Any) -> None:
        """Raise an alert."""
        usual = {
            "id": f"a-{len(self.alerts)}",
            "kind": "denial-burst",
            "severity": "medium",
            "time": "?",
            "subject": "user:x",
        }
        value = {**usual, "message": "too many", "evidence": [], **fields}
        self.alerts.append(record(ALERTS, len(self.alerts), at, value))

    def dead_letter(self, why: str, at: int = BEGIN, topic: str = REQUESTS) -> None:
        """A record that was no request."""
        fields = {"topic": topic, "exception.message": why}
        headers = tuple((f"__connect.errors.{name}", text.encode()) for name, text in fields.items())
        self.dead.append(ConsumerRecord(DEAD, 0, len(self.dead), at, b"k", b"?", headers))

    def tally(self, span: Span = SPAN) -> tuple[Tally, AnswerIndex]:
        """The decisions, counted."""
        answered = AnswerIndex({REQUESTS: TOPIC_ID})
        counted = Tally(span, self.stored, answered)
        for each in self.decisions:
            counted.take(each)
        return counted, answered

    def analyse_requests(self, answered: AnswerIndex, replay: int = 1000) -> tuple[RequestAnalysis, Replay]:
        """The requests, looked at."""
        asked = Replay(self.snapshot, replay)
        topics = {one.topic for one in self.requests if b'"answered"' in one.value}
        looked_at = RequestAnalysis(answered, {REQUESTS: DEFAULT_TRUST}, topics, asked)
        for each in self.requests:
            looked_at.take(each)
        return looked_at, asked

    def statements(self, span: Span = SPAN, replay: int = 1000) -> StatementTotals:
        """What is said of the statements."""
        counted, answered = self.tally(span)
        _, asked = self.analyse_requests(answered, replay)
        return find_unused(self.written, self.stored, counted.named, asked, span)

    def report(self, span: Span = SPAN, top: int = 20, changes: Iterable[ConsumerRecord] = ()) -> Report:
        """All of it."""
        counted, answered = self.tally(span)
        looked_at, asked = self.analyse_requests(answered)
        followed = itertools.chain(self.policies, changes)
        return Report(
            "lockkeeper",
            span,
            span.end,
            counted.totals(),
            looked_at.denied(top),
            find_unused(self.written, self.stored, counted.named, asked, span),
            sum_up_alerts(self.alerts, span),
            sum_up_changes(followed, {"policies": "lenses6"}, MIB, span),
            sum_up_dead_letters(self.dead, span),
        )


def plain(value: Any) -> Any:
    """A struct as plain data."""
    return msgspec.to_builtins(value)
