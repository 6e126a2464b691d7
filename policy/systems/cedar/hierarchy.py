"""The hierarchy of the entities of a document: whether one is among its own ancestors, in linear time."""

from collections import Counter
from collections.abc import Mapping, Sequence

from policy.systems.cedar.uid import Uid


def in_cycle(parents: Mapping[Uid, Sequence[Uid]]) -> Uid | None:
    """An entity of a cycle, or above one; None: there is no cycle. Parents without an entry have none."""
    children = Counter(parent for some in parents.values() for parent in some)
    todo, left = [uid for uid in parents if not children[uid]], set(parents)
    while todo:
        uid = todo.pop()
        left.remove(uid)
        for parent in parents[uid]:
            children[parent] -= 1
            if not children[parent] and parent in parents:
                todo.append(parent)
    return min(left, default=None)
