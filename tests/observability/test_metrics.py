"""The metrics: counted once committed, under labels from known sets."""

import contextlib
import random
import time
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram

from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from streaming.alert_kinds import AlertKind
from streaming.ops.metrics import CountedHistogram
from streaming.ops.queries import MonitorWatch
from streaming.ops.tally import Compiled, Tally
from streaming.ops.watch import Watch
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings
from streaming.snapshots.policies import measure

NOW = 1_795_000_000_000
ALERTS, REQUESTS, AUDIT = Settings().topics.alerts, Settings().topics.requests[0], Settings().topics.audit[0]


@pytest.fixture
def watch() -> Watch:
    """A watch that has observed nothing yet."""
    return Watch(Settings())


def _value(watch: Watch | MonitorWatch, name: str, **labels: str) -> float | None:
    return watch.metrics.registry.get_sample_value(f"lockkeeper_{name}", labels)


def test_a_counted_histogram_is_the_librarys_own_fed_one_by_one() -> None:
    """Also on the bounds themselves, below them all and above."""
    bounds, ours, theirs = (0.1, 0.5, 1, 10), CollectorRegistry(), CollectorRegistry()
    counted = CountedHistogram("seconds", "…", bounds, ours)
    plain = Histogram("seconds", "…", buckets=bounds, registry=theirs)
    chosen = random.Random(3)
    for _ in range(3):
        values = [0.0, *bounds, 11.0, *(chosen.uniform(0, 12) for _ in range(20))]
        counts = [chosen.randrange(5) for _ in values]
        counted.add(np.array(values), counts)
        for value, count in zip(values, counts, strict=True):
            for _ in range(count):
                plain.observe(value)
    expected = {(s.name, s.labels.get("le")): s.value for m in theirs.collect() for s in m.samples}
    found = {(s.name, s.labels.get("le")): s.value for m in ours.collect() for s in m.samples}
    assert found == pytest.approx({key: value for key, value in expected.items() if key[0] != "seconds_created"})


def test_the_job_is_named_with_the_cluster_that_it_has_reached() -> None:
    """One series: of two jobs with these labels one fences the other, and rules count them."""
    watch = Watch(Settings(job_name="x"))
    for cluster_id in ("", "one"):
        watch.metrics.connected(cluster_id)
        [family] = [family for family in watch.metrics.registry.collect() if family.name == "lockkeeper_job"]
        [sample] = family.samples
        assert (sample.labels["job_name"], sample.labels["cluster_id"]) == ("x", cluster_id)


def _decide(watch: Watch, tally: Tally, *steps: Any) -> None:
    with watch.batch(0):
        for step in steps:
            watch.step(step, 0)
        watch.decided([tally], NOW, "sha256:1")
        watch.step("committed", 0)


def test_decisions_and_latency_are_counted_when_they_are_committed(watch: Watch) -> None:
    """Latency is the age at the batch's clock and what passed since; never below 0, whatever clocks say."""
    tally = Tally(REQUESTS, [("lenses6", "allow", 3), ("other", "error", 1)], 2, [-10_000, 1000], [1, 5], [])
    watch.metrics.decided(tally, NOW, NOW + 400)
    assert _value(watch, "decisions_total", system="lenses6", outcome="allow") == 3
    assert _value(watch, "decisions_total", system="other", outcome="error") == 1
    assert _value(watch, "dead_letters_total", topic=REQUESTS) == 2
    assert _value(watch, "decision_latency_seconds_bucket", le="0.025") == 1
    assert _value(watch, "decision_latency_seconds_bucket", le="2.0") == 6
    assert _value(watch, "decision_latency_seconds_sum") == pytest.approx(5 * 1.4)


def test_verdicts_are_counted_apart_and_have_no_latency(watch: Watch) -> None:
    """Audit events tell of what is past: nobody waits for them."""
    watch.metrics.decided(Tally(AUDIT, [("cdap", "deny", 2), ("cdap", "lifecycle", 1)], 1, [5], [4], []), NOW, NOW)
    assert _value(watch, "verdicts_total", system="cdap", outcome="deny") == 2
    assert _value(watch, "verdicts_total", system="cdap", outcome="lifecycle") == 1
    assert _value(watch, "decisions_total", system="cdap", outcome="deny") == 0
    assert _value(watch, "decision_latency_seconds_count") == 0
    assert _value(watch, "dead_letters_total", topic=AUDIT) == 1


def test_a_batch_is_measured_by_its_steps_once_it_is_committed(watch: Watch) -> None:
    _decide(watch, Tally(REQUESTS, [("lenses6", "deny", 4)], 1, [0], [5], []), "range-fixed", "policies-read")
    assert _value(watch, "batch_records_sum") == 5
    assert _value(watch, "batch_duration_seconds_count") == 1
    counts = [
        _value(watch, "batch_step_duration_seconds_count", step=s) for s in ("range-fixed", "written", "committed")
    ]
    assert counts == [1, 0, 1]


def test_a_batch_that_fails_before_its_commit_counts_nothing(watch: Watch) -> None:
    with contextlib.suppress(RuntimeError), watch.batch(0):
        watch.step("range-fixed", 0)
        raise RuntimeError
    assert _value(watch, "batch_duration_seconds_count") == 0
    assert _value(watch, "batch_step_duration_seconds_count", step="range-fixed") == 0


def test_what_is_written_between_batches_is_no_step_of_a_batch(watch: Watch) -> None:
    watch.step("written", -1)
    _decide(watch, Tally(REQUESTS, [], 0, [], [], []))
    assert _value(watch, "batch_step_duration_seconds_count", step="written") == 0


