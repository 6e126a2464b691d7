"""A draft in place of the documents in force: the policies as they would be if it was applied."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.document import Key
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.store.history import DocumentHistory
from policy.store.snapshot import Snapshot

Replacements = dict[Key, DocumentHistory | None]
"""What stands in place of the histories of documents; None: nothing."""


def with_drafts(live: DocumentStore, drafts: Mapping[Key, Any], prune: bool) -> DocumentStore:
    """The live documents, with drafts in place of others as if they had always been there.

    So they count for every request of the past, also where older versions do. A document that is as it is live keeps
    its older versions. `prune`: as `policy apply --prune`, which deletes other documents of the drafts' systems.
    """
    store = live.copy()
    for key, history in _replacements(live, drafts, prune).items():
        store.replace(key, history)
    return store


@contextlib.contextmanager
def drafted(live: DocumentStore, compiler: Compiler, drafts: Mapping[Key, Any], prune: bool) -> Iterator[Snapshot]:
    """The same as a snapshot, at the cost of what the drafts change. `compiler`: of the live documents.

    While it is used the store holds the drafts; afterwards it is as before.
    """
    replacements = _replacements(live, drafts, prune)
    before = {key: live.histories.get(key) for key in replacements}
    try:
        for key, history in replacements.items():
            live.replace(key, history)
        compiler.compile()
        yield compiler.snapshot
    finally:
        for key, history in before.items():
            live.replace(key, history)
        compiler.compile()


def _replacements(live: DocumentStore, drafts: Mapping[Key, Any], prune: bool) -> Replacements:
    drafted, systems = DocumentStore(systems=live.systems), {key.system for key in drafts}
    for document in drafts.values():
        drafted.put(document)
    replacements: Replacements = {}
    if prune:
        replacements |= dict.fromkeys(key for key in live.histories if key.system in systems and key not in drafts)
    for key, history in drafted.histories.items():
        if key not in live.histories or not _are_alike(live.histories[key], history):
            replacements[key] = history
    return replacements


def _are_alike(live: DocumentHistory, draft: DocumentHistory) -> bool:
    """Whether the version in force is the draft's."""
    was, now = live.in_force, draft.in_force
    return was is not None and now is not None and live.newest.good and was.digest == now.digest
