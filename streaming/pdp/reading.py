"""Policies as they were read, and whether they are new enough for a request."""

import sys
import time
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from policy import MalformedRequest, Snapshot, parse_request
from streaming.enforcer.requests import FIELD, staleness
from streaming.records.answered import Freshness, FreshnessKind
from streaming.topics import NOTHING_READ, Offsets


def suspend_aware_clock() -> float:
    """Seconds, for the age of policies: neither a step of the machine's clock nor its suspension changes how they pass.

    On Linux CLOCK_MONOTONIC stands still while a machine is suspended (clock_gettime(2)): what was read before would be
    new enough when it goes on.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Read(msgspec.Struct, frozen=True):
    """Policies and facts as they were read to the ends that were asked for at `at` (`suspend_aware_clock`).

    `policy_offsets`: the newest offset of each policy topic, by partition; `facts_offset`: of the facts topic; -1:
    nothing is there. `all_offsets`: both, which `min_policy_offsets` is compared with.
    """

    snapshot: Snapshot
    at: float
    policy_offsets: Offsets
    facts_offset: int
    all_offsets: Offsets

    @property
    def versions(self) -> dict[str, Any]:
        """What a decision by them says of them in its `context`."""
        return {
            "policy_version": self.snapshot.version,
            "policy_offsets": self.policy_offsets,
            "facts_offset": self.facts_offset,
        }

    def without_topics(self, topics: frozenset[str]) -> Self:
        """The same where some topics are as if they were not there; `facts_offset` is then -1."""
        if not topics:
            return self
        policies, both = (
            {topic: at for topic, at in offsets.items() if topic not in topics}
            for offsets in (self.policy_offsets, self.all_offsets)
        )
        facts = self.facts_offset if len(both) > len(policies) else NOTHING_READ
        return msgspec.structs.replace(self, policy_offsets=policies, facts_offset=facts, all_offsets=both)


class AnswerContext(msgspec.Struct, frozen=True):
    """What an answer rests on. `time`: ms; `age`, `bound`: of the policies, seconds; `trust`: of the caller."""

    read: Read
    time: int
    kind: FreshnessKind
    age: float
    bound: float
    trust: frozenset[str]

    @property
    def freshness(self) -> Freshness:
        """How new the policies are, and how new they had to be."""
        return Freshness(self.kind, round(self.age * 1000), round(self.bound * 1000))

    def without_topics(self, topics: frozenset[str]) -> Self:
        """The same for a caller who may not see some topics."""
        return msgspec.structs.replace(self, read=self.read.without_topics(topics)) if topics else self

    @classmethod
    def of_now(cls, read: Read, kind: FreshnessKind, bound: float, trust: frozenset[str]) -> Self:
        """That of an answer which is given now."""
        return cls(read, time.time_ns() // 1_000_000, kind, suspend_aware_clock() - read.at, bound, trust)


def why_stale(read: Read | None, bound: float, is_stuck: bool) -> str | None:
    """Why nothing may be decided by a reading now; None: it is new enough. `is_stuck`: topics cannot be read on."""
    if read is None:
        return "the policies have not been read up to their end yet"
    if suspend_aware_clock() - read.at > bound:
        return f"the policies could not be read for more than {bound:g} s: does Kafka answer?"
    return "policies or facts cannot be read on: a transaction on their topics is not ended" if is_stuck else None


def names_offsets(request: Mapping[str, Any]) -> bool:
    """Whether a request, or an item of a batch, has `min_policy_offsets` in its context."""
    items = request.get("evaluations")
    parts = (request, *(items if isinstance(items, list | tuple) else ()))
    contexts = (part.get("context") for part in parts if isinstance(part, Mapping))
    return any(isinstance(context, Mapping) and FIELD in context for context in contexts)


def lacking(request: Mapping[str, Any], read: Offsets) -> str | None:
    """Why policies and facts do not cover the `min_policy_offsets` of a request; None: they do, or it has none.

    `read`: the newest offset of each topic that was read, by partition.
    """
    if not names_offsets(request):
        return None
    try:
        return staleness(parse_request(request), read)
    except MalformedRequest:
        return None  # which is what the answer will say
