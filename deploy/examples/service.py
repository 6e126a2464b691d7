"""A service that requests a decision before it acts, and reports what it did.

Run it with `python deploy/examples/service.py user:dana`.

Kafka and the topics come from LOCKKEEPER_… variables, as for `lockkeeper` itself: LOCKKEEPER_BOOTSTRAP_SERVERS.
"""

import sys

from streaming.client import AccessDenied, Client, Connection, acting_as

client = Client(Connection.from_environment(), timeout=60)


@client.requires(
    system="lenses6",
    action="kafka:GetTopicDetails",
    resource=lambda call: f"kafka:topic:prod/main/{call['topic']}",
)
def describe(topic: str) -> str:
    """Runs if the acting subject may see the details of this topic; otherwise raises AccessDenied."""
    return f"{topic}: 6 partitions"


def delete(topic: str) -> None:
    """The same in a block; afterwards the access is reported with its decision."""
    lrn = f"kafka:topic:prod/main/{topic}"
    with client.allowed(system="lenses6", action="kafka:DeleteTopic", resource=lrn) as decision:
        client.report(
            {
                "system": "lenses6",
                "action": {"name": "kafka:DeleteTopic"},
                "resource": {"type": "lrn", "id": lrn},
                "outcome": "success",
            },
            decision_id=decision.id,
        )


def main(user: str = "user:dana") -> None:
    """What a web framework's middleware would do: say for whom the code runs."""
    with client, acting_as(user):
        print(describe("orders"))
        try:
            delete("orders")
        except AccessDenied as denied:
            print(f"not deleted: {denied.decision.outcome}: {denied.decision.reasons[0].message}")


if __name__ == "__main__":
    main(*sys.argv[1:])
