"""`make many`: how a job on this machine starts, answers and grows with many partitions, tenants, facts, statements.

    python -m tests.chaos.many [--only NAME …] [--output FILE] [--seconds N] [--keep FOLDER]

A broker and a job with default settings for each; a line of JSON for each. Latencies are those of a client that asks at
a steady rate, from the record it sends to the committed decision it reads.
"""

import argparse
import itertools
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from policy.core.document import Key
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, change_of
from streaming.broker import EmbeddedBroker
from streaming.client.records import ProducerRecord
from streaming.kafka.clients import log_ends, partitions_of
from streaming.kafka.topics import create_topics
from streaming.settings import MetricsSettings, Settings
from streaming.topics import TopicNames
from streaming.verify.cluster import await_decided
from tests.bench import private_memory, stamped, traffic, workers_below
from tests.bench.stream import client_producer, flush, produce, produce_documents
from tests.brokers import free_port
from tests.chaos.processes import Job
from tests.chaos.run import write_line
from tests.chaos.three_brokers import ThreeBrokers
from tests.endpoint import get
from tests.stream.world import group, request, role
from tests.waiting import wait_until

START_SECONDS, DECIDED_SECONDS = 900.0, 900.0
RATE = 20.0  # probes a second
LOGS_OF_A_BROKER = 4000  # one of 10,000 ended: a process may open 20,000 files here, and root may not raise that
TENANTS = 1000
FLOOD = 600_000
TOPICS, PARTITIONS = 50, 200
FACTS, STATEMENTS = 1_000_000, 100_000
USER, RESOURCE = "dana", "orders"

Probe = Callable[[int], tuple[str, int | None, bytes, dict[str, Any]]]
"""Topic, partition (None: by key), key and request of the probe with a number."""


class Stage:
    """A broker with the topics of settings, and a job on them, whose memory is looked at while it runs."""

    def __init__(self, folder: Path, topics: TopicNames, request_partitions: int = 6, **settings: Any) -> None:
        self.folder = folder
        logs = len(topics.requests) * request_partitions
        self._broker: EmbeddedBroker | ThreeBrokers
        if logs < LOGS_OF_A_BROKER:
            self._broker = EmbeddedBroker(data_dir=folder / "kafka")
            self._broker.start(300)
        else:
            self._broker = ThreeBrokers(folder, disks=False)
            self._broker.start()
        self.settings = Settings(
            bootstrap_servers=self._broker.bootstrap_servers,
            checkpoint=str(folder / "checkpoint"),
            topics=topics,
            metrics=MetricsSettings(port=free_port()),
            **settings,
        )
        self.admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers})
        asked = [NewTopic(topic, request_partitions, 1, config=BY_BROKER) for topic in topics.requests]
        for some in itertools.batched(asked, 5) if hasattr(itertools, "batched") else ([one] for one in asked):
            for future in self.admin.create_topics(list(some), request_timeout=120).values():
                future.result(120)
        create_topics(self.admin, topics, partitions=2)
        self.producer: Producer = client_producer(self.settings)
        self.job: Job | None = None
        self.peak = {"driver": 0.0, "java": 0.0, "workers": 0.0}

    def publish(self, documents: Iterable[dict[str, Any]]) -> None:
        """Publish documents, facts among them."""
        produce_documents(self.producer, self.settings, list(documents))
        flush(self.producer)

    def start(self) -> float:
        """Start the job; the seconds until it is ready."""
        config = self.folder / "lockkeeper.yaml"
        config.write_text(yaml.safe_dump(msgspec.to_builtins(self.settings)))
        began = time.monotonic()
        self.job = Job(config, self.folder / "job.log")
        self.job.restarts = False
        wait_until(lambda: self.is_ready() or bool(self.job and self.job.exits), "the job is ready", START_SECONDS)
        return round(time.monotonic() - began, 1)

    def is_ready(self) -> bool:
        """Whether /readyz says so."""
        self.look()
        return get(self.settings.metrics.port, "/readyz")[0] == 200

    def look(self) -> None:
        """Note the private memory of the job's processes, MiB, where it is larger than before."""
        if self.job is None:
            return
        now = {
            "driver": private_memory(self.job.pid),
            "java": max(map(private_memory, self.job.java()), default=0.0),
            "workers": sum(map(private_memory, workers_below(self.job.pid))),
        }
        self.peak = {name: max(before, round(now[name], 1)) for name, before in self.peak.items()}

    def idle_cores(self, seconds: float = 10.0) -> float:
        """How many cores the job takes while nothing is asked."""
        assert self.job is not None
        before, began = _cpu_seconds(self.job.everything()), time.monotonic()
        time.sleep(seconds)  # it is the length that is measured
        return round((_cpu_seconds(self.job.everything()) - before) / (time.monotonic() - began), 2)

    def await_all(self) -> float:
        """The seconds until all that is there now is decided."""
        began = time.monotonic()
        ends = log_ends(self.admin, partitions_of(self.admin, self.settings.topics.requests))
        last = {at: end - 1 for at, end in ends.items() if end}
        if not await_decided(self.settings, last, DECIDED_SECONDS):
            raise TimeoutError(f"not all was decided within {DECIDED_SECONDS:g} s")
        self.look()
        return round(time.monotonic() - began, 1)

    def close(self) -> None:
        """End the job and the broker."""
        if self.job is not None:
            self.job.stop()
        self._broker.stop()


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Of user and system time of processes."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


