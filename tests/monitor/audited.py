"""Audit events on their way to facts and verdicts, without Kafka and Spark: enforcer, monitor, layer of facts.

The policies are compiled and superseded versions dropped as the job does it; events are evaluated by prepared queries.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from policy import answer
from policy.core.document import Key
from policy.core.request import parse_request
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, changes_of
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from streaming.commit.evaluation import Decided, SideOutput
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import Source
from streaming.enforcer.pending_facts import FactReads, PendingFacts, overlooked
from streaming.ops.tally import Tally
from streaming.records.audit import AnyVerdict, decode_verdict
from streaming.settings import DEFAULT_TRUST, Limits
from streaming.settings.monitor import MonitorSettings
from tests.monitor.pure import VERDICTS, PureMonitor, Record

READ = {
    "system": "streamsets",
    "action": {"name": "pipeline.view"},
    "resource": {"type": "pipeline", "id": "pipeline:p"},
}
MONITOR = {"system": "streamsets", "action": {"name": "job.monitor"}, "resource": {"type": "job", "id": "job:j"}}


class AuditedJob:
    """A job whose clock is the broker's: moments (ms) never go back. `facts`: what was written to the facts topic."""

    def __init__(self, start: int = 0) -> None:
        self._store, self._facts_store = DocumentStore(), DocumentStore(facts_only=True)
        self._compiler = Compiler(self._store)
        self._snapshots: list[tuple[int, Snapshot]] = []
        self.overlay = FactOverlay(all_held_after=start - 1)
        self.overlay.sees_all_from_now(start)
        self._log: list[tuple[int, Mapping[str, Any], int | None]] = []
        self._compacted = start - 1
        self._answers: dict[tuple[int, frozenset[str]], AuditAnswers] = {}
        self.monitor, self._unread = PureMonitor(MonitorSettings()), list[Record]()
        self.facts: list[tuple[str, Any]] = []
        self._pending = PendingFacts()
        self._order = 0

    def publish(self, at: int, *documents: Mapping[str, Any]) -> None:
        """Publish policy documents, one after the other; without a `spec` one is deleted."""
        for document in documents:
            self._put(self._store, document, at)
        self._compiler.compile()
        self._forget()
        snapshot = self._compiler.snapshot
        while self._snapshots and self._snapshots[-1][0] >= at:
            self._snapshots.pop()
        self._snapshots.append((at, snapshot))

    def _put(self, store: DocumentStore, document: Mapping[str, Any], at: int, since: int | None = None) -> Key:
        key = Key(document["system"], document["kind"], document["name"])
        self._order += 1
        if document.get("spec") is None:
            store.delete(key, at, self._order, since)
        else:
            store.put(dict(document), at, self._order)
        return key

    def _forget(self) -> None:
        """See `Policies._forget`."""
        policy_sets = self._compiler.snapshot.with_facts(self.overlay).policy_sets
        floors = {name: all_systems()[name].retention_floor(one.facts) for name, one in policy_sets.items()}
        self._store.forget_before(floors)

    def know(self, at: int, document: Mapping[str, Any], since: int | None = None) -> None:
        """Publish a fact; without a `spec` it is deleted, and ceased to be at a moment (ms) if that is given."""
        self._log.append((at, document, since))
        self.facts.append((f"{document['kind']}/{document['name']}", document.get("spec")))
        self._apply(at, document, since)

    def restart(self, cutoff: int) -> None:
        """Read the facts again, of which compaction has removed what was superseded up to a moment (ms)."""
        self._compacted = cutoff = max(cutoff, self._compacted)
        newest = {(one["kind"], one["name"]): number for number, (at, one, _) in enumerate(self._log) if at <= cutoff}
        self._log = [
            (at, one, since)
            for number, (at, one, since) in enumerate(self._log)
            if at > cutoff or newest[one["kind"], one["name"]] == number
        ]
        self.overlay, self._facts_store = FactOverlay(all_held_after=cutoff), DocumentStore(facts_only=True)
        self._answers.clear()
        for record in self._log:
            self._apply(*record)
        self.overlay.sees_all_from_now(cutoff)

    def _apply(self, at: int, document: Mapping[str, Any], since: int | None) -> None:
        key = self._put(self._facts_store, document, at, since)
        history = self._facts_store.histories.get(key)
        for change in changes_of(key, history, 1) if history is not None else ():
            changed = [(key.system, lookup) for lookup in self.overlay.apply(change)]
            for answers in self._answers.values():
                answers.follow_facts(changed)
        self._facts_store.forget(key)

    def report(self, at: int, event: Mapping[str, Any], trust: frozenset[str] = DEFAULT_TRUST) -> AnyVerdict:
        """An audit event on a topic with this trust, at a moment of the broker."""
        return self.report_batch(at, [event], trust)[0]

    def report_batch(
        self, at: int, events: Iterable[Mapping[str, Any]], trust: frozenset[str] = DEFAULT_TRUST
    ) -> list[AnyVerdict]:
        """Audit events in one batch, each in a partition of its own: no partition knows of the others."""
        events, pending, missed = list(events), self._pending.copy(), PendingFacts()
        while True:
            facts = [FactReads(pending.copy()) for _ in events]
            records = [self._evaluate(at, event, trust, number, facts[number]) for number, event in enumerate(events)]
            noted = [_noted(one) for one in facts]
            missed = overlooked(noted, PendingFacts(), again=bool(missed))
            if not missed:
                break
            pending.update(missed)
        for one in noted:
            self._pending.update(one.passed_on)
        self._order += len(events)
        self._unread += records
        return [decode_verdict(value) for *_, value in records]

    def _evaluate(
        self, at: int, event: Mapping[str, Any], trust: frozenset[str], partition: int, facts: FactReads
    ) -> Record:
        source = Source("audit", partition, "audit-id", trust, 2)
        answers_at = functools.partial(self._answers_at, trust=trust)
        evaluator, value = AuditEvaluator(source, 1, answers_at, Limits(), None, facts), {"id": "e", **event}
        offset = self._order + 1
        output, _, verdict, _ = evaluator.decide(b"", json.dumps(value).encode(), None, offset, at)
        assert output == 1, verdict
        return VERDICTS, partition, offset, at, verdict or b""

    def _answers_at(self, moment: int, trust: frozenset[str]) -> AuditAnswers | None:
        number = max((n for n, (since, _) in enumerate(self._snapshots) if since <= moment), default=None)
        if number is None:
            return None
        since, snapshot = self._snapshots[number]
        key = (since, trust)
        if key not in self._answers:
            self._answers[key] = AuditAnswers(snapshot, trust, 100, self.overlay)
        return self._answers[key]

    def derive(self, at: int) -> None:
        """A batch of the monitor, whose facts the enforcer then reads."""
        unread, self._unread, self._pending = self._unread, [], PendingFacts()
        written = len(self.monitor.written)
        self.monitor.batch(unread)
        for fact in self.monitor.written[written:]:
            known = {"system": fact.system, "kind": fact.kind, "name": fact.name, "spec": fact.spec}
            self.know(at, known, None if fact.spec else fact.since)

    def decide(self, at: int, request: Mapping[str, Any], trust: frozenset[str] = frozenset({"time"})) -> str:
        """The outcome of a request, by what is in force now."""
        asked = parse_request({"id": "r", **request, "time": at})
        return answer(self._snapshots[-1][1].with_facts(self.overlay), asked, trust | {"time"}).outcome


