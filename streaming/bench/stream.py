"""The two jobs that are compared, each for one round: the enforcer, and a Spark job that only copies key and value."""

import calendar
import multiprocessing
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import msgspec
import structlog
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.application import run
from streaming.bench import traffic
from streaming.bench.machine import largest_worker
from streaming.client.asking import Record
from streaming.client.producer import FIXED, USUAL
from streaming.commit.checkpoint import write_plainly
from streaming.enforcer.source import session_settings, source_options
from streaming.kafka.topics import create_topics
from streaming.runtime.spark import start_session
from streaming.settings import Settings

PARTITIONS = 2  # as many as the machine has cores: more would only cut the same work smaller
COPY = "bench.copies"
END_SECONDS = 600.0
BACKLOG_SECONDS = 24 * 3600.0  # the deadline of requests that wait in the topic until it is their round


class Round(msgspec.Struct, frozen=True):
    """What a round showed. `start`: seconds from the start of the job to its first commit; `first`: of that, from the
    start of the first batch; `rate`: records a second in the second half of the batches; `memory`: the largest Python
    worker's private memory at the end, MiB."""

    start: float
    first: float
    rate: float
    memory: float = 0.0


class Commits:
    """When the job's batches began and were committed; stops the job after `enough` of them."""

    def __init__(self, stop: threading.Event, enough: int) -> None:
        self.began: list[float] = []
        self.commits: list[float] = []
        self.memory = 0.0
        self._stop, self._enough = stop, enough

    def __call__(self, step: str, batch: int) -> None:
        """Note a step of the job."""
        if batch < 0:
            return
        if step == "range-fixed":
            self.began.append(time.perf_counter())
        if step == "committed":
            self.commits.append(time.perf_counter())
            if len(self.commits) >= self._enough:
                self.memory = largest_worker()
                self._stop.set()


def own_process() -> Executor:
    """One process, which keeps its Java from round to round: a JVM that other code has warmed would run this slower."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _log_to_standard_error)


def _log_to_standard_error() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # standard output is for figures


def fresh(settings: Settings, folder: str) -> Settings:
    """The same with a name and checkpoint of its own: it begins at the first request."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    return msgspec.structs.replace(settings, job_name=name, checkpoint=f"{folder}/{name}")


def prepare(settings: Settings, statements: int, requests: int, mix: bool) -> None:
    """Create the topics, publish policies and facts, and produce the requests."""
    create(settings, COPY)
    producer = client_producer(settings)
    documents, ask = traffic.policies(statements, mix=mix)
    produce_documents(producer, settings, documents)
    produce_requests(producer, settings, ask, requests)
    flush(producer)


def create(settings: Settings, *more: str) -> None:
    """Create the job's topics, and more."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    create_topics(admin, settings.topics, partitions=PARTITIONS)
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in more]).values() if more else ():
        future.result(30)


def client_producer(settings: Settings, **config: Any) -> Producer:
    """A producer with the settings of `streaming.client`, but for the time that a backlog may wait in it."""
    room = {"queue.buffering.max.messages": "1000000", "message.timeout.ms": "600000"}
    return Producer({**USUAL, **FIXED, **room, **config, "bootstrap.servers": settings.bootstrap_servers})


def produce_documents(producer: Producer, settings: Settings, documents: list[traffic.Document]) -> None:
    """Policies to their topics, facts to theirs."""
    topics = settings.topics.policy_topics()
    for document in documents:
        name = f"{document['kind']}/{document['name']}"
        fact, value = traffic.is_fact(document), msgspec.json.encode(document)
        topic = settings.topics.facts if fact else topics[document["system"]]
        key = f"{document['system']}/{name}" if fact else name
        produce(producer, Record(topic, key.encode(), value, [], ""))


def produce_requests(producer: Producer, settings: Settings, ask: traffic.Ask, count: int) -> None:
    """So many requests as the client sends them, with deadlines that do not pass while they wait."""
    for record in traffic.client_records(settings.topics.requests[0], ask, count, BACKLOG_SECONDS):
        produce(producer, record)


def produce(producer: Producer, record: Record) -> None:
    """Produce a record, and wait while the producer is full."""
    while True:
        try:
            return producer.produce(record.topic, record.value, record.key, headers=record.headers)
        except BufferError:
            producer.poll(1)


def flush(producer: Producer) -> None:
    """Wait until all records are acknowledged. Raises TimeoutError."""
    if left := producer.flush(END_SECONDS):
        raise TimeoutError(f"{left} records were not acknowledged within {END_SECONDS:g} s")


def decide_backlog(settings: Settings, requests: int) -> Round:
    """Decide all requests that wait in the topic."""
    stop = threading.Event()
    commits, began = Commits(stop, -(-requests // settings.max_records)), time.perf_counter()
    run(settings, stop, commits)
    half = len(commits.commits) // 2
    records = (len(commits.commits) - half) * settings.max_records
    rate = records / (commits.commits[-1] - commits.commits[half - 1])
    return Round(commits.commits[0] - began, commits.commits[0] - commits.began[0], rate, commits.memory)


def copy_backlog(settings: Settings, requests: int) -> Round:
    """Copy all of them."""
    began = time.time()
    progress = with_copy(settings, "earliest", lambda query: _await_rows(query, requests))
    half = len(progress) // 2
    rows = sum(int(p["numInputRows"]) for p in progress[half:])
    first = int(progress[0]["durationMs"]["triggerExecution"]) / 1000
    return Round(_end_of(progress[0]) - began, first, rows / (_end_of(progress[-1]) - _end_of(progress[half - 1])))


def with_copy(settings: Settings, starting: str, use: Callable[[Any], Any]) -> Any:
    """Run the Spark job that copies the request topic by Spark's own Kafka sink, while its query is used."""
    spark = start_session(settings.job_name, session_settings(settings), settings.master)
    try:
        write_plainly(spark, settings.checkpoint)
        options = {**source_options(settings), "subscribe": settings.topics.requests[0], "startingOffsets": starting}
        records = spark.readStream.format("kafka").options(**options).load().select("key", "value", "headers")
        sink = {"kafka.bootstrap.servers": settings.bootstrap_servers, "topic": COPY, "includeHeaders": "true"}
        writer = records.writeStream.format("kafka").options(**sink)
        query = writer.option("checkpointLocation", settings.checkpoint).start()
        found = use(query)
        query.stop()
    finally:
        spark.stop()
    return found


def _await_rows(query: Any, requests: int) -> list[Any]:
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline and query.isActive:
        progress = [p for p in query.recentProgress if p["numInputRows"]]
        if sum(p["numInputRows"] for p in progress) >= requests:
            return progress
        time.sleep(0.1)
    raise TimeoutError(f"the copy did not end within {END_SECONDS:g} s: {query.exception()}")


def _end_of(progress: Any) -> float:
    """When a batch ended, in seconds."""
    begun = calendar.timegm(time.strptime(progress["timestamp"][:19], "%Y-%m-%dT%H:%M:%S"))
    return begun + (int(progress["timestamp"][20:23]) + int(progress["durationMs"]["triggerExecution"])) / 1000
