"""The document store: every version of every document, and which of them are in force.

Documents come in any order (files) or in the order of a log (the policy topics). A refused version
leaves the one before it in force; without one, requests of the principals that it affects (`policy.store.affected`)
are answered ``error``.

A log says what is in force by its order. A document from a file may say itself from when on it is
(``effective_at``): its versions are in force one after the other, each until the next begins.
"""

import copy
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.document import SINCE_EVER, Document, Key, digest, identify, parse_document
from policy.core.model import CompiledDocument, DocumentRefused, Fact, Grant, Membership
from policy.core.suggest import nearest
from policy.core.times import ALWAYS, Window, to_ms, window_between
from policy.store.affected import ALL, UNREADABLE, affected
from policy.systems import all_systems
from policy.systems.kit.system import Kind

Bounded = TypeVar("Bounded", Grant, Membership, Fact)

SAME_TIME = (
    "another document has this system, kind and name with different content: keep one, or date them with `effective_at`"
)
UNKNOWN = Kind()  # of a refused document whose kind the system does not have


class Rejected(msgspec.Struct, frozen=True, order=True):
    """A refused document. ``key`` is ``system/kind/name``; ``errors`` names everything wrong with it."""

    key: str
    errors: tuple[str, ...]


class Version(msgspec.Struct):
    """One version in the log of a document: good (``document``), deleted (its spec None) or refused.

    ``at``: its moment, ms. ``begins``: from when on it counts; a version in a log counts as soon as it is there.
    ``since``: of a deletion that says when the fact ceased to be, that moment, ms.
    """

    at: int
    order: int
    digest: str
    document: Document | None
    compiled: CompiledDocument
    errors: tuple[str, ...] = ()
    affected_principals: frozenset[str] = frozenset()
    begins: int = SINCE_EVER
    since: int | None = None

    @property
    def good(self) -> bool:
        """Not refused."""
        return self.document is not None

    def refuse(self, error: str) -> None:
        """Take a version out of force after all."""
        if self.document is not None:
            key = self.document.key
            self.affected_principals = affected(all_systems()[key.system], key, {"spec": self.document.spec})
        self.document, self.compiled, self.errors = None, CompiledDocument(), (*self.errors, error)

    @property
    def deleted(self) -> bool:
        """A deletion."""
        return self.document is not None and self.document.spec is None


