"""How long nothing was decided, as a consumer sees it."""

import threading
import time

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.kafka.clients import log_ends, partitions_of
from streaming.settings import Settings

POLL_SECONDS = 0.1
TAKE = 1000


class Silence:
    """Follows the decisions that are committed from now on, in a thread, until it is stopped.

    `longest`: the longest time between two of them, in seconds. `decisions`: how many there were.
    """

    def __init__(self, settings: Settings) -> None:
        self.longest, self.decisions = 0.0, 0
        client: dict[str, str | int | float | bool] = {
            **settings.kafka,
            "bootstrap.servers": settings.bootstrap_servers,
            "log_level": 0,
        }
        consuming = {"group.id": settings.job_name, "isolation.level": "read_committed", "enable.auto.commit": False}
        admin = AdminClient({**client})
        ends = log_ends(admin, partitions_of(admin, [settings.topics.decisions]))
        self._consumer = Consumer({**client, **consuming})
        self._consumer.assign([TopicPartition(*partition, end) for partition, end in ends.items()])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            messages = self._consumer.consume(TAKE, POLL_SECONDS)
            now = time.monotonic()
            self.longest = max(self.longest, now - last)  # also where no decision comes any more
            if count := sum(message.error() is None for message in messages):
                self.decisions += count
                last = now

    def stop(self) -> None:
        """End it; a second time without effect."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._consumer.close()