def _noted(facts: FactReads) -> SideOutput:
    """What a worker reports of them."""
    tally = Tally("audit", [], 0, [], [], [])
    noted = list(facts.passed_on), list(facts.newest.items())
    return SideOutput(tally, [], [], Decided(0, 0, 0, False, 0.0), [], *noted)


def document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """A StreamSets document."""
    return {"system": "streamsets", "kind": kind, "name": name, "spec": spec}


def pipeline(*readers: str, name: str = "p") -> dict[str, Any]:
    """A pipeline that these (`user:…` or `group:…`) may read."""
    acl = {reader: ["READ"] for reader in readers}
    kinds = {"type": "pipeline", "pipeline_kind": "dc", "connections": []}
    return document("Object", f"pipeline:{name}", owner="owner", acl=acl, **kinds)


def job_of(*users: str) -> tuple[dict[str, Any], ...]:
    """The job `job:j` of pipeline:p and its engine, which these users may run and monitor."""
    shared: dict[str, Any] = {"owner": "owner", "acl": {f"user:{name}": ["READ", "EXECUTE"] for name in users}}
    job = document("Object", "job:j", type="job", pipeline="p", labels=[], **shared)
    return job, document("Object", "engine:e", type="engine", engine_kind="dc", labels=[], **shared)


ACME = document("Organization", "acme", enforcement=True)


def user(name: str, **properties: Any) -> dict[str, Any]:
    """A subject."""
    return {"type": "user", "id": name, "properties": properties}


def login(name: str, time: int | None = None, **properties: Any) -> dict[str, Any]:
    """An event that a user logged in, with what it claims of the user."""
    event = {"system": "streamsets", "event": "login", "subject": user(name, **properties)}
    return event if time is None else {**event, "time": time}


def run(event: str, time: int | None = None, name: str = "j") -> dict[str, Any]:
    """An event that a job started or stopped."""
    found = {"system": "streamsets", "event": event, "resource": {"type": "job", "id": f"job:{name}"}}
    return found if time is None else {**found, "time": time}
