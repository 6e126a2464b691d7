"""The scenarios: each breaks something, or sends what is hostile, while traffic goes on."""

import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from confluent_kafka import TopicPartition

from streaming.kafka.clients import topic_ids
from tests.chaos import broker_faults, hostile, spark_faults
from tests.chaos.answering import Answering
from tests.chaos.disks import allow_files, fill, forbid_files
from tests.chaos.processes import send
from tests.chaos.run import DECIDED_SECONDS, Failed, Run
from tests.chaos.scenario import SCENARIOS, scenario
from tests.stream.world import request, role
from tests.waiting import wait_until

__all__ = ["SCENARIOS", "broker_faults", "spark_faults"]

# Processes


@scenario("SIGKILL to all processes of the job")
def job_killed(run: Run) -> None:
    run.begin()
    with run.fault():
        run.job.kill()


@scenario("SIGKILL to the Python driver")
def driver_killed(run: Run) -> None:
    run.begin()
    with run.fault():
        send({run.job.pid}, signal.SIGKILL)


@scenario("SIGKILL to Spark's JVM")
def java_killed(run: Run) -> None:
    run.begin()
    with run.fault():
        send(run.job.java(), signal.SIGKILL)


@scenario("SIGKILL to every Python worker")
def workers_killed(run: Run) -> None:
    run.begin()
    with run.fault():
        send(run.job.workers(), signal.SIGKILL)


@scenario("SIGSTOP of the job for 45 s, longer than its transactions may last, then SIGCONT")
def job_suspended(run: Run) -> None:
    run.begin()
    with run.fault():
        pids = run.job.everything()
        send(pids, signal.SIGSTOP)
        time.sleep(45)
        send(pids, signal.SIGCONT)


@scenario("a second instance with the same name beside the first, with a checkpoint of its own")
def two_instances(run: Run) -> None:
    run.begin()
    first = run.job
    first.restarts = False
    with run.fault():
        other = str(run.cluster.folder / f"checkpoint-{len(run.cluster.jobs)}")
        run.cluster.start_job(msgspec.structs.replace(run.settings, checkpoint=other))
        run.await_end(first)


@scenario("a partition is added to the request topic", alone=True)
def partitions_added(run: Run) -> None:
    run.begin()
    with run.fault():
        run.add_partitions()


@scenario("300,000 requests wait, and all processes of the job are killed three times while it catches up", alone=True)
def backlog(run: Run) -> None:
    run.sample = 0.01
    run.begin()
    run.stop_sending()
    run.job.kill()
    run.produce(run.many(300_000))
    for _ in range(3):
        run.pause(20, 40)
        run.job.kill()
    with run.fault():
        pass


# Kafka


@scenario("SIGKILL to the broker, started again at once on the same data")
def broker_killed(run: Run) -> None:
    run.begin()
    with run.fault():
        run.broker.kill()
        run.broker.start()


@scenario("SIGSTOP of the broker for 20 s, then SIGCONT")
def broker_suspended(run: Run) -> None:
    run.begin()
    with run.fault():
        run.broker.suspend()
        time.sleep(20)
        run.broker.resume()


@scenario("Kafka is away for 60 s, and comes back with the same data")
def kafka_away(run: Run) -> None:
    run.begin()
    with run.fault():
        run.broker.stop()
        time.sleep(60)
        run.broker.start()


@scenario("Kafka is restarted while the monitor works: each access that no policy allows raises its alert once")
def monitor_and_kafka_restarted(run: Run) -> None:
    run.begin()
    name = f"intruder-{run.rng.randrange(1 << 30)}"
    numbers = itertools.count()

    def accesses(count: int) -> Iterator[bytes]:
        for number in itertools.islice(numbers, count):
            event = request(f"{name}-{number}", f"{name}-{number}", "orders", outcome="success")
            yield json.dumps(event).encode()

    [audit] = run.world.names.audit
    with run.fault():
        run.produce(accesses(20), audit)
        run.broker.stop()
        run.broker.start()
        run.produce(accesses(20), audit)
    expected = Counter({f"user:{name}-{number}": 1 for number in range(40)})
    found: list[Counter[str]] = []

    def alerted() -> bool:
        ids = {
            (alert["id"], alert["subject"])
            for alert in run.world.everything(run.world.names.alerts)
            if alert["kind"] == "unauthorized-access" and name in str(alert["subject"])
        }
        found.append(Counter(subject for _, subject in ids))
        return found[-1] == expected

    try:
        wait_until(alerted, "an alert of each access", DECIDED_SECONDS)
    except AssertionError as missing:
        raise Failed(f"{missing}: {found[-1].total()} of {expected.total()} alerts") from None


