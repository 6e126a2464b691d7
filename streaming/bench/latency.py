"""From producing a request to reading its decision or copy, and from a policy change to the first decision under it."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.application import run
from streaming.bench import stream, traffic
from streaming.bench.machine import largest_worker
from streaming.kafka.clients import partitions_of
from streaming.settings import Settings

WARM_UP_SECONDS = 10.0
TIMEOUT = 60.0  # of a request: so long a slow answer may take and still be one
CHANGE_SECONDS = 60.0
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

    def __init__(self, settings: Settings, ask: traffic.Ask, rate: float) -> None:
        self.sent: dict[str, float] = {}
        self._producer = stream.client_producer(settings)
        self._records = traffic.client_records(settings.topics.requests[0], ask, 1 << 60, TIMEOUT, seed=2)
        self._rate, self._over = rate, threading.Event()
        self._result: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1)

    def send(self) -> str:
        """Send one request now; returns its id."""
        record = next(self._records)
        self.sent[record.id] = time.perf_counter()
        stream.produce(self._producer, record)
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
        stream.flush(self._producer)


def decision_latency(settings: Settings, ask_of: tuple[int, bool], rate: float, seconds: float) -> dict[str, float]:
    """Of the enforcer at so many requests a second, in ms."""
    with _enforcing(settings):
        return _latency(settings, settings.topics.decisions, ask_of, rate, seconds)


def copy_latency(settings: Settings, ask_of: tuple[int, bool], rate: float, seconds: float) -> dict[str, float]:
    """Of the Spark job that copies."""
    found: dict[str, float] = stream.with_copy(
        settings, "latest", lambda _query: _latency(settings, stream.COPY, ask_of, rate, seconds)
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
        arrivals.wait(lambda: load.sent.keys() <= arrivals.at.keys(), stream.END_SECONDS, "answers to all requests")
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
            if len(load.sent) > stream.END_SECONDS:
                raise TimeoutError(f"no answer within {stream.END_SECONDS:g} s")
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
        producer = stream.client_producer(settings, **{"linger.ms": "0"})
        took = [_change(producer, topic, number, arrivals) for number in range(changes)]
    return {**quantiles(took), "max_ms": round(1000 * max(took), 1)}


def _change(producer: Producer, topic: str, number: int, arrivals: Arrivals) -> float:
    statement = {"effect": "allow", "action": "kafka:ListTopic", "resource": f"kafka:topic:env-{number}/bench/orders"}
    spec = {"statements": [statement]}
    value = msgspec.json.encode({"system": "lenses6", "kind": "Role", "name": "bench-changed", "spec": spec})
    reports: list[Message] = []
    producer.produce(topic, value, b"Role/bench-changed", on_delivery=lambda _error, report: reports.append(report))
    stream.flush(producer)
    acknowledged, offset = time.perf_counter(), reports[0].offset()
    assert offset is not None
    arrivals.wait(lambda: arrivals.offsets.get(topic, -1) >= offset, CHANGE_SECONDS, "a decision under the change")
    return time.perf_counter() - acknowledged


def idle_memory(settings: Settings, ask_of: tuple[int, bool]) -> float:
    """The largest worker's private memory, MiB, of a job that has decided requests and holds few policies."""
    with _enforcing(settings), _loaded(settings, settings.topics.decisions, ask_of, 20.0) as (_, arrivals):
        arrivals.wait(lambda: len(arrivals.at) > IDLE_REQUESTS, stream.END_SECONDS, "decisions of an idle job")
        return largest_worker()
