"""CDAP's grants in Apache Ranger: policies of its CDAP service, as Ranger exports them in JSON.

An allow condition becomes Grant documents. What takes away (deny conditions, exceptions, deny-all-else, masks, row
filters) has no place in them. Exceptions from allow conditions are worked in where they name users and take all;
anything else of these is an error, and with ``--partial`` the grants near it are withheld. Security zones, tags and
parts of an export may restrict any policy: with them nothing is imported. Disabled policies give nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from policy.core.times import Window
from policy.importers.frame import Document, Findings, ImportInput, Source, Spot
from policy.importers.inputs import read_spots
from policy.systems.cdap.importer.grants import NO_DENY, Deny, Grants
from policy.systems.cdap.importer.ranger_items import Item, exceptions, read_items
from policy.systems.cdap.importer.ranger_resources import NotExact, entities, instances, matches_absence, namespaces
from policy.systems.cdap.importer.ranger_schedules import windows

SERVICE_TYPE = "cdap"
TAG = "tag"  # the type of a service whose policies apply to those of all others, by the tags of their resources
ABOUT_EXPORT = {  # fields beside the policies that restrict nothing
    *("metaDataInfo", "serviceName", "serviceId", "policyVersion", "policyUpdateTime", "serviceDef", "auditMode"),
    *("serviceConfig", "startIndex", "pageSize", "totalCount", "resultSize", "sortType", "sortBy", "queryTimeMS"),
}
RESTRICTING = {  # and those that may restrict every policy, when they hold anything
    "tagPolicies": "policies by tag",
    "securityZones": "security zones",
    "policyDeltas": "changes to another export",
}
ABOUT_POLICY = {  # fields of a policy that say nothing about access
    *("id", "guid", "name", "version", "service", "serviceType", "description", "isAuditEnabled", "policyLabels"),
    *("resourceSignature", "createdBy", "updatedBy", "createTime", "updateTime", "policyPriority"),
}
READ = {  # and those that are read
    *("isEnabled", "policyType", "resources", "additionalResources", "validitySchedules", "conditions", "options"),
    *("policyItems", "denyPolicyItems", "allowExceptions", "denyExceptions", "dataMaskPolicyItems"),
    *("rowFilterPolicyItems", "isDenyAllElse", "zoneName"),
}
TAKE_AWAY = "take away what allows it, at the source, and this with it"
CORRECTION = "correct the policy, or write the grants by hand"


class Run(msgspec.Struct):
    """``services``, ``instances``: those that policies name: grants of one must not become grants of another."""

    grants: Grants
    services: dict[str, Spot] = {}
    instances: dict[str, Spot] = {}


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    run = Run(Grants())
    for file_spot, value in read_spots(files, findings):
        for policy, spot in _policies(value, file_spot):
            _take(policy, spot, run)
    for what, named in (("service", run.services), ("instance", run.instances)):
        if len(named) > 1:
            why = f"there are policies of more than one {what}: {', '.join(sorted(named))}"
            min(named.items())[1].fatal(why, f"export one {what} at a time, and import it for itself")
    return run.grants.documents()


def _policies(value: Any, spot: Spot) -> Iterator[tuple[Any, Spot]]:
    """The policies of an export, a list of policies, or one policy."""
    if isinstance(value, Mapping) and "resources" in value:
        yield value, spot
        return
    policies, at = (value.get("policies"), spot.inside("policies")) if isinstance(value, Mapping) else (value, spot)
    if isinstance(value, Mapping):
        _check_export(value, spot)
    if not isinstance(policies, list):
        spot.fatal("is not an export of policies: it has no list `policies`", "give what Ranger exports as JSON")
        return
    for number, policy in enumerate(policies):
        yield policy, at.inside(number)


def _check_export(value: Mapping[str, Any], spot: Spot) -> None:
    for field, what in RESTRICTING.items():
        inner = value.get(field)
        if inner and (field != "tagPolicies" or not isinstance(inner, Mapping) or inner.get("policies") != []):
            spot.inside(field).fatal(f"has {what}, which may restrict what policies allow", TAKE_AWAY)
    unknown = sorted(str(field) for field in value if field not in {"policies", *ABOUT_EXPORT, *RESTRICTING})
    if unknown:
        spot.fatal(f"unknown fields may restrict what policies allow: {', '.join(unknown)}", "see what they are for")
    if not isinstance(policies := value.get("policies"), list):
        return
    for field in ("totalCount", "resultSize"):
        total = value.get(field)
        if total is not None and not (isinstance(total, int) and total <= len(policies)):
            why = f"holds {len(policies)} of {total!r} policies; the others may deny"
            spot.inside(field).fatal(why, "give the whole export in one file")


def _take(policy: Any, spot: Spot, run: Run) -> None:
    if not isinstance(policy, Mapping):
        spot.fatal(f"is not a policy but {type(policy).__name__}; it may have been one that denies", CORRECTION)
        return
    name = policy.get("name")
    spot = spot.beside(f"{spot.place} ({name})") if isinstance(name, str) else spot
    if policy.get("isEnabled") is False:
        spot.note("is disabled, so it gives nothing", "nothing")
        return
    type_ = policy.get("serviceType")
    if type_ not in (None, "", SERVICE_TYPE):
        if not isinstance(type_, str) or type_.strip().lower() in (SERVICE_TYPE, TAG):
            spot.fatal(f"is of a service of type {type_!r}, whose policies may restrict this one's", TAKE_AWAY)
        else:
            spot.note(f"is of a service of type {type_!r}, not {SERVICE_TYPE}", "nothing")
        return
    _note_whose(policy, spot, run)
    _restrictions(policy, spot, run.grants)
    if (in_force := _windows(policy, spot)) is not None:
        _allows(policy, spot, in_force, run.grants)


def _note_whose(policy: Mapping[str, Any], spot: Spot, run: Run) -> None:
    if policy.get("service"):
        run.services.setdefault(str(policy["service"]), spot)
    for instance in instances(policy.get("resources")):
        if instance.strip("*"):
            run.instances.setdefault(instance, spot)
    if policy.get("zoneName"):
        why = "is of a security zone: in zones the policies outside of them do not count"
        spot.inside("zoneName").fatal(why, "write the grants by hand")


def _restrictions(policy: Mapping[str, Any], spot: Spot, grants: Grants) -> None:
    """Errors for whatever takes away; the grants near it are withheld."""
    for item in _items(policy, "denyPolicyItems", spot, grants):
        if item.principals and item.accesses:
            item.spot.error(f"denies {', '.join(item.accesses)} to {', '.join(item.principals)}: {NO_DENY}", TAKE_AWAY)
            _withhold(policy, item.users, grants)
    others = {
        "dataMaskPolicyItems": "masks data",
        "rowFilterPolicyItems": "filters rows",
        "isDenyAllElse": "denies others",
    }
    for field, what in others.items():
        if policy.get(field):
            spot.inside(field).error(f"{what} for somebody: {NO_DENY}", TAKE_AWAY)
            _withhold(policy, None, grants)
    if policy.get("policyType") not in (None, 0):
        spot.inside("policyType").error(f"masks data or filters rows: {NO_DENY}", TAKE_AWAY)
        _withhold(policy, None, grants)


def _items(policy: Mapping[str, Any], field: str, spot: Spot, grants: Grants) -> list[Item]:
    """The items of a list that takes away; one that cannot be read takes from everybody."""
    items, unread = read_items(policy.get(field), spot.inside(field))
    for where, why in unread:
        where.error(f"{why}; it may take something from anybody: {NO_DENY}", CORRECTION)
        _withhold(policy, None, grants)
    return items


def _withhold(policy: Mapping[str, Any], users: frozenset[str] | None, grants: Grants) -> None:
    for resources in _all_resources(policy):
        grants.deny(Deny(users, namespaces(resources)))


def _all_resources(policy: Mapping[str, Any]) -> list[Any]:
    """A policy is on its resources, and on each of its additional ones."""
    more = policy.get("additionalResources") or []
    return [policy.get("resources"), *(more if isinstance(more, list) else [more])]


def _windows(policy: Mapping[str, Any], spot: Spot) -> Sequence[Window] | None:
    """When the policy allows; None, and a warning, where it may allow less than its items say."""
    wrong = [f"unknown field {field}" for field in policy if field not in {*ABOUT_POLICY, *READ}]
    wrong += [f"{field} hold" for field in ("conditions", "options") if policy.get(field)]
    if not isinstance(policy.get("isEnabled", True), bool):
        wrong.append("isEnabled is neither true nor false")
    try:
        in_force = windows(policy.get("validitySchedules"))
    except ValueError as error:
        wrong.append(f"validitySchedules: {error}")
    if wrong:
        spot.warning(f"its allow conditions are left out: {'; '.join(wrong)}", CORRECTION)
        return None
    return in_force if policy.get("policyType") in (None, 0) else None


def _allows(policy: Mapping[str, Any], spot: Spot, when: Sequence[Window], grants: Grants) -> None:
    items, unread = read_items(policy.get("policyItems"), spot.inside("policyItems"))
    for where, why in unread:
        where.warning(f"is left out: {why}", CORRECTION)
    taken = exceptions(_items(policy, "allowExceptions", spot, grants))
    remaining = [pair for item in items for pair in taken.leave(item)]
    if not remaining:
        return
    for resources in _all_resources(policy):
        for entity in _entities(resources, spot):
            for principal, accesses in remaining:
                for window in when:
                    grants.allow(principal, entity, accesses, window)


def _entities(resources: Any, spot: Spot) -> list[str]:
    try:
        matched = entities(resources)
    except NotExact as error:
        spot.inside("resources").warning(f"its allow conditions are left out: {error}", "write the grants by hand")
        return []
    if matches_absence(resources):
        why = "a lone * may also match what has nothing at this level; grants on what lies above are not made of it"
        spot.inside("resources").warning(why, "write a grant on what lies above, if it is meant")
    return matched


SOURCE = Source(
    "cdap",
    "CDAP's policies in Apache Ranger: its export (JSON)",
    translate,
    ("lockkeeper import ranger Ranger_Policies.json --out policies/ --dry-run",),
)
