"""The two jobs that are compared, each for one round: the enforcer, and a Spark job that only copies key and value."""

import calendar
import contextlib
import itertools
import multiprocessing
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import msgspec
import structlog
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.application import run
from streaming.client.connection import FIXED, USUAL
from streaming.client.records import ProducerRecord
from streaming.commit.checkpoint import write_plainly
from streaming.enforcer.source import session_settings, source_options
from streaming.kafka.clients import partitions_of
from streaming.kafka.topics import create_topics
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from tests.bench import largest_worker, traffic

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


def prepare(
    settings: Settings,
    statements: int,
    requests: int,
    mix: bool,
    distinct: int | None = None,
    new_resources: bool = False,
    by_others: bool = False,
) -> None:
    """Create the topics, publish policies and facts, and produce the requests; see `traffic.client_records`."""
    create(settings, COPY)
    producer = client_producer(settings)
    documents, draw = traffic.policies(statements, mix=mix)
    produce_documents(producer, settings, documents)
    produce_requests(producer, settings, draw, requests, distinct, new_resources, by_others)
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
        produce(producer, ProducerRecord(topic, key.encode(), value, [], ""))


def produce_requests(
    producer: Producer,
    settings: Settings,
    draw: traffic.Draw,
    count: int,
    distinct: int | None = None,
    new_resources: bool = False,
    by_others: bool = False,
) -> None:
    """So many requests as the client sends them, with deadlines that do not pass while they wait."""
    topic = settings.topics.requests[0]
    for record in traffic.client_records(
        topic, draw, count, BACKLOG_SECONDS, distinct=distinct, new_resources=new_resources, by_others=by_others
    ):
        produce(producer, record)


def produce(producer: Producer, record: ProducerRecord) -> None:
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


WARM_UP_SECONDS = 10.0
TIMEOUT = 60.0  # of a request: so long a slow answer may take and still be one
CHANGE_SECONDS = 60.0
CHANGED = b"Role/bench-changed"
IDLE_REQUESTS = 40


class Context(msgspec.Struct, frozen=True):
    """Of a decision, what is looked at."""

    policy_offsets: dict[str, dict[str, int]] = {}


class Arrived(msgspec.Struct, frozen=True):
    """A decision, or a copied request."""

    id: str
    request_id: str = ""
    context: Context = Context()


ARRIVED = msgspec.json.Decoder(Arrived)


class Arrivals:
    """Reads a topic from its end in the background: when each request's record came, and the newest policy offsets."""

    def __init__(self, settings: Settings, topic: str) -> None:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": settings.bootstrap_servers}
        self.at: dict[str, float] = {}
        self.offsets: dict[str, int] = {}
        self._changed, self._over = threading.Condition(), threading.Event()
        fast = {"isolation.level": "read_committed", "fetch.wait.max.ms": "5", "group.id": "bench"}
        self._consumer = Consumer({**servers, **fast})
        ends = [TopicPartition(topic, number) for _, number in partitions_of(AdminClient(servers), [topic])]
        for end in ends:
            end.offset = self._consumer.get_watermark_offsets(end, 30)[1]
        self._consumer.assign(ends)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now, found = time.perf_counter(), ARRIVED.decode(message.value() or b"")
            with self._changed:
                self.at[found.request_id or found.id] = now
                for topic, offsets in found.context.policy_offsets.items():
                    self.offsets[topic] = max(self.offsets.get(topic, -1), *offsets.values())
                self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until the condition holds. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise TimeoutError(f"{what}: not within {seconds:g} s")

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()
        self._consumer.close()


class Load:
    """Sends requests at a steady rate in the background, as the client does; `sent`: when, by request id."""

    def __init__(self, settings: Settings, draw: traffic.Draw, rate: float) -> None:
        self.sent: dict[str, float] = {}
        self._producer = client_producer(settings)
        self._records = traffic.client_records(settings.topics.requests[0], draw, 1 << 60, TIMEOUT, seed=2)
        self._rate, self._over = rate, threading.Event()
        self._result: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1)

    def send(self) -> str:
        """Send one request now; returns its id."""
        record = next(self._records)
        self.sent[record.id] = time.perf_counter()
        produce(self._producer, record)
        self._producer.poll(0)
        return record.id

    def start(self) -> None:
        """Begin to send."""
        self._result = self._pool.submit(self._run)

    def _run(self) -> None:
        begun = time.perf_counter()
        for number in itertools.count(1):
            if self._over.wait(max(0.0, begun + number / self._rate - time.perf_counter())):
                return
            self.send()

    def stop(self) -> None:
        """Stop, once all requests are acknowledged; raises what sending raised."""
        self._over.set()
        if self._result is not None:
            self._result.result()
        self._pool.shutdown()
        flush(self._producer)


