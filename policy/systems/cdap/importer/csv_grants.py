"""CDAP: grants in a CSV file, a row each.

principal_type  user, group or role
principal       its name
entity          KIND:NAME, such as dataset:shop.orders or program:shop.app.workflow.daily; * and ? as in CDAP
privileges      READ, WRITE, EXECUTE, ADMIN, with | between
effect          optional: allow, or deny, which cannot be imported
valid_from, valid_until   optional: RFC 3339

CDAP's own names of kinds are understood too (secure_key, securekey, dataset_module, principal, …). Rows about one
principal and entity add up.
"""

from collections.abc import Iterable, Sequence

from policy.core.times import Window, to_ms
from policy.importers.frame import Document, Findings, ImportInput, Source, Spot, document, refusal
from policy.importers.inputs import Row, list_cell, read_rows
from policy.systems.cdap.grants import PRINCIPAL_KINDS
from policy.systems.cdap.importer.grants import EVERYWHERE, NO_DENY, Deny, Grants, namespace_of

REQUIRED = ("principal_type", "principal", "entity", "privileges")
MOMENTS = ("valid_from", "valid_until")
OPTIONAL = ("effect", *MOMENTS)
KINDS = {  # what CDAP and its Ranger service call some kinds → our name
    "dataset_module": "dataset-module",
    "dataset_type": "dataset-type",
    "secure_key": "secure-key",
    "securekey": "secure-key",
    "principal": "kerberos-principal",
    "kerberosprincipal": "kerberos-principal",
}
CORRECTION = "correct the row, if somebody is to have this grant"


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    grants = Grants()
    for file in files:
        for row in read_rows(file, REQUIRED, OPTIONAL):
            _take(row, findings.at(file.file, row.place), grants)
    return grants.documents()


def _take(row: Row, spot: Spot, grants: Grants) -> None:
    """Only a row that says it allows, or does not say, may be left out without a thought for others."""
    effect = row.cells.get("effect", "allow").strip().lower()
    if effect != "allow" or (row.problem and "effect" in row.columns):
        _deny(row, spot, grants)
        return
    principal, entity = f"{row.cells.get('principal_type', '')}:{row.cells.get('principal', '')}", _entity(row)
    privileges = list_cell(row.cells.get("privileges", ""))
    moments = {field: row.cells[field] for field in MOMENTS if field in row.cells}
    kind, _, name = principal.partition(":")
    spec = {kind: name, "entity": entity, "privileges": privileges}
    refused = refusal(document("cdap", "Grant", "row", spec, **moments))
    if errors := [row.problem] if row.problem else [*_kind_error(kind), *refused]:
        spot.warning(f"the grant is left out: {'; '.join(errors)}", CORRECTION)
    else:
        start, end = (to_ms(moments[field]) if field in moments else None for field in MOMENTS)
        grants.allow(principal, entity, privileges, Window(start, end))


def _kind_error(kind: str) -> list[str]:
    return [] if kind in PRINCIPAL_KINDS else [f"principal_type: {kind!r} is not one of {', '.join(PRINCIPAL_KINDS)}"]


def _deny(row: Row, spot: Spot, grants: Grants) -> None:
    why = f"{row.problem or 'does not allow'}: {NO_DENY}"
    spot.error(why, "take away what allows it, at the source, and the deny with it")
    kind, name, entity = row.cells.get("principal_type", ""), row.cells.get("principal", ""), _entity(row)
    # A name that lockkeeper refuses may be meant as another one, which has grants.
    spec = {kind: name, "entity": entity, "privileges": ["READ"]}
    if row.problem or refusal(document("cdap", "Grant", "row", spec)):
        grants.deny(Deny(None, (EVERYWHERE,)))
    else:
        grants.deny(Deny(frozenset({name}) if kind == "user" else None, (namespace_of(entity),)))


def _entity(row: Row) -> str:
    kind, colon, name = row.cells.get("entity", "").partition(":")
    return f"{KINDS.get(kind, kind)}{colon}{name}"


SOURCE = Source(
    "cdap",
    f"CDAP grants (CSV): {', '.join(REQUIRED)}; optional: {', '.join(OPTIONAL)}",
    translate,
    ("lockkeeper import cdap grants.csv --out policies/ --partial --json",),
)
