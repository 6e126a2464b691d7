"""Logins, starts and stops of jobs that may lie among audit events which are not decided yet.

Partitions get ahead of each other where there is a backlog: an access would be judged without a login before it.
"""

import contextlib
from collections.abc import Mapping

from confluent_kafka import KafkaException

from streaming.enforcer.pending_facts import ALWAYS, EVERY, PendingFacts
from streaming.kafka.clients import RETRIED_SECONDS, Partition
from streaming.kafka.timestamps import TimestampReader
from streaming.settings import Settings


class UndecidedEvents:
    """Finds since when there may be any, by the first record of each partition that is not decided."""

    def __init__(self, settings: Settings) -> None:
        self._topics = {topic for topic in settings.topics.audit if "facts" in settings.trust_of(topic)}
        self._timestamps = TimestampReader(settings, RETRIED_SECONDS)
        self._is_behind = False

    def pending_if_behind(self, ends: Mapping[Partition, int], decided: Mapping[Partition, int]) -> PendingFacts:
        """`pending`, if there was any the last time: else what reads such facts would be evaluated twice."""
        return self.pending(ends, decided) if self._is_behind else PendingFacts()

    def pending(self, ends: Mapping[Partition, int], decided: Mapping[Partition, int]) -> PendingFacts:
        """The facts that events before these ends may change; where Kafka does not answer, all of them.

        Producers that date their events themselves may report one from before the first that is not decided.
        """
        undecided = {
            partition: decided.get(partition, 0)
            for partition, end in ends.items()
            if partition[0] in self._topics and decided.get(partition, 0) < end
        }
        since: int | None = ALWAYS
        with contextlib.suppress(KafkaException, TimeoutError):
            since = min(self._timestamps.read(undecided, ends), default=None) if undecided else None
        self._is_behind = since is not None
        return PendingFacts() if since is None else PendingFacts({EVERY: since})

    def close(self) -> None:
        """Leave Kafka."""
        self._timestamps.close()
