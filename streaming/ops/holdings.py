"""What a snapshot is made of, counted for the metrics."""

from collections import Counter

from policy import Compiler, DocumentStore, all_systems
from streaming.ops.metrics import Compiled
from streaming.ops.tally import OTHER


def measure(seconds: float, compiler: Compiler, policies: DocumentStore) -> Compiled:
    """What was compiled within `seconds` from a document store, which still holds versions that it will drop."""
    nameless = (rejected.key.split("/", 1)[0] for rejected in policies.nameless)
    refused = compiler.refused + Counter(system if system in all_systems() else OTHER for system in nameless)
    snapshot = compiler.snapshot
    return Compiled(
        seconds,
        +compiler.in_force,
        refused,
        {name: sum(map(len, policy_set.grants.values())) for name, policy_set in snapshot.policy_sets.items()},
        snapshot.history_held,
        compiler.newest,
    )
