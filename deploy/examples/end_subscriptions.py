"""Ends live subscriptions of those who lose their access. Ctrl-C and SIGTERM end it in order.

Run `lockkeeper access-changes`, and this with `python deploy/examples/end_subscriptions.py my-group user:dana …`: each
of these subjects has a subscription to whatever it reads. Where Kafka has ACLs, the group's name must begin with the
user's, such as `lockkeeper-service-subscriptions`.
"""

import signal
import sys

from streaming.client import AccessChange, AccessChangeConsumer, Connection


class Subscriptions:
    """Who is subscribed. A service has connections here, such as those of server-sent events."""

    def __init__(self, *subjects: str) -> None:
        self._live = set(subjects)

    def end(self, change: AccessChange) -> None:
        """End what is no longer allowed, and say why."""
        subject = change.subject["id"]
        if subject in self._live:
            self._live.discard(subject)
            why = (change.change or {}).get("id", "facts or time")
            print(f"ended {subject}: {change.action['name']} on {change.resource['id']}, by {why}", flush=True)


def main(group: str, *subjects: str) -> None:
    """Each process has a group of its own: every one of them has to hear of all subjects."""
    subscriptions = Subscriptions(*subjects)
    with AccessChangeConsumer(Connection.from_environment(), group) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: consumer.stop())
        for change in consumer:
            if change.is_lost:
                subscriptions.end(change)


if __name__ == "__main__":
    main(*sys.argv[1:])
