"""The job's metrics, on a registry of their own, and the steps of a batch, by which it is timed, traced and tested.

Labels come from known sets alone, never from records.
"""

import importlib.metadata
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from policy import Outcome, all_systems
from streaming import DISTRIBUTION
from streaming.alert_kinds import AlertKind
from streaming.ops.health import Health
from streaming.ops.registry import MetricsRegistry
from streaming.ops.tally import AGREES, CONTRADICTS, LIFECYCLE, OTHER, UNKNOWN, UNVERIFIED, Compiled, Tally
from streaming.settings import Settings

Step = Literal["range-fixed", "policies-read", "evaluated", "written", "committed"]
"""The steps of a batch, in order. `evaluated`: all is sent, in open transactions; `written`: and may be committed;
`committed`: not yet in Spark's commit log.
"""

STEPS: tuple[Step, ...] = get_args(Step)


_ALERT_KINDS = frozenset(AlertKind)
LATENCY = (0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300, 1800)
DURATION = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
RECORDS = (1, 10, 100, 1_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)


class JobMetrics(MetricsRegistry):
    """The metrics of any application with a query, on `registry`. `name`: of its consumer group."""

    def __init__(self, name: str) -> None:
        super().__init__()
        ProcessCollector(registry=self.registry)
        self._name = name
        self._job_info = Info(
            "lockkeeper_job",
            "The job that runs here. cluster_id: of its Kafka cluster, empty until it has reached it. Of two jobs with "
            "one cluster_id and job_name one fences the other.",
            registry=self.registry,
        )
        self.connected("")
        kinds = (*AlertKind, OTHER)
        self._alerts = self._counter("lockkeeper_alerts_total", "Alerts that were committed.", {"kind": kinds})
        self._dropped = self._counter(
            "lockkeeper_dropped_records_total",
            "Records too large for Kafka that were dropped; each is logged. topic: their destination.",
            {"topic": ()},
        )
        self.lag = ConsumerLag(self.registry)

    def connected(self, cluster_id: str) -> None:
        """The Kafka cluster is this one."""
        version = importlib.metadata.version(DISTRIBUTION)
        self._job_info.info({"job_name": self._name, "cluster_id": cluster_id, "version": version})

    def alerted(self, kind: str) -> None:
        """Count an alert that is committed."""
        self._alerts.labels(kind if kind in _ALERT_KINDS else OTHER).inc()

    def dropped(self, topic: str) -> None:
        """Count a record that was too large for Kafka."""
        self._dropped.labels(topic).inc()

    def _counter(self, name: str, about: str, labels: Mapping[str, Sequence[str]]) -> Counter:
        """A counter with its labels, each with the values that are known from the start."""
        counter = self.counter(name, about, *labels)
        _begin(counter, itertools.product(*labels.values()))
        return counter


