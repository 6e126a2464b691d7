"""Whether documents can be published on topics, which say more than their systems do of what a document may be."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policy.core.document import Key, identify
from policy.store.documents import DocumentStore
from policy.store.positions import Positions
from policy.store.repository import Located
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import EngineFinding, engine_of


def refusals(documents: Sequence[Located], max_bytes: int) -> list[str]:
    """Why documents cannot be published, each text beginning with the place; empty when all can.

    Beside what the systems refuse: `effective_at`, since the log dates the versions; two documents
    with one key, since one of them would be lost; and more than `max_bytes`.
    """
    store, positions, errors = DocumentStore(), Positions(), list[str]()
    places: dict[Key, Located] = {}
    for order, document in enumerate(documents):
        rejected = store.put(document.value, at=0, order=order)
        if rejected:
            errors += [f"{positions.find(document, error)}: {rejected.key}: {error}" for error in rejected.errors]
        else:
            errors += _clash(places, document)
            errors += _excess(document, max_bytes)
    return errors


def warnings_of(documents: Sequence[Located]) -> list[str]:
    """What is valid in documents, and perhaps not meant, such as an unknown operation; each with the place.

    Also what the engine of a system finds over all of them together, such as violations of a schema.
    """
    store, positions, places = DocumentStore(), Positions(), dict[str, Located]()
    for order, document in enumerate(documents):
        store.put(document.value, at=0, order=order)
        places[str(identify(document.value))] = document
    snapshot = Snapshot(store)
    findings: list[tuple[str, int | None, str]] = [(key, None, text) for key, text in snapshot.warnings]
    findings += [(finding.document, finding.statement, finding.message) for finding in engine_findings(snapshot)]
    return [f"{positions.find(places[key], text, number)}: {key}: {text}" for key, number, text in findings]


def engine_findings(snapshot: Snapshot) -> Iterator[EngineFinding]:
    """What the engines of systems find over the documents of a snapshot. Decisions never depend on it."""
    for system, policy_set in snapshot.policy_sets.items():
        if (engine := engine_of(all_systems().get(system))) is not None:
            yield from engine.findings(policy_set.facts)


def _clash(places: dict[Key, Located], document: Located) -> Iterator[str]:
    key = identify(document.value)
    first = places.setdefault(key, document)
    if first is not document:
        yield f"{document.place}: {key} is also in {first.place}; a topic holds one version at a time: keep one"


def _excess(document: Located, max_bytes: int) -> Iterator[str]:
    size = len(encode_document(document.value))
    if size > max_bytes:
        yield f"{document.place}: {size} bytes; at most {max_bytes}: split the document"


def encode_document(document: Mapping[str, Any]) -> bytes:
    """The document as JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
