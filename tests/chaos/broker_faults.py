"""What three brokers survive, of which two must have each record: `min.insync.replicas` is 2."""

import contextlib

import msgspec
from confluent_kafka.admin import NewTopic

from streaming.kafka.clients import log_ends
from streaming.kafka.manifests import user_manifests
from tests.chaos.disks import fill, forbid_files
from tests.chaos.run import START_SECONDS, Failed, Run, retry
from tests.chaos.scenario import scenario
from tests.stream.secured_broker import apply
from tests.waiting import wait_until

AWAY_SECONDS = 15.0  # a broker is given up after `broker.session.timeout.ms`, 9 s
FAULT_SECONDS = 120.0


@scenario("three brokers: each in turn is stopped and started again, once all replicas are in sync", brokers=3)
def rolling_restart(run: Run) -> None:
    _begin(run)
    with run.fault():
        for broker in run.three.brokers:
            broker.stop()
            broker.start()
            run.three.await_replicated()


@scenario("three brokers: SIGKILL to the leader of a request partition, started again after 15 s", brokers=3)
def leader_killed(run: Run) -> None:
    _begin(run)
    with run.fault():
        _kill(run, run.three.leader(run.requests))


@scenario("three brokers: SIGKILL to the controller, started again after 15 s", brokers=3)
def controller_killed(run: Run) -> None:
    _begin(run)
    with run.fault():
        _kill(run, run.three.controller())


@scenario("three brokers: SIGKILL to the coordinator of the job's transactions, started again after 15 s", brokers=3)
def coordinator_killed(run: Run) -> None:
    _begin(run)
    with run.fault():
        _kill(run, run.three.coordinator(run.settings.job_name))


@scenario(
    "three brokers: nothing passes for 30 s between the coordinator of the job's transactions and another",
    brokers=3,
    needs_networks=True,
)
def brokers_partitioned(run: Run) -> None:
    """The other one is the controller, where the coordinator is not: it gives the coordinator up, which answers on."""
    networks = run.three.networks
    assert networks is not None, "only root can make network namespaces, with iproute2"
    _begin(run)
    coordinator, controller = run.three.coordinator(run.settings.job_name), run.three.controller()
    other = controller if controller != coordinator else (coordinator + 1) % 3
    run.method = "its controller" if other == controller else "it is the controller"
    with run.fault():
        networks.cut(coordinator, other)
        try:
            run.pause(30, 31)
        finally:
            networks.join(coordinator, other)


@scenario("three brokers: the disk of one is full until it ends, then it is started again", brokers=3)
def broker_disk_full(run: Run) -> None:
    last, disk = run.three.brokers[-1], run.three.small_disk
    run.method = "a small file system" if disk else "RLIMIT_FSIZE of the broker"
    _begin(run)
    with run.fault():
        if disk:
            filler = disk / "filler"
            fill(filler)
        else:
            forbid_files(last.pids())
        wait_until(lambda: last.ended, "the broker ends", FAULT_SECONDS)
        run.pause(5, 10)
        if disk:
            filler.unlink()
        last.stop()
        last.start()


@scenario(
    "three brokers: both that have a partition end in turn; the first one back lacks records, and must not lead",
    brokers=3,
)
def unclean_election_refused(run: Run) -> None:
    _begin(run)
    first, second = run.rng.sample(range(3), 2)
    topic, brokers, records = f"unclean-{run.rng.randrange(1 << 30)}", run.three.brokers, 100
    ids, one_is_enough = [[second + 1, first + 1]], {"min.insync.replicas": "1"}
    created = run.world.admin.create_topics([NewTopic(topic, 1, replica_assignment=ids, config=one_is_enough)])
    created[topic].result(60)
    with run.fault():
        brokers[first].kill()
        wait_until(lambda: run.three.in_sync(topic) == {second}, "one alone is in sync", FAULT_SECONDS)
        run.produce((b"%d" % number for number in range(records)), topic)
        brokers[second].kill()
        brokers[first].start()
        run.pause(10, 12)
        if (leader := run.three.leader(topic)) >= 0:
            raise Failed(f"broker {leader} leads the partition, whose last records only broker {second} has")
        brokers[second].start()
    wait_until(lambda: run.three.leader(topic) == second, "the one that has all leads again", FAULT_SECONDS)
    there = retry(lambda: log_ends(run.world.admin, [(topic, 0)]))[topic, 0]
    if there != records:
        raise Failed(f"{records - there} acknowledged records are lost")


@scenario(
    "three brokers with ACLs: SIGKILL to a leader while the job logs in by SCRAM; another instance takes over, with a "
    "certificate, and the coordinator of its transactions is killed",
    alone=True,
    brokers=3,
    secured=True,
)
def secured_brokers_killed(run: Run) -> None:
    secured, user = run.three.secured(), run.settings.job_name
    users = (user_manifests(run.settings, "kafka", how) for how in ("scram-sha-512", "tls"))
    apply(secured.admin, [manifest for manifests in users for manifest in manifests])
    first = run.cluster.start_job(secured.by_password(run.settings, user))
    _begin(run)
    with run.fault():
        _kill(run, run.three.leader(run.requests))
    run.three.await_replicated()
    first.restarts = False
    other = msgspec.structs.replace(run.settings, checkpoint=str(run.cluster.folder / "checkpoint-certificate"))
    run.cluster.start_job(secured.by_certificate(other, user))
    run.await_end(first)
    run.await_decisions(START_SECONDS)
    with run.fault():
        _kill(run, run.three.coordinator(user))


def _begin(run: Run) -> None:
    run.begin()
    run.three.await_replicated()


def _kill(run: Run, number: int) -> None:
    broker = run.three.brokers[number]
    with contextlib.suppress(ProcessLookupError):
        broker.kill()
    run.pause(AWAY_SECONDS, AWAY_SECONDS + 1)
    broker.start()
