"""Changes of documents as the log of a policy topic would bring them, judged as the job judges them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policy.analysis.edits import Edit, said
from policy.analysis.escalation import Escalation, escalations
from policy.core.document import Key, identify
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from policy.systems import all_systems

Documents = Sequence[Mapping[str, Any]]


class Change:
    """Documents of one system, and a change of them: ``before`` and ``after`` it, and what it opened."""

    def __init__(self, system: str, old: Documents, new: Documents, gone: Iterable[Key] = (), at: int = 0) -> None:
        store = DocumentStore()
        for order, document in enumerate(old):
            store.put(document, 0, order)
        self.before = Snapshot(store)
        keys = sorted({*map(identify, new), *gone})
        before = {key: said(store.histories.get(key)) for key in keys}
        for order, document in enumerate(new, len(old)):
            store.put(document, at, order)
        for order, key in enumerate(gone, len(old) + len(new)):
            store.delete(key, at, order)
        self.after = Snapshot(store)
        self.edits = [Edit(str(key), before[key], said(store.histories.get(key))) for key in keys]
        self.system, self.at = all_systems()[system], at
        self.opened = self.judged(self.edits)

    def judged(self, edits: Sequence[Edit]) -> tuple[Escalation, ...]:
        """What the change opened, by edits in whatever order."""
        return escalations(self.system, self.after.policy_sets[self.system.name], edits, self.at)
