"""What a snapshot is made of, counted for the metrics."""

from collections import Counter

from policy.library import Library
from policy.snapshot import Snapshot
from policy.systems import all_systems
from streaming.observability.metrics import Compiled
from streaming.observability.tally import OTHER


def measure(seconds: float, snapshot: Snapshot, policies: Library) -> Compiled:
    """What was compiled within `seconds` from a library, which still holds what it will forget then."""
    shelves = policies.shelves.values()
    current = ((shelf.key.system, shelf.in_force) for shelf in shelves)
    refused = Counter(shelf.key.system for shelf in shelves if not shelf.newest.good)
    nameless = (rejected.key.split("/", 1)[0] for rejected in policies.nameless)
    refused.update(system if system in all_systems() else OTHER for system in nameless)
    return Compiled(
        seconds,
        Counter(system for system, version in current if version is not None and not version.deleted),
        refused,
        {name: sum(map(len, realm.grants.values())) for name, realm in snapshot.realms.items()},
        snapshot.history_held,
        max((shelf.newest.at for shelf in shelves), default=0),
    )