class Latencies:
    """Asks at a steady rate in a thread of its own, and reads the decisions."""

    def __init__(self, stage: Stage, probe: Probe) -> None:
        self._stage, self._probe = stage, probe
        self._sent: dict[str, float] = {}
        self._producer = Producer({"bootstrap.servers": stage.settings.bootstrap_servers, "linger.ms": "0"})

    def during(self, seconds: float, count: float = RATE) -> dict[str, float]:
        """Ask for so long; the quantiles of the latencies (ms) of all that was asked, each of which is waited for."""
        with_reader = self._reader()
        asking = threading.Thread(target=self._ask, args=(seconds, count), daemon=True)
        asking.start()
        found: list[float] = []
        deadline = time.monotonic() + seconds + DECIDED_SECONDS
        while (asking.is_alive() or self._sent) and time.monotonic() < deadline:
            for message in with_reader.consume(500, 0.1):
                found.extend(self._latency(message.value() or b"{}"))
        asking.join()
        with_reader.close()
        self._stage.look()
        if self._sent:
            raise TimeoutError(f"{len(self._sent)} of the probes were not decided")
        p50, p99, most = np.quantile(found, [0.5, 0.99, 1.0]).tolist()
        return {"asked": len(found), "p50": round(p50), "p99": round(p99), "max": round(most)}

    def _reader(self) -> Consumer:
        topic = self._stage.settings.topics.decisions
        isolated = {"isolation.level": "read_committed", "group.id": "many", "enable.auto.commit": False}
        reader = Consumer({"bootstrap.servers": self._stage.settings.bootstrap_servers, **isolated})
        ends = log_ends(self._stage.admin, partitions_of(self._stage.admin, [topic]))
        reader.assign([TopicPartition(*partition, end) for partition, end in ends.items()])
        return reader

    def _ask(self, seconds: float, rate: float) -> None:
        due = time.monotonic()
        for number in range(int(seconds * rate)):
            topic, partition, key, asked = self._probe(number)
            self._sent[asked["id"]] = time.monotonic()
            where = {} if partition is None else {"partition": partition}
            self._producer.produce(topic, json.dumps(asked).encode(), key, **where)
            due += 1 / rate
            self._producer.poll(max(due - time.monotonic(), 0))
        self._producer.flush(60)

    def _latency(self, decision: bytes) -> Iterator[float]:
        at = self._sent.pop(json.loads(decision).get("request_id", ""), None)
        if at is not None:
            yield (time.monotonic() - at) * 1000


def _names(**names: Any) -> TopicNames:
    return TopicNames(**names)


def _small_policies(stage: Stage) -> None:
    stage.publish([role("readers", f"kafka:topic:prod/main/{RESOURCE}"), group("readers", f"user:{USER}")])


def _asked(number: int, prefix: str) -> dict[str, Any]:
    return request(f"{prefix}-{number}", USER, RESOURCE)