class DocumentHistory:
    """The versions of one document, oldest first."""

    def __init__(self, key: Key, kind: Kind) -> None:
        self.key = key
        self.kind = kind
        self.versions: list[Version] = []
        self.known_from = SINCE_EVER
        self._reading: CompiledDocument | None = None

    def add(self, version: Version) -> None:
        """Put ``version`` in its place; equal times with different content refuse both."""
        same_time = [v for v in self.versions if (v.at, v.order) == (version.at, version.order)]
        if any(one.digest == version.digest for one in same_time):
            return
        if same_time:
            for one in (*same_time, version):
                one.refuse(SAME_TIME)
        self.versions.append(version)
        # A log orders by offset: its clock may run backwards when another broker takes over.
        self.versions.sort(key=lambda v: (v.order, v.at, v.digest))
        self._reading = None

    def first(self, count: int) -> "DocumentHistory":
        """As it was after its first versions."""
        other = DocumentHistory(self.key, self.kind)
        other.versions, other.known_from = self.versions[:count], self.known_from
        return other

    @property
    def newest(self) -> Version:
        """The version with the latest time."""
        return self.versions[-1]

    @property
    def in_force(self) -> Version | None:
        """The newest good version, a deletion included; None when every one was refused."""
        return next((version for version in reversed(self.versions) if version.good), None)

    @property
    def broken(self) -> bool:
        """The newest is refused and nothing good stands in its place, at some moment."""
        return any(document_history._is_broken() for _, document_history in self._intervals())

    @property
    def affected_principals(self) -> frozenset[str]:
        """The principals that a refused document affects: all that refused versions since the last good one name."""
        return frozenset().union(*(refusal.affected_principals for refusal in self.refusals()))

    def refusals(self) -> Iterator["Refusal"]:
        """When it is refused, and the principals that it affects then."""
        for window, document_history in self._intervals():
            if document_history._is_broken():
                refused = itertools.takewhile(lambda version: not version.good, reversed(document_history.versions))
                yield Refusal(
                    self.key, window, frozenset().union(*(version.affected_principals for version in refused))
                )

    def compiled(self) -> CompiledDocument:
        """What the document says, with its older versions where its kind looks back.

        Of several versions that begin at moments of their own, all that they say, each within its window.
        """
        if self._reading is None:
            self._reading = _together(
                [within(document_history._read(), window) for window, document_history in self._good_intervals()]
            )
        return self._reading

    def _good_intervals(self) -> Iterator[tuple[Window, "DocumentHistory"]]:
        """The intervals, those taken together that differ in refused versions alone."""
        for _, group in itertools.groupby(
            self._intervals(), lambda interval: [id(v) for v in interval[1].versions if v.good]
        ):
            first, *others = group
            last = others[-1] if others else first
            yield window_between(first[0].start, last[0].end), first[1]

    def _intervals(self) -> list[tuple[Window, "DocumentHistory"]]:
        """The versions that have begun, for each window between two moments at which one begins; only one, in a log."""
        starts = sorted({version.begins for version in self.versions if version.begins > SINCE_EVER})
        if not starts:
            return [(ALWAYS, self)]
        bounds = itertools.pairwise((None, *starts, None))
        return [(Window(start, end), self._begun(SINCE_EVER if start is None else start)) for start, end in bounds]

    def _begun(self, moment: int) -> "DocumentHistory":
        """The history as it is at a moment."""
        other = DocumentHistory(self.key, self.kind)
        other.versions = [version for version in self.versions if version.begins <= moment]
        other.known_from = self.known_from
        return other

    def _is_broken(self) -> bool:
        """Whether the newest of these versions is refused and nothing good stands in its place."""
        current = self.in_force
        return bool(self.versions) and not self.newest.good and (current is None or current.deleted)

    def _read(self) -> CompiledDocument:
        current = self.in_force
        if current is None or current.document is None or (current.deleted and not self.kind.point_in_time):
            return CompiledDocument()
        if not self.kind.point_in_time:
            return current.compiled
        older = tuple(v.document for v in self.versions if v.document is not None and v is not current)
        if not older and self.known_from == current.document.known_from:
            return current.compiled
        document = msgspec.structs.replace(current.document, history=older, known_from=self.known_from)
        return all_systems()[self.key.system].read(document)

    def forget_before(self, retention_floor: int | None) -> list[Version]:
        """Drop what no decision can need any more and return it; ``retention_floor``: see System.retention_floor."""
        current = self.in_force
        at = -1 if current is None else self.versions.index(current)
        if self.kind.point_in_time and retention_floor is not None:
            older = [n for n, v in enumerate(self.versions[: at + 1]) if v.good and v.at <= retention_floor]
            at = older[-1] if older else 0
        dropped, self.versions = self.versions[: max(at, 0)], self.versions[max(at, 0) :]
        if dropped:
            self.lost_before(self.versions[0].at)
        return dropped

    def copy(self) -> "DocumentHistory":
        """Another history with the same versions; in a log, versions themselves do not change."""
        other = copy.copy(self)
        other.versions = list(self.versions)
        return other

    def lost_before(self, moment: int) -> None:
        """Note that versions in force before ``moment`` (ms) may be missing, so that none is taken for the first."""
        self.known_from = max(self.known_from, moment)
        self._reading = None

    def nothing_left(self, retention_floor: int | None) -> bool:
        """Whether all that is held is a deletion behind which no decision looks any more."""
        behind = not self.kind.point_in_time or retention_floor is None or self.newest.at <= retention_floor
        return len(self.versions) == 1 and self.newest.deleted and behind

    @property
    def superseded(self) -> int:
        """How many versions older than the one in force are held."""
        current = self.in_force
        return 0 if current is None else self.versions.index(current)


class Refusal(msgspec.Struct, frozen=True):
    """A document is refused while ``window`` holds, and affects these principals."""

    key: Key
    window: Window
    affected_principals: frozenset[str]


