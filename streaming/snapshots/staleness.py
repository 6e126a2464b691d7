"""Notices when the documents' topics could not be read for longer than the bound: reported once each time."""

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streaming.kafka.clients import RETRIED_SECONDS, Partition, last_stable_offsets, log_ends, partitions_of
from streaming.records.packing import Result
from streaming.settings import Settings
from streaming.snapshots.alerts import policy_stale


class StaleWatch:
    """Remembers since when each partition stands, and which were reported. `late`: how many stand for too long."""

    def __init__(self, admin: AdminClient, settings: Settings) -> None:
        topics = settings.topics
        self._admin, self._alerts_topic = admin, topics.alerts
        self._partitions = partitions_of(admin, (*topics.policy_topics().values(), topics.facts))
        self._bound = settings.policy_stale_seconds
        self._effective_principals: dict[Partition, tuple[int, float]] = {}
        self._reported: set[tuple[Partition, int]] = set()
        self.late = 0

    def unread(self, positions: Mapping[Partition, int], since: float, why: str) -> list[Result]:
        """Alerts when the topics could not be read to their end since `since` (s)."""
        if time.time() - since < self._bound:
            return []
        return self._alert({partition: (positions[partition], since) for partition in self._partitions}, why)

    def stuck(self) -> list[Result]:
        """Alerts of partitions whose last stable offset stands behind their end: a transaction was left open."""
        try:
            ends = log_ends(self._admin, self._partitions, RETRIED_SECONDS)
            stable = last_stable_offsets(self._admin, self._partitions, RETRIED_SECONDS)
        except (KafkaException, TimeoutError):
            return []  # reading the policies fails in the same way, waits, and reports it
        now = time.time()
        behind = {partition: offset for partition, offset in stable.items() if offset < ends[partition]}
        before = self._effective_principals
        self._effective_principals = {
            p: (o, before[p][1] if before.get(p, (-1,))[0] == o else now) for p, o in behind.items()
        }
        late = {
            p: (offset, since)
            for p, (offset, since) in self._effective_principals.items()
            if now - since >= self._bound
        }
        self.late = len(late)
        return self._alert(late, "a transaction on it is not ended, which hides whatever was published after it")

    def _alert(self, late: Mapping[Partition, tuple[int, float]], why: str) -> list[Result]:
        new = {p: (offset, since) for p, (offset, since) in late.items() if (p, offset) not in self._reported}
        self._reported |= {(partition, offset) for partition, (offset, _) in new.items()}
        topic = self._alerts_topic
        return [policy_stale(topic, p, offset, int(since * 1000), why) for p, (offset, since) in new.items()]
