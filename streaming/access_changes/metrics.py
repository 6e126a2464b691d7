"""What `lockkeeper access-changes` counts, and whether it is up to date."""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from policy.analysis import Questions
from streaming.access_changes.decisions import Joined
from streaming.ops.health import Health
from streaming.records.access_change import AccessChange

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class AccessChangesMetrics:
    """On a registry of its own."""

    def __init__(self, bound: float) -> None:
        self.registry = registry = CollectorRegistry()
        self.health = Health(bound)
        self.health.running = True
        self._records = Counter(
            "lockkeeper_access_changes", "Access changes written, by outcomes.", ("before", "after"), registry=registry
        )
        self._decisions = Counter(
            "lockkeeper_access_changes_decisions",
            "Decisions read, by whether their questions are remembered, or why not.",
            ("result",),
            registry=registry,
        )
        self._seconds = Histogram(
            "lockkeeper_access_changes_seconds",
            "From the record of a change, or the moment of an end, to the commit of what it turns.",
            buckets=BUCKETS,
            registry=registry,
        )
        self._questions = Gauge(
            "lockkeeper_access_changes_questions", "Questions that are remembered.", registry=registry
        )
        ready = Gauge(
            "lockkeeper_access_changes_ready", "1: /readyz says that it is ready, 0: that it is not.", registry=registry
        )
        ready.set_function(lambda: not self.health.problems())
        self._forgotten = Gauge(
            "lockkeeper_access_changes_forgotten",
            "Questions forgotten since the start because there were too many, or because they were not read again.",
            registry=registry,
        )

    def committed(self, changes: Iterable[AccessChange], moments: Iterable[int]) -> None:
        """Note what a transaction has written. `moments`: of the changes that turned them, ms."""
        now = time.time()
        for change in changes:
            self._records.labels(change.before.outcome, change.after.outcome).inc()
        for moment in moments:
            self._seconds.observe(max(now - moment / 1000, 0.0))

    def joined(self, joined: Joined) -> None:
        """Note the decisions that were read."""
        self._decisions.labels("remembered").inc(len(joined.decided))
        for result in ("lost", "dated", "unreadable"):
            self._decisions.labels(result).inc(getattr(joined, result))

    def remembered(self, questions: Questions, unread: int) -> None:
        """Note how many questions there are. `unread`: decisions that a start left out."""
        self._questions.set(len(questions))
        self._forgotten.set(questions.forgotten + unread)
