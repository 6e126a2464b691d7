"""Policies as they were read, and whether they are new enough for a request."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policy import MalformedRequest, Snapshot, parse_request
from streaming.enforcer.requests import FIELD, staleness
from streaming.topics import Offsets


class Read(msgspec.Struct, frozen=True):
    """Policies and facts as they were read to the ends that were asked for at `at` (s, monotonic clock).

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


def names_offsets(request: Mapping[str, Any]) -> bool:
    """Whether a request, or an item of a batch, has `min_policy_offsets` in its context."""
    items = request.get("evaluations")
    parts = (request, *(items if isinstance(items, list | tuple) else ()))
    contexts = (part.get("context") for part in parts if isinstance(part, Mapping))
    return any(isinstance(context, Mapping) and FIELD in context for context in contexts)


def lacking(request: Mapping[str, Any], read: Read) -> str | None:
    """Why policies and facts do not cover the `min_policy_offsets` of a request; None: they do, or it has none."""
    if not names_offsets(request):
        return None
    try:
        return staleness(parse_request(request), read.all_offsets)
    except MalformedRequest:
        return None  # which is what the answer will say
