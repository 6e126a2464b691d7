"""What the changes topic costs: the job with and without it in turn, while policies change."""

import contextlib
import statistics
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any
from unittest import mock

import msgspec
from confluent_kafka.admin import AdminClient

from policy import DocumentStore, Key
from streaming.kafka.authorship import CHANGE, Authorship
from streaming.kafka.clients import last_stable_offsets
from streaming.records.formats import Result
from streaming.settings import Settings
from streaming.snapshots import changes, policies
from streaming.snapshots.change_log import ChangeLog
from streaming.snapshots.documents import DocumentRecord
from streaming.topics import Offsets
from tests.bench import stream

CHANGES_A_SECOND = 2.0
SIDES = {True: "with", False: "without"}


class Costs(msgspec.Struct, frozen=True):
    """What is measured. ``policies``: statements, and whether of all systems; ``rate``: requests a second."""

    requests: int
    policies: tuple[int, bool]
    rounds: int
    rate: float
    seconds: float


class NoChangeLog(ChangeLog):
    """Notes nothing and writes nothing."""

    def note(self, key: Key | None, record: DocumentRecord, authorship: Authorship, store: DocumentStore) -> str:
        return ""

    def noted(self, key: Key | None, refused: bool, store: DocumentStore) -> None:
        pass

    def close(self, version: str, offsets: Offsets) -> None:
        pass


class AlertsWithoutWidenings(changes.Changes):
    """Writes the alerts of changes, which are older than the topic, but not what a change widens."""

    def _found(self, change: changes._Change) -> list[Result]:
        return super()._found(change)[:-1]


def _job(with_topic: bool) -> contextlib.AbstractContextManager[object]:
    """Jobs that start in here have the changes topic, or not: the product has no setting for that."""
    if with_topic:
        return contextlib.nullcontext()
    return mock.patch.multiple(policies, ChangeLog=NoChangeLog, Changes=AlertsWithoutWidenings)


@contextlib.contextmanager
def _changing(settings: Settings) -> Iterator[None]:
    """Publish a changed role again and again, as `lockkeeper policy apply` does: with the headers of a change."""
    over, topic = threading.Event(), settings.topics.policy_topics()["lenses6"]
    producer = stream.client_producer(settings, **{"linger.ms": "0"})

    def publish() -> None:
        number = 0
        while not over.wait(1 / CHANGES_A_SECOND):
            number += 1
            headers: list[tuple[str, str | bytes | None]] = [(CHANGE, uuid.uuid4().hex)]
            producer.produce(topic, stream.changed_role(number), stream.CHANGED, headers=headers)
            stream.flush(producer)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def throughput(settings: Settings, with_topic: bool, requests: int) -> dict[str, float]:
    """Requests a second of a backlog, and how many records the changes topic got."""
    with _counting(settings) as count, _job(with_topic), _changing(settings):
        rate = stream.decide_backlog(settings, requests).rate
    return {"rate": round(rate), "changes_written": count()}


def latency(settings: Settings, with_topic: bool, costs: Costs) -> dict[str, float]:
    """Of decisions at a steady rate, ms, and how many records the changes topic got."""
    with _counting(settings) as count, _job(with_topic), _changing(settings):
        found = stream.decision_latency(settings, costs.policies, costs.rate, costs.seconds)
    return {**found, "changes_written": count()}


@contextlib.contextmanager
def _counting(settings: Settings) -> Iterator[Callable[[], int]]:
    admin, partition = AdminClient({"bootstrap.servers": settings.bootstrap_servers}), (settings.topics.changes, 0)
    before = last_stable_offsets(admin, [partition])[partition]
    yield lambda: last_stable_offsets(admin, [partition])[partition] - before


def measure(
    costs: Costs, process: Executor, fresh: Callable[[bool], Settings], report: Callable[..., None]
) -> dict[str, Any]:
    """Both sides in turn, each first in every other round. The first round starts Java and does not count.

    ``fresh``: the settings of a new job, True: with an empty request topic. ``report``: prints progress.
    """
    rates, latencies = list[dict[bool, Any]](), list[dict[bool, Any]]()
    for number in range(costs.rounds + 1):
        order = (True, False) if number % 2 else (False, True)
        jobs = {side: process.submit(throughput, fresh(False), side, costs.requests).result() for side in order}
        rates.append(jobs)
        report({"progress": f"changes topic, throughput {number}", **_named(jobs)})
        if costs.seconds:
            jobs = {side: process.submit(latency, fresh(True), side, costs).result() for side in order}
            latencies.append(jobs)
            report({"progress": f"changes topic, latency {number}", **_named(jobs)})
    return {"throughput": _compared(rates[1:], "rate")} | {
        f"latency_{name}": _compared(latencies[1:], name) for name in ("p50_ms", "p90_ms", "p99_ms") if latencies
    }


def _named(jobs: dict[bool, Any]) -> dict[str, Any]:
    return {SIDES[side]: found for side, found in jobs.items()}


def _compared(rounds: list[dict[bool, Any]], field: str) -> dict[str, Any]:
    """Medians of both sides, and of their ratios."""
    ratios = [jobs[True][field] / jobs[False][field] for jobs in rounds]
    medians = {name: statistics.median(jobs[side][field] for jobs in rounds) for side, name in SIDES.items()}
    return {**medians, "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
