"""The live policies of both sides of a replay: as they are, and with a draft in their place."""

from collections.abc import Sequence
from typing import Any

from policy import Snapshot, identify, with_drafts
from streaming.replay.comparison import Sides
from streaming.settings import Settings
from streaming.snapshots.at_offsets import read_retention
from streaming.snapshots.policies import policies_in_force


def live_sides(settings: Settings, draft: Sequence[Any], prune: bool) -> Sides:
    """The live policies, and what applying a draft makes of them; the facts of the facts topic, with their past.

    `prune`: as `policy apply --prune`. Raises KafkaException, TimeoutError and CannotStart.
    """
    with policies_in_force(settings, read_retention(settings)) as policies:
        after = Snapshot(with_drafts(policies.store, {identify(document): document for document in draft}, prune))
        return Sides(policies.snapshot.without_findings(), after.without_findings(), policies.overlay.copy())
