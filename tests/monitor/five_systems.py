"""A day of five systems with planted incidents, judged without Spark: requests as they come, accesses all at the end.

As after a stop of the job: audit events lay unread while policies changed, users logged in and consumer groups moved.
Requests, accesses and their reports differ in what systems do not read. The same seed gives the same day.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy import answer
from policy.core.document import Key
from policy.core.request import parse_request
from policy.core.times import to_text
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, changes_of
from policy.store.snapshot import Snapshot
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import Source
from streaming.records.decision import echo, to_json
from streaming.settings import DEFAULT_TRUST, Limits
from streaming.snapshots.at_offsets import DocumentLog, Retention
from streaming.snapshots.documents import DocumentRecord
from streaming.topics import DAY_MS, TopicNames
from tests.monitor.pure import DECISIONS, LETTERS, T0, VERDICTS, Record

SECOND, MINUTE = 1000, 60_000
START = T0 + 10 * MINUTE
PHASE = 10 * MINUTE
EACH = 3  # of every kind of incident and system
SYSTEMS = ("lenses6", "lenses5", "ververica", "streamsets", "cdap")
OWN = {"workspaceId": "w", "namespaceId": "n"}

ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "lenses6": ("kafka:GetTopicDetails", {"id": "kafka:topic:prod/main/orders"}),
    "lenses5": (
        "kafka.topic.show",
        {"id": "orders", "properties": {"connection": "kafka", "dataset": "orders"}},
    ),
    "ververica": ("read", {"type": "Deployment", "id": "orders", "properties": OWN}),
    "streamsets": ("pipeline.view", {"id": "pipeline:orders"}),
    "cdap": ("dataset.read", {"id": "dataset:shop.orders"}),
}
GROUP = ("kafka-consumers.view", {"id": "billing"})


def subject_of(system: str, user: str) -> str:
    """The id of a user."""
    return f"user:{user}" if system == "lenses6" else user


class Cluster:
    """The policy and facts topics of a day."""

    def __init__(self) -> None:
        self._names = TopicNames()
        topics = self._names.policy_topics()
        retention = {topic: Retention(7 * DAY_MS) for topic in topics.values()}
        self._log, self._ends = DocumentLog(self._names, 1 << 20, START, retention), dict.fromkeys(topics.values(), 0)
        self._facts, self.overlay = DocumentStore(facts_only=True), FactOverlay(all_held_after=START - DAY_MS)
        self.overlay.sees_all_from_now(START - DAY_MS)
        self._rebuilt: dict[int, Snapshot] = {}
        self._answers: dict[int, AuditAnswers] = {}
        self.changes = 0

    def publish(self, at: int, system: str, kind: str, name: str, **spec: Any) -> None:
        """Publish a policy document."""
        topic = self._names.policy_topics()[system]
        value = json.dumps({"system": system, "kind": kind, "name": name, "spec": spec}).encode()
        self._log.add(DocumentRecord(topic, f"{kind}/{name}".encode(), value, self._ends[topic], at))
        self._ends[topic] += 1
        self.changes += 1
        self._log.read_to({(topic, 0): end for topic, end in self._ends.items()})

    def know(self, at: int, system: str, kind: str, name: str, **spec: Any) -> None:
        """Publish a fact."""
        key = Key(system, kind, name)
        self._facts.put({"system": system, "kind": kind, "name": name, "spec": spec}, at, at)
        for change in changes_of(key, self._facts.histories[key], 1):
            self.overlay.apply(change)

    def snapshot_at(self, moment: int) -> Snapshot:
        """What was in force at a moment (ms)."""
        return self._policies_at(moment).with_facts(self.overlay, moment)

    def answers_at(self, moment: int) -> AuditAnswers:
        """The same, to answer audit events by when everything is known."""
        policies = self._policies_at(moment)
        if id(policies) not in self._answers:
            self._answers[id(policies)] = AuditAnswers(policies, DEFAULT_TRUST, 1000, self.overlay)
        return self._answers[id(policies)]

    def _policies_at(self, moment: int) -> Snapshot:
        span = self._log.policies_at(moment)
        if span.since not in self._rebuilt:
            self._rebuilt[span.since] = self._log.snapshot_at(span.offsets, None, moment)
        return self._rebuilt[span.since]


class Day:
    """`records`: what the monitor reads. `incidents`: kind and subject of what it must find, and nothing beside."""

    def __init__(self, seed: int = 1) -> None:
        self._rng, self._number = random.Random(seed), 0
        self.cluster = Cluster()
        self.incidents: set[tuple[str, str]] = set()
        self.accesses = 0
        self._asked: list[tuple[int, str, dict[str, Any]]] = []
        self._done: list[tuple[int, dict[str, Any]]] = []
        for system in SYSTEMS:
            self._traffic(system)
        self._logins()
        self._consumer_groups()
        self._contradictions()
        self.records = sorted(self._run(), key=lambda record: record[3])

    def _traffic(self, system: str) -> None:
        """In two phases other users are allowed; some keep it, some lose it, some get it."""
        kept, lost, got, outsiders = (
            [f"{system}-{what}-{number}" for number in range(EACH)] for what in ("kept", "lost", "got", "outsider")
        )
        for phase in range(6):
            at = START + phase * PHASE
            self._allow(at, system, [*kept, *(lost if phase % 2 == 0 else got)])
            for user in kept:
                self._innocent(at + self._soon(), system, user)
            for user in lost if phase % 2 == 0 else got:
                self._innocent(at + self._soon(), system, user)
        change = START + PHASE
        for user in lost:  # allowed just before the change, done after it
            self._request(change - 30 * SECOND, system, user, f"lost {user}")
            self._access(change + 30 * SECOND, system, user, f"lost {user}")
            self._plant("unauthorized-access", system, user)
        for user in got:  # denied just before the change, done after it
            self._request(change - 30 * SECOND, system, user, f"got {user}")
            self._access(change + 30 * SECOND, system, user, f"got {user}")
            self._plant("denied-but-done", system, user)
        for number in range(EACH):
            user = kept[number]
            self._access(START + 3 * PHASE - MINUTE, system, user, f"got {got[number]}")  # somebody else's decision
            self._plant("unrequested-access", system, user)
        for user in outsiders:
            for number in range(25):
                self._request(START + 2 * PHASE + number * SECOND, system, user, f"burst {user} {number}")
            self._plant("denial-burst", system, user)

    def _logins(self) -> None:
        """What a user may do by a group counts as of his last login; the first one is judged long after the second."""
        user = "logged-in"
        for at, groups in ((START + MINUTE, ["analysts"]), (START + 20 * MINUTE, [])):
            self.cluster.know(at + SECOND, "streamsets", "Session", user, login_at=at, groups=groups)
        for at in (START + 5 * MINUTE, START + 15 * MINUTE):
            self._innocent(at, "streamsets", user, "pipeline.view", {"id": "pipeline:payments"})
        self._request(START + 19 * MINUTE, "streamsets", user, "login", "pipeline.view", {"id": "pipeline:payments"})
        self._access(START + 21 * MINUTE, "streamsets", user, "login", "pipeline.view", {"id": "pipeline:payments"})
        self._plant("unauthorized-access", "streamsets", user)

    def _consumer_groups(self) -> None:
        """A consumer group that reads orders, then payments too, which its viewers must not see."""
        user = "lenses5-kept-0"
        for at, topics in ((START, ["orders"]), (START + 30 * MINUTE, ["orders", "payments"])):
            self.cluster.know(at, "lenses5", "ConsumerGroup", "billing", connection="kafka", topics=topics)
        for minute in (5, 15, 25):
            self._innocent(START + minute * MINUTE, "lenses5", user, *GROUP)
        self._request(START + 29 * MINUTE, "lenses5", "lenses5-kept-1", "moved", *GROUP)
        self._access(START + 31 * MINUTE, "lenses5", "lenses5-kept-1", "moved", *GROUP)
        self._plant("unauthorized-access", "lenses5", "lenses5-kept-1")

    def _contradictions(self) -> None:
        at = START + 5 * MINUTE
        context = {"connection": "kafka", "topics": ["nothing"]}
        self._request(at, "lenses5", "lenses5-kept-2", "claims", *GROUP, context=context)
        self._plant("fact-contradiction", "lenses5", "lenses5-kept-2")
        self.cluster.know(START, "streamsets", "Session", "streamsets-kept-2", login_at=START, groups=["a"], roles=[])
        self._request(at, "streamsets", "streamsets-kept-2", "claims", properties={"groups": ["b"]})
        self._plant("fact-contradiction", "streamsets", "streamsets-kept-2")

    def _plant(self, kind: str, system: str, user: str) -> None:
        self.incidents.add((kind, subject_of(system, user)))

    def _soon(self) -> int:
        return self._rng.randrange(MINUTE, 4 * MINUTE)

    def _innocent(self, at: int, system: str, user: str, *ask: Any) -> None:
        self._number += 1
        name = f"innocent {self._number}"
        self._request(at, system, user, name, *ask)
        self._access(at + self._rng.randrange(2 * MINUTE), system, user, name, *ask)

    def _parts(self, system: str, user: str, action: str, resource: Mapping[str, Any]) -> dict[str, Any]:
        """With a type, and properties, that no system reads."""
        type_ = self._rng.choice(["lrn", "topic", "kafka", "resource"])
        aside = self._rng.choice([{}, {"seen_by": "x"}, {"seen_by": "y"}])
        properties = {**resource.get("properties", {}), **aside}
        return {
            "id": "",
            "system": system,
            "subject": {"type": "user", "id": subject_of(system, user)},
            "action": {"name": action},
            "resource": {"type": type_, **resource, "properties": properties},
        }

    def _request(
        self,
        at: int,
        system: str,
        user: str,
        name: str,
        action: str = "",
        resource: Any = None,
        context: Any = None,
        properties: Any = None,
    ) -> None:
        usual = ASKS[system]
        asked = {**self._parts(system, user, action or usual[0], resource or usual[1]), "id": name}
        asked["subject"]["properties"] = properties or {}
        self._asked.append((at, name, {**asked, "context": context or {}}))

    def _access(self, at: int, system: str, user: str, name: str, action: str = "", resource: Any = None) -> None:
        """`name`: of the request whose decision the report names, as half of them do."""
        usual = ASKS[system]
        event = {**self._parts(system, user, action or usual[0], resource or usual[1]), "id": f"of {name}"}
        named = {"decision_id": f"d-{name}"} if self._rng.random() < 0.5 else {}
        self._done.append((at, {**event, **named, "outcome": "success"}))
        self.accesses += 1

    def _allow(self, at: int, system: str, users: list[str]) -> None:
        """From now on these may do what `ASKS` says of the system, and no other user does."""
        publish = self.cluster.publish
        if system == "lenses6":
            statement = {"effect": "allow", "action": ["kafka:*"], "resource": ["kafka:topic:prod/main/*"]}
            publish(at, system, "Role", "readers", statements=[statement])
            members = [f"user:{user}" for user in users]
            publish(at, system, "Group", "readers", roles=["readers"], members=members)
        elif system == "lenses5":
            held = {"connection": "kafka", "type": "Kafka", "datasets": ["orders"], "permissions": ["Show Topic"]}
            rights = {"namespaces": [held], "application": ["Kafka Consumers / View"]}
            publish(at, system, "Group", "readers", **rights, members=users)
        elif system == "ververica":
            entries = [{"userId": user, **OWN, "role": "VIEWER"} for user in users]
            publish(at, system, "InitialAccess", "main", initialAccess=entries)
        elif system == "streamsets":
            publish(at, system, "Organization", "acme", enforcement=True)
            publish(at, system, "Object", "pipeline:payments", **_pipeline("group:analysts"))
            publish(at, system, "Object", "pipeline:orders", **_pipeline(*(f"user:{user}" for user in users)))
        else:
            for number in range(2 * EACH):
                user = users[number] if number < len(users) else "someone"
                publish(at, system, "Grant", f"g{number}", user=user, entity="dataset:shop.orders", privileges=["READ"])

    def _run(self) -> Iterator[Record]:
        for at, name, asked in sorted(self._asked, key=lambda one: one[0]):
            yield self._decide(at, name, asked)
        yield from ((LETTERS, 0, number, START + number * SECOND // 10, b"?") for number in range(100))
        self.incidents.add(("malformed-burst", LETTERS))
        source = Source("audit", 0, "audit-id", DEFAULT_TRUST, 2)
        partition_evaluator = AuditEvaluator(source, 1, self.cluster.answers_at, Limits())
        for offset, (at, event) in enumerate(self._done):
            written, _, value, _ = partition_evaluator.decide(b"", msgspec.json.encode(event), None, offset, at)
            assert written == 1, value
            yield VERDICTS, 0, offset, at + SECOND, value or b""

    def _decide(self, at: int, name: str, asked: Mapping[str, Any]) -> Record:
        request = parse_request({**asked, "time": at})
        decision = answer(self.cluster.snapshot_at(at), request, DEFAULT_TRUST)
        encoded = b"{%b%b}}" % (to_json(decision), echo(request))  # type: ignore[arg-type]
        record = {"id": f"d-{name}", "system": asked["system"], "time": to_text(at), **msgspec.json.decode(encoded)}
        return DECISIONS, 0, 0, at + SECOND // 10, msgspec.json.encode(record)


def _pipeline(*readers: str) -> dict[str, Any]:
    acl = {reader: ["READ"] for reader in readers}
    return {"type": "pipeline", "owner": "o", "acl": acl, "pipeline_kind": "data-collector", "connections": []}


def kinds_of(alerts: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Kind and subject of each alert."""
    return {(alert["kind"], alert["subject"]) for alert in alerts}
