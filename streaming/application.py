"""The applications: the enforcer's query and the monitor's on one Spark, and the monitor's alone."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import structlog
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from streaming.commit.evaluation import worker_output_filtered
from streaming.commit.offsets import IDLE_COMMIT_SECONDS, check_group
from streaming.commit.partition_sets import sets_for
from streaming.commit.partitions import PartitionTransactions
from streaming.commit.transaction import Output
from streaming.enforcer.job import Enforcer
from streaming.enforcer.source import check_security_protocols, session_settings
from streaming.errors import CannotStart, Stopping
from streaming.kafka.clients import admin_client, cluster_id, partitions_of
from streaming.kafka.manifests import enforcer_permissions, monitor_permissions, permissions_of
from streaming.kafka.permissions import explain_lacking, missing_permissions, refusals_explained
from streaming.kafka.topics import Problem, check_topics, explained_problems
from streaming.monitor.query import MonitorStep
from streaming.monitor.running import RunningMonitor, run_alone
from streaming.ops.metrics import Step
from streaming.ops.queries import MonitorWatch, ProgressListener, QueryWatch
from streaming.ops.watch import Watch
from streaming.runtime.checkpoints import checkpoints_locked, locked
from streaming.runtime.executors import await_executors, is_local, refuse_dynamic_allocation
from streaming.runtime.spark import start_session
from streaming.runtime.spark_errors import explained
from streaming.settings import Settings, monitor_settings
from streaming.topics import RUN

log = structlog.get_logger()

StepObserver = Callable[[Step | MonitorStep, int], None]
Opened = TypeVar("Opened")


def run(
    settings: Settings,
    stop: threading.Event,
    on_step: StepObserver = lambda _step, _batch: None,
    watch: Watch | None = None,
    idle_commit_seconds: float = IDLE_COMMIT_SECONDS,
) -> None:
    """Decide requests and watch over what happens until `stop` is set.

    `on_step` is called with each step of both queries and its batch; `watch` measures, logs and traces.
    `idle_commit_seconds`: how often offsets are committed again while there are no requests.

    Raises:
        CannotStart: topics, offsets and checkpoint do not fit together.
        CannotWrite: Kafka does not let it write, or does not answer.
        Fenced: another instance with this job name took over.
        JobStopped: what else ended it. Nothing half-done is visible; starting it again goes on where it ended.
    """
    watch = watch or Watch(settings)

    decided = threading.Event()  # the first batch

    def report(step: Step, batch: int) -> None:
        watch.step(step, batch)
        if step == "committed":
            decided.set()
        on_step(step, batch)

    watch.metrics.connected(cluster_id(admin_client(settings)))
    check_cluster(settings)
    with contextlib.suppress(Stopping), contextlib.ExitStack() as stack:

        def opened(step: str, context: Callable[[], AbstractContextManager[Opened]]) -> Opened:
            if stop.is_set():
                raise Stopping("asked to stop while it started")
            with watch.watchdog.during(step):
                return stack.enter_context(context())

        stack.enter_context(watch.watchdog.watched())
        stack.enter_context(refusals_explained(settings, enforcer_permissions(settings)))
        stack.enter_context(explained(settings))
        opened("lock the checkpoints", lambda: checkpoints_locked(settings))
        # Rule 1: first fence other instances, then read what is committed, then start the query.
        spark = opened("start Spark", lambda: _session(settings, watch))
        with watch.watchdog.during("wait for Spark's executors"):
            await_executors(spark, stop)
        output = opened(
            "take the transactional id",
            lambda: contextlib.closing(Output(settings, spark, watch.metrics.dropped, watch.watchdog.during)),
        )
        with watch.watchdog.during("read how many input partitions there are"):
            inputs = partitions_of(admin_client(settings), settings.topics.inputs)
        sets = sets_for(settings.job_name, len(inputs), spark.sparkContext.defaultParallelism)
        partitions = opened(
            "compile the classes of the executors",
            lambda: contextlib.closing(
                PartitionTransactions(
                    settings,
                    spark,
                    output.is_unavailable,
                    watch.watchdog.during,
                    sets,
                    math.inf if is_local(spark) else idle_commit_seconds,
                )
            ),
        )
        partitions.warm_up()
        with watch.watchdog.during("abort the transactions of a run before this one"):
            partitions.abort_left_open()
        enforcer = opened(
            "read the committed offsets, the checkpoint and the history",
            lambda: contextlib.closing(
                Enforcer(settings, spark, output, partitions, stop, report, watch, idle_commit_seconds)
            ),
        )
        opened(
            "start the monitor",
            lambda: RunningMonitor(settings, spark, stop, decided, on_step, watch, idle_commit_seconds),
        )
        enforcer.run()


def run_monitor(settings: Settings, stop: threading.Event, watch: MonitorWatch) -> None:
    """Run the monitor as an application of its own until `stop` is set; `run` has to leave it out. Raises as `run`."""
    own = monitor_settings(settings)
    watch.metrics.connected(cluster_id(admin_client(settings)))
    if missing := missing_permissions(admin_client(settings), monitor_permissions(settings)):
        raise CannotStart(explain_lacking(settings, missing))
    with contextlib.suppress(Stopping), contextlib.ExitStack() as stack:
        stack.enter_context(watch.watchdog.watched())
        stack.enter_context(refusals_explained(settings, monitor_permissions(settings)))
        stack.enter_context(explained(own))
        stack.enter_context(locked(own.checkpoint))
        with watch.watchdog.during("start Spark"):
            spark = stack.enter_context(_session(own, watch))
        with watch.watchdog.during("wait for Spark's executors"):
            await_executors(spark, stop)
        run_alone(settings, spark, stop, watch)


def check_cluster(settings: Settings) -> None:
    """Check what can be checked before anything is started or fenced; raises CannotStart."""
    admin = admin_client(settings)
    check_permissions(admin, settings)
    refuse_or_warn(check_topics(admin, settings.topics, settings.limits, RUN))
    read = (*settings.topics.inputs, *settings.topics.policy_topics().values())
    check_group(settings, admin, partitions_of(admin, read))


def check_permissions(admin: AdminClient, settings: Settings) -> None:
    """Raise CannotStart for every permission that the enforcer lacks; others that are missing are logged.

    Write on the transactional ids, which cannot be queried, shows when they are first used.
    """
    missing = missing_permissions(admin, permissions_of(settings, settings.job_name))
    needed = set(enforcer_permissions(settings))
    if refused := [permission for permission in missing if permission in needed]:
        raise CannotStart(explain_lacking(settings, refused))
    if missing and settings.monitor.mode == "job":
        log.error("the monitor cannot run", error=explain_lacking(settings, missing))
    elif missing and settings.monitor.mode == "separate":
        log.error("accesses that depend on logins or runs are unknown", error=explain_lacking(settings, missing))


def refuse_or_warn(problems: Iterable[Problem]) -> None:
    """Log the problems that the job can run with; raises CannotStart for the others."""
    found = list(problems)
    for line in explained_problems(found, refused=False):
        log.warning("a topic could lose what was acknowledged", problem=line)
    if refused := explained_problems(found, refused=True):
        raise CannotStart("\n".join(refused))


@contextlib.contextmanager
def _session(settings: Settings, watch: QueryWatch) -> Iterator[SparkSession]:
    spark = start_session(settings.job_name, session_settings(settings), settings.master)
    if settings.log.level == "debug":  # of this query nothing else is needed
        spark.streams.addListener(ProgressListener(watch.progress))
    with contextlib.ExitStack() as stack:
        stack.callback(spark.stop)
        refuse_dynamic_allocation(spark)
        check_security_protocols(settings, spark)
        if settings.log.level != "debug":
            stack.enter_context(worker_output_filtered(spark))
        yield spark
