"""Who is in which group of Lenses 6: groups name their members, users and service accounts their groups.

A membership may carry a deny, so a principal whose membership is not known is withheld: it is denied everything.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from policy.systems.lenses6.importer.records import ExportedObject

WITHHELD = "denied everything with --partial"
GIVE_BOTH = "give groups, users and service accounts of Lenses as they are at one time, in one run"


class Memberships(msgspec.Struct):
    """``members``: group → principals, written user:NAME or service-account:NAME; ``withheld``: principals."""

    members: dict[str, set[str]] = {}
    withheld: set[str] = set()


def memberships(records: Sequence[ExportedObject]) -> Memberships:
    """The memberships that all records give."""
    groups = [record for record in records if record.kind == "group"]
    people = [record for record in records if record.kind in ("user", "sa")]
    result = Memberships()
    _read_groups(result, groups, _principals(people))
    listed = {group.name for group in groups if group.value.get("members") is not None}
    group_names = {group.name for group in groups}
    for person in people:
        _tell_what_is_left_out(person)
        _withhold_restricted(result, person)
        _join(result, person, group_names, listed)
    _compare(result, people)
    return result


def _principals(people: Iterable[ExportedObject]) -> dict[str, set[str]]:
    """What a bare name may be."""
    by_name: dict[str, set[str]] = {}
    for person in people:
        by_name.setdefault(person.name, set()).add(person.principal)
    return by_name


def _read_groups(result: Memberships, groups: Iterable[ExportedObject], principals: Mapping[str, set[str]]) -> None:
    """A member by its prefix, else by what the run has under its name."""
    for group in groups:
        members = result.members.setdefault(group.name, set())
        for name in group.names("members"):
            prefix, colon, rest = name.partition(":")
            written = bool(colon and rest) and prefix in ("user", "service-account")
            fitting = {name} if written else principals.get(name, set())
            if len(fitting) == 1:
                members |= fitting
                continue
            which = "this run has both" if fitting else "this run has neither"
            why = f"{name!r} may be a user or a service account, and {which}; either is {WITHHELD}"
            group.spot.inside("members").error(why, f"{GIVE_BOTH}, or write user:NAME or service-account:NAME")
            result.withheld |= {f"user:{name}", f"service-account:{name}"}


def _tell_what_is_left_out(person: ExportedObject) -> None:
    if person.value.get("is_admin") is True:
        why = f"{person.principal} administers Lenses itself, which no role of the run gives"
        person.spot.inside("is_admin").warning(why, "give it such a role, if lockkeeper is to allow it the same")
    if "token" in person.value:
        person.spot.inside("token").note("a secret is left out: policy documents are no place for it", "nothing")


def _withhold_restricted(result: Memberships, person: ExportedObject) -> None:
    """Lenses 6.3 has no such field (its API's description of users); a later one may say that somebody is disabled."""
    if unknown := [field for field in person.unknown if person.value.get(field, field) is not None]:
        why = f"unknown fields may restrict {person.principal}: {', '.join(unknown)}; {person.principal} is {WITHHELD}"
        person.spot.error(why, "see what they are for, and leave them out if they restrict nothing")
        result.withheld.add(person.principal)


def _join(result: Memberships, person: ExportedObject, group_names: set[str], listed: set[str]) -> None:
    """Put someone into the groups that he names, unless the group's own list says otherwise."""
    for group in person.names("groups"):
        members, spot = result.members.get(group, set()), person.spot.inside("groups")
        if group not in group_names:
            why = f"is in the group {group!r}, which this run does not have and which may deny something"
        elif group in listed and person.principal not in members:
            why = f"is in the group {group!r}, whose own list of members does not have {person.principal}"
        else:
            result.members.setdefault(group, set()).add(person.principal)
            continue
        spot.error(f"{why}; {person.principal} is {WITHHELD}", GIVE_BOTH)
        result.withheld.add(person.principal)


def _compare(result: Memberships, people: Iterable[ExportedObject]) -> None:
    """A principal that lists its groups is in no others, and lists them once."""
    before: dict[str, set[str]] = {}
    for person in people:
        if person.value.get("groups") is None:
            continue
        named = set(person.names("groups"))
        others = {group for group, members in result.members.items() if person.principal in members} - named
        if others or before.setdefault(person.principal, named) != named:
            where = ", ".join(sorted(others)) or "other groups"
            why = f"{person.principal} is in {where} as well, by another record; he is {WITHHELD}"
            person.spot.inside("groups").error(why, GIVE_BOTH)
            result.withheld.add(person.principal)


def withhold_unknown(records: Sequence[ExportedObject], result: Memberships, denying: set[str]) -> None:
    """Principals that may be in one of the groups ``denying`` that say nothing of their members.

    Those groups have the users and service accounts that name them. A principal without a record that lists its groups
    may be in them too, and where no record lists any, so may everybody.
    """
    groups = [record for record in records if record.kind == "group" and record.name in denying and _is_silent(record)]
    people = [record for record in records if record.kind in ("user", "sa")]
    stated = {person.principal for person in people if person.value.get("groups") is not None}
    everybody = {person.principal for person in people}.union(*result.members.values())
    for group in groups:
        if not stated:
            group.spot.fatal("lists no members, and no user or service account lists groups; it may deny", GIVE_BOTH)
            continue
        for principal in sorted(everybody - stated):
            why = f"lists no members, and {principal} lists no groups, so the group may deny it something"
            group.spot.error(f"{why}; {principal} is {WITHHELD}", GIVE_BOTH)
            result.withheld.add(principal)


def _is_silent(group: ExportedObject) -> bool:
    """Of whom it has: a list, or both counts, which are compared with those that name it."""
    counted = all(isinstance(group.value.get(field), int) for field in ("user_count", "sa_count"))
    return group.value.get("members") is None and not counted
