"""Follows all decisions: one line each, at least once, also across restarts. Ctrl-C and SIGTERM end it in order.

Run it with `python deploy/examples/decision_log.py my-group`. Where Kafka has ACLs, the group's name
must begin with the user's, such as `lockkeeper-watch-log`.
"""

import signal
import sys

from streaming.client import Connection, DeadLetter, DecisionConsumer


def main(group: str = "decision-log") -> None:
    """Two processes with one group share the work."""
    with DecisionConsumer(Connection.from_environment(), group, on_dead_letter=log_dead_letter) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: consumer.stop())
        for decision in consumer:
            print(decision.outcome, decision.request_id, decision.policy_version[:15], flush=True)


def log_dead_letter(letter: DeadLetter) -> None:
    """What was no request."""
    print("dead letter", letter.source, letter.message, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
