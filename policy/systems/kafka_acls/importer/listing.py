"""Reads ACLs: what `kafka-acls.sh --list` prints, now or in old versions of Kafka, or a JSON list of them.

Each principal becomes an Acls document. Super users and allow.everyone.if.no.acl.found are settings of brokers, which
no list has. A deny that lockkeeper does not take, or that would be void here, becomes one that denies more, and is an
error: of All where the operation is not known, of everyone where the principal is no user (a group of Confluent's LDAP
authorizer), of a prefix where the name is at fault. An allow that is left out becomes a deny for no host, so that its
resource does not become one without entries (KA-EMPTY).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from policy.core.document import MAX_BYTES
from policy.core.grouping import grouped
from policy.core.names import fault
from policy.importers.frame import Document, Findings, ImportInput, Spot, document, refusal_of_item
from policy.importers.inputs import read_spots, read_text
from policy.store.repository import FilesRefused
from policy.systems.kafka_acls.catalogue import ALL, catalogue, operation_of
from policy.systems.kafka_acls.entries import ACLS, ANYONE, MAX_PREFIX, principal_fault
from policy.systems.kafka_acls.unmatchable import NO_HOST, USER, WILDCARD, principal_warning

SYSTEM = "kafka-acls"
FIELDS = ("principal", "host", "operation", "permission", "resource_type", "pattern_type", "name")
DEFAULTS = {"host": "*", "pattern_type": "LITERAL"}
MOST, MOST_BYTES = 2_000, MAX_BYTES // 2  # entries of a document and their bytes, beside what stands around them

RESOURCE = re.compile(r"Current ACLs for resource `(?P<resource>.*)`:\s*")
NEW_RESOURCE = re.compile(
    r"ResourcePattern\(resourceType=(?P<resource_type>\w+), name=(?P<name>.*), patternType=(?P<pattern_type>\w+)\)"
)
OLD_RESOURCE = re.compile(r"(?P<resource_type>\w+):(?:(?P<pattern_type>LITERAL|PREFIXED):)?(?P<name>.*)")
NEW_ENTRY = re.compile(
    r"\(principal=(?P<principal>.*), host=(?P<host>.*), "
    r"operation=(?P<operation>\w+), permissionType=(?P<permission>\w+)\)"
)
OLD_ENTRY = re.compile(
    r"(?P<principal>.*) has (?P<permission>\w+) permission for operations: (?P<operation>\w+) from hosts: (?P<host>.*)"
)

Row = tuple[Spot, dict[str, str]]


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    rows = [row for file in files for row in _rows(file, findings)]
    kept = {tuple(entry.items()): entry for spot, row in rows if (entry := _entry(spot, row)) is not None}
    findings.at(files[0].file).note(
        "super.users and allow.everyone.if.no.acl.found are settings of brokers, which a list of ACLs does not have",
        "write them into the document Authorizer/authorizer",
    )
    by_principal = grouped((kept[key] for key in sorted(kept)), lambda entry: entry["principal"])
    for principal, entries in by_principal.items():
        for number, part in enumerate(_parts(map(_without_defaults, entries)), 1):
            name = principal if number == 1 else f"{principal} ({number})"
            yield document(SYSTEM, ACLS, name, {"entries": part})


def _parts(entries: Iterable[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """As many as fit into a document each."""
    part: list[dict[str, str]] = []
    size = 0
    for entry in entries:
        more = len(json.dumps(entry, ensure_ascii=False).encode())
        if part and (len(part) == MOST or size + more > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    yield part


def _without_defaults(entry: dict[str, str]) -> dict[str, str]:
    return {field: value for field, value in entry.items() if DEFAULTS.get(field) != value}


def _rows(file: ImportInput, findings: Findings) -> Iterator[Row]:
    if file.file.lower().endswith(".json"):
        yield from _json_rows(file, findings)
    else:
        yield from _printed_rows(file, findings)


def _json_rows(file: ImportInput, findings: Findings) -> Iterator[Row]:
    for file_spot, value in read_spots([file], findings):
        if not isinstance(value, list):
            file_spot.fatal("is not a list of ACLs", f"give a list of {{{', '.join(FIELDS)}}}")
            continue
        for number, row in enumerate(value):
            spot = file_spot.inside(number)
            if _is_row(row):
                yield spot, _spelt(row)
            else:
                spot.fatal(f"is not an ACL with the texts {', '.join(FIELDS)}", "correct it")


def _is_row(row: Any) -> bool:
    return isinstance(row, Mapping) and set(row) == set(FIELDS) and all(isinstance(text, str) for text in row.values())


def _printed_rows(file: ImportInput, findings: Findings) -> Iterator[Row]:
    resource: dict[str, str] | None = None
    bare: Spot | None = None  # the resource, as long as no ACL of it has come
    lines = read_text(file).splitlines()
    if not any(RESOURCE.fullmatch(line.strip()) for line in lines):
        raise FilesRefused([f"{file.file}: has no line `Current ACLs for resource …`: give what kafka-acls.sh prints"])
    for number, line in enumerate(lines, 1):
        spot, text = findings.at(file.file, f"line {number}"), line.strip()
        if not text:
            continue
        if head := RESOURCE.fullmatch(text):
            _refuse_bare(bare)
            bare = spot
            resource = _resource(head["resource"])
            if resource is None:
                spot.fatal(f"names a resource in an unknown way: {text}", "correct the line")
            continue
        entry = NEW_ENTRY.fullmatch(text) or OLD_ENTRY.fullmatch(text)
        if entry is None or resource is None:
            spot.fatal(f"is not what kafka-acls.sh --list prints here: {text}", "give its output as it is")
        else:
            bare = None
            yield spot, _spelt({**entry.groupdict(), **resource})
    _refuse_bare(bare)


def _refuse_bare(spot: Spot | None) -> None:
    """Kafka prints no resource without ACLs: what it printed was cut off, and one may have been a deny."""
    if spot is not None:
        spot.fatal("names a resource, and no ACL of it follows: the output is not complete", "give all of it")


def _resource(text: str) -> dict[str, str] | None:
    match = NEW_RESOURCE.fullmatch(text) or OLD_RESOURCE.fullmatch(text)
    return None if match is None else {name: value or "LITERAL" for name, value in match.groupdict().items()}


def _spelt(row: Mapping[str, str]) -> dict[str, str]:
    """As documents write it: Topic for TOPIC, DescribeConfigs for DESCRIBE_CONFIGS. What is not known stays."""
    types = {name.lower(): name for name in catalogue()["operations"]} | {"broker": "Cluster"}  # librdkafka's word
    written = {field: row[field] for field in FIELDS}
    written["resource_type"] = types.get(row["resource_type"].replace("_", "").lower(), row["resource_type"])
    written["operation"] = operation_of(row["operation"]) or row["operation"]
    return {**written, "permission": row["permission"].upper(), "pattern_type": row["pattern_type"].upper()}


def _entry(spot: Spot, row: dict[str, str]) -> dict[str, str] | None:
    """The entry; of one that lockkeeper would refuse or that is void here, what takes as much away."""
    if row["permission"] not in ("ALLOW", "DENY") or row["pattern_type"] not in ("LITERAL", "PREFIXED"):
        spot.fatal("may be a deny, and cannot be taken over: " + "; ".join(_refusal(row)), "correct it at the source")
        return None
    return _deny(spot, row) if row["permission"] == "DENY" else _allow(spot, row)


def _allow(spot: Spot, row: dict[str, str]) -> dict[str, str] | None:
    """The entry; of one that is left out a deny for no host, so that its resource has an entry (KA-EMPTY).

    None: not even that can be written. Of a type that is not known no resource can be asked for.
    """
    if not (errors := _refusal(row)):
        if not _is_user(row):
            spot.warning(f"allows nobody: {principal_warning(row['principal'])}", "allow the users")
        return row
    spot.warning(f"the allow is left out: {'; '.join(errors)}", "nothing, or correct it at the source")
    kept = {**row, **_widened(row), "operation": ALL, "permission": "DENY", "host": NO_HOST}
    return None if _refusal(kept) else kept


def _deny(spot: Spot, row: dict[str, str]) -> dict[str, str] | None:
    """The entry, or one that denies at least as much; None: not even that can be written."""
    wider = {**row, **_widened(row)}
    if wider == row:
        return row
    if errors := _refusal(wider):
        spot.fatal(f"what may be a deny cannot be taken over: {'; '.join(errors)}", "correct it at the source")
        return None
    why = "; ".join(_refusal(row)) or principal_warning(row["principal"])
    changed = ", ".join(f"{field} {wider[field]}" for field in FIELDS if wider[field] != row[field])
    spot.error(f"denied for more than it says ({changed}): {why}", "correct it at the source, or deny the users")
    return wider


def _widened(row: dict[str, str]) -> dict[str, str]:
    """The fields of a deny that lockkeeper does not take, with values that deny more."""
    wider: dict[str, str] = {}
    if operation_of(row["operation"]) is None:
        wider["operation"] = ALL
    if not _is_user(row) or principal_fault(row["principal"]) or fault(row["principal"]):
        wider["principal"] = ANYONE
    if fault(row["host"]) or not row["host"]:
        wider["host"] = WILDCARD
    if fault(row["name"]) or (row["pattern_type"] == "PREFIXED" and len(row["name"]) > MAX_PREFIX):
        prefix = _prefix_without_fault(row["name"])
        wider |= {"pattern_type": "PREFIXED", "name": prefix} if prefix else {"pattern_type": "LITERAL", "name": "*"}
    return wider


def _is_user(row: dict[str, str]) -> bool:
    """Whether the principal is of the one type that plain Kafka has; others are of plugins, such as groups of LDAP."""
    return row["principal"].startswith(f"{USER}:")


def _prefix_without_fault(name: str) -> str:
    """The longest beginning of a name that lockkeeper takes."""
    return next((name[:end] for end in range(min(len(name), MAX_PREFIX), 0, -1) if not fault(name[:end])), "")


def _refusal(row: dict[str, str]) -> tuple[str, ...]:
    return refusal_of_item(SYSTEM, ACLS, "entries", row)
