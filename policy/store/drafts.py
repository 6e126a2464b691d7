"""A draft in place of the documents in force: the policies as they would be if it was applied."""

from collections.abc import Mapping
from typing import Any

from policy.core.document import Key
from policy.store.documents import DocumentHistory, DocumentStore


def with_drafts(live: DocumentStore, drafts: Mapping[Key, Any], prune: bool) -> DocumentStore:
    """The live documents, with drafts in place of others as if they had always been there.

    So they count for every request of the past, also where older versions do. A document that is as it is live keeps
    its older versions. `prune`: as `policy apply --prune`, which deletes other documents of the drafts' systems.
    """
    store, drafted, systems = live.copy(), DocumentStore(systems=live.systems), {key.system for key in drafts}
    for document in drafts.values():
        drafted.put(document)
    for key, history in drafted.histories.items():
        if key not in store.histories or not _are_alike(store.histories[key], history):
            store.histories[key] = history
    for key in [key for key in store.histories if prune and key.system in systems and key not in drafts]:
        del store.histories[key]
    return store


def _are_alike(live: DocumentHistory, draft: DocumentHistory) -> bool:
    """Whether the version in force is the draft's."""
    was, now = live.in_force, draft.in_force
    return was is not None and now is not None and live.newest.good and was.digest == now.digest