def partitions(folder: Path, seconds: float, scale: float) -> Iterator[dict[str, Any]]:
    """50 request topics of 200 partitions: a probe on any of them, then one record on each."""
    names = tuple(f"many.requests.{number}" for number in range(max(int(TOPICS * scale), 1)))
    stage = Stage(folder, _names(requests=names), request_partitions=PARTITIONS)
    try:
        _small_policies(stage)
        yield {"start": stage.start()}
        dice = random.Random(1)

        def probe(number: int) -> tuple[str, int | None, bytes, dict[str, Any]]:
            return dice.choice(names), dice.randrange(PARTITIONS), b"k", _asked(number, "probe")

        yield {"latency_ms": Latencies(stage, probe).during(seconds), "idle_cores": stage.idle_cores()}
        for topic, number in partitions_of(stage.admin, names):
            stage.producer.produce(topic, json.dumps(_asked(number, topic)).encode(), b"k", number)
            stage.producer.poll(0)
        flush(stage.producer)
        yield {"records": len(names) * PARTITIONS, "all_decided_seconds": stage.await_all()}
        yield {"latency_afterwards_ms": Latencies(stage, probe).during(seconds)}
    finally:
        yield {"memory_mib": stage.peak}
        stage.close()


def tenants(folder: Path, seconds: float, scale: float) -> Iterator[dict[str, Any]]:
    """1,000 tenants on a topic, by key; another one floods its own topic, then one partition of theirs."""
    shared, own = "many.tenants", "many.flooding"
    stage = Stage(folder, _names(requests=(shared, own)), request_partitions=6)
    try:
        _small_policies(stage)
        yield {"start": stage.start()}
        dice = random.Random(1)

        def probes(prefix: str) -> Probe:
            def probe(number: int) -> tuple[str, int | None, bytes, dict[str, Any]]:
                tenant = dice.randrange(TENANTS)
                return shared, tenant % 5, b"tenant-%d" % tenant, _asked(number, prefix)

            return probe

        Latencies(stage, probes("warm")).during(seconds / 2)
        yield {"without_flood_ms": Latencies(stage, probes("calm")).during(seconds)}
        for name, topic, partition in (("own_topic", own, None), ("same_topic", shared, 5)):
            _flood(stage, topic, partition, name, int(FLOOD * scale))
            began = time.monotonic()
            found = Latencies(stage, probes(name)).during(seconds)
            waiting = stage.await_all()
            rest = round(time.monotonic() - began, 1) if waiting > 1 else 0.0
            yield {f"beside_flood_of_{name}_ms": found, f"flood_of_{name}_decided_seconds": rest}
    finally:
        yield {"tenants": TENANTS, "flood": int(FLOOD * scale), "memory_mib": stage.peak}
        stage.close()


def _flood(stage: Stage, topic: str, partition: int | None, prefix: str, count: int) -> None:
    for number in range(count):
        value = json.dumps(_asked(number, prefix)).encode()
        where = {} if partition is None else {"partition": partition}
        while True:
            try:
                stage.producer.produce(topic, value, b"flood-%d" % (number % 100), **where)
                break
            except BufferError:
                stage.producer.poll(1)
    flush(stage.producer)


def facts(folder: Path, seconds: float, scale: float) -> Iterator[dict[str, Any]]:
    """1,000,000 documents of facts, then a change of one each second."""
    stage = Stage(folder, TopicNames())
    try:
        _small_policies(stage)
        for number in range(int(FACTS * scale)):
            _publish_fact(stage, number, 0)
        flush(stage.producer)
        yield {"facts": int(FACTS * scale), "start": stage.start()}
        topic = stage.settings.topics.requests[0]

        def probe(prefix: str) -> Probe:
            return lambda number: (topic, None, b"k-%d" % number, _asked(number, prefix))

        yield {"latency_ms": Latencies(stage, probe("calm")).during(seconds), "idle_cores": stage.idle_cores()}

        def changing(number: int) -> tuple[str, int | None, bytes, dict[str, Any]]:
            if number % int(RATE) == 0:
                _publish_fact(stage, number, 1)
                stage.producer.poll(0)
            return probe("changing")(number)

        yield {"latency_while_facts_change_ms": Latencies(stage, changing).during(seconds)}
    finally:
        yield {"memory_mib": stage.peak}
        stage.close()


