"""What the demo plays: who asks for what. Deterministic for a seed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
POLICIES = FOLDER / "policies"
CHANGE = FOLDER / "change"

PEOPLE = ("user:dana", "user:imani", "user:ola", "user:sven", "service-account:checkout", "service-account:billing")
TOPICS = ("orders", "payments", "carts", "public-prices", "public-stock", "audit-logins")
KINDS = {
    "kafka": (
        "topic",
        ("ListTopic", "GetTopicDetails", "ReadTopicData", "ReadTopicData", "WriteTopicData", "DeleteTopic"),
    ),
    "schemas": ("schema", ("ListSchemas", "GetSchemaDetails", "UpdateSchema")),
    "kafka-connect": ("connector", ("ListConnectors", "StartConnector", "StopConnector")),
}
SERVICES = ("kafka", "kafka", "kafka", "schemas", "kafka-connect")


def probe(number: int) -> dict[str, Any]:
    """The request whose answer the policy change turns from allow to deny."""
    return _request(f"probe-{number}", "user:dana", "kafka:ReadTopicData", "kafka:topic:prod/main/orders")


def requests(seed: int = 1) -> Iterator[dict[str, Any]]:
    """Endless requests as a shop's services would send them; every tenth is the probe."""
    rng, number = random.Random(seed), 0
    while True:
        number += 1
        yield probe(number) if number % 10 == 0 else _random(rng, number)


def _random(rng: random.Random, number: int) -> dict[str, Any]:
    service = rng.choice(SERVICES)
    kind, operations = KINDS[service]
    resource = f"{service}:{kind}:{rng.choice(('dev', 'prod'))}/main/{rng.choice(TOPICS)}"
    return _request(f"request-{number}", rng.choice(PEOPLE), f"{service}:{rng.choice(operations)}", resource)


def _request(id_: str, subject: str, action: str, resource: str) -> dict[str, Any]:
    properties = {"groups": ["everyone"]}
    return {
        "id": id_,
        "system": "lenses6",
        "subject": {"type": subject.partition(":")[0], "id": subject, "properties": properties},
        "action": {"name": action},
        "resource": {"type": "lrn", "id": resource},
    }
