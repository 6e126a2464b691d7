"""The document store: every version of every document, and which of them are in force.

Documents come in any order (files) or in the order of a log (the policy topics). A refused version
leaves the one before it in force; without one, requests of the principals that it affects (`policy.store.affected`)
are answered ``error``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from policy.core.document import SINCE_EVER, Document, Key, digest, effective_from, identify, parse_document
from policy.core.model import CompiledDocument, DocumentRefused
from policy.core.suggest import nearest
from policy.core.times import to_ms
from policy.store.affected import ALL, UNREADABLE, affected
from policy.store.history import UNKNOWN, DocumentHistory, Rejected, Version
from policy.systems import all_systems
from policy.systems.kit.system import Kind


class DocumentStore:
    """All document histories by key. ``facts_only``: the layer of the facts topic, which takes fact kinds alone.

    ``systems``: those whose documents it takes and whose requests its snapshots answer; None: all that are installed.

    ``nameless``: refused documents without a key, with the systems of which every request is answered ``error`` for it.
    """

    def __init__(self, facts_only: bool = False, systems: Iterable[str] | None = None) -> None:
        self.systems = tuple(all_systems()) if systems is None else tuple(sorted(systems))
        self.histories: dict[Key, DocumentHistory] = {}
        self.nameless: dict[Rejected, tuple[str, ...]] = {}
        self.facts_only = facts_only
        self._changed: set[Key] = set()
        self._superseding: set[Key] = set()  # documents of which something may be dropped one day
        self._shared: set[Key] = set()  # documents whose history is a copy's, too: it is copied before it changes

    def take_changed(self) -> set[Key]:
        """The documents of which versions came or went since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def note(self, keys: Iterable[Key]) -> None:
        """Count documents as changed, for the next `take_changed`: versions of them came or went."""
        for key in keys:
            self._note(key)

    def put(self, value: object, at: int | None = None, order: int = 0) -> Rejected | None:
        """Add a version; ``at`` (ms) and ``order`` (offset) are the log's. Returns why it was refused, or None."""
        try:
            key = _meant_key(value)
            kind = self._kind(key)
        except DocumentRefused as refused:
            return self._put_aside(value, tuple(refused.errors), _moment(value, at), order)
        assert isinstance(value, Mapping)
        version = _version(key, value, at, order)
        self._add(key, kind, version)
        return None if version.good else Rejected(str(key), version.errors)

    def take(self, key: Key, version: Version) -> None:
        """Add a good version of a document that another store of the same log has read."""
        self._add(key, self._kind(key), version)

    def delete(self, key: Key, at: int, order: int, since: int | None = None) -> None:
        """Add a deletion to the log of ``key``; of an unknown kind there is one if something was refused under it.

        ``since``: when the fact ceased to be, ms, where the deletion says so.
        """
        try:
            kind = self._kind(key)
        except DocumentRefused:
            if key not in self.histories:
                return
            kind = UNKNOWN
        gone = Document(key, None, at, logged=True)
        self._add(key, kind, Version(at, order, f"deleted@{order}", gone, CompiledDocument(), since=since))

    def refuse(self, key: Key, errors: Iterable[str], at: int, order: int, value: object = UNREADABLE) -> Rejected:
        """Add a version that is not the document of its key, or could not be read at all (not JSON, too large).

        ``value``: what it says, where it can be read.
        """
        rejected = Rejected(str(key), tuple(errors))
        try:
            kind = self._kind(key)
        except DocumentRefused as refused:
            self._put_away(key, (*rejected.errors, *refused.errors), f"refused@{order}", at, order)
            return rejected
        affected_principals = affected(all_systems()[key.system], key, value)
        self._add(
            key,
            kind,
            Version(at, order, f"refused@{order}", None, CompiledDocument(), rejected.errors, affected_principals),
        )
        return rejected

    def _put_aside(self, value: object, errors: tuple[str, ...], at: int, order: int) -> Rejected:
        """Note a refused document of an unknown kind, or one that does not say which document it is."""
        rejected = Rejected(_name(value), errors)
        try:
            self._put_away(identify(value), errors, _digest(value), at, order)
        except DocumentRefused:
            system = value.get("system") if isinstance(value, Mapping) else None
            self.nameless[rejected] = self._unanswerable(system)
        return rejected

    def _put_away(self, key: Key, errors: tuple[str, ...], mark: str, at: int, order: int) -> None:
        """Keep a version of an unknown kind, so that it can be deleted; policies among the facts are none."""
        if key.system not in self.systems:
            self.nameless[Rejected(str(key), errors)] = self._unanswerable(key.system)
        elif key.kind in all_systems()[key.system].kinds:
            self.nameless[Rejected(str(key), errors)] = ()
        else:
            self._add(key, UNKNOWN, Version(at, order, mark, None, CompiledDocument(), errors, ALL))

    def _unanswerable(self, system: object) -> tuple[str, ...]:
        """The systems whose requests a refused document of ``system`` may concern, where it does not say which."""
        if system in self.systems:
            return (str(system),)
        is_installed = isinstance(system, str) and system in all_systems()
        return () if is_installed else self.systems  # of an installed one that is not taken no request is answered

    def forget_before(self, retention_floors: Mapping[str, int | None]) -> dict[Key, list[Version]]:
        """Drop what no decision can need any more and return it; ``retention_floors``: system → System.retention_floor.

        Systems that ``retention_floors`` does not name keep everything.
        """
        dropped: dict[Key, list[Version]] = {}
        for key in [key for key in self._superseding if key.system in retention_floors]:
            document_history, floor = self._own(key), retention_floors[key.system]
            dropped[key] = document_history.forget_before(floor)
            if document_history.nothing_left(floor):
                dropped[key] += self.histories.pop(key).versions
        dropped = {key: versions for key, versions in dropped.items() if versions}
        self.note(dropped)
        return dropped

    def copy(self) -> "DocumentStore":
        """Another store with the same documents, to continue from here. For documents of a log.

        Both share the histories of documents until one of them changes.
        """
        other = DocumentStore(self.facts_only, self.systems)
        other.histories = dict(self.histories)
        self._shared, other._shared = set(self.histories), set(self.histories)
        other.nameless = dict(self.nameless)
        other._superseding = set(self._superseding)
        return other

    def _own(self, key: Key) -> DocumentHistory:
        """The history of a document that is there, to be changed."""
        if key in self._shared:
            self.histories[key] = self.histories[key].copy()
            self._shared.discard(key)
        return self.histories[key]

    def _note(self, key: Key) -> None:
        """Note that versions of a document came or went."""
        self._changed.add(key)
        document_history = self.histories.get(key)
        if document_history is not None and (len(document_history.versions) > 1 or document_history.newest.deleted):
            self._superseding.add(key)
        else:
            self._superseding.discard(key)

    def replace(self, key: Key, document_history: DocumentHistory | None) -> None:
        """Put another history of a document in place of its own; None: there is no such document."""
        self._shared.discard(key)
        if document_history is None:
            self.histories.pop(key, None)
        else:
            self.histories[key] = document_history
        self._note(key)

    def forget(self, key: Key) -> None:
        """Drop the superseded versions of a document whose kind does not look back, and all of one that is deleted."""
        if key in self.histories:
            document_history = self._own(key)
            document_history.forget_before(None)
            if document_history.nothing_left(None):
                del self.histories[key]
            self._note(key)

    def lost_before(self, moment: int, key: Key) -> None:
        """Note that of ``key``, put before, versions in force before ``moment`` (ms) may be missing.

        For the reader of a compacted log. Raises KeyError when no version of ``key`` is known.
        """
        self._own(key).lost_before(moment)
        self._note(key)

    @property
    def history_held(self) -> int:
        """How many superseded versions are held, over all documents."""
        return sum(document_history.superseded for document_history in self.histories.values())

    def rejected(self) -> tuple[Rejected, ...]:
        """Every refused version that is kept, and refused documents without a key, sorted."""
        refused = (Rejected(str(key), v.errors) for key, of in self.histories.items() for v in of.versions if v.errors)
        return tuple(sorted({*refused, *self.nameless}))

    def _kind(self, key: Key) -> Kind:
        if key.system not in self.systems:
            hint = "; it is installed, so add it to the setting `systems`" if key.system in all_systems() else ""
            raise DocumentRefused([f"system: {key.system!r} is not one of {', '.join(self.systems)}{hint}"])
        kinds = all_systems()[key.system].kinds
        kind = kinds.get(key.kind)
        if kind is None:
            raise DocumentRefused([f"kind: {key.kind!r} is not one of {', '.join(kinds)}{nearest(key.kind, kinds)}"])
        if self.facts_only and not kind.fact:
            raise DocumentRefused([f"kind: {key.kind} is a policy and does not belong in the facts topic"])
        return kind

    def _add(self, key: Key, kind: Kind, version: Version) -> None:
        if key not in self.histories:
            self._shared.discard(key)
            self.histories[key] = DocumentHistory(key, kind)
        self._own(key).add(version)
        self._note(key)


