"""What a snapshot is made of, counted for the metrics."""

from collections import Counter

from policy.library import Library
from policy.snapshot import Snapshot
from policy.systems import all_systems
from streaming.observability.metrics import Compiled
from streaming.observability.tally import OTHER


def measure(seconds: float, snapshot: Snapshot, policies: Library, facts: Library) -> Compiled:
    """What was compiled within `seconds` from the two libraries, which still hold what they will forget then."""
    shelves = [shelf for library in (policies, facts) for shelf in library.shelves.values()]
    current = ((shelf, shelf.in_force) for shelf in shelves)
    refused = Counter(shelf.key.system for shelf in shelves if not shelf.newest.good)
    nameless = (rejected.key.split("/", 1)[0] for library in (policies, facts) for rejected in library.nameless)
    refused.update(system if system in all_systems() else OTHER for system in nameless)
    return Compiled(
        seconds,
        Counter(shelf.key.system for shelf, version in current if version is not None and not version.deleted),
        refused,
        {name: sum(map(len, realm.grants.values())) for name, realm in snapshot.realms.items()},
        snapshot.history_held,
        max((shelf.newest.at for shelf in policies.shelves.values()), default=0),
    )
