"""Changes of documents as the log of a policy topic would bring them, judged as the job judges them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from policy.analysis.edits import Edit, refused, said
from policy.analysis.escalation import Escalation, analyse
from policy.core.document import Key, identify
from policy.core.limits import Work
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from policy.systems import all_systems

Documents = Sequence[Mapping[str, Any]]


class Published(NamedTuple):
    """A document, and when it was published, ms."""

    document: Mapping[str, Any]
    at: int = 0


class Change:
    """Documents of one system, and a change of them: ``before`` and ``after`` it, and what it opened."""

    def __init__(
        self,
        system: str,
        old: Sequence[Mapping[str, Any] | Published],
        new: Documents,
        gone: Sequence[Key] = (),
        at: int = 0,
    ) -> None:
        self.documents = {"before": list(old), "new": list(new), "gone": list(gone)}
        store = DocumentStore()
        for order, one in enumerate(old):
            published = one if isinstance(one, Published) else Published(one)
            store.put(published.document, published.at, order)
        self.before = Snapshot(store)
        keys = sorted({*map(identify, new), *gone})
        before = {key: (said(store.histories.get(key)), refused(store.histories.get(key))) for key in keys}
        for order, document in enumerate(new, len(old)):
            store.put(document, at, order)
        for order, key in enumerate(gone, len(old) + len(new)):
            store.delete(key, at, order)
        self.after = Snapshot(store)
        self.edits = [
            Edit(
                str(key),
                before[key][0],
                said(store.histories.get(key)),
                before[key][1],
                refused(store.histories.get(key)),
            )
            for key in keys
        ]
        self.system, self.at = all_systems()[system], at
        self.opened = self.judged(self.edits)

    def judged(self, edits: Sequence[Edit]) -> tuple[Escalation, ...]:
        """What the change opened, by edits in whatever order."""
        return analyse(self.system, self.after.policy_sets[self.system.name], edits, self.at, Work()).escalations
