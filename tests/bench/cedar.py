"""Cedar policies: decisions a second beside bare cedarpy, and the stream beside a plain loop with cedarpy.

    python -m tests.bench.cedar --policies 1000 --output cedar.jsonl
    python -m tests.bench.cedar --policies 1000 --stream --output cedar.jsonl

A document store: users in groups, documents in folders, permits by group and folder, and forbids.
Engines decide the same requests in turn, in one process: cedarpy with all policies and entities, cedarpy with the
policies and entities that a request needs selected by hand, and policy.decide, each parsed once. With --stream, the
job decides a backlog on a broker of its own; beside it one Python process consumes the same requests, decides them with
cedarpy and all policies and entities, and produces the decisions. Medians of three rounds; answers are compared.
"""

import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import cedarpy
import msgspec
import structlog
import typer
from confluent_kafka import Consumer, TopicPartition

import policy
from streaming.broker import EmbeddedBroker
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings
from streaming.topics import DEFAULT_SYSTEMS, TopicNames
from tests.bench import commit, machine, stamped, stream
from tests.bench.stream import fresh, own_process

ROUNDS = 3
FOLDERS, GROUPS, USERS = 200, 100, 2_000
ANSWERS = "bench.answers"
SYSTEMS = (*DEFAULT_SYSTEMS, "cedar")

Document = dict[str, Any]
Request = dict[str, Any]
Decide = Callable[[Request], bool]


class Store:
    """Policies, entities and requests of a document store, the same for the same seed."""

    def __init__(self, policies: int, documents: int = 10_000, seed: int = 1) -> None:
        dice = random.Random(seed)
        self.policies = [_policy(dice, number) for number in range(policies)]
        self.users = [_user(dice, number) for number in range(USERS)]
        self.documents = [_document(dice, number) for number in range(documents)]

    @property
    def entities(self) -> list[Document]:
        """All of them."""
        return [*self.users, *self.documents]

    def as_documents(self) -> list[Document]:
        """The same as policy documents."""
        found = [_as("PolicySet", "store", {"policies": "\n".join(self.policies)})]
        parts = (self.entities[start : start + 5_000] for start in range(0, len(self.entities), 5_000))
        return [*found, *(_as("Entities", f"part-{n}", {"entities": part}) for n, part in enumerate(parts))]

    def draw(self, dice: random.Random) -> Request:
        """A request without an envelope."""
        return {
            "id": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
            "system": "cedar",
            "subject": dict(dice.choice(self.users)["uid"]),
            "action": {"name": dice.choice(("read", "read", "write", "delete"))},
            "resource": dict(dice.choice(self.documents)["uid"]),
            "context": {},
        }


def _as(kind: str, name: str, spec: Document) -> Document:
    return {"system": "cedar", "kind": kind, "name": name, "spec": spec}


def _policy(dice: random.Random, number: int) -> str:
    group, folder = f'Group::"g{dice.randrange(GROUPS)}"', f'Folder::"f{dice.randrange(FOLDERS)}"'
    if number % 10 == 0:
        return (
            f'forbid (principal in {group}, action == Action::"delete", resource in {folder}) when {{ resource.held }};'
        )
    if number % 10 == 1:
        user, document = f'User::"u{dice.randrange(USERS)}"', f'Document::"d{dice.randrange(1000)}"'
        return f'permit (principal == {user}, action == Action::"write", resource == {document});'
    action = dice.choice(('action == Action::"read"', 'action in [Action::"read", Action::"write"]', "action"))
    return (
        f"permit (principal in {group}, {action}, resource in {folder}) unless {{ resource.level > principal.level }};"
    )


def _uid(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "id": name}


def _user(dice: random.Random, number: int) -> Document:
    groups = [_uid("Group", f"g{one}") for one in sorted(dice.sample(range(GROUPS), 4))]
    return {"uid": _uid("User", f"u{number}"), "attrs": {"level": dice.randrange(5)}, "parents": groups}


def _document(dice: random.Random, number: int) -> Document:
    attributes = {"level": dice.randrange(5), "held": dice.random() < 0.1}
    return {
        "uid": _uid("Document", f"d{number}"),
        "attrs": attributes,
        "parents": [_uid("Folder", f"f{dice.randrange(FOLDERS)}")],
    }


def whole(store: Store) -> Decide:
    """cedarpy with all policies and all entities, parsed once."""
    policies = cedarpy.PolicySet.from_str("\n".join(store.policies))
    entities = cedarpy.Entities.from_json_str(msgspec.json.encode(store.entities).decode())
    return lambda request: cedarpy.is_authorized(_bare(request), policies, entities).allowed


def sliced(store: Store) -> Decide:
    """cedarpy with the two entities of the request, and the policies that name a group of the user or the user."""
    by_principal: dict[str, list[str]] = {}
    for text in store.policies:
        name = text.partition("principal in " if "principal in " in text else "principal == ")[2].partition(",")[0]
        by_principal.setdefault(name, []).append(text)
    known = {(one["uid"]["type"], one["uid"]["id"]): one for one in store.entities}
    slices: dict[str, Any] = {}

    def decide(request: Request) -> bool:
        subject, resource = (known[part["type"], part["id"]] for part in (request["subject"], request["resource"]))
        user = subject["uid"]["id"]
        if user not in slices:
            names = [f'User::"{user}"', *(f'Group::"{one["id"]}"' for one in subject["parents"])]
            texts = [text for name in names for text in by_principal.get(name, ())]
            slices[user] = cedarpy.PolicySet.from_str("\n".join(texts))
        return cedarpy.is_authorized(_bare(request), slices[user], [subject, resource]).allowed

    return decide


