"""What `lockkeeper access-changes` counts, and whether it is up to date."""

import time
from collections.abc import Iterable

from policy.analysis import Questions
from streaming.access_changes.decisions import Joined
from streaming.ops.health import Health
from streaming.ops.registry import MetricsRegistry
from streaming.records.access_change import AccessChange

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class AccessChangesMetrics(MetricsRegistry):
    """On a registry of its own."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.health = Health(bound)
        self.health.running = True
        self._records = self.counter(
            "lockkeeper_access_changes", "Access changes written, by outcomes.", "before", "after"
        )
        self._decisions = self.counter(
            "lockkeeper_access_changes_decisions",
            "Decisions read, by whether their questions are remembered, or why not.",
            "result",
        )
        self._seconds = self.histogram(
            "lockkeeper_access_changes_seconds",
            "From the record of a change, or the moment of an end, to the commit of what it turns.",
            BUCKETS,
        )
        self._questions = self.gauge("lockkeeper_access_changes_questions", "Questions that are remembered.")
        self.gauge(
            "lockkeeper_access_changes_ready",
            "1: /readyz says that it is ready, 0: that it is not.",
            lambda: not self.health.problems(),
        )
        self._forgotten = self.gauge(
            "lockkeeper_access_changes_forgotten",
            "Questions forgotten since the start because there were too many, or because they were not read again.",
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
