"""A snapshot: everything that decisions are made from, at one moment. Immutable, and plain data when pickled."""

import contextlib
import copy
import gc
from collections.abc import Iterable, Iterator
from typing import Any

from policy.store.compiled_store import CompiledStore
from policy.store.delta import SnapshotChange
from policy.store.documents import DocumentStore
from policy.store.history import Rejected
from policy.store.overlay import FactOverlay, layer_of
from policy.store.policy_set import PolicySet

MANY_OBJECTS = 50_000  # with fewer, counting what is frozen took longer (0.15 s in a large process) than a search saves


class Snapshot:
    """Compiled policies and facts. ``version``: ``sha256:…`` over the policies, equal for equal documents.

    It is made in one way alone: by a change of another one, the first by a change of the empty one. So what the job
    compiles, what workers apply and what tools build from files are the same by construction.

    Threads may share it and take no lock for a decision. What it caches is complete before it can be looked up, and may
    be emptied at any time; at worst two threads work out the same.

    ``history_held``: how many superseded versions of documents it holds for decisions that look back.
    """

    def __init__(self, policies: DocumentStore, facts: DocumentStore | None = None) -> None:
        compiled = CompiledStore(policies)
        self.policy_sets = {name: PolicySet() for name in policies.systems}
        self._apply(compiled.change(policies.histories), compiled)
        if facts is not None:
            self._set_facts(layer_of(facts))

    def _apply(self, change: SnapshotChange, compiled: CompiledStore | None) -> None:
        self.version, self.history_held = change.version, change.history_held
        changed = {name: self.policy_sets[name].with_change(part) for name, part in change.policy_sets.items()}
        self.policy_sets = {**self.policy_sets, **changed}
        self.rejected: tuple[Rejected, ...] = compiled.rejected if compiled is not None else ()
        self.warnings: tuple[tuple[str, str], ...] = compiled.warnings if compiled is not None else ()
        self.answers: dict[Any, Any] = {}  # the caches of `policy.decide`, by what it may rest on

    def _set_facts(self, overlay: FactOverlay, moment: int | None = None) -> None:
        policy_sets = self.policy_sets.items()
        self.policy_sets = {name: policy_set.with_facts(name, overlay, moment) for name, policy_set in policy_sets}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "answers": {}}

    def with_change(self, change: SnapshotChange, compiled: CompiledStore | None = None) -> "Snapshot":
        """The snapshot after a change of documents; it knows no facts but theirs. This one does not change.

        ``compiled``: the documents after it, for `rejected` and `warnings`; None: for those who decide.
        """
        other = copy.copy(self)
        other._apply(change, compiled)
        return other

    def without_findings(self) -> "Snapshot":
        """The same for those who decide: without refusals, warnings, and texts for people."""
        other = copy.copy(self)
        other.rejected, other.warnings = (), ()
        return other

    def with_facts(self, overlay: FactOverlay, moment: int | None = None) -> "Snapshot":
        """The same policies with the facts that a layer has now; what is applied to it later does not show here.

        Indexes are shared. ``moment``: with the facts that were in force then (ms), as far as the layer knows them;
        where it does not, requests that need them are answered ``error``.
        """
        other = copy.copy(self)  # by way of what is pickled: no answers
        other._set_facts(overlay, moment)
        return other


def compile_documents(documents: Iterable[object]) -> Snapshot:
    """Compile documents (dicts with `system`, `kind`, `name` and `spec`) in any order.

    Refused ones are listed in ``snapshot.rejected``, each with ``key`` and ``errors``.
    """
    store = DocumentStore()
    with _without_collections():
        for document in documents:
            store.put(document)
        return Snapshot(store)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """All objects created here stay, and have no cycles: to search them for some again and again takes a quarter.

    Many new objects are not searched as new afterwards either: unfrozen objects count as old ones. Few are, as all that
    a process has frozen is walked to count it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # The caller may keep objects frozen: `unfreeze` would let go of them.
        if gc.get_count()[0] > MANY_OBJECTS and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
