"""Changes a policy and relies on it with the next question: no sleep, no guess.

Run it with `python deploy/examples/publish_then_ask.py user:dana`. Where Kafka has ACLs, it needs those of two users:
`lockkeeper-policies-lenses6` and `lockkeeper-client`.
"""

import sys
from typing import Any

from streaming.client import Client, Connection, PolicyPublisher


def documents(user: str, effect: str) -> list[dict[str, Any]]:
    """A role, and the group that gives it to the user."""
    statement = {"effect": effect, "action": "kafka:ListTopic", "resource": "kafka:topic:*"}
    return [
        {"system": "lenses6", "kind": "Role", "name": "example", "spec": {"statements": [statement]}},
        {"system": "lenses6", "kind": "Group", "name": "example", "spec": {"roles": ["example"], "members": [user]}},
    ]


def main(user: str = "user:dana") -> None:
    """Allow, ask, deny, ask, clean up."""
    connection = Connection.from_environment()
    publisher = PolicyPublisher(connection)
    with Client(connection, timeout=60) as client:
        for effect in ("allow", "deny"):
            offsets = publisher.publish(documents(user, effect))
            decision = client.authorize(
                system="lenses6",
                subject=user,
                action="kafka:ListTopic",
                resource="kafka:topic:prod/main/orders",
                min_policy_offsets=offsets,
            )
            print(effect, "published:", decision.outcome)
    publisher.publish([], ["lenses6/Role/example", "lenses6/Group/example"])


if __name__ == "__main__":
    main(*sys.argv[1:])