def decision_latency(settings: Settings, ask_of: tuple[int, bool], rate: float, seconds: float) -> dict[str, float]:
    """Of the enforcer at so many requests a second, in ms."""
    with _enforcing(settings):
        return _latency(settings, settings.topics.decisions, ask_of, rate, seconds)


def copy_latency(settings: Settings, ask_of: tuple[int, bool], rate: float, seconds: float) -> dict[str, float]:
    """Of the Spark job that copies."""
    found: dict[str, float] = with_copy(
        settings, "latest", lambda _query: _latency(settings, COPY, ask_of, rate, seconds)
    )
    return found


@contextlib.contextmanager
def _enforcing(settings: Settings) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run, settings, stop)
        try:
            yield
        finally:
            stop.set()
            job.result()


def _latency(settings: Settings, topic: str, ask_of: tuple[int, bool], rate: float, seconds: float) -> dict[str, float]:
    with _loaded(settings, topic, ask_of, rate) as (load, arrivals):
        time.sleep(WARM_UP_SECONDS + seconds)
        load.stop()
        arrivals.wait(lambda: load.sent.keys() <= arrivals.at.keys(), END_SECONDS, "answers to all requests")
    begun = min(load.sent.values()) + WARM_UP_SECONDS
    took = [arrivals.at[id_] - at for id_, at in load.sent.items() if at >= begun]
    return quantiles(took)


@contextlib.contextmanager
def _loaded(settings: Settings, topic: str, ask_of: tuple[int, bool], rate: float) -> Iterator[tuple[Load, Arrivals]]:
    """Steady requests once the first was answered."""
    statements, mix = ask_of
    arrivals = Arrivals(settings, topic)
    load = Load(settings, traffic.policies(statements, mix=mix)[1], rate)
    try:
        while not arrivals.at:  # a copy begins at the end of the topic, wherever that is when it starts
            load.send()
            with contextlib.suppress(TimeoutError):
                arrivals.wait(lambda: bool(arrivals.at), 1.0, "the first answer")
            if len(load.sent) > END_SECONDS:
                raise TimeoutError(f"no answer within {END_SECONDS:g} s")
        load.sent.clear()
        load.start()
        yield load, arrivals
    finally:
        load.stop()
        arrivals.close()


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Of durations, in ms."""
    ordered = sorted(seconds)
    found = {f"p{q}_ms": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in (50, 90, 99)}
    return {**{name: round(1000 * value, 1) for name, value in found.items()}, "count": len(ordered)}


def change_latency(settings: Settings, ask_of: tuple[int, bool], rate: float, changes: int) -> dict[str, float]:
    """From the acknowledgement of a changed document to the first decision under it, one change after the other."""
    topic = settings.topics.policy_topics()["lenses6"]
    with _enforcing(settings), _loaded(settings, settings.topics.decisions, ask_of, rate) as (_, arrivals):
        producer = client_producer(settings, **{"linger.ms": "0"})
        took = [_change(producer, topic, number, arrivals) for number in range(changes)]
    return {**quantiles(took), "max_ms": round(1000 * max(took), 1)}


def changed_role(number: int) -> bytes:
    """A document that is another one for each number; its key is `CHANGED`."""
    statement = {"effect": "allow", "action": "kafka:ListTopic", "resource": f"kafka:topic:env-{number}/bench/orders"}
    spec = {"statements": [statement]}
    return msgspec.json.encode({"system": "lenses6", "kind": "Role", "name": "bench-changed", "spec": spec})


def _change(producer: Producer, topic: str, number: int, arrivals: Arrivals) -> float:
    reports: list[Message] = []
    value = changed_role(number)
    producer.produce(topic, value, CHANGED, on_delivery=lambda _error, report: reports.append(report))
    flush(producer)
    acknowledged, offset = time.perf_counter(), reports[0].offset()
    assert offset is not None
    arrivals.wait(lambda: arrivals.offsets.get(topic, -1) >= offset, CHANGE_SECONDS, "a decision under the change")
    return time.perf_counter() - acknowledged


def idle_memory(settings: Settings, ask_of: tuple[int, bool]) -> float:
    """The largest worker's private memory, MiB, of a job that has decided requests and holds few policies."""
    with _enforcing(settings), _loaded(settings, settings.topics.decisions, ask_of, 20.0) as (_, arrivals):
        arrivals.wait(lambda: len(arrivals.at) > IDLE_REQUESTS, END_SECONDS, "decisions of an idle job")
        return largest_worker()
