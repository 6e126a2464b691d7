"""Which documents of the topics are in force, and the YAML by which `policy apply` would publish them again."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from streaming.cli.cluster import connect
from streaming.cli.failure import MISUSED, Failure
from streaming.terminal import escape

if TYPE_CHECKING:
    from streaming.kafka.committed import Stored
    from streaming.settings import Settings


def topics_of(settings: "Settings", systems: Collection[str]) -> list[str]:
    """The policy topics of some systems. Raises Failure for a system that has none."""
    by_system = settings.topics.policy_topics()
    if unknown := sorted(set(systems) - by_system.keys()):
        raise Failure(f"no topic for {', '.join(unknown)}: add it to the setting `systems`", MISUSED)
    return [by_system[system] for system in systems]


def live_documents(settings: "Settings", systems: Collection[str]) -> "list[Stored]":
    """The documents in the topics of some systems, as `with_refusals` has them. Raises Failure."""
    from streaming.kafka.committed import read_stored

    connect(settings, *topics_of(settings, systems))
    return with_refusals(settings, read_stored(settings, systems))


def with_refusals(settings: "Settings", documents: "Iterable[Stored]") -> "list[Stored]":
    """The same documents, each with why the job refuses it, or `policy apply` would, in `error`."""
    import msgspec

    return [
        document
        if document.error is not None
        else msgspec.structs.replace(document, error=_refusal(settings, document))
        for document in documents
    ]


def _refusal(settings: "Settings", stored: "Stored") -> str | None:
    """Why the job refuses a document, judged as the job does: its record's key and size count, too."""
    from policy import DocumentStore, Located, Place, refusals
    from streaming.snapshots.documents import DocumentRecord, Loader

    system, key = stored.record_key
    record = DocumentRecord(stored.topic, key, stored.value, stored.offset, stored.at)
    loader = Loader(DocumentStore(systems=settings.systems), system, settings.limits.document)
    if (refused := loader.take(record)) is not None:
        return "; ".join(refused.errors)
    errors = refusals([Located(Place(stored.key), stored.document)], settings.limits.document)
    return "; ".join(errors) or None


def as_yaml(document: Any) -> str | None:
    """A document as YAML without the line end; None where YAML would not be read back as the same."""
    from policy import dump_yaml, is_exact

    text = dump_yaml(document)
    text = text if escape(text) == text else dump_yaml(document, escaped=True)
    return text.rstrip("\n") if is_exact(document, text) else None
