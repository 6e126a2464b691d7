"""Names that a form completes: some of those that documents of a system name, as its requests write them."""

import itertools
from collections.abc import Iterable, Iterator

from policy import Snapshot, all_systems
from policy.analysis import known_names

MOST = 200  # subjects, and resources


def completed_names(snapshot: Snapshot, system: str) -> tuple[list[str], list[str]]:
    """Subjects and resources, sorted; of a system with many names some."""
    policy_set = snapshot.policy_sets.get(system)
    if policy_set is None:
        return [], []
    if (names := known_names(policy_set, system)) is not None:
        return _some(name for _, name in names.subjects), _some(name for _, name in names.resources)
    own = all_systems()[system]
    principals = itertools.chain(policy_set.memberships, policy_set.grants)
    resources = (name for kind in own.kinds for name in policy_set.facts.names(kind))
    return _some(_subjects(principals, own.subjects)), _some(resources)


def _subjects(principals: Iterable[str], prefixes: tuple[str, ...]) -> Iterator[str]:
    """Principals as requests write them: with their prefix where subjects are of several types, else without."""
    if len(prefixes) > 1 and all(prefix.endswith(":") for prefix in prefixes):
        yield from (name for name in principals if name.startswith(prefixes))
    elif prefixes:  # further ones, as of Kafka's ACLs, combine a subject with something else
        yield from (name.removeprefix(prefixes[0]) for name in principals if name.startswith(prefixes[0]))


def _some(names: Iterable[str]) -> list[str]:
    return sorted(set(itertools.islice(names, MOST)))
