"""The benchmark: how fast requests become decisions, held against a Spark job that only copies; and how late.

    python -m streaming.bench --requests 1000000 --rounds 3

Both jobs read the same requests with the same source options from the same broker, turn about in one run, each in a
process and a Java of its own, after rounds that warm them up and do not count. Rates are of the second half of the
micro-batches: in the first half caches fill.
"""

import contextlib
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyspark
import structlog
import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streaming import workload
from streaming.application import run
from streaming.enforcer.checkpoint import write_plainly
from streaming.enforcer.source import session_settings, source_options
from streaming.monitor.rules import MonitorSettings
from streaming.runtime.broker import EmbeddedBroker
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from streaming.topics import create_topics

PARTITIONS = 2  # as many as the machine has cores: more would only cut the same work smaller
COPY = "bench.copies"
WARM_UP_SECONDS = 5.0
END_SECONDS = 600.0


class Steps:
    """When the job's batches were committed."""

    def __init__(self, stop: threading.Event, enough: Callable[[], bool]) -> None:
        self.commits: list[float] = []
        self._stop, self._enough = stop, enough

    def __call__(self, step: str, batch: int) -> None:
        """Note a commit, and stop the job when there were enough."""
        if step == "committed" and batch >= 0:
            self.commits.append(time.perf_counter())
            if self._enough():
                self._stop.set()


def main(
    requests: Annotated[int, typer.Option(help="Requests to decide and to copy.")] = 1_000_000,
    statements: Annotated[int, typer.Option(help="Policy statements.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; their medians are printed.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Rounds before these, which do not count.")] = 1,
    batch: Annotated[int, typer.Option(help="Records of a micro-batch.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="How long latency is measured; 0 leaves it out.")] = 20.0,
    rate: Annotated[int, typer.Option(help="Requests a second while latency is measured.")] = 100,
    monitor: Annotated[bool, typer.Option(help="With the monitor beside, which reads every decision again.")] = False,
) -> None:
    """Measure, and print what was found as lines of JSON."""
    if requests % batch or requests < 2 * batch:
        raise typer.BadParameter(f"--requests must be at least two times --batch ({batch}), and a multiple of it")
    _tell(machine())
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="lockkeeper-bench-") as folder:
        watch = MonitorSettings(enabled=monitor)
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, max_records=batch, monitor=watch)
        _prepare(settings, statements, requests)
        with _own_process() as copier, _own_process() as decider:
            _tell(_throughput(settings, folder, requests, rounds, warm_up, copier, decider))
            if seconds:
                _tell(decider.submit(_latency, _fresh(settings, folder), statements, rate, seconds).result())


def _own_process() -> Executor:
    """One process, which keeps its Java from round to round: a JVM that other code has warmed would run this slower."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _log_to_standard_error)


def _log_to_standard_error() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # standard output is for figures


def _throughput(
    settings: Settings, folder: str, requests: int, rounds: int, warm_up: int, copier: Executor, decider: Executor
) -> dict[str, Any]:
    """Both jobs turn about; each round is printed as it ends, and at the end the medians of those that count.

    Rounds that warm up have numbers below 1.
    """
    counted = []
    for number in range(1 - warm_up, rounds + 1):
        copies = copier.submit(_copies_a_second, _fresh(settings, folder), requests).result()
        decisions = decider.submit(_decisions_a_second, _fresh(settings, folder), requests).result()
        rates = {"copies_a_second": copies, "decisions_a_second": decisions, "ratio": decisions / copies}
        _tell({"round": number, **_rounded(rates), "load": os.getloadavg()[0]})
        if number > 0:
            counted.append(rates)
    medians = {name: statistics.median(rates[name] for rates in counted) for name in counted[0]}
    return {"medians_of": rounds, "batch": settings.max_records, **_rounded(medians)}


def _rounded(rates: dict[str, float]) -> dict[str, float]:
    return {name: round(rate, 3) if rate < 10 else round(rate) for name, rate in rates.items()}


def machine() -> dict[str, Any]:
    """What it runs on."""
    model = next((line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")), "?")
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _tell(found: dict[str, Any]) -> None:
    print(msgspec.json.encode(found).decode(), flush=True)


def _fresh(settings: Settings, folder: str) -> Settings:
    """The same with a name and checkpoint that nobody has used: it begins at the first request."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    return msgspec.structs.replace(settings, job_name=name, checkpoint=f"{folder}/{name}")


def _prepare(settings: Settings, statements: int, requests: int) -> None:
    client = {"bootstrap.servers": settings.bootstrap_servers}
    admin = AdminClient(dict(client))
    create_topics(admin, settings.topics, partitions=PARTITIONS)
    admin.create_topics([NewTopic(COPY, PARTITIONS, 1)])[COPY].result(30)
    producer = Producer({**client, "linger.ms": "20", "queue.buffering.max.messages": "1000000"})
    documents = workload.documents(statements)
    policies = settings.topics.policy_topics()
    for document in documents:
        key = f"{document['kind']}/{document['name']}"
        producer.produce(policies[document["system"]], msgspec.json.encode(document), key)
    for request in workload.requests(documents, requests):
        _produce(producer, settings.topics.requests[0], request)
    producer.flush(END_SECONDS)