def _publish_fact(stage: Stage, number: int, version: int) -> None:
    document = _fact(number, version)
    key = f"cdap/Entity/{document['name']}".encode()
    produce(stage.producer, ProducerRecord(stage.settings.topics.facts, key, msgspec.json.encode(document), [], ""))


def _fact(number: int, version: int) -> dict[str, Any]:
    spec = {"parent": f"namespace:team-{(number + version) % 1000}"}
    return {"system": "cdap", "kind": "Entity", "name": f"dataset:shop-{number}", "spec": spec}


def statements(folder: Path, seconds: float, scale: float) -> Iterator[dict[str, Any]]:
    """100,000 statements of five systems, then a change of one document each second."""
    stage = Stage(folder, TopicNames())
    try:
        documents, draw = traffic.policies(int(STATEMENTS * scale), mix=True)
        stage.publish(documents)
        yield {"statements": int(STATEMENTS * scale), "start": stage.start()}
        topic, dice = stage.settings.topics.requests[0], random.Random(1)

        def probe(number: int) -> tuple[str, int | None, bytes, dict[str, Any]]:
            return topic, None, b"k-%d" % number, draw(dice)

        yield {"latency_ms": Latencies(stage, probe).during(seconds), "idle_cores": stage.idle_cores()}
        policies = [document for document in documents if not traffic.is_fact(document)]

        def changing(number: int) -> tuple[str, int | None, bytes, dict[str, Any]]:
            if number % int(RATE) == 0:
                produce_documents(stage.producer, stage.settings, [dice.choice(policies)])
                stage.producer.poll(0)
            return probe(number)

        yield {"latency_while_policies_change_ms": Latencies(stage, changing).during(seconds)}
    finally:
        yield {"memory_mib": stage.peak}
        stage.close()


def fact_store(_: Path, __: float, scale: float) -> Iterator[dict[str, Any]]:
    """What the facts take in one process, without Kafka and Spark: the driver makes them, each worker receives them."""
    count = int(FACTS * scale)
    store, overlay = DocumentStore(facts_only=True), FactOverlay()
    before, began = private_memory("self"), time.process_time()
    for number in range(count):
        key = Key("cdap", "Entity", f"dataset:shop-{number}")
        store.put(_fact(number, 0), number + 1, number + 1)
        overlay.apply(change_of(key, store.histories.get(key)))
    made = time.process_time()
    yield {"facts": count, "driver_cpu_seconds": round(made - began, 1)}
    yield {"driver_mib": round(private_memory("self") - before, 1)}
    sent = pickle.dumps(overlay)
    yield {"broadcast_mib": round(len(sent) / 2**20, 1), "broadcast_cpu_seconds": round(time.process_time() - made, 1)}
    before, began = private_memory("self"), time.process_time()
    received = pickle.loads(sent)
    assert len(received) == count
    yield {"worker_cpu_seconds": round(time.process_time() - began, 1)}
    yield {"worker_mib": round(private_memory("self") - before, 1)}


MEASURED = {
    "fact-store": fact_store,
    "partitions": partitions,
    "tenants": tenants,
    "facts": facts,
    "statements": statements,
}


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each; 1 when one of them failed."""
    parser = argparse.ArgumentParser("many", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(MEASURED), default=sorted(MEASURED))
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each latency is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the numbers, to try it")
    parser.add_argument("--output", type=Path, help="add the lines to this file, too")
    parser.add_argument("--keep", type=Path, help="keep the logs of the jobs in this folder")
    options = parser.parse_args(arguments)
    failed = False
    for name in options.only:
        folder, row = (
            Path(tempfile.mkdtemp(prefix="lockkeeper-many-")),
            {"benchmark": "many", "what": name, "scale": options.scale},
        )
        try:
            for part in MEASURED[name](folder, options.seconds, options.scale):
                print(part, file=sys.stderr, flush=True)
                row |= part
        except (AssertionError, TimeoutError, RuntimeError) as failure:
            failed, row["failed"] = True, str(failure)
        write_line(stamped(row), options.output)
        if options.keep is not None and (folder / "job.log").exists():
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "job.log", options.keep / f"many-{name}.log")
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
