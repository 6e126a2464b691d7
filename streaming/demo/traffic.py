"""The demo's two ends of the stream: a sender of requests at a steady rate, and a reader of decisions."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Producer

from policy.testing import full_request
from streaming.alert_kinds import AlertKind, KindRule
from streaming.demo.tracker import RequestTracker
from streaming.kafka.reader import follow
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings, Rules

REPORTED = 5  # of so many accesses one is reported

Endless = Iterator[dict[str, Any]]


@contextlib.contextmanager
def in_thread(run: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """Call ``run`` in a thread; what it gets says at the end of the block that it must end. What it raised is raised
    then.
    """
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run, over.is_set)
        try:
            yield
        finally:
            over.set()
            ended.result()


def run_repeatedly(step: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Call ``step`` in a thread again and again until the block ends; what it raised is raised then."""

    def repeat(is_over: Callable[[], bool]) -> None:
        while not is_over():
            step()

    return in_thread(repeat)


def book_records(
    settings: Settings, topic: str, book: Callable[[dict[str, Any]], object]
) -> contextlib.AbstractContextManager[None]:
    """Call ``book`` in a thread with each record of a topic, from the first one on, until the block ends."""

    def read(is_over: Callable[[], bool]) -> None:
        for message in follow(settings, topic, from_beginning=True, stopped=is_over):
            book(msgspec.json.decode(message.value() or b""))

    return in_thread(read)


class JsonProducer:
    """Produces requests or audit events (``kind``) to a topic, keyed by their subjects."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, kind: str) -> None:
        self._producer = Producer({**kafka, "linger.ms": 2, "enable.idempotence": True})
        self._topic, self._kind = topic, kind

    def produce(self, value: Mapping[str, Any]) -> None:
        """Send one record now."""
        self._producer.produce(self._topic, msgspec.json.encode(value), key=value["subject"]["id"].encode())
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        if self._producer.flush(30):
            raise TimeoutError(f"the broker did not acknowledge the demo's {self._kind} within 30 seconds")


class Sender(JsonProducer):
    """Produces requests, booking each; ``rate`` a second."""

    def __init__(
        self, kafka: Mapping[str, Any], topic: str, requests: Endless, rate: float, tracker: RequestTracker
    ) -> None:
        super().__init__(kafka, topic, "requests")
        self._requests, self._pause, self._tracker = requests, 1 / rate, tracker
        self._due: float | None = None

    def step(self) -> None:
        """Send one request when it is due."""
        now = time.monotonic()
        due = now if self._due is None else self._due
        if due > now:
            self._producer.poll(due - now)
            return
        self.send(next(self._requests))
        self._due = due + self._pause

    def send(self, request: dict[str, Any]) -> None:
        """Send one request now."""
        self._tracker.send(request)
        self.produce(request)


class Performer(JsonProducer):
    """The services: they do what they were allowed, and report some of it as audit events."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, tracker: RequestTracker) -> None:
        super().__init__(kafka, topic, "audit events")
        self._tracker, self._allowed = tracker, 0

    def answered(self, decision: Mapping[str, Any]) -> None:
        """Book a decision, and do what it allows."""
        request = self._tracker.read(dict(decision))
        if decision["decision"] and request is not None:
            self._allowed += 1
            if self._allowed % REPORTED == 0:
                self.produce(done(request, decision))


FOLDER = Path(__file__).parent
POLICIES = FOLDER / "policies"
CHANGE = FOLDER / "change"

PEOPLE = ("user:dana", "user:imani", "user:ola", "user:sven", "service-account:checkout", "service-account:billing")
TOPICS = ("orders", "payments", "carts", "public-prices", "public-stock", "audit-logins")
KINDS = {
    "kafka": (
        "topic",
        ("ListTopic", "GetTopicDetails", "ReadTopicData", "ReadTopicData", "WriteTopicData", "DeleteTopic"),
    ),
    "schemas": ("schema", ("ListSchemas", "GetSchemaDetails", "UpdateSchema")),
    "kafka-connect": ("connector", ("ListConnectors", "StartConnector", "StopConnector")),
}
SERVICES = ("kafka", "kafka", "kafka", "schemas", "kafka-connect")
CLIENTS = ("User:checkout", "User:billing", "User:reports")  # principals of Kafka's own ACLs
EVERY = 5  # one of so many requests is about Kafka's own ACLs
EVERY_DOCUMENT = 7  # one of so many is about the shop's documents, by Cedar policies
SYSTEMS = ("cedar", "kafka-acls", "lenses6")
STAFF = ("dana", "imani", "ola")

