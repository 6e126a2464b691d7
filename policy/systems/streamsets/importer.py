"""StreamSets Control Hub: objects and their shares in a CSV file.

object        TYPE:NAME, such as job:orders; a row each for the object and for each share, in any order
owner         the user who owns it, by his bare name; at least one row of an object has it
organization  optional: its organization's id
subject       whom it is shared with: user:NAME or group:NAME; empty in a row about the object alone
levels        READ, WRITE, EXECUTE, with | between

All further columns are optional, and those of the object's document: labels, pipeline, connections, engine_kind,
provisioned_by and so on; lists have | between their items, ``[]`` is an empty list and an empty cell "not known".
Rows of one object that give the same column must give the same. An object of which a row cannot be read is left out
whole. An engine that is left out would spare those that start jobs the level on it: that is an error, and the jobs are
withheld; so is one with ``provisioned_by`` that does not say ``permissions_modified_by_admin``: whose shares count
is not known. Organizations, with the switch that enforces permissions, are not in the file: without such a document
every request is denied.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from policy.importers.frame import Document, Findings, ImportInput, Source, Spot, document, refusal
from policy.importers.inputs import Row, list_cell, read_rows
from policy.systems.streamsets.catalogue import catalogue

REQUIRED = ("object", "owner", "subject", "levels")
LISTS = tuple(dict.fromkeys(field for type_ in catalogue().types.values() for field in (*type_.many, *type_.lists)))
FLAGS = tuple(dict.fromkeys(field for type_ in catalogue().types.values() for field in type_.flags))
TEXTS = tuple(dict.fromkeys(field for type_ in catalogue().types.values() for field in (*type_.one, *type_.texts)))
OPTIONAL = ("organization", *TEXTS, *LISTS, *FLAGS)
ENGINE, JOB = "engine", "job"
CORRECTION = "correct the row"


class Object(msgspec.Struct):
    """What the rows of an object say. ``broken``: one of them could not be read."""

    name: str
    spec: dict[str, Any]
    spot: Spot
    acl: dict[str, set[str]] = {}
    broken: bool = False

    @property
    def type(self) -> str:
        """As its name says."""
        return self.name.partition(":")[0]


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    objects: dict[str, Object] = {}
    rows = ((file.file, row) for file in files for row in read_rows(file, REQUIRED, OPTIONAL))
    nameless = [_take(row, findings.at(name, row.place), objects) for name, row in rows]
    documents = {name: translated for name, item in objects.items() if (translated := _to_document(item)) is not None}
    lost = [item for name, item in objects.items() if name not in documents]
    without_jobs = True in nameless or any(item.type == ENGINE or item.type not in catalogue().types for item in lost)
    yield from (kept for name, kept in documents.items() if not (without_jobs and objects[name].type == JOB))
    if documents:
        spot = findings.at(files[0].file)
        why = "organizations are not in the file; without one that has `enforcement: true`, and is written by hand, "
        spot.note(f"{why}requests are denied, or with enforcement off all allowed", "write the Organization document")


def _take(row: Row, spot: Spot, objects: dict[str, Object]) -> bool:
    """Add a row to its object; True where it does not name one, and might be about an engine."""
    name = row.cells.get("object", "")
    object_ = objects.setdefault(name, Object(name, {"type": name.partition(":")[0]}, spot)) if name else None
    if row.problem or object_ is None:
        _tell_lost(spot, row.problem or "names no object", may_be_engine=True)
        if object_ is not None:
            object_.broken = True
        return True
    problems = list(_tell(object_.spec, row))
    if problems:
        object_.broken = True
        _tell_lost(spot, f"{name} is left out: {'; '.join(problems)}", object_.type == ENGINE)
    elif "subject" in row.cells or "levels" in row.cells:
        _share(object_, row, spot)
    return False


def _tell_lost(spot: Spot, why: str, may_be_engine: bool) -> None:
    if may_be_engine:
        spot.error(f"{why}; jobs need a level on every engine, so with --partial no job is imported", CORRECTION)
    else:
        spot.warning(why, CORRECTION)


def _tell(spec: dict[str, Any], row: Row) -> Iterator[str]:
    """Add the row's columns to what is known of the object; yields what is wrong with them."""
    for field in ("owner", *OPTIONAL):
        if field not in row.cells:
            continue
        cell: Any = row.cells[field]
        if field in FLAGS and cell.lower() not in ("true", "false"):
            yield f"{field}: {cell!r} is neither true nor false"
        value = sorted(list_cell(cell)) if field in LISTS else cell.lower() == "true" if field in FLAGS else cell
        if spec.setdefault(field, value) != value:
            yield f"{field}: another row says otherwise"


def _share(object_: Object, row: Row, spot: Spot) -> None:
    """A share only allows: one that cannot be read is left out, and the object stays."""
    subject, levels = row.cells.get("subject", ""), list_cell(row.cells.get("levels", ""))
    spec = {"type": object_.type, "owner": "unknown", "acl": {subject: levels}}
    errors = refusal(document("streamsets", "Object", object_.name, spec)) if object_.type in catalogue().types else ()
    if errors:
        spot.warning(f"the share is left out: {'; '.join(errors)}", "correct the row, if somebody is to have this")
    else:
        object_.acl.setdefault(subject, set()).update(levels)


def _to_document(object_: Object) -> Document | None:
    if object_.broken:
        return None
    type_ = catalogue().types.get(object_.type)
    acl = (
        {who: [level for level in type_.levels if level in levels] for who, levels in sorted(object_.acl.items())}
        if type_
        else {}
    )
    # In one order, whatever the order of the rows.
    spec = {field: object_.spec[field] for field in ("type", "owner", *OPTIONAL) if field in object_.spec}
    translated = document("streamsets", "Object", object_.name, {**spec, "acl": acl})
    if errors := (*_undetermined(object_), *refusal(translated)):
        may_be_engine = object_.type == ENGINE or type_ is None
        _tell_lost(object_.spot, f"{object_.name} is left out: {'; '.join(errors)}", may_be_engine)
        return None
    return translated


def _undetermined(object_: Object) -> Iterator[str]:
    """A provisioned engine has its own list once an administrator changed it, which may give less (SS-DEP-OVERRIDE)."""
    if "provisioned_by" in object_.spec and "permissions_modified_by_admin" not in object_.spec:
        yield "permissions_modified_by_admin: is needed beside provisioned_by: true or false"


SOURCES = {
    "streamsets": Source(
        "streamsets",
        f"objects and shares (CSV): {', '.join(REQUIRED)}; optional: organization, labels, pipeline, connections and "
        "the other fields of the documents",
        translate,
    )
}
