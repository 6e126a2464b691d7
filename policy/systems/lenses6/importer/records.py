"""The records in files of Lenses 6: which of them is a role, a group, a user, a service account."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from policy.importers.frame import Findings, ImportInput, Spot
from policy.importers.inputs import read_spots

Kind = Literal["role", "group", "user", "sa"]

LISTS: dict[str, Kind] = {
    "roles": "role",
    "groups": "group",
    "users": "user",
    "service_accounts": "sa",
    "service-accounts": "sa",
}
LRN: dict[str, Kind] = {"role": "role", "group": "group", "user": "user", "service-account": "sa"}  # iam:TYPE:NAME
DISTINCTIVE: tuple[tuple[Kind, frozenset[str]], ...] = (  # fields that records of one kind alone have
    ("role", frozenset({"policy", "data_policies"})),
    ("group", frozenset({"members", "roles", "sso_name", "sa_count", "role_count"})),
    ("sa", frozenset({"token_expires_at", "token_expired", "token"})),
    ("user", frozenset({"profile"})),
)
COMMON = {"name", "display_name", "description", "metadata", "lrn", "id", "created_at", "updated_at", "last_seen_at"}
KNOWN: dict[Kind, set[str]] = {
    "role": {*COMMON, "policy", "data_policies", "group_count"},
    "group": {*COMMON, "roles", "members", "sso_name", "user_count", "sa_count", "role_count"},
    "user": {*COMMON, "groups", "profile", "is_admin"},
    "sa": {*COMMON, "groups", "token", "token_expires_at", "token_expired", "is_admin"},
}
PREFIX: dict[Kind, str] = {"user": "user", "sa": "service-account"}


class ExportedObject(msgspec.Struct):
    """A role, group, user or service account. ``unknown``: fields that others of its kind do not have."""

    kind: Kind
    name: str
    value: Mapping[str, Any]
    spot: Spot

    @property
    def unknown(self) -> list[str]:
        """Sorted."""
        return sorted(str(field) for field in self.value if field not in KNOWN[self.kind])

    @property
    def principal(self) -> str:
        """Of a user or a service account."""
        return f"{PREFIX[self.kind]}:{self.name}"

    def count(self, *fields: str) -> int:
        """How many there are by these fields together; without a number nobody knows whether all are listed."""
        counts = []
        for field in fields:
            count = self.value.get(field)
            if isinstance(count, int):
                counts.append(count)
            elif count is not None:
                self.spot.inside(field).fatal(f"is not a whole number but {type(count).__name__}", "correct it")
        return sum(counts)

    def names(self, field: str) -> list[str]:
        """The names in a list of names or of records; what is none may be what denies, and of whom is not known."""
        value, spot = self.value.get(field), self.spot.inside(field)
        if value is None:
            return []
        if not isinstance(value, list):
            spot.fatal(f"is not a list but {type(value).__name__}", "correct it")
            return []
        names = [_member(item) for item in value]
        for number, name in enumerate(names):
            if not name:
                spot.inside(number).fatal("is not a name, nor a record with one", "correct it")
        return list(dict.fromkeys(filter(None, names)))


def read_records(files: Iterable[ImportInput], findings: Findings) -> Iterator[ExportedObject]:
    """Every record of the files; what is none may be a role that denies. Raises FilesRefused."""
    for spot, value in read_spots(files, findings):
        yield from _records(value, spot, None)


def _records(value: Any, spot: Spot, kind: Kind | None) -> Iterator[ExportedObject]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _record(item, spot.inside(number), kind)
    elif isinstance(value, Mapping) and value and "name" not in value and set(value) <= {"items", *LISTS}:
        for field, inner in value.items():
            if not isinstance(inner, list):
                spot.inside(field).fatal(f"is not a list but {type(inner).__name__}", "correct it")
                continue
            yield from _records(inner, spot.inside(field), LISTS.get(field, kind))
    else:
        yield from _record(value, spot, kind)


def _record(value: Any, spot: Spot, kind: Kind | None) -> Iterator[ExportedObject]:
    if not isinstance(value, Mapping):
        spot.fatal(f"is not a record but {type(value).__name__}", "give roles, groups, users and service accounts")
        return
    name, kind = value.get("name"), kind or _kind(value)
    if not isinstance(name, str) or not name:
        spot.fatal("has no name, as text", "give the record its name")
    elif kind is None:
        lists = ", ".join(LISTS)
        spot.fatal(f"{name!r} may be a role, a group, a user or a service account", f"put it under one of {lists}")
    else:
        yield ExportedObject(kind, name, value, spot)


def _kind(value: Mapping[str, Any]) -> Kind | None:
    lrn = value.get("lrn")
    if isinstance(lrn, str) and lrn.startswith("iam:"):
        return LRN.get(lrn.split(":")[1])
    kinds: Iterable[Kind] = (kind for kind, fields in DISTINCTIVE if not fields.isdisjoint(value))
    fitting = list(kinds)
    return fitting[0] if len(fitting) == 1 else None


def _member(item: Any) -> str:
    """A name; of a record with an LRN that says which of the two it is, the name with its prefix."""
    if isinstance(item, str):
        return item
    name = item.get("name") if isinstance(item, Mapping) else None
    if not isinstance(name, str):
        return ""
    kind = _kind(item) if isinstance(item.get("lrn"), str) else None
    return f"{PREFIX[kind]}:{name}" if name and kind in PREFIX else name
