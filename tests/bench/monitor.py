"""The monitor measured with the real query: what it finds in a day with planted incidents, and how much it holds.

    python -m tests.bench.monitor --accesses 20000 --keys 1000000

Prints figures as lines of JSON: precision and recall of the alerts; then, for so many subjects that each ask once,
records a second from the topics to the committed transaction, and the size of the state that remembers them.
"""

import contextlib
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import msgspec
import typer
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from policy import to_text
from streaming.broker import EmbeddedBroker
from streaming.enforcer.source import session_settings
from streaming.kafka.clients import admin_client
from streaming.kafka.committed import committed_records
from streaming.kafka.topics import create_topics
from streaming.monitor.query import MonitorQuery, monitor_session
from streaming.ops.logs import log_warnings_only
from streaming.records.audit import Heartbeat, encode_verdict
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings, Rules
from streaming.topics import TopicNames, dead_letters_of
from tests.bench import incidents, machine

PARTITIONS = 2
HOUR = 60 * incidents.MINUTE
CHUNK = 100_000
END_SECONDS = 900.0
POLL_SECONDS = 0.2


def main(
    accesses: Annotated[int, typer.Option(help="Ordinary accesses of the day.")] = 20_000,
    each: Annotated[int, typer.Option(help="Planted incidents of each kind.")] = 20,
    keys: Annotated[int, typer.Option(help="Subjects that the state is to remember.")] = 1_000_000,
) -> None:
    """Measure the monitor on a broker of its own."""
    log_warnings_only(sys.stderr)
    _print({"machine": machine()})
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, checkpoint=f"{folder}/day", master="local[2]")
        spark = start_session("bench-monitor", session_settings(settings), settings.master)
        try:
            _print(_day(settings, spark, accesses, each))
            _print(_state(settings, spark, folder, keys))
        finally:
            spark.stop()


def _print(found: dict[str, Any]) -> None:
    print(msgspec.json.encode(found).decode(), flush=True)


def _day(settings: Settings, spark: SparkSession, accesses: int, each: int) -> dict[str, Any]:
    """Records hour by hour, as they would arrive; after the last one, only time advances."""
    settings = _named(settings, "day", MonitorSettings())
    day, topics = incidents.Day(accesses=accesses, each=each), settings.topics
    names = {
        incidents.DECISIONS: topics.decisions,
        incidents.VERDICTS: topics.verdicts,
        incidents.DEAD_LETTERS: dead_letters_of(topics.requests[0]),
    }
    with _running(settings, spark) as query:
        sent = 0
        for _, hour in itertools.groupby(day.records, lambda record: record.known // HOUR):
            sent += _produce(settings, ((names[r.to], r.value, r.known) for r in hour))
            _await(query, lambda sent=sent: _rows(query) >= sent)  # type: ignore[misc]
        for later in (incidents.START + 2 * incidents.DAY, incidents.START + 3 * incidents.DAY):
            sent += _produce(settings, [(topics.verdicts, encode_verdict(Heartbeat(time=later)), later)])
            _await(query, lambda sent=sent: _rows(query) >= sent)  # type: ignore[misc]
        _await(query, lambda: _idle(query))
    alerts = [msgspec.json.decode(message.value() or b"") for message in committed_records(settings, [topics.alerts])]
    back = {name: short for short, name in names.items()}
    raised = {(alert["kind"], back.get(alert["subject"], alert["subject"])) for alert in alerts}
    found = incidents.compare(day.incidents, raised)
    result = {"records": sent, "planted": found.planted, "found": found.found, "invented": found.invented}
    return {"day": {**result, "precision": found.precision, "recall": found.recall}}


def _state(settings: Settings, spark: SparkSession, folder: str, keys: int) -> dict[str, Any]:
    settings = _named(settings, "keys", MonitorSettings(rules=Rules(grace_seconds=1.0)))
    settings = msgspec.structs.replace(settings, checkpoint=f"{folder}/keys")
    topic, now = settings.topics.decisions, time.time_ns() // 1_000_000
    with _running(settings, spark) as query:
        for start in range(0, keys, CHUNK):
            numbers = range(start, min(start + CHUNK, keys))
            _produce(settings, ((topic, _one_decision(number, now), now) for number in numbers))
            _await(query, lambda end=numbers.stop: _rows(query) >= end)  # type: ignore[misc]
        progress = [p for p in query.recentProgress if p["numInputRows"]]
    [state] = progress[-1]["stateOperators"]
    half = progress[len(progress) // 2 :]
    seconds = sum(p["durationMs"]["triggerExecution"] for p in half) / 1000
    return {
        "state": {
            "keys": keys,
            "records_a_second": round(sum(p["numInputRows"] for p in half) / seconds),
            "rows": state["numRowsTotal"],
            "bytes_on_disk": state["customMetrics"].get("rocksdbSstFileSize"),
            "bytes_in_memory": state["memoryUsedBytes"],
        }
    }


def _one_decision(number: int, now: int) -> bytes:
    request = {
        "subject": {"type": "user", "id": f"user:{number}"},
        "action": {"name": incidents.ACTION},
        "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
    }
    context = {"outcome": "allow", "reasons": [], "request": request}
    record = {"id": str(number), "system": incidents.SYSTEM, "time": to_text(now), "context": context}
    return msgspec.json.encode(record)


def _named(settings: Settings, name: str, monitor: MonitorSettings) -> Settings:
    """Settings with topics of their own, which exist."""
    outputs = {field: f"{name}.{field}" for field in ("facts", "history", "decisions", "verdicts", "alerts")}
    names = msgspec.convert({"requests": [f"{name}.requests"], "audit": [f"{name}.audit"], **outputs}, TopicNames)
    made = msgspec.structs.replace(settings, job_name=name, topics=names, monitor=monitor)
    create_topics(admin_client(made), names, partitions=PARTITIONS)
    return made


def _produce(settings: Settings, records: Iterable[tuple[str, bytes, int]]) -> int:
    """Write records with these timestamps, in one transaction so that a batch reads all of them; returns how many."""
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        "linger.ms": "20",
        "transactional.id": "bench",
    }
    producer, count = Producer(config), 0
    producer.init_transactions(END_SECONDS)
    producer.begin_transaction()
    for topic, value, known in records:
        count += 1
        while True:
            try:
                producer.produce(topic, value, timestamp=known)
                break
            except BufferError:
                producer.poll(1)
    producer.commit_transaction(END_SECONDS)
    return count


@contextlib.contextmanager
def _running(settings: Settings, spark: SparkSession) -> Iterator[StreamingQuery]:
    with contextlib.closing(MonitorQuery(settings, monitor_session(spark, settings))) as monitor:
        query = monitor.start()
        try:
            yield query
        finally:
            monitor.stop(query)


def _rows(query: StreamingQuery) -> int:
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def _idle(query: StreamingQuery) -> bool:
    """Whether time has gone on, too: the last batches had no data."""
    last = [int(progress["numInputRows"]) for progress in query.recentProgress[-2:]]
    return last == [0, 0]


def _await(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + END_SECONDS, threading.Event()
    while not condition():
        if time.monotonic() > deadline or not query.isActive:
            raise TimeoutError(f"the monitor did not get through: {query.exception()}")
        pause.wait(POLL_SECONDS)


if __name__ == "__main__":
    typer.run(main)