PARTICIPANTS = {
    "user:dana, user:ola …": "a shop's staff and services, with requests for topics, schemas and connectors",
    "probe-10, probe-20 …": "each tenth request: user:dana reads prod's orders; the policy change denies it",
    "user:eve": "an intruder: reads prod's payments without a request, though the policies deny it",
    "user:mallory": "an attacker: requests one audit topic after the other, and is denied each time",
    "user:trent": "a contractor: the policy change gives him a role that allows every action on every resource",
}
"""Who acts in the demo, and what each of them does. Alerts must follow what the last three do."""


def probe(number: int) -> dict[str, Any]:
    """The request whose answer the policy change turns from allow to deny."""
    return _request(f"probe-{number}", "user:dana", "kafka:ReadTopicData", "kafka:topic:prod/main/orders")


def requests() -> Iterator[dict[str, Any]]:
    """Endless requests as a shop's services would send them; every tenth is the probe."""
    rng, number = random.Random(1), 0
    while True:
        number += 1
        if number % 10 == 0:
            yield probe(number)
        elif number % EVERY == 0:
            yield _of_acls(rng, number)
        else:
            yield _random(rng, number) if number % EVERY_DOCUMENT else _of_documents(rng, number)


def done(request: Mapping[str, Any], decision: Mapping[str, Any]) -> dict[str, Any]:
    """The audit event of a service that did what was allowed, at once."""
    fields = {"outcome": "success", "time": decision["time"], "decision_id": decision["id"]}
    return {**request, "id": f"done-{request['id']}", **fields}


def intrusion() -> dict[str, Any]:
    """The audit event of an access that was not requested, and the policies deny."""
    request = _request("intrusion", "user:eve", "kafka:ReadTopicData", "kafka:topic:prod/main/payments")
    return {**request, "outcome": "success"}


def burst(count: int) -> Iterator[dict[str, Any]]:
    """Requests of a subject that tries one topic after the other, and is denied."""
    for number in range(count):
        topic = f"kafka:topic:prod/main/audit-{number}"
        yield _request(f"burst-{number}", "user:mallory", "kafka:ReadTopicData", topic)


def planted() -> set[tuple[str, str]]:
    """The alerts that must come, each by kind and subject; those of the change come with it."""
    eve = {(kind, "user:eve") for kind in ("unrequested-access", "unauthorized-access")}
    return eve | {("denial-burst", "user:mallory"), ("privilege-escalation", "lenses6/Group/contractors")}


def monitor(rate: float) -> MonitorSettings:
    """A monitor that does not wait long, and takes for a burst what is far beyond the ordinary denials at `rate`."""
    dense = KindRule("medium", more_than=burst_size(rate) // 2, within_seconds=2.0)
    return MonitorSettings(rules=Rules(grace_seconds=2.0, kinds={AlertKind.DENIAL_BURST: dense}))


def burst_size(rate: float) -> int:
    """How many requests the burst has."""
    return 20 + int(rate)


def _random(rng: random.Random, number: int) -> dict[str, Any]:
    service = rng.choice(SERVICES)
    kind, operations = KINDS[service]
    resource = f"{service}:{kind}:{rng.choice(('dev', 'prod'))}/main/{rng.choice(TOPICS)}"
    return _request(f"request-{number}", rng.choice(PEOPLE), f"{service}:{rng.choice(operations)}", resource)


def _of_acls(rng: random.Random, number: int) -> dict[str, Any]:
    short = {"subject": rng.choice(CLIENTS), "action": rng.choice(("Read", "Write", "Describe"))}
    resource = {"type": "Topic", "id": rng.choice(TOPICS)}
    context = {"host": rng.choice(("10.0.0.1", "10.0.0.2"))}
    return _whole(f"request-{number}", {**short, "resource": resource, "context": context}, "kafka-acls")


def _of_documents(rng: random.Random, number: int) -> dict[str, Any]:
    short = {"subject": {"type": "User", "id": rng.choice(STAFF)}, "action": rng.choice(("read", "write", "delete"))}
    resource = {"type": "Document", "id": rng.choice(("prices", "contract", "minutes"))}
    return _whole(f"request-{number}", {**short, "resource": resource}, "cedar")


def _request(id_: str, subject: str, action: str, resource: str) -> dict[str, Any]:
    named = {"type": subject.partition(":")[0], "id": subject}
    return _whole(id_, {"subject": named, "groups": ["everyone"], "action": action, "resource": resource}, "lenses6")


def _whole(id_: str, short: dict[str, Any], system: str) -> dict[str, Any]:
    return {**full_request(short, system), "id": id_}
