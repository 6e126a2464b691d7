"""Lenses 6 IAM: roles, groups, users and service accounts as its command line and HTTP API write them (YAML, JSON).

A file holds records, one or many: lists, lists under ``items``, or lists by what they hold (``roles:``, ``groups:``,
``users:``, ``service_accounts:``). Users and service accounts say which groups they are in, and which of the two a
group's member is: a group lists its members by bare names.

Here a deny may be lost. A role with a statement that may be a deny and cannot be taken over becomes a role that denies
everything, so that its principals are denied until it is corrected, whatever else they have (as with L6-Q10).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policy.core.model import ALLOW, DENY
from policy.importers.frame import Document, Findings, ImportInput, Source, Spot, document, refusal, refusal_of_item
from policy.systems.lenses6.importer.members import GIVE_BOTH, Memberships, memberships, withhold_unknown
from policy.systems.lenses6.importer.records import ExportedObject, read_records

WITHHELD = "lockkeeper-import-withheld"  # the role that denies everything, and the group of those it is made for
DENY_ALL: dict[str, Any] = {"statements": [{"effect": DENY, "action": ["*"], "resource": ["*"]}]}
DENIED = "; every principal with the role is denied everything with --partial"
KEPT = ("display_name", "description")  # fields that say nothing about access, and that our documents have too


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    records = list(read_records(files, findings))
    roles, groups = dict[str, Document](), dict[str, Document]()
    for record in records:
        if record.kind == "role":
            _take(roles, record, _role(record), _deny_all(record.name))
        elif record.kind == "group":
            _take(groups, record, _group(record), None)
    _find_roles(roles, (record for record in records if record.kind == "group"))
    result = memberships(records)
    denying = {WITHHELD, *(name for name, role in roles.items() if _may_deny(role))}
    _compare_counts(records, groups, result, denying)
    withhold_unknown(records, result, {name for name, group in groups.items() if not _allows_alone(group, denying)})
    yield from roles.values()
    yield from _with_members(groups, result)


def _with_members(groups: Mapping[str, Document], result: Memberships) -> Iterable[Document]:
    for name, group in groups.items():
        yield {**group, "spec": {**group["spec"], "members": sorted(result.members.get(name, ()))}}
    if result.withheld or any(WITHHELD in group["spec"]["roles"] for group in groups.values()):
        yield _deny_all(WITHHELD)
    if result.withheld:
        yield document("lenses6", "Group", WITHHELD, {"roles": [WITHHELD], "members": sorted(result.withheld)})


def _deny_all(name: str) -> Document:
    return document("lenses6", "Role", name, DENY_ALL)


def _take(into: dict[str, Document], record: ExportedObject, new: Document, instead: Document | None) -> None:
    """Add a document; of two different ones with a name none is safe, but what may stand instead."""
    before = into.setdefault(record.name, new)
    if before == new:
        return
    why, fix = f"there is another {record.kind} {record.name!r}, which differs", "give the newest export alone"
    if instead is None:
        record.spot.fatal(why, fix)
    else:
        record.spot.error(why + DENIED, fix)
        into[record.name] = instead


def _role(record: ExportedObject) -> Document:
    """The role; one that denies everything where a deny, or a mask, would be lost."""
    spot, policy = record.spot, record.value.get("policy")
    if record.value.get("data_policies"):
        why = f"data_policies mask fields, which lockkeeper does not: it would let them be read{DENIED}"
        spot.inside("data_policies").error(why, "deny the data to those who may not see all of it")
        return _deny_all(record.name)
    if record.unknown or not isinstance(policy, list):
        wrong = f"unknown fields: {', '.join(record.unknown)}" if record.unknown else "its policy is not a list"
        spot.error(f"{wrong}; it may restrict what the role allows{DENIED}", "correct the role")
        return _deny_all(record.name)
    fit = [_statement(each, spot.inside("policy").inside(number)) for number, each in enumerate(policy)]
    if None in fit:
        return _deny_all(record.name)
    spec = {**_kept(record), "statements": [statement for statement in fit if statement]}
    role = document("lenses6", "Role", record.name, spec)
    if errors := refusal(role):
        spot.error(f"lockkeeper refuses it: {'; '.join(errors)}{DENIED}", "correct or split the role")
        return _deny_all(record.name)
    return role


def _statement(value: Any, spot: Spot) -> dict[str, Any] | None:
    """The statement; empty where an allow is left out, None where what may be a deny cannot be taken over."""
    statement = dict(value) if isinstance(value, Mapping) else {}
    for field in ("action", "resource"):
        if isinstance(statement.get(field), str):
            statement[field] = [statement[field]]
    why = "; ".join(refusal_of_item("lenses6", "Role", "statements", statement or value))
    if not why:
        return statement
    if statement.get("effect") == ALLOW:
        spot.warning(f"the statement is left out: {why}", "correct it, if somebody is to be allowed this")
        return {}
    spot.error(f"{why}; the statement may be a deny{DENIED}", "correct it at the source")
    return None


def _kept(record: ExportedObject) -> dict[str, Any]:
    return {field: record.value[field] for field in KEPT if isinstance(record.value.get(field), str)}


def _group(record: ExportedObject) -> Document:
    """The group, its members as they are written. What cannot be read of it may give them a role that denies."""
    spec: dict[str, Any] = _kept(record)
    roles = record.names("roles")
    if record.unknown or record.count("role_count") > len(roles):
        unknown = f"unknown fields may restrict the group: {', '.join(record.unknown)}"
        missing = f"{len(roles)} of its {record.count('role_count')} roles are listed, and the others may deny"
        why = unknown if record.unknown else missing
        record.spot.error(f"{why}; its members are denied everything with --partial", "correct the group")
        roles.append(WITHHELD)
    sso_name = record.value.get("sso_name")
    if isinstance(sso_name, str) and sso_name:
        spec["sso_name"] = sso_name
    elif sso_name not in (None, ""):
        record.spot.inside("sso_name").fatal("is not text", "correct the group")
    return document(
        "lenses6", "Group", record.name, {**spec, "roles": sorted(roles), "members": record.names("members")}
    )


def _find_roles(roles: dict[str, Document], groups: Iterable[ExportedObject]) -> None:
    """Roles that the run does not have may deny something: they become roles that deny everything."""
    missing = [(group, role) for group in groups for role in group.names("roles") if role not in roles]
    for group, role in missing:
        why = f"the role {role!r} is not in this run; it may deny something{DENIED}"
        group.spot.inside("roles").error(why, "give the file of the role in the same run")
        roles[role] = _deny_all(role)


def _compare_counts(
    records: Iterable[ExportedObject], groups: Mapping[str, Document], result: Memberships, denying: set[str]
) -> None:
    """Exports count what they list elsewhere: what the run does not have may carry a deny to anybody.

    ``denying``: roles.
    """
    for record in records:
        if record.kind == "role" and record.name in denying:
            having = sum(record.name in group["spec"]["roles"] for group in groups.values())
            if record.count("group_count") > having:
                why = (
                    f"the role denies, and {having} of the {record.count('group_count')} groups with it are in this run"
                )
                record.spot.inside("group_count").fatal(why, GIVE_BOTH)
        elif record.kind == "group":
            count, members = record.count("user_count", "sa_count"), len(result.members.get(record.name, ()))
            if count > members:
                why = f"{members} of the {count} members that it counts are known by this run"
                allows_alone = _allows_alone(groups[record.name], denying)
                (record.spot.warning if allows_alone else record.spot.fatal)(why, GIVE_BOTH)


def _allows_alone(group: Document, denying: set[str]) -> bool:
    return denying.isdisjoint(group["spec"]["roles"])


def _may_deny(role: Document) -> bool:
    return any(statement["effect"] == DENY for statement in role["spec"]["statements"])


SOURCE = Source(
    "lenses6",
    "IAM roles, groups, users and service accounts (YAML, JSON): give all of them in one run",
    translate,
    ("lockkeeper import lenses6 roles.yaml groups.yaml users.yaml service-accounts.yaml --out policies/",),
)