def within(compiled: CompiledDocument, window: Window) -> CompiledDocument:
    """A reading that counts while ``window`` holds."""
    if window is ALWAYS:
        return compiled
    grants, memberships = _met(compiled.grants, window), _met(compiled.memberships, window)
    return CompiledDocument(tuple(grants), tuple(memberships), tuple(_met(compiled.facts, window)), compiled.warnings)


def _met(written: Iterable[Bounded], window: Window) -> Iterator[Bounded]:
    for one in written:
        both = one.window.meet(window)
        if both is not None:
            yield msgspec.structs.replace(one, window=both)


def _together(readings: Sequence[CompiledDocument]) -> CompiledDocument:
    if len(readings) == 1:
        return readings[0]
    parts = ((r.grants, r.memberships, r.facts) for r in readings)
    grants, memberships, facts = (tuple(itertools.chain.from_iterable(part)) for part in zip(*parts, strict=True))
    warnings = dict.fromkeys(warning for compiled in readings for warning in compiled.warnings)
    return CompiledDocument(grants, memberships, facts, tuple(warnings))


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
        """Count documents as changed, for the next `take_changed`."""
        for key in keys:
            self._note(key)

    def put(self, value: object, at: int | None = None, order: int = 0) -> Rejected | None:
        """Add a version; ``at`` (ms) and ``order`` (offset) are the log's. Returns why it was refused, or None."""
        try:
            key = _meant(value)
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
        gone = Document(key, None, at)
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
        named = [self._own(key) for key in self._superseding if key.system in retention_floors]
        dropped = {
            document_history.key: document_history.forget_before(retention_floors[document_history.key.system])
            for document_history in named
        }
        for document_history in named:
            if document_history.nothing_left(retention_floors[document_history.key.system]):
                dropped[document_history.key] += self.histories.pop(document_history.key).versions
        found = {key: versions for key, versions in dropped.items() if versions}
        for key in found:
            self._note(key)
        return found

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
        """Put a history in the place of a document's; None: there is no such document."""
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
        kept = (Rejected(str(key), v.errors) for key, s in self.histories.items() for v in s.versions if v.errors)
        return tuple(sorted({*kept, *self.nameless}))

    def version(self) -> str:
        """``sha256:…`` over the policy documents (not the facts), whatever their order."""
        lines = sorted(
            line for key, document_history in self.histories.items() for line in lines_of(key, document_history)
        )
        lines += sorted(f"{rejected.key} {rejected.errors}" for rejected in self.nameless)
        return version_of(lines)

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


def _meant(value: object) -> Key:
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
        return Version(document.at, order, mark, document, system.read(document), begins=_begins(document.at, at))
    except DocumentRefused as refused:
        errors = tuple(refused.errors)
    except Exception as bug:  # one poisonous document must not take the others down
        errors = (f"could not be read ({type(bug).__name__}: {bug})",)
    affected_principals = affected(system, key, value) if value["name"] == key.name else ALL
    moment = _moment(value, at)
    return Version(moment, order, mark, None, CompiledDocument(), errors, affected_principals, _begins(moment, at))


def _begins(moment: int, at: int | None) -> int:
    """From when on a version counts: no request is of an earlier moment than 0."""
    return moment if at is None and moment > 0 else SINCE_EVER


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


def version_of(lines: Iterable[str]) -> str:
    """``sha256:…`` over the lines of all documents, sorted."""
    return "sha256:" + hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def lines_of(key: Key, document_history: DocumentHistory) -> list[str]:
    """The lines of one document in the version of a policy set."""
    if document_history.kind.fact:
        return []
    if any(version.begins > SINCE_EVER for version in document_history.versions):
        return [
            f"{key} {version.digest} from {version.at}" for version in document_history.versions if not version.deleted
        ]
    current = document_history.in_force
    counted = (
        document_history.versions
        if document_history.kind.point_in_time
        else [v for v in (current, document_history.newest) if v]
    )
    moments = {v.digest: v.at if document_history.kind.point_in_time else "" for v in counted if not v.deleted}
    return [f"{key} {mark} {at}" for mark, at in moments.items()]