@scenario("a topic of requests is deleted, created again and filled; the job stops until the new one is accepted", True)
def request_topic_recreated(run: Run) -> None:
    run.begin()
    run.stop_sending()
    run.await_decisions()
    run.job.restarts = False
    run.world.recreate(run.requests)
    run.produce(run.many(2_000))
    run.await_end(run.job)
    accepted = topic_ids(run.world.admin, [run.requests])[run.requests]
    other = str(run.cluster.folder / "checkpoint-new")
    with run.fault():
        settings = msgspec.structs.replace(run.settings, accepted_topic_ids=(accepted,), checkpoint=other)
        run.cluster.start_job(settings)


@scenario("retention deletes the requests that are decided, while the job is stopped", alone=True)
def retention_passed(run: Run) -> None:
    run.begin()
    run.stop_sending()
    run.await_decisions()
    ends = run.world.admin.list_topics(run.requests).topics[run.requests].partitions
    with run.fault():
        run.job.kill()
        everything = [TopicPartition(run.requests, number, -1) for number in ends]
        for deleted in run.world.admin.delete_records(everything).values():
            deleted.result(30)


# Hostile records


@scenario("records that are no requests: no JSON, cut off, nested too deep, of wrong types, Avro of unknown schemas")
def malformed(run: Run) -> None:
    _hostile(run, hostile.malformed(run.traffic.request, run.rng))


@scenario("requests in Avro of almost 1 MiB of control characters, six times as large in JSON")
def control_characters(run: Run) -> None:
    _hostile(run, hostile.control_characters(run.traffic.request))


@scenario("batches whose answers are larger than `limits.record_out`")
def oversized_answers(run: Run) -> None:
    _hostile(run, hostile.oversized_answers(run.traffic.request))


@scenario("batches of 1,000 evaluations and more")
def batches_of_1000(run: Run) -> None:
    _hostile(run, hostile.batches_of_1000(run.traffic.request))


@scenario("200 records of 900 kB of random bytes")
def large_random_records(run: Run) -> None:
    _hostile(run, hostile.large_random_records(run.rng))


@scenario("1,400 records of 900 kB of random bytes wait when the job starts", alone=True)
def large_random_records_waiting(run: Run) -> None:
    run.produce(hostile.large_random_records(run.rng, 1_400))
    run.send()
    run.cluster.start_job(run.settings)
    with run.fault():
        pass


@scenario("login events of almost 1 MiB, which would become larger facts and alerts")
def large_logins(run: Run) -> None:
    _hostile(run, hostile.large_logins(), run.world.names.audit[0])


def _hostile(run: Run, records: Iterator[bytes | None], topic: str = "") -> None:
    run.begin()
    with run.fault():
        run.produce(records, topic)


# Policies


@scenario("10,000 documents in a minute", alone=True)
def policy_flood(run: Run) -> None:
    run.sample = 0.02
    run.begin()
    with run.fault():
        begun = time.monotonic()
        for number in range(10_000):
            document = json.dumps(role(f"flood-{number}", f"kafka:topic:flood/main/{number}")).encode()
            run.world.producer.produce(run.world.policies, document, f"Role/flood-{number}")
            run.world.producer.poll(max(0.0, begun + number * 60 / 10_000 - time.monotonic()))
        assert run.world.producer.flush(60) == 0


@scenario("ten broken documents each second for 20 s, of a role in force among others")
def broken_documents(run: Run) -> None:
    run.begin()
    documents = hostile.broken_documents(run.rng, run.traffic.run)
    with run.fault():
        for _ in range(200):
            key, value = next(documents)
            run.world.producer.produce(run.world.policies, value, key)
            run.world.producer.poll(0.1)
        assert run.world.producer.flush(60) == 0


# Disk


@scenario("the disk of the checkpoint is full for 20 s", alone=True)
def disk_full(run: Run) -> None:
    checkpoint = Path(run.settings.checkpoint)
    checkpoint.mkdir()
    mounted = run.cluster.mount_small(checkpoint)
    run.method = "a file system of 8 MiB" if mounted else "RLIMIT_FSIZE of the JVM"
    run.begin()
    with run.fault():
        if mounted:
            filler = checkpoint / "filler"
            fill(filler)
            time.sleep(20)
            filler.unlink()
        else:
            forbid_files(run.job.java())
            time.sleep(20)
            allow_files(run.job.java())


# Answers given elsewhere


@scenario("SIGKILL to a server of decisions over HTTP, to Kafka, and to the job, while it is asked", alone=True)
def answering_killed(run: Run) -> None:
    answering = Answering(run)
    try:
        run.begin()
        answering.await_answers(20)
        for kill in (answering.kill, _restart_kafka(run), run.job.kill):
            with run.fault():
                kill()
            answering.await_answers(20)
    finally:
        answering.stop()
    answering.check()


def _restart_kafka(run: Run) -> Callable[[], None]:
    def restart() -> None:
        run.broker.kill()
        run.broker.start()

    return restart