def _name(value: object) -> str:
    if not isinstance(value, Mapping):
        return "?"
    return "/".join(str(value.get(field, "?")) for field in ("system", "kind", "name"))


def _meant_key(value: object) -> Key:
    """The key of a document, also of one that is refused for its name, a number: a good version may stand there."""
    if isinstance(value, Mapping) and type(value.get("name")) in (int, float):
        return identify({**value, "name": str(value["name"])})
    return identify(value)


def _digest(value: object) -> str:
    try:
        return digest(value)
    except (TypeError, ValueError, RecursionError):
        return ""


def _version(key: Key, value: Mapping[str, Any], at: int | None, order: int) -> Version:
    mark, system = "", all_systems()[key.system]
    try:
        mark = digest(value)
        document = parse_document(value, at)
        return Version(document.at, order, mark, document, system.read(document), begins=document.effective_from)
    except DocumentRefused as refused:
        errors = tuple(refused.errors)
    except Exception as bug:  # one poisonous document must not take the others down
        errors = (f"could not be read ({type(bug).__name__}: {bug})",)
    affected_principals = affected(system, key, value) if value["name"] == key.name else ALL
    moment = _moment(value, at)
    begins = effective_from(moment, at is not None)
    return Version(moment, order, mark, None, CompiledDocument(), errors, affected_principals, begins)


def _moment(value: object, at: int | None) -> int:
    """When a refused version would have been in force; before all others where it says so and cannot be read."""
    if at is not None:
        return at
    if not isinstance(value, Mapping) or "effective_at" not in value:
        return SINCE_EVER
    try:
        return to_ms(value["effective_at"])
    except ValueError:
        return SINCE_EVER - 1
