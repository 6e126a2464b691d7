"""Alerts about the documents: their records (contracts, "Alert"). Ids are deterministic: one for one occasion."""

from typing import Any

import msgspec

from policy.times import to_text
from streaming.enforcer.documents import Refused
from streaming.enforcer.kafka import Partition
from streaming.enforcer.transaction import Result
from streaming.enforcer.wire import JSON_ALONE


def policy_rejected(topic: str, refused: Refused) -> Result:
    """A document was refused; which, and why."""
    alert = {
        "id": f"policy-rejected-{refused.topic}-{refused.offset}",
        "kind": "policy-rejected",
        "severity": "high",
        "time": to_text(refused.at),
        "subject": refused.document,
        "message": f"{refused.document} was refused; what was in force before it stays: {'; '.join(refused.errors)}",
        "evidence": [{"topic": refused.topic, "offset": refused.offset, "errors": list(refused.errors)}],
    }
    return _record(topic, refused.document, alert)


def policy_stale(topic: str, partition: Partition, offset: int, since: int, why: str) -> Result:
    """A documents' topic could not be read for longer than the bound. `since`: ms."""
    name, number = partition
    alert = {
        "id": f"policy-stale-{name}-{number}-{offset}",
        "kind": "policy-stale",
        "severity": "critical",
        "time": to_text(since),
        "subject": name,
        "message": f"{name}-{number} cannot be read beyond offset {offset} since {to_text(since)}: {why}",
        "evidence": [{"topic": name, "partition": number, "offset": offset}],
    }
    return _record(topic, name, alert)


def _record(topic: str, key: str, alert: dict[str, Any]) -> Result:
    return topic, key.encode(), msgspec.json.encode(alert), JSON_ALONE
