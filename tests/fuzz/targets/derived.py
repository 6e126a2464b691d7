"""Audit events that become facts, under every trust: what nobody trusts becomes no fact, and opens nothing."""

import itertools
from random import Random
from typing import Any

import msgspec

from policy import compile_documents
from policy.core.document import Key
from policy.core.request import CLAIMS, parse_request
from policy.core.times import to_ms
from policy.evaluation import reference
from policy.evaluation.authorize import answer
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, changes_of
from policy.store.snapshot import Snapshot
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import Source
from streaming.monitor import Fact
from streaming.records.audit import AuditEvent, read_event
from streaming.records.avro import Reader
from streaming.settings import Limits
from streaming.settings.monitor import MonitorSettings
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import FAULTY, OTHERS, mutate_data
from tests.fuzz.targets.judged import AT, encoded, formats
from tests.monitor.audited import ACME, MONITOR, READ, job_of, pipeline, user
from tests.monitor.pure import VERDICTS, PureMonitor

TRUSTS = [sorted(some) for count in range(6) for some in itertools.combinations(sorted(CLAIMS), count)]
USERS, JOBS, GROUPS = ("mallory", "dana"), ("job:j", "job:k"), (["admins"], ["admins", "b"], ["b"], [], "admins", [""])
ROLES = (["Organization Administrator"], [], ["Job Operator"])
VERDICT, LETTER = 1, 2
LIMITS = Limits()
SINCE = AT - 1000
VERSIONS = ((SINCE, pipeline("group:admins", "user:dana")), (AT - 4, pipeline("group:admins")))
"""What dana reads is revoked shortly before the events; no login brings it back but one of before."""

Explained = dict[str, list[tuple[Any, ...]]]
"""What the events may become, by the key of the fact: what orders it, then its spec."""


class DerivedFacts:
    """Audit topics with any trust, the enforcer, the monitor in batches, and decisions by the facts that it wrote."""

    name, share, records = "derived-facts", 30, 1

    def __init__(self, seed: str) -> None:
        self._policies = DocumentStore()
        for order, (at, document) in enumerate([(SINCE, ACME), *((SINCE, one) for one in job_of("dana")), *VERSIONS]):
            self._policies.put(document, at, order)
        self._documents = [{**ACME, "effective_at": SINCE}]
        self._documents += [{**one, "effective_at": SINCE} for one in job_of("dana")]
        self._documents += [{**document, "effective_at": at} for at, document in VERSIONS]
        self._snapshot = Snapshot(self._policies)

    def portable(self, given: Any) -> Any:
        """The input as it is."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A few events, some alike on topics with another trust, and after how many of them the monitor has a batch."""
        found: list[Any] = []
        for place in range(dice.choice((1, 2, 3, 6))):
            event = _draw_event(dice, place)
            if dice.random() < 0.2:
                event = mutate_data(dice, event, [*USERS, *JOBS, "admins", "login"])
            value = encoded(dice, "audit-event", event, deep)
            for _ in range(dice.choice((1, 1, 2))):
                found.append({"trust": dice.choice(TRUSTS), "at": AT + len(found), "value": value})
        return {"events": found, "batch": dice.randint(1, 3)}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        monitor, explained, unread, letters = PureMonitor(MonitorSettings()), Explained(), [], 0
        reader = Reader(formats("audit-event"))
        for number, event in enumerate(given["events"]):
            trust, at, value = frozenset(event["trust"]), event["at"], event["value"]
            source = Source(f"audit-{number}", 0, "topic-id", trust, LETTER)
            answers = AuditAnswers(self._snapshot, trust, 9)
            evaluator = AuditEvaluator(source, VERDICT, lambda _at, answers=answers: answers, LIMITS, reader)  # type: ignore[misc]
            output, _, made, _ = evaluator.decide(None, value, None, number, at)
            if output == VERDICT:
                unread.append((VERDICTS, 0, number, at, made or b""))
                _explain(read_event(value, None, LIMITS, reader), at, trust, explained)
            letters += output == LETTER
            if len(unread) >= given["batch"]:
                monitor.batch(unread)
                unread = []
        monitor.batch(unread)
        _check(monitor.written, explained)
        allows = self._check_decisions(monitor.written, explained)
        return Execution(int(letters < len(given["events"])), int(letters > 0), allows)

    def _check_decisions(self, written: list[Fact], explained: Explained) -> int:
        snapshot = self._snapshot.with_facts(_overlay(written))
        facts = [_document(key, _newest(some)) for key, some in explained.items()]
        documents = [*self._documents, *(fact for fact in facts if fact["spec"] is not None)]
        wanted_by, allows = compile_documents(documents), 0
        for name, asked in itertools.product(USERS, (READ, MONITOR)):
            request = parse_request({"id": "r", **asked, "subject": user(name), "time": AT + 100})
            outcome = answer(snapshot, request, frozenset({"time"})).outcome
            wanted = reference.answer(wanted_by, request, frozenset({"time"}))
            if outcome == "allow" != wanted:
                raise Violation(f"allow: of {name} where the reference says {wanted}")
            if outcome != wanted:
                raise Violation(f"otherwise: {outcome} of {name} where the reference says {wanted}")
            allows += outcome == "allow"
        return allows