def _produce(producer: Producer, topic: str, request: dict[str, Any]) -> None:
    while True:
        try:
            return producer.produce(topic, msgspec.json.encode(request), request["id"])
        except BufferError:
            producer.poll(1)


def _decisions_a_second(settings: Settings, requests: int) -> float:
    stop = threading.Event()
    steps = Steps(stop, lambda: len(steps.commits) >= -(-requests // settings.max_records))
    run(settings, stop, steps)
    half = len(steps.commits) // 2
    return (len(steps.commits) - half) * settings.max_records / (steps.commits[-1] - steps.commits[half - 1])


def _copies_a_second(settings: Settings, requests: int) -> float:
    """The Spark job that only copies key and value, by Spark's own Kafka sink."""
    spark = start_session(settings.job_name, session_settings(settings), settings.master)
    try:
        write_plainly(spark, settings.checkpoint)
        options = {**source_options(settings), "startingOffsets": "earliest"}
        records = spark.readStream.format("kafka").options(**options).load().select("key", "value")
        sink = {"kafka.bootstrap.servers": settings.bootstrap_servers, "topic": COPY}
        writer = records.writeStream.format("kafka").options(**sink)
        query = writer.option("checkpointLocation", settings.checkpoint).start()
        progress = _await_rows(query, requests)
        query.stop()
    finally:
        spark.stop()
    half = len(progress) // 2
    rows = sum(int(p["numInputRows"]) for p in progress[half:])
    return rows / (_end_of(progress[-1]) - _end_of(progress[half - 1]))


def _await_rows(query: Any, requests: int) -> list[Any]:
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        progress = [p for p in query.recentProgress if p["numInputRows"]]
        if sum(p["numInputRows"] for p in progress) >= requests:
            return progress
        time.sleep(0.1)
    raise TimeoutError(f"the copy did not end within {END_SECONDS} s: {query.exception()}")


def _end_of(progress: Any) -> float:
    """When a batch ended, in seconds."""
    begun = time.mktime(time.strptime(progress["timestamp"][:19], "%Y-%m-%dT%H:%M:%S"))
    return begun + (int(progress["timestamp"][20:23]) + int(progress["durationMs"]["triggerExecution"])) / 1000


def _latency(settings: Settings, statements: int, rate: int, seconds: float) -> dict[str, Any]:
    """From producing a request to reading its decision, at a steady rate, once the job is warm."""
    settings = msgspec.structs.replace(
        settings, topics=msgspec.structs.replace(settings.topics, requests=("bench.slow",))
    )
    create_topics(
        AdminClient({"bootstrap.servers": settings.bootstrap_servers}), settings.topics, partitions=PARTITIONS
    )
    stop = threading.Event()
    job = threading.Thread(target=run, args=(settings, stop))
    job.start()
    with _reading(settings) as arrived:
        sent = _send_steadily(settings, statements, rate, seconds + WARM_UP_SECONDS, arrived)
    stop.set()
    job.join()
    begun = min(sent.values())
    late = sorted((arrived[key] - at) * 1000 for key, at in sent.items() if at - begun >= WARM_UP_SECONDS)
    quantiles = {f"p{q}_ms": round(late[min(len(late) - 1, len(late) * q // 100)], 1) for q in (50, 90, 99)}
    return {"rate": rate, "requests": len(late), **quantiles}


@contextlib.contextmanager
def _reading(settings: Settings) -> Iterator[dict[bytes, float]]:
    """When the decision of each key came, filled in the background; at the end, all that were sent have come."""
    arrived: dict[bytes, float] = {}
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "5",
        }
    )
    ends = [TopicPartition(settings.topics.decisions, n) for n in range(PARTITIONS)]
    for end in ends:
        end.offset = consumer.get_watermark_offsets(end)[1]
    consumer.assign(ends)
    done = threading.Event()
    reader = threading.Thread(target=_note_arrivals, args=(consumer, arrived, done))
    reader.start()
    try:
        yield arrived
    finally:
        done.set()
        reader.join()
        consumer.close()


def _note_arrivals(consumer: Consumer, arrived: dict[bytes, float], done: threading.Event) -> None:
    while not done.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            arrived[message.key() or b""] = time.perf_counter()


def _send_steadily(
    settings: Settings, statements: int, rate: int, seconds: float, arrived: dict[bytes, float]
) -> dict[bytes, float]:
    """When each request was sent, once the first was answered and all the others too."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "linger.ms": "0"})
    topic, sent = settings.topics.requests[0], dict[bytes, float]()
    asked = iter(workload.requests(workload.documents(statements), int(rate * seconds) + 1, seed=2))
    _send(producer, topic, next(asked), sent)
    _await(lambda: len(arrived) >= 1)
    begun, sent = time.perf_counter(), {}
    for number, request in enumerate(asked):
        time.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        _send(producer, topic, request, sent)
    producer.flush(END_SECONDS)
    _await(lambda: sent.keys() <= arrived.keys())
    return sent


def _send(producer: Producer, topic: str, request: dict[str, Any], sent: dict[bytes, float]) -> None:
    sent[request["id"].encode()] = time.perf_counter()
    _produce(producer, topic, request)
    producer.poll(0)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {END_SECONDS} s")
        time.sleep(0.01)


if __name__ == "__main__":
    typer.run(main)
