"""Snapshots that follow one another as in the job."""

from collections.abc import Iterable
from typing import Any

from policy.core.document import Key
from policy.store.compiled_store import CompiledStore
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot


class IncrementalPolicies:
    """Policies that change document by document: each snapshot is made of the one before, as in the job."""

    def __init__(self, policies: DocumentStore) -> None:
        self._policies, self._compiled, self.snapshot = policies, CompiledStore(policies), Snapshot(DocumentStore())
        self._apply(*policies.histories)

    @classmethod
    def of(cls, documents: Iterable[dict[str, Any]]) -> "IncrementalPolicies":
        """Those of documents in force from the beginning."""
        store = DocumentStore()
        for document in documents:
            store.put(document)
        return cls(store)

    def change(self, document: dict[str, Any], order: int = 1) -> Snapshot:
        """The next one, with another version of a document; without its spec, it is deleted."""
        key = Key(document["system"], document["kind"], document["name"])
        if document["spec"] is None:
            self._policies.delete(key, order, order)
        else:
            self._policies.put(document, order, order)
        return self._apply(key)

    def _apply(self, *keys: Key) -> Snapshot:
        self.snapshot = self.snapshot.with_change(self._compiled.change(keys))
        return self.snapshot