def test_only_alerts_are_counted_and_only_kinds_we_know_are_labels(watch: Watch) -> None:
    alerts = [(ALERTS, b"k", b'{"kind":"%s"}' % kind.encode(), []) for kind in (*AlertKind, "made-up", "made-up-2")]
    watch.committed([*alerts, ("history", b"k", None, []), (ALERTS, b"k", b"\xc3\x01 Avro", [])])
    assert {_value(watch, "alerts_total", kind=kind) for kind in AlertKind} == {1}
    assert _value(watch, "alerts_total", kind="other") == 3
    assert _value(watch, "alerts_total", kind="made-up") is None


def test_a_system_without_documents_any_more_shows_none(watch: Watch) -> None:
    watch.metrics.compiled(Compiled(0.2, {"cdap": 3}, {"other": 1}, {"cdap": 7}, 2, 1_500))
    assert _value(watch, "documents_in_force", system="cdap") == 3
    assert _value(watch, "policies_changed_timestamp_seconds") == 1.5
    watch.metrics.compiled(Compiled(0.2, {}, {}, {}, 0, 0))
    assert _value(watch, "documents_in_force", system="cdap") == _value(watch, "documents_refused", system="other") == 0
    assert _value(watch, "snapshot_compile_seconds_count") == 2


def _role(name: str, **spec: Any) -> dict[str, Any]:
    statement = {"effect": "allow", "action": "kafka:*", "resource": "*"}
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": [statement], **spec}}


def test_documents_are_distinguished_in_force_refused_and_deleted() -> None:
    policies = DocumentStore()
    policies.put(_role("good"), 1_000, 0)
    policies.put(_role("was-good"), 2_000, 1)
    policies.put(_role("was-good", typo=1), 3_000, 2)
    policies.put(_role("never-good", typo=1), 4_000, 3)
    policies.put(_role("gone"), 5_000, 4)
    policies.delete(policies_key(policies, "gone"), 6_000, 5)
    policies.put({"system": "strange", "kind": "x", "name": "y"}, 7_000, 6)
    measured = measure(0.5, Compiler(policies), policies)
    assert measured.in_force == {"lenses6": 2}
    assert measured.refused == {"lenses6": 2, "other": 1}
    assert measured.newest == 6_000
    assert measured.grants["lenses6"] > 0


def policies_key(store: DocumentStore, name: str) -> Any:
    """The key of a document by its name."""
    return next(key for key in store.histories if key.name == name)


PROGRESS = {
    "name": "monitor",
    "eventTime": {"watermark": "2026-11-21T10:00:00.500Z"},
    "stateOperators": [
        {"numRowsTotal": 5, "memoryUsedBytes": 100, "customMetrics": {"rocksdbSstFileSize": 1000}},
        {"numRowsTotal": 7, "memoryUsedBytes": 20},
    ],
}


def test_the_monitors_state_is_read_from_the_progress_of_its_query(watch: Watch) -> None:
    names = ("state_rows", "state_bytes", "watermark_seconds")
    watch.monitored(PROGRESS)
    assert [_value(watch, f"monitor_{name}") for name in names] == [12, 1120, 1_795_255_200.5]
    watch.monitored({"eventTime": {}, "stateOperators": []})
    assert [_value(watch, f"monitor_{name}") for name in names] == [0, 0, 0]


def test_a_monitor_that_is_switched_off_shows_nothing(watch: Watch) -> None:
    watch.monitor_runs(True)
    assert _value(watch, "monitor_running") == 1
    off = Watch(Settings(monitor=MonitorSettings(mode="none")))
    off.monitor_runs(False)
    assert _value(off, "monitor_running") is None


def test_a_monitor_of_its_own_shows_what_it_does_and_the_job_beside_it_nothing_of_it() -> None:
    settings = Settings(monitor=MonitorSettings(mode="separate"))
    job, own = Watch(settings), MonitorWatch(settings)
    own.monitor_runs(True)
    own.alerted([(settings.topics.alerts, None, b'{"kind":"denial-burst"}', None)])
    assert _value(job, "monitor_running") is None
    assert (_value(own, "monitor_running"), _value(own, "decisions_total")) == (1, None)
    assert _value(own, "alerts_total", kind="denial-burst") == 1


def test_a_monitor_of_its_own_is_ready_while_its_query_runs_and_says_what_it_waits_for() -> None:
    own = MonitorWatch(Settings(monitor=MonitorSettings(mode="separate")))
    assert own.health.problems() == ["the monitor's query does not run"]
    own.monitor_runs(True)
    assert own.health.problems() == []
    own.monitor_waits(time.monotonic() - 7)
    [problem] = own.health.problems()
    assert problem.startswith("Kafka is unavailable; waiting for it since 7 s")
    own.monitor_waits(None)
    own.health.undecided_since = time.monotonic() - 1000
    [problem] = own.health.problems()
    assert problem.startswith("records wait since 1000 s, and none was read")
    own.monitor_committed()
    assert own.health.problems() == []


def test_each_group_tells_its_lag_while_it_runs(watch: Watch) -> None:
    watch.add_consumer_group("job", lambda: {("requests", 1): 7})
    watch.add_consumer_group("job-monitor", lambda: {("decisions", 0): 3})
    assert _value(watch, "consumer_lag_records", topic="requests", partition="1") == 7
    watch.remove_consumer_group("job")
    assert _value(watch, "consumer_lag_records", topic="requests", partition="1") is None
    assert _value(watch, "consumer_lag_records", topic="decisions", partition="0") == 3
