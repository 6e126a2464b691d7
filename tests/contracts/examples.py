"""What the code really reads and writes: requests and documents of all cases, their decisions, and alerts."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from policy.analysis import Answer, Turned, Widening, question_of
from policy.core.model import StatementId
from policy.core.request import Action, MalformedRequest, Request, Resource, Subject, parse_request
from policy.core.times import to_ms, to_text
from policy.store.documents import DocumentStore, Rejected
from policy.store.repository import read_documents
from policy.testing.casefile import load_cases
from policy.testing.run import Scene, scenes
from streaming.alert_kinds import MONITORED
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.monitor import AccessEvent, CountedEvent, DecisionEvent, Input, Key, access_id
from streaming.monitor.processor import alert_of
from streaming.monitor.state import Monitor, Raised, State
from streaming.records.access_change import Cause, Moment, access_change, access_change_record
from streaming.records.alert import encode_alert
from streaming.records.change import (
    ChangeWidens,
    DocumentChange,
    PolicyChange,
    PolicyState,
    change_record,
    widens_record,
)
from streaming.settings import Limits
from streaming.settings.monitor import MonitorSettings
from streaming.snapshots.alerts import policy_rejected, policy_stale, topic_recreated
from streaming.snapshots.documents import Refused
from streaming.topics import DAY_MS

ROOT = Path(__file__).parents[2]
NOW = 1_795_000_000_000
OFFSETS = {"authz.policies.lenses6.v1": {"0": 41}}


class Put(msgspec.Struct, frozen=True):
    """A document, and why the library refused it, if it did."""

    document: dict[str, Any]
    rejected: Rejected | None


@functools.cache
def stages() -> tuple[Scene, ...]:
    """Every stage of every case of the specification."""
    return tuple(scene for path in sorted((ROOT / "tests/cases").glob("*.yaml")) for scene in scenes(load_cases(path)))


@functools.cache
def requests() -> tuple[dict[str, Any], ...]:
    """The requests of all cases, also those that are none."""
    return tuple({"id": "1", **scene.request(one)} for scene in stages() for one in scene.stage.expect)


@functools.cache
def good_requests() -> tuple[dict[str, Any], ...]:
    """Those that are requests."""
    return tuple(request for request in requests() if is_request(request))


def is_request(value: dict[str, Any]) -> bool:
    """Whether the code takes it for a request."""
    try:
        parse_request(value)
    except MalformedRequest:
        return False
    return True


@functools.cache
def documents() -> tuple[Put, ...]:
    """The documents of all cases and of the sample policies, each put alone."""
    return (*_case_documents(), *(_put(found.value, False) for found in read_documents(ROOT / "deploy/policies")))


def _case_documents() -> Iterator[Put]:
    for scene in stages():
        for facts, documents in ((False, scene.stage.apply), (True, scene.stage.facts)):
            yield from (_put({"system": scene.system, **document}, facts) for document in documents)


def _put(document: dict[str, Any], facts: bool) -> Put:
    return Put(document, DocumentStore(facts_only=facts).put(document, None, 1))


@functools.cache
def decisions() -> tuple[bytes, ...]:
    """What the stream answers to the requests of all cases, as it writes it."""
    return tuple(record for scene in stages() for record in _decided(scene))


def _decided(scene: Scene) -> Iterator[bytes]:
    evaluator, source = Evaluator(scene.snapshot, Limits()), Source("requests", 0, "topic-id", scene.stage.claims, 1)
    partition_evaluator = evaluator.for_partition(
        source, EvaluationContext(scene.snapshot.version, OFFSETS, -1, {}, NOW)
    )
    for number, expectation in enumerate(scene.stage.expect):
        asked = {"id": "1", **scene.request(expectation)}
        at = to_ms(asked.pop("time", NOW))
        to, _, record, _ = partition_evaluator.decide(b"key", json.dumps(asked).encode(), None, number, at)
        if to == 0 and record is not None:
            yield record


def alerts() -> list[bytes]:
    """Alerts as the code makes them."""
    refused = Refused("lenses6/Role/x", "authz.policies.lenses6.v1", 7, NOW, ("statements: must be a list", "é"))
    stale = policy_stale("authz.alerts.v1", ("authz.facts.v1", 0), 12, NOW, "no answer")
    recreated = topic_recreated("authz.alerts.v1", "authz.requests.v1", "id-1", "id-2", {0: 17}, NOW)
    made = (policy_rejected("authz.alerts.v1", refused), stale, recreated)
    of_documents = [record for _, _, record, _ in made if record]
    return [*of_documents, *(encode_alert(alert_of(raised)) for raised in _raised())]


def changes() -> list[bytes]:
    """Records of the changes topic as the code makes them: with all that there may be, and with as little."""
    state = PolicyState(OFFSETS, "sha256:9f86d0")
    document = DocumentChange("lenses6/Role/x", "changed", 41)
    claims = {"author": "dana", "commit": "c0ffee", "reason": "why"}
    shared: dict[str, Any] = {"id": "c-1", "system": "lenses6", "time": to_text(NOW)}
    made = [
        PolicyChange(**shared, **claims, before=state, after=state, documents=(document,), documents_count=1),
        PolicyChange(**shared, before=PolicyState(OFFSETS), after=state, documents=(), documents_count=0),
    ]
    lifted = Widening("role:x", "kafka:*", "*", "lenses6/Role/x", 3, "deny-lifted", "lenses6/Group/g", "until …")
    widens = [(), (Widening("role:x", "*", "*", "lenses6/Role/x"), lifted)]
    found = [
        ChangeWidens(**shared, changes=("c-0", "c-1"), widens=some, widens_count=len(some), complete=bool(some))
        for some in widens
    ]
    records = [*(change_record("t", one, 1 << 20) for one in made), *(widens_record("t", w, 1 << 20) for w in found)]
    return [value for _, _, value, _ in records if value]


def access_changes() -> list[bytes]:
    """Records of the access changes topic as the code makes them: with all that there may be, and with as little."""
    asked = {"id": "1", "system": "lenses6", "subject": {"type": "user", "id": "user:dana"}, "action": {"name": "a:B"}}
    resource = {"type": "lrn", "id": "kafka:topic:a/b/c"}
    lost = Answer("allow", (StatementId("lenses6/Role/x", 3), StatementId("lenses6/Role/y"))), Answer("deny")
    found = [
        ({**asked, "resource": resource}, Moment(NOW, "sha256:9f86d0", OFFSETS, -1)),
        (
            {**asked, "system": "cedar", "resource": {**resource, "properties": {"a": [1]}}, "context": {"b": None}},
            Moment(NOW, "sha256:9f86d0", OFFSETS, 7, Cause("c-1", "dana")),
        ),
    ]
    made = (access_change(Turned(question_of(_single(value), frozenset()), *lost), since) for value, since in found)
    records = (access_change_record("t", one, 1 << 20) for one in made)
    return [value for _, _, value, _ in records if value]


def _single(value: dict[str, Any]) -> Request:
    parsed = parse_request(value)
    assert isinstance(parsed, Request)
    return parsed


def _raised() -> list[Raised]:
    """What the monitor raises of a subject who does what was denied, and of 200 occurrences of each other kind."""
    key, monitor, state = Key("subject", "lenses6", "user:dana"), Monitor(MonitorSettings()), State()
    action, resource = Action("kafka:ReadTopicData"), Resource("lrn", "kafka:topic:a/b/c")
    access = access_id(Request("r", "lenses6", Subject("user", key.name), action, resource))
    done = AccessEvent(access, NOW, NOW, "h", "kafka:ReadTopicData on kafka:topic:a/b/c", True, "it is denied")
    counted = [
        CountedEvent(kind, NOW + at, NOW + at, f"{kind}-{at}", "kafka:ReadTopicData on x")
        for kind in MONITORED
        for at in range(200)
    ]
    inputs: list[Input] = [DecisionEvent(access, False, NOW - 1, NOW - 1, ("d",)), done, *counted]
    found = [*monitor.take(key, state, inputs, NOW), *monitor.take(key, state, [], NOW + DAY_MS)]
    return [one for one in found if isinstance(one, Raised)]
