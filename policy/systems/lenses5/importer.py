"""Lenses 5: groups as its command line and its HTTP API write them, in YAML or JSON, one or many to a file.

A group's fields have two spellings (``dataNamespaces`` in YAML files is ``namespaces`` on the wire), permissions have
code names, and a namespace does not always say the type of its connection: then its permissions say it, or the other
namespaces of the run that are on the same connection. There is no deny, so what is not known is left out.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from policy.core.suggest import nearest
from policy.importers.frame import Document, Findings, ImportInput, Source, Spot, document
from policy.importers.inputs import read_spots
from policy.systems.kit.validator import Validator
from policy.systems.lenses5.catalogue import catalogue
from policy.systems.lenses5.groups import PermissionFamily, feature_family, namespace_family

SPELLINGS = {  # the field of our documents → how Lenses spells it
    "namespaces": ("namespaces", "dataNamespaces"),
    "application": ("applicationPermissions", "scopedPermissions"),
    "administration": ("adminPermissions",),
    "connect_clusters": ("connectClustersPermissions",),
}
OTHER_CODES = {  # the code names that are not Kafka's, as Lenses's pages about these connections give them
    "ShowIndex": "Show Index",
    "QueryIndex": "Query Index",
    "ShowTable": "Show Table",
    "QueryTable": "Query Table",
}
COUNTS = ("description", "userAccounts", "serviceAccounts", "userAccountsCount", "serviceAccountsCount")
GROUP_FIELDS = frozenset({"name", *COUNTS, *(name for names in SPELLINGS.values() for name in names)})
CORRECTION = "correct the group, or add it to what was imported by hand"


class Namespace(msgspec.Struct):
    """A namespace as it was read. ``type``: of its connection, "" while it is not known."""

    spot: Spot
    connection: str
    type: str
    datasets: list[str]
    codes: list[str]


class Group(msgspec.Struct):
    """A group as it was read; ``features``: the fields that are lists of names, by our names, with their places.

    ``left_out``: a field may mean that it is less than it seems.
    """

    spot: Spot
    name: str
    namespaces: list[Namespace] = []
    features: dict[str, tuple[Spot, list[str]]] = {}
    left_out: bool = False


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    groups = [group for spot, value in read_spots(files, findings) for group in _read_groups(value, spot)]
    _find_types([namespace for group in groups for namespace in group.namespaces])
    by_name: dict[str, list[tuple[Spot, Document | None]]] = {}
    for group in groups:
        by_name.setdefault(group.name, []).append((group.spot, None if group.left_out else _to_document(group)))
    for name, versions in by_name.items():
        first = versions[0][1]
        if all(version == first for _, version in versions):
            if first is not None:
                yield first
            continue
        for spot, _ in versions:
            why = f"there are {len(versions)} different groups {name!r}, none of which is imported"
            spot.error(why, "give the newest export alone")


def _read_groups(value: Any, spot: Spot) -> Iterator[Group]:
    several = isinstance(value, list)
    for number, item in enumerate(value if several else [value]):
        yield _read_group(item, spot.inside(number) if several else spot)


def _read_group(value: Any, spot: Spot) -> Group:
    """The group; one that is left out gets a warning."""
    validator = Validator(value)
    name = validator.text("name")
    fields = value if isinstance(value, Mapping) else {}
    if unknown := sorted(str(field) for field in fields if field not in GROUP_FIELDS):
        validator.error(f"unknown fields: {', '.join(unknown)}")
    if validator.errors:
        spot.warning(f"the group is left out: {'; '.join(validator.errors)}", CORRECTION)
        # Its name counts all the same: another group of it may be the same one before it lost something.
        return Group(spot, str(fields.get("name", "")), left_out=True)
    at, entries = _either(value, "namespaces", spot)
    if not isinstance(entries, list):
        at.warning(f"is not a list but {type(entries).__name__}, and left out", CORRECTION)
        entries = []
    read = [_read_namespace(item, at.inside(number)) for number, item in enumerate(entries)]
    lists = [(field, *_either(value, field, spot)) for field in SPELLINGS if field != "namespaces"]
    features = {field: (where, _names(names, where)) for field, where, names in lists}
    return Group(spot, name, [namespace for namespace in read if namespace is not None], features)


def _either(value: Mapping[str, Any], field: str, spot: Spot) -> tuple[Spot, Any]:
    """The field in the spelling that is given, and its place; nothing where two spellings say two things."""
    spellings = [(name, value[name]) for name in SPELLINGS[field] if value.get(name) is not None]
    if not spellings:
        return spot, []
    name, content = spellings[0]
    if any(other != content for _, other in spellings):
        why = f"says otherwise than {spellings[1][0]}, which is another name for it; both are left out"
        spot.inside(name).warning(why, "keep one of the two")
        return spot, []
    return spot.inside(name), content


def _names(value: Any, spot: Spot) -> list[str]:
    """Texts of a list; what is none is left out."""
    if not isinstance(value, list):
        spot.warning(f"is not a list but {type(value).__name__}, and left out", CORRECTION)
        return []
    for number, item in enumerate(value):
        if not isinstance(item, str) or not item:
            spot.inside(number).warning("is not text, and left out", CORRECTION)
    return list(dict.fromkeys(item for item in value if isinstance(item, str) and item))


def _read_namespace(value: Any, spot: Spot) -> Namespace | None:
    """Its connection by name; older exports have ``system`` (the type) and ``instance`` (the name)."""
    validator = Validator(value)
    type_ = validator.one_of("system", catalogue().namespace, required=False)
    instance = validator.text("instance", required=False)
    connection = validator.text("connection", required=False) or instance
    wildcards, permissions = validator.raw("wildcards"), validator.raw("permissions")
    if not connection and not validator.errors:
        validator.error("required: the name of the connection", "connection")
    validator.reject_unknown()
    if validator.errors:
        spot.warning(f"the namespace is left out: {'; '.join(validator.errors)}", CORRECTION)
        return None
    datasets, codes = _names(wildcards, spot.inside("wildcards")), _names(permissions, spot.inside("permissions"))
    return Namespace(spot, connection, type_, datasets, codes)


def _find_types(namespaces: Sequence[Namespace]) -> None:
    """Where a namespace does not say the type of its connection: its permissions do, or others on the connection."""
    for namespace in namespaces:
        namespace.type = namespace.type or _only(_types_of(namespace.codes))
    types: dict[str, set[str]] = {}
    for namespace in namespaces:
        types.setdefault(namespace.connection, set()).update({namespace.type} - {""})
    for namespace in namespaces:
        namespace.type = namespace.type or _only(types[namespace.connection])


def _types_of(codes: Iterable[str]) -> set[str]:
    """The types of connection that have all of the permissions which some type does not have."""
    types, names_of = catalogue().namespace, _codes()
    having = [{type_ for type_, names in types.items() if names_of.get(code, code) in names} for code in codes]
    narrower = [fitting for fitting in having if fitting and len(fitting) < len(types)]
    return set.intersection(*narrower) if narrower else set()


def _only(types: set[str]) -> str:
    return next(iter(types)) if len(types) == 1 else ""


def _codes() -> dict[str, str]:
    return {**catalogue().code_names["namespace"], **OTHER_CODES}


def _to_document(group: Group) -> Document:
    """Lists are sets (L5-Q1), so each has one order; what is in none is left out."""
    namespaces = [entry for namespace in group.namespaces if (entry := _namespace(namespace))]
    order = operator.itemgetter("connection", "type", "datasets", "permissions")
    spec: dict[str, Any] = {"namespaces": sorted(namespaces, key=order)}
    for field, (spot, names) in group.features.items():
        kept = set(names) if field == "connect_clusters" else _permissions(names, feature_family(field), spot)
        if kept:
            spec[field] = sorted(kept)
    return document("lenses5", "Group", group.name, spec)


def _namespace(namespace: Namespace) -> dict[str, Any] | None:
    if not namespace.type:
        why = f"the type of the connection {namespace.connection!r} is not known, so the namespace is left out"
        namespace.spot.warning(why, f"add `system`, one of {', '.join(catalogue().namespace)}")
        return None
    family = msgspec.structs.replace(namespace_family(namespace.type), codes=_codes())
    kept = _permissions(namespace.codes, family, namespace.spot.inside("permissions"))
    if not kept or not namespace.datasets:
        return None
    return {
        "connection": namespace.connection,
        "type": namespace.type,
        "datasets": sorted(namespace.datasets),
        "permissions": sorted(kept),
    }


def _permissions(names: Iterable[str], family: PermissionFamily, spot: Spot) -> set[str]:
    """Permissions by their own names (code names: see the catalogue); others are left out."""
    kept = set()
    for name in names:
        if (permission := family.codes.get(name, name)) in family.permissions:
            kept.add(permission)
        elif name in catalogue().legacy:
            spot.note(f"{name} is a legacy name that grants nothing", "nothing")
        else:
            why = f"{name!r} is not one of {family.text}, and left out"
            hint = nearest(name, [*family.permissions, *family.codes])
            spot.warning(f"{why}{hint}", "see what it allows, and grant that")
    return kept


SOURCES = {
    "lenses5": Source("lenses5", "groups as the command line or the HTTP API writes them (YAML, JSON)", translate)
}
