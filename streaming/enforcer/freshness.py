"""`context.min_policy_offsets`: what a request says the policies must cover (contracts, "Freshness")."""

from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.request import Batch, Request

FIELD = "min_policy_offsets"

Offsets = Mapping[str, Mapping[str, int]]  # the newest offset read, by topic and partition


def staleness(asked: Request | Batch, read: Offsets) -> str | None:
    """Why the policies read do not cover what the request (or an item of it) asks for; None when they do."""
    if isinstance(asked, Request) and not asked.context:
        return None
    items = asked.items if isinstance(asked, Batch) else (asked,)
    wanted = (item.context[FIELD] for item in items if isinstance(item, Request) and FIELD in item.context)
    return next((lack for demand in wanted for lack in _lacks(demand, read)), None)


def _lacks(demand: Any, read: Offsets) -> Iterator[str]:
    if not isinstance(demand, Mapping):
        yield f"{FIELD} must be {{topic: {{partition: offset}}}}"
        return
    for topic, partitions in demand.items():
        if topic not in read or not isinstance(partitions, Mapping):
            yield f"{FIELD}: {topic!r} is not a policy topic, or has no {{partition: offset}}"
            continue
        for partition, offset in partitions.items():
            yield from _lack(topic, partition, offset, read[topic].get(partition))


def _lack(topic: str, partition: object, offset: object, newest: int | None) -> Iterator[str]:
    if newest is None or isinstance(offset, bool) or not isinstance(offset, int):
        yield f"{FIELD}: {topic} has no partition {partition!r}, or {offset!r} is not an offset"
    elif offset > newest:
        yield f"{FIELD}: offset {offset} of {topic}-{partition} is beyond the newest, {newest}"