class Metrics(JobMetrics):
    """Every metric of the enforcer, registered on `registry`."""

    def __init__(self, settings: Settings, health: Health) -> None:
        super().__init__(settings.job_name)
        self._systems = (*all_systems(), OTHER)
        self._audit, self._answered_topics = frozenset(settings.topics.audit), frozenset(settings.topics.answered)
        self.gauge(
            "lockkeeper_ready", "1: /readyz says that it is ready, 0: that it is not.", lambda: not health.problems()
        )
        self.gauge(
            "lockkeeper_kafka_unavailable_seconds",
            "Seconds for which the job has waited for Kafka; 0: it does not wait.",
            health.waited,
        )
        self._records_of(settings.topics.inputs)
        self._batches()
        self._policies(health)
        self._snapshots()

    def _records_of(self, inputs: Sequence[str]) -> None:
        outcomes: tuple[str, ...] = get_args(Outcome)
        self._decisions = self._counter(
            "lockkeeper_decisions_total",
            "Decisions that were committed. system: of the request, or `other` for an unknown system.",
            {"system": self._systems, "outcome": outcomes},
        )
        self._answered = self._counter(
            "lockkeeper_answered_total",
            "Decisions on requests that were answered elsewhere. result: `agrees`, `contradicts`, or `unverified`: the "
            "policies and facts that the answer names are not known.",
            {"system": self._systems, "result": (AGREES, CONTRADICTS, UNVERIFIED)},
        )
        self._latency = CountedHistogram(
            "lockkeeper_decision_latency_seconds",
            "From the broker's timestamp of a request until its decision, or dead letter, is committed.",
            LATENCY,
            self.registry,
        )
        self._verdicts = self._counter(
            "lockkeeper_verdicts_total",
            "Audit events that were evaluated. outcome: under the policies of their time, or `unknown` where these are "
            "not known any more; `lifecycle`: of no access.",
            {"system": self._systems, "outcome": (*outcomes, UNKNOWN, LIFECYCLE)},
        )
        self._dead_letters = self._counter(
            "lockkeeper_dead_letters_total",
            "Dead letters: records that are not requests or audit events. topic: their source.",
            {"topic": inputs},
        )

    def _batches(self) -> None:
        self._step = self.histogram(
            "lockkeeper_batch_step_duration_seconds",
            "From the end of a micro-batch's step before, or its start, to the end of this one.",
            DURATION,
            "step",
        )
        _begin(self._step, [(step,) for step in STEPS])
        self._duration = self.histogram(
            "lockkeeper_batch_duration_seconds",
            "Of a micro-batch, from the call of foreachBatch to its commit.",
            DURATION,
        )
        self._records = self.histogram(
            "lockkeeper_batch_records",
            "Records that a micro-batch decided; those of a replay that were decided before are left out.",
            RECORDS,
        )
        self._transactions = self._counter(
            "lockkeeper_partition_transactions_total",
            "Transactions of input partitions. executor: where; result: `committed`, or `failed`: the partition is "
            "evaluated again.",
            {"executor": (), "result": ("committed", "failed")},
        )
        self._commits = self.histogram(
            "lockkeeper_partition_commit_seconds",
            "Of an input partition's transaction, from its offset to its commit; those of an executor overlap.",
            DURATION,
        )
        self._last_commit = self.gauge("lockkeeper_last_commit_timestamp_seconds", "Unix time of the last transaction.")

    def _policies(self, health: Health) -> None:
        self._read = self.gauge(
            "lockkeeper_policies_read_timestamp_seconds",
            "Unix time at which the policies and facts were last read up to their end.",
        )
        self._newest = self.gauge(
            "lockkeeper_policies_changed_timestamp_seconds",
            "Unix time at which the newest policy document or deletion was published; 0: there are none.",
        )
        self.gauge(
            "lockkeeper_policies_stale",
            "1: policies or facts could not be read for longer than policy_stale_seconds.",
            health.stale,
        )
        self.gauge(
            "lockkeeper_policies_stuck_partitions",
            "Partitions of policies and facts that an open transaction hides for longer than policy_stale_seconds.",
            lambda: health.stuck,
        )
        self._superseded = self.gauge(
            "lockkeeper_superseded_versions_held", "Older versions of documents kept for point-in-time decisions."
        )

    def _snapshots(self) -> None:
        self._in_force = self._by_system("lockkeeper_documents_in_force", "Policy documents in force.")
        self._refused = self._by_system(
            "lockkeeper_documents_refused", "Policy documents whose newest version is refused."
        )
        self._facts = self.gauge("lockkeeper_facts_held", "Documents of the facts topic that say something.")
        self._grants = self._by_system("lockkeeper_snapshot_grants", "Grants of the snapshot: its size.")
        self._compile = self.histogram(
            "lockkeeper_snapshot_compile_seconds", "How long a snapshot took to compile.", DURATION
        )
        self._broadcasts = self.counter("lockkeeper_snapshot_broadcasts_total", "Snapshots sent to the workers.")

    def _by_system(self, name: str, about: str) -> Gauge:
        gauge = Gauge(name, about, ("system",), registry=self.registry)
        _begin(gauge, [(system,) for system in self._systems])
        return gauge

    def decided(self, tally: Tally, now: int, committed: int) -> None:
        """Count decisions, or verdicts, committed at `committed`. `now`: the clock of the ages. Both ms."""
        audit, answered = tally.topic in self._audit, tally.topic in self._answered_topics
        counter = self._verdicts if audit else self._answered if answered else self._decisions
        for system, outcome, count in tally.outcomes:
            counter.labels(system, outcome).inc(count)
        self._dead_letters.labels(tally.topic).inc(tally.dead_letters)
        if audit or answered:
            return
        # Clocks may differ; nothing is decided before it was requested.
        latencies = np.maximum(np.asarray(tally.ages, dtype=np.int64) + (committed - now), 0) / 1000
        self._latency.add(latencies, tally.aged)

    def batch(self, seconds: float, steps: Iterable[tuple[str, float]], records: int) -> None:
        """Count a batch that is committed: its duration and its steps' (s), and how many records it decided."""
        self._duration.observe(seconds)
        self._records.observe(records)
        for step, took in steps:
            self._step.labels(step).observe(took)

    def partition_committed(self, executor: str, seconds: float) -> None:
        """Count a transaction of an input partition."""
        self._transactions.labels(executor, "committed").inc()
        self._commits.observe(seconds)

    def partition_failed(self, executor: str) -> None:
        """Count a transaction of an input partition of which it is not known that it is committed."""
        self._transactions.labels(executor, "failed").inc()

    def committed(self) -> None:
        """Note a transaction."""
        self._last_commit.set_to_current_time()

    def policies_read(self, facts: int) -> None:
        """Note that the policies were read to their end, and how many documents of facts."""
        self._read.set_to_current_time()
        self._facts.set(facts)

    def compiled(self, compilation: Compiled) -> None:
        """Note a new snapshot."""
        self._compile.observe(compilation.seconds)
        self._superseded.set(compilation.superseded)
        self._newest.set(compilation.newest / 1000)
        for gauge, counts in (
            (self._in_force, compilation.in_force),
            (self._refused, compilation.refused),
            (self._grants, compilation.grants),
        ):
            for system in self._systems:
                gauge.labels(system).set(counts.get(system, 0))

    def broadcast(self) -> None:
        """Count a snapshot that was sent to the workers."""
        self._broadcasts.inc()


