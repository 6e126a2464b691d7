"""The policies of both sides of a replay: those that are live, or documents in files, and a draft in their place."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from policy import DocumentHistory, DocumentStore, Key, Snapshot, compile_documents, identify
from streaming.replay.evaluating import Sides
from streaming.settings import Settings
from streaming.snapshots.at_offsets import read_retention
from streaming.snapshots.policies import Policies

POLICY_SECONDS = 300.0  # to read the policies and facts to their end


def live_sides(settings: Settings, draft: Sequence[Any], prune: bool) -> Sides:
    """The live policies, and what applying a draft makes of them; the facts of the facts topic, with their past.

    `prune`: as `policy apply --prune`. Raises KafkaException, TimeoutError and CannotStart.
    """
    with contextlib.closing(Policies(settings, {}, retention=read_retention(settings))) as policies:
        policies.catch_up(POLICY_SECONDS)
        after = applied(policies.store, {identify(document): document for document in draft}, prune)
        return Sides(policies.snapshot.without_findings(), after, policies.overlay.copy())


def file_sides(before: Sequence[Any], draft: Sequence[Any]) -> Sides:
    """Documents in files, the facts among them."""
    return Sides(compile_documents(before).without_findings(), compile_documents(draft).without_findings())


def applied(live: DocumentStore, draft: Mapping[Key, Any], prune: bool) -> Snapshot:
    """The live documents, with those of a draft in place of others as if they had always been there.

    So they count for every request of the past, also where older versions do. A document that is as it is live keeps
    its older versions.
    """
    store, drafted, systems = live.copy(), DocumentStore(systems=live.systems), {key.system for key in draft}
    for document in draft.values():
        drafted.put(document)
    for key, history in drafted.histories.items():
        if key not in store.histories or not _are_alike(store.histories[key], history):
            store.histories[key] = history
    for key in [key for key in store.histories if prune and key.system in systems and key not in draft]:
        del store.histories[key]
    return Snapshot(store).without_findings()


def _are_alike(live: DocumentHistory, draft: DocumentHistory) -> bool:
    """Whether the version in force is the draft's."""
    was, now = live.in_force, draft.in_force
    return was is not None and now is not None and live.newest.good and was.digest == now.digest
