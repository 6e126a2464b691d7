"""Weighted fair shares: how much of a batch each input topic and partition gets while more waits than fits.

Spark shares a batch in proportion to what waits. Of 200,000 records beside a backlog of 10,000,000, a topic with 40
gets one: it waits as long as the backlog does. Here each topic gets its part by weight, and in it each partition alike;
what one does not need goes to the others. This is max-min fairness, as of Spark's fair scheduler and of fair queueing.
Within a partition Kafka's order holds, so subjects that must not wait for each other need partitions of their own.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from streaming.kafka.clients import Partition

STARVED = 2  # a partition of which Spark reads less than its fair share by this factor

Source = TypeVar("Source", bound=Hashable)


def fair_shares(waiting: Mapping[Partition, int], most: int, weights: Mapping[str, float]) -> dict[Partition, int]:
    """How many offsets to read of each partition in which so many are waiting; `most` of all.

    `weights`: by topic, 1 by default. Each partition with offsets gets at least one, whatever `most` is.
    """
    by_topic: dict[str, dict[Partition, int]] = {}
    for partition, count in waiting.items():
        by_topic.setdefault(partition[0], {})[partition] = count
    demands = {topic: sum(partitions.values()) for topic, partitions in by_topic.items()}
    shares: dict[Partition, int] = {}
    for topic, share in _divide(demands, most, lambda topic: weights.get(topic, 1.0)).items():
        shares |= _divide(by_topic[topic], share, lambda _: 1.0)
    return shares


def _divide(demands: Mapping[Source, int], most: int, weight: Callable[[Source], float]) -> dict[Source, int]:
    """By weight, beginning with those that need the least for theirs: what they leave is for those after them."""
    shares: dict[Source, int] = {}
    left, weights = most, sum(weight(source) for source, demand in demands.items() if demand)
    for source in sorted(demands, key=lambda source: demands[source] / weight(source)):
        demand = demands[source]
        if not demand:
            shares[source] = 0
            continue
        share = left if len(shares) == len(demands) - 1 else int(left * weight(source) / weights)
        shares[source] = min(demand, max(share, 1))
        left, weights = max(left - shares[source], 0), weights - weight(source)
    return shares


def is_starved(read: Mapping[Partition, int], shares: Mapping[Partition, int]) -> bool:
    """Whether a plan that reads so many offsets leaves a partition far below its share."""
    return any(STARVED * read.get(partition, 0) < share for partition, share in shares.items())
