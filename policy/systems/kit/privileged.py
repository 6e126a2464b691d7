"""Privileged permissions: rights over a system itself, and over everything. Each system's catalogue lists its own.

A change of policies that gives somebody one is an escalation (see `escalation`). In a catalogue, under
``privileged_permissions``:

    {name, kind, severity, permission, object, lone, changes_hands}

``permission`` (one text, or a list of them) and ``object`` are patterns as the system writes them, else as
`pattern_of` reads them. A grant has a privileged permission as far as it meets both. ``lone``: for which of the two,
``permission`` and ``object``, meeting it will not do: there the grant itself must be the lone ``*``. ``changes_hands``:
somebody always has it, so only its transfer to another is reported.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

import msgspec

from policy.core.conversion import prepare_types
from policy.core.model import Grant
from policy.core.pattern import EVERYTHING, Pattern, covers, meet, overlaps, wildcard

PrivilegeKind = Literal["administration", "wildcard", "enforcement"]
Severity = Literal["info", "low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The least severe first."""
Half = Literal["permission", "object"]
Reader = Callable[[Any], Pattern]


class PrivilegedPermission(msgspec.Struct, frozen=True):
    """A right that alerts report. ``enforcement``: all users have it, because nothing is enforced."""

    name: str
    kind: PrivilegeKind
    severity: Severity
    permission: Pattern
    object: Pattern
    lone: tuple[Half, ...] = ()
    changes_hands: bool = False

    def part_of(self, grant: Grant) -> Grant | None:
        """As much of ``grant`` as is this privileged permission; None: nothing."""
        if not (self.permits(grant.permission) and self.is_on(grant.object)):
            return None
        permission, object_ = meet(grant.permission, self.permission), meet(grant.object, self.object)
        return msgspec.structs.replace(grant, permission=permission, object=object_)

    def permits(self, permission: Pattern) -> bool:
        """Whether a permission has something of this one's, or if that is a lone ``*`` is one."""
        lone = "permission" in self.lone
        return overlaps(permission, self.permission) and (not lone or _spans(permission, self.permission))

    def is_on(self, object_: Pattern) -> bool:
        """The same for an object."""
        return overlaps(object_, self.object) and ("object" not in self.lone or _spans(object_, self.object))


def _spans(pattern: Pattern, privileged: Pattern) -> bool:
    """Whether ``pattern`` has a lone ``*`` where the last part of ``privileged`` has one."""
    last = max(len(privileged.parts) - 1, 0)
    return covers(Pattern(pattern.parts[last:], pattern.open), Pattern(privileged.parts[last:], privileged.open))


class PrivilegeTable:
    """The privileged permissions of a system, found by grants."""

    def __init__(self, privileged_permissions: Iterable[PrivilegedPermission]) -> None:
        self._privileges = tuple(privileged_permissions)
        self._by_permission: dict[Pattern, list[PrivilegedPermission]] = {}

    def of(self, grant: Grant) -> list[PrivilegedPermission]:
        """Those that a grant has something of."""
        fitting = self._by_permission.get(grant.permission)
        if fitting is None:
            fitting = [privilege for privilege in self._privileges if privilege.permits(grant.permission)]
            self._by_permission[grant.permission] = fitting
        return [privilege for privilege in fitting if privilege.is_on(grant.object)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A privileged permission as a catalogue writes it."""

    name: str
    kind: PrivilegeKind
    severity: Severity
    permission: Any = "*"
    object: Any = "*"
    lone: tuple[Half, ...] = ()
    changes_hands: bool = False


prepare_types(Entry)  # a catalogue is read at the first request, which may come in several threads


def pattern_of(text: Any) -> Pattern:
    """``*`` for everything, another text for a name of one part, a list for one of several, each with wildcards."""
    if text == "*":
        return EVERYTHING
    return Pattern(tuple(wildcard(part) for part in ([text] if isinstance(text, str) else text)))


def read_privileged_permissions(
    written: Any, permission: Reader = pattern_of, object_: Reader = pattern_of
) -> tuple[PrivilegedPermission, ...]:
    """The privileged permissions of a catalogue; ``permission`` and ``object_`` read its patterns."""
    entries = msgspec.convert(written, list[Entry])
    return tuple(privilege for entry in entries for privilege in _read(entry, permission, object_))


def _read(entry: Entry, permission: Reader, object_: Reader) -> Iterator[PrivilegedPermission]:
    texts: Iterable[Any] = entry.permission if isinstance(entry.permission, list) else [entry.permission]
    for text in texts:
        patterns = permission(text), object_(entry.object)
        yield PrivilegedPermission(entry.name, entry.kind, entry.severity, *patterns, entry.lone, entry.changes_hands)


def worst(severities: Iterable[Severity]) -> Severity:
    """The most severe of at least one."""
    return max(severities, key=SEVERITIES.index)