def _begin(metric: Counter | Gauge | Histogram, labels: Iterable[tuple[str, ...]]) -> None:
    """Let series begin at 0: Prometheus computes no rate from a series that appears with its first event."""
    for values in labels:
        metric.labels(*values)


NAME = "lockkeeper_consumer_lag_records"
ABOUT = (
    "Records of a partition behind the offset that the job, or its monitor, has committed, as Kafka's own tools show "
    "it: markers of transactions count. Absent while Kafka does not answer."
)

Lags = Callable[[], Mapping[tuple[str, int], int]]
"""By topic and partition, the records between the committed offset and the end; empty: it is not known now."""


class ConsumerLag(Collector):
    """The lag of each partition. `groups`: by consumer group, whom to ask; each reads topics of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.groups: dict[str, Lags] = {}
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The lags as they are now."""
        [family] = self.describe()
        for ask in tuple(self.groups.values()):
            for (topic, partition), lag in sorted(ask().items()):
                family.add_metric([topic, str(partition)], lag)
        yield family

    def describe(self) -> list[GaugeMetricFamily]:
        """The family without values: its name is known without a request to Kafka."""
        return [GaugeMetricFamily(NAME, ABOUT, labels=["topic", "partition"])]


class CountedHistogram(Collector):
    """A histogram without labels. `bounds`: the upper bounds of its buckets, ascending, without infinity."""

    def __init__(self, name: str, about: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._about = name, about
        self._bounds = np.array(bounds)
        self._labels = [*map(floatToGoString, bounds), "+Inf"]
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()
        registry.register(self)

    def add(self, values: "np.ndarray[Any, Any]", counts: Sequence[int]) -> None:
        """Count each of `values` as often as `counts` says."""
        weights = np.asarray(counts, dtype=np.int64)
        buckets = np.searchsorted(self._bounds, values, side="left")  # a value on a bound is within its bucket
        added = np.bincount(buckets, weights, minlength=len(self._counts)).astype(np.int64)
        with self._lock:
            self._counts += added
            self._sum += float(values @ weights)

    def collect(self) -> Iterable[Metric]:
        """The histogram as it stands."""
        with self._lock:
            so_far, total = np.cumsum(self._counts).tolist(), self._sum
        yield HistogramMetricFamily(
            self._name, self._about, buckets=list(zip(self._labels, so_far, strict=True)), sum_value=total
        )

    def describe(self) -> Iterable[Metric]:
        """Its name, for the registry."""
        return self.collect()
