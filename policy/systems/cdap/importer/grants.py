"""What a run gives in CDAP: allows as Grant documents, without those that a deny concerns.

Our documents have no deny for CDAP. So each one in the source is an error; and when the run goes on all the same, no
grant is imported that a denied principal might use anywhere in the namespaces which the deny is about.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from policy.core.names import fault
from policy.core.pattern import Pattern, overlaps, wildcard
from policy.core.times import Window, to_text
from policy.importers.frame import Document, document
from policy.systems.cdap.catalogue import catalogue, lineage

EVERYWHERE = "*"
NO_DENY = "CDAP's documents have no deny; with --partial, grants near it are withheld"  # said of one in the source


class Deny(msgspec.Struct, frozen=True):
    """``users``: who alone is denied; None: others too, or not known. ``namespaces``: with wildcards."""

    users: frozenset[str] | None
    namespaces: tuple[str, ...]


class Grants:
    """The allows and denies of a run, in any order."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, Window], set[str]] = {}
        self._denies: set[Deny] = set()

    def allow(self, principal: str, entity: str, privileges: Iterable[str], window: Window) -> None:
        """``principal``: user:NAME, group:NAME or role:NAME. ``entity``: KIND:NAME, with wildcards (CD-Q12)."""
        self._held.setdefault((principal, entity, window), set()).update(privileges)

    def deny(self, deny: Deny) -> None:
        """Withhold what it concerns."""
        self._denies.add(deny)

    def documents(self) -> Iterator[Document]:
        """A document for what one principal has on one entity: privileges add up, in whatever order they came."""
        for (principal, entity, window), privileges in self._held.items():
            if privileges and not any(_concerns(deny, principal, entity) for deny in self._denies):
                kind, _, name = principal.partition(":")
                ordered = [privilege for privilege in catalogue()["privileges"] if privilege in privileges]
                spec: dict[str, Any] = {kind: name, "entity": entity, "privileges": ordered}
                yield document("cdap", "Grant", _name(principal, entity, window), spec, **_window(window))


def namespace_of(entity: str) -> str:
    """The namespace that an entity is in by its name, with wildcards; EVERYWHERE where the name does not say."""
    kind, _, name = entity.partition(":")
    if kind == "namespace":
        return name
    head, dot, _ = name.partition(".")
    inside = kind in catalogue()["tree"] and lineage(kind)
    is_name = bool(dot and head) and not fault(head) and "*" not in head and "?" not in head
    return head if inside and is_name else EVERYWHERE


def _concerns(deny: Deny, principal: str, entity: str) -> bool:
    """Whether what is denied may lie in, above or below what is granted, to somebody who may be denied."""
    kind, _, name = principal.partition(":")
    if kind == "user" and deny.users is not None and name not in deny.users:
        return False
    return any(_near(namespace_of(entity), namespace) for namespace in deny.namespaces)


def _near(namespace: str, other: str) -> bool:
    return overlaps(Pattern((wildcard(namespace, single=True),)), Pattern((wildcard(other, single=True),)))


def _name(principal: str, entity: str, window: Window) -> str:
    """Separates principal, entity and window by spaces, so no principal's name may have one."""
    parts = [principal.replace("%", "%25").replace(" ", "%20"), entity]
    if window != Window():
        parts = [parts[0], "/".join(_window(window).get(field, "") for field in ("valid_from", "valid_until")), entity]
    return " ".join(parts)


def _window(window: Window) -> dict[str, str]:
    moments = {"valid_from": window.start, "valid_until": window.end}
    return {field: to_text(moment) for field, moment in moments.items() if moment is not None}