def decided(store: Store) -> Decide:
    """`policy.decide`."""
    snapshot = policy.compile_documents(store.as_documents())
    return lambda request: policy.decide(snapshot, request).allowed


def _bare(request: Request) -> Request:
    return {
        "principal": request["subject"],
        "action": _uid("Action", request["action"]["name"]),
        "resource": request["resource"],
        "context": {},
    }


ENGINES: dict[str, Callable[[Store], Decide]] = {
    "policy.decide": decided,
    "cedarpy, whole": whole,
    "cedarpy, sliced by hand": sliced,
}


def main(
    policies: Annotated[int, typer.Option(min=10, help="Cedar policies.")] = 1_000,
    requests: Annotated[int, typer.Option(min=1, help="Requests in a round; with --stream 100 times as many.")] = 3_000,
    with_stream: Annotated[bool, typer.Option("--stream", help="Measure the job beside a plain loop.")] = False,
    output: Annotated[Path | None, typer.Option(help="Append the line to this file, too.")] = None,
) -> None:
    """Measure, print a line of JSON, and fail when answers differ."""
    commit()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    store = Store(policies)
    found = streamed(store, 100 * requests) if with_stream else alone(store, requests)
    row = stamped({"benchmark": "cedar", "policies": policies, "entities": len(store.entities), **found})
    line = msgspec.json.encode({**row, "load_after": machine()["load"]}).decode()
    print(line, flush=True)
    if output is not None:
        with output.open("a") as file:
            file.write(line + "\n")
    if found["differences"]:
        print(f"{found['differences']} answers differ", file=sys.stderr)
        raise typer.Exit(1)


def alone(store: Store, requests: int) -> dict[str, Any]:
    """Decisions a second of each engine, for new and for repeated requests."""
    engines = {name: make(store) for name, make in ENGINES.items()}
    rates: dict[str, list[float]] = {}
    differences = 0
    for number in range(ROUNDS):
        dice = random.Random(f"round {number}")
        asked = [store.draw(dice) for _ in range(requests)]
        answers: list[list[bool]] = []
        for name, decide in engines.items():
            for time_of in ("first", "again"):
                begun = time.perf_counter()
                answers.append([decide(request) for request in asked])
                rates.setdefault(f"{name}, {time_of}", []).append(requests / (time.perf_counter() - begun))
        differences += sum(answers[0] != other for other in answers[1:])
    allowed = round(sum(answers[0]) / requests, 3)
    medians = {name: round(statistics.median(some)) for name, some in rates.items()}
    return {"requests": requests, "allowed": allowed, "decisions_a_second": medians, "differences": differences}


def streamed(store: Store, requests: int) -> dict[str, Any]:
    """Decisions a second of the job and of a plain loop on the same requests, in turn."""
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="lockkeeper-bench-") as folder:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers,
            systems=SYSTEMS,
            topics=TopicNames(systems=SYSTEMS),
            max_records=requests // 10,
            monitor=MonitorSettings(mode="none"),
        )
        stream.create(settings, ANSWERS)
        producer = stream.client_producer(settings)
        stream.produce_documents(producer, settings, store.as_documents())
        stream.produce_requests(producer, settings, store.draw, requests)
        stream.flush(producer)
        jobs, loops, differences = list[float](), list[float](), 0
        decide = whole(store)
        with own_process() as process:
            for number in range(ROUNDS + 1):
                jobs.append(process.submit(stream.decide_backlog, fresh(settings, folder), requests).result().rate)
                rate, allowed = _loop(settings, decide, min(requests, 20_000))
                loops.append(rate)
                print(msgspec.json.encode({"round": number, "job": jobs[-1], "loop": rate}).decode(), file=sys.stderr)
        job = _allowed(settings, requests)
        both = job.keys() & allowed.keys()
        differences = sum(job[id_] != allowed[id_] for id_ in both)
    rates = {"job": round(statistics.median(jobs[1:])), "plain loop": round(statistics.median(loops[1:]))}
    return {"requests": requests, "compared": len(both), "decisions_a_second": rates, "differences": differences}


def _loop(settings: Settings, decide: Decide, requests: int) -> tuple[float, dict[str, bool]]:
    """Consume, decide and produce one record after the other; the rate, and the answers by request."""
    consumer, producer = _reader(settings, settings.topics.requests[0]), stream.client_producer(settings)
    answers, begun = dict[str, bool](), 0.0
    while len(answers) < requests:
        for message in consumer.consume(1_000, 5.0):
            begun = begun or time.perf_counter()
            request = msgspec.json.decode(message.value() or b"")
            answers[request["id"]] = decide(request)
            decision = msgspec.json.encode({"request_id": request["id"], "decision": answers[request["id"]]})
            producer.produce(ANSWERS, decision, message.key())
            producer.poll(0)
    stream.flush(producer)
    consumer.close()
    return len(answers) / (time.perf_counter() - begun), answers


def _allowed(settings: Settings, requests: int) -> dict[str, bool]:
    """The job's answers by request, of all rounds the same; a round may end a few requests before the last."""
    consumer, found = _reader(settings, settings.topics.decisions), dict[str, bool]()
    while len(found) < requests and (messages := consumer.consume(10_000, 10.0)):
        for message in messages:
            decision = msgspec.json.decode(message.value() or b"")
            found[decision["request_id"]] = decision["decision"]
    consumer.close()
    return found


def _reader(settings: Settings, topic: str) -> Consumer:
    config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": uuid.uuid4().hex}
    consumer = Consumer({**config, "isolation.level": "read_committed", "enable.auto.commit": False})
    partitions: Sequence[int] = list(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return consumer


if __name__ == "__main__":
    typer.run(main)
