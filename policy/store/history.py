"""The versions of one document, and which of them are in force.

A log says what is in force by its order. A document from a file may say itself from when on it is
(``effective_at``): its versions are in force one after the other, each until the next begins.
"""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.document import SINCE_EVER, Document, Key
from policy.core.model import CompiledDocument, Fact, Grant, Membership
from policy.core.times import ALWAYS, Window, window_between
from policy.store.affected import affected
from policy.systems import all_systems
from policy.systems.kit.system import Kind

Bounded = TypeVar("Bounded", Grant, Membership, Fact)

UNKNOWN = Kind()  # of a refused document whose kind the system does not have

SAME_TIME = (
    "another document has this system, kind and name with different content: keep one, or date them with `effective_at`"
)


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
        self._compiled: CompiledDocument | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has no kind: who unpickles it has the system, and its functions may be some that have no name."""
        return _unpickled, (self.key, self.versions, self.known_from)

    def add(self, version: Version) -> None:
        """Add a version where its time says; equal times with different content refuse both."""
        begin, end = (bisect(self.versions, _moment(version), key=_moment) for bisect in (bisect_left, bisect_right))
        same_time = self.versions[begin:end]
        # Without a digest (of what JSON cannot hold) nothing says that it is the same, and both may affect principals.
        if version.digest and any(other.digest == version.digest for other in same_time):
            return
        if same_time:
            for refused in (*same_time, version):
                refused.refuse(SAME_TIME)
        insort(self.versions, version, key=lambda v: (*_moment(v), v.digest))
        self._compiled = None

    def first(self, count: int) -> "DocumentHistory":
        """As it was after its first versions."""
        return self._with(self.versions[:count])

    def _with(self, versions: list[Version]) -> "DocumentHistory":
        other = DocumentHistory(self.key, self.kind)
        other.versions, other.known_from = versions, self.known_from
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
        return any(then._is_broken() for _, then in self._intervals())

    @property
    def affected_principals(self) -> frozenset[str]:
        """The principals that a refused document affects: all that refused versions since the last good one name."""
        return frozenset().union(*(refusal.affected_principals for refusal in self.refusals()))

    def refusals(self) -> Iterator["Refusal"]:
        """When it is refused, and the principals that it affects then."""
        for window, then in self._intervals():
            if then._is_broken():
                # Each refused version since the last good one may have held a deny of its own (L6-Q10).
                refused = itertools.takewhile(lambda version: not version.good, reversed(then.versions))
                affects = frozenset[str]().union(*(version.affected_principals for version in refused))
                yield Refusal(self.key, window, affects)

    def compiled(self) -> CompiledDocument:
        """What the document says, with its older versions where its kind looks back.

        Of several versions that begin at moments of their own, all that they say, each within its window.
        """
        if self._compiled is None and self.kind.point_in_time:
            self._compiled = self._compile()  # its kind says when each counts: all of them once, not for each interval
        elif self._compiled is None:
            self._compiled = _together([_within(then._compile(), window) for window, then in self._good_intervals()])
        return self._compiled

    def _good_intervals(self) -> Iterator[tuple[Window, "DocumentHistory"]]:
        """The intervals, those taken together that differ in refused versions alone."""
        for _, intervals in itertools.groupby(self._intervals(), lambda interval: id(interval[1].in_force)):
            first, *others = intervals
            last = others[-1] if others else first
            yield window_between(first[0].start, last[0].end), first[1]

    def _intervals(self) -> Iterator[tuple[Window, "DocumentHistory"]]:
        """The versions that have begun, for each window between two moments at which one begins; only one, in a log."""
        begins = [version.begins for version in self.versions]  # rising
        starts = [start for start in dict.fromkeys(begins) if start > SINCE_EVER]
        for start, end in itertools.pairwise((None, *starts, None)):
            count = bisect_right(begins, SINCE_EVER if start is None else start)
            yield window_between(start, end), self.first(count)

    def _is_broken(self) -> bool:
        """Whether the newest of these versions is refused and nothing good stands in its place."""
        current = self.in_force
        return bool(self.versions) and not self.newest.good and (current is None or current.deleted)

    def _compile(self) -> CompiledDocument:
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
        other = self._with(list(self.versions))
        other._compiled = self._compiled
        return other

    def lost_before(self, moment: int) -> None:
        """Note that versions in force before ``moment`` (ms) may be missing, so that none is taken for the first."""
        self.known_from = max(self.known_from, moment)
        self._compiled = None

    def nothing_left(self, retention_floor: int | None) -> bool:
        """Whether all that is held is a deletion behind which no decision looks any more."""
        behind = not self.kind.point_in_time or retention_floor is None or self.newest.at <= retention_floor
        return len(self.versions) == 1 and self.newest.deleted and behind

    @property
    def superseded(self) -> int:
        """How many versions older than the one in force are held."""
        current = self.in_force
        return 0 if current is None else self.versions.index(current)

    def version_lines(self) -> list[str]:
        """What stands for it in the version of a snapshot: the digests of the versions that decisions depend on."""
        if self.kind.fact:
            return []
        if any(version.begins > SINCE_EVER for version in self.versions):
            return [f"{self.key} {v.digest} from {v.at}" for v in self.versions if not v.deleted]
        if self.kind.point_in_time:
            moments = {v.digest: str(v.at) for v in self.versions if not v.deleted}
        else:
            newest = (self.in_force, self.newest)
            moments = dict.fromkeys((v.digest for v in newest if v is not None and not v.deleted), "")
        return [f"{self.key} {digest} {at}" for digest, at in moments.items()]


def _moment(version: Version) -> tuple[int, int]:
    """A log orders by offset: its clock may run backwards when another broker takes over."""
    return version.order, version.at


def _unpickled(key: Key, versions: list[Version], known_from: int) -> DocumentHistory:
    history = DocumentHistory(key, all_systems()[key.system].kinds.get(key.kind, UNKNOWN))
    history.versions, history.known_from = versions, known_from
    return history


class Refusal(msgspec.Struct, frozen=True):
    """A document is refused while ``window`` holds, and affects these principals."""

    key: Key
    window: Window
    affected_principals: frozenset[str]


def _within(compiled: CompiledDocument, window: Window) -> CompiledDocument:
    """What a document says, as far as it counts while ``window`` holds."""
    if window is ALWAYS:
        return compiled
    grants, memberships = _met(compiled.grants, window), _met(compiled.memberships, window)
    return CompiledDocument(tuple(grants), tuple(memberships), tuple(_met(compiled.facts, window)), compiled.warnings)


def _met(items: Iterable[Bounded], window: Window) -> Iterator[Bounded]:
    for item in items:
        both = item.window.meet(window)
        if both is not None:
            yield msgspec.structs.replace(item, window=both)


def _together(intervals: Sequence[CompiledDocument]) -> CompiledDocument:
    if len(intervals) == 1:
        return intervals[0]
    parts = ((compiled.grants, compiled.memberships, compiled.facts) for compiled in intervals)
    grants, memberships, facts = (tuple(itertools.chain.from_iterable(part)) for part in zip(*parts, strict=True))
    warnings = dict.fromkeys(warning for compiled in intervals for warning in compiled.warnings)
    return CompiledDocument(grants, memberships, facts, tuple(warnings))