def _draw_event(dice: Random, number: int) -> dict[str, Any]:
    event: dict[str, Any] = {"id": f"e-{number}", "system": dice.choice(("streamsets",) * 9 + ("lenses6",))}
    event["event"] = dice.choice(("login", "login", "login", "job.started", "job.started", "job.stopped", "logout"))
    properties: dict[str, Any] = {}
    if dice.random() < 0.6:
        properties["groups"] = dice.choice(GROUPS)
    if dice.random() < 0.4:
        properties["roles"] = dice.choice(ROLES)
    if dice.random() < 0.1:
        properties["token"] = {"groups": ["admins"]}
    if dice.random() < 0.9 or event["event"] == "login":
        event["subject"] = user(dice.choice(USERS), **properties)
    if dice.random() < 0.9:
        event["resource"] = {"type": "job", "id": dice.choice(JOBS)}
    if dice.random() < 0.6:
        event["time"] = dice.choice((SINCE + 1, AT - 5, AT - 3, AT, AT + 50, AT - 3, *FAULTY[-5:], *OTHERS))
    return event


def _explain(event: AuditEvent, at: int, trust: frozenset[str], explained: Explained) -> None:
    """Note what an event on a topic with this trust may become; `at`: the broker's timestamp."""
    if event.event is None or "facts" not in trust or event.system != "streamsets":
        return
    moment = min(at, to_ms(event.time)) if event.time is not None and "time" in trust else at
    if event.event == "login" and event.subject is not None:
        claims = {name: event.subject.properties.get(name) for name in ("groups", "roles") if name in trust}
        said = {name: sorted(set(names)) for name, names in claims.items() if names is not None}
        order = (moment, "groups" in said, "roles" in said, said.get("groups", []), said.get("roles", []))
        _note(explained, f"Session/{event.subject.id}", (order, {"login_at": moment, **said}))
    elif event.event.startswith("job.") and event.resource is not None:
        started = event.event == "job.started"
        spec = {"started_at": moment} if started else None
        _note(explained, f"ActiveJob/{event.resource.id}", (moment, started, spec))


def _note(explained: Explained, key: str, said: tuple[Any, ...]) -> None:
    some = explained.setdefault(key, [])
    if said not in some:
        some.append(said)


def _newest(some: list[tuple[Any, ...]]) -> Any:
    return max(some, key=lambda said: said[:-1])[-1]


def _check(written: list[Fact], explained: Explained) -> None:
    """Each fact is what an event on a trusted topic said, and the last one is the newest of these."""
    last: dict[str, Any] = {}
    for fact in written:
        key = f"{fact.kind}/{fact.name}"
        if fact.spec not in [said[-1] for said in explained.get(key, ())]:
            raise Violation(f"fact: {key} is {fact.spec}, which no event on a topic with this trust says")
        last[key] = fact.spec
    for key, some in explained.items():
        newest = _newest(some)
        if last.get(key) != newest:
            raise Violation(f"newest: {key} is {last.get(key)} and not {newest}")


def _document(key: str, spec: Any) -> dict[str, Any]:
    kind, _, name = key.partition("/")
    return {"system": "streamsets", "kind": kind, "name": name, "spec": spec}


def _overlay(written: list[Fact]) -> FactOverlay:
    """The layer of facts as the job reads it."""
    store, overlay = DocumentStore(facts_only=True), FactOverlay()
    for order, fact in enumerate(written):
        key, value = Key(fact.system, fact.kind, fact.name), fact.to_value()
        if value is None:
            store.delete(key, AT + 50, order, fact.since)
        else:
            store.put(msgspec.json.decode(value), AT + 50, order)
        for change in changes_of(key, store.histories[key], 1) if key in store.histories else ():
            overlay.apply(change)
        store.forget(key)
    return overlay
