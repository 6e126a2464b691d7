"""Writes documents as commands: `kafka-acls.sh --add`, denies first, so that no allow is in force without its deny."""

import itertools
import json
import operator
import shlex
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from policy.core.document import parse_document
from policy.core.model import ALLOW, DENY
from policy.importers.frame import Document, Findings, Spot
from policy.systems.kafka_acls.catalogue import ALL, catalogue, is_asked_for
from policy.systems.kafka_acls.entries import AUTHORIZER, Entry, read_entries
from policy.systems.kafka_acls.unmatchable import NO_HOST, WILDCARD

HEAD = (
    "#!/bin/sh",
    "# Written by `lockkeeper export kafka-acls`: adds ACLs and removes none.",
    "set -eu",
    # Java takes arguments in the encoding of the locale: with C, a deny for User:é would be one for another principal.
    "LC_ALL=C.UTF-8",
    "export LC_ALL",
    ': "${BOOTSTRAP_SERVERS:?the address of the cluster, HOST:PORT}"',
)
COMMAND = 'kafka-acls.sh --bootstrap-server "$BOOTSTRAP_SERVERS" --add'
OPTIONS = {
    "Topic": "--topic",
    "Group": "--group",
    "TransactionalId": "--transactional-id",
    "DelegationToken": "--delegation-token",
    "User": "--user-principal",
}


def write(documents: Sequence[Document], findings: Findings) -> Iterable[str]:
    """A shell script. What kafka-acls.sh cannot say is found: moments, the Authorizer, clusters of other names."""
    operations: dict[Entry, set[str]] = {}
    ordered = sorted(documents, key=lambda item: (item["kind"], item["name"], str(item.get("effective_at"))))
    for (kind, name), versions in itertools.groupby(ordered, key=operator.itemgetter("kind", "name")):
        spot = findings.at(f"{kind}/{name}")
        if kind == AUTHORIZER:
            for version in versions:
                _note_settings(version["spec"], spot)
            continue
        for number, entry in enumerate(_permanent(list(versions), spot)):
            if (written := _counterpart(entry, spot.inside("entries").inside(number))) is not None:
                operations.setdefault(_of_all(written), set()).add(written.operation)
    yield from HEAD
    for entry in sorted(operations, key=_order):
        yield f"{COMMAND} {_arguments(entry, operations[entry])}"


def _permanent(versions: Sequence[Document], spot: Spot) -> Iterator[Entry]:
    """The entries of a document that may be in force permanently: all, or where a version is dated the denies, and what
    keeps the resources of its allows from having no ACL (KA-EMPTY).

    A version that another one replaces has no moment of its own when it is the oldest.
    """
    fields = {field for version in versions for field in version}
    dated = [field for field in ("valid_from", "valid_until", "effective_at") if field in fields]
    if dated:
        why = f"ACLs have no {' or '.join(dated)}: allows are added as denies for no host, denies permanently"
        spot.warning(why, "add the allows by hand while they are to be in force")
    entries = (entry for version in versions for entry in read_entries(parse_document(version)))
    yield from (entry if not dated or entry.effect == DENY else _for_no_host(entry) for entry in entries)


def _counterpart(entry: Entry, spot: Spot) -> Entry | None:
    """What kafka-acls.sh can say of it: of a cluster the one name, of a type what APIs ask for; None: nothing."""
    cluster: str = catalogue()["cluster"]
    matches = cluster.startswith(entry.name) if entry.prefixed else entry.name in (WILDCARD, cluster)
    if entry.resource_type == "Cluster" and not matches:
        spot.note(f"is left out: no cluster is named {entry.name!r}", "nothing")
        return None
    if is_asked_for(entry.resource_type, entry.operation):
        return entry
    why = f"kafka-acls.sh takes no {entry.operation} on {entry.resource_type}, for which no API of Kafka asks"
    implied = catalogue()["implied"].get(entry.operation) if entry.effect == ALLOW else None
    if implied and is_asked_for(entry.resource_type, implied):
        spot.note(f"is added as {implied}, which it implies: {why}", "nothing")
        return msgspec.structs.replace(entry, operation=implied)
    # Left out, it would leave its resource without an ACL, which the brokers may open to all (KA-EMPTY).
    spot.note(f"is added as a deny for no host, so that its resource has an ACL: {why}", "nothing")
    return _for_no_host(entry)


def _for_no_host(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, operation=ALL, effect=DENY, host=NO_HOST)


def _of_all(entry: Entry) -> Entry:
    """The entry with any operation; of a cluster, by its name."""
    named = {"name": catalogue()["cluster"], "prefixed": False} if entry.resource_type == "Cluster" else {}
    return msgspec.structs.replace(entry, operation=ALL, **named)


def _order(entry: Entry) -> tuple[bool | str, ...]:
    return entry.effect != DENY, entry.principal, entry.host, entry.resource_type, entry.prefixed, entry.name


def _arguments(entry: Entry, operations: set[str]) -> str:
    effect = "deny" if entry.effect == DENY else "allow"
    options = [f"--{effect}-principal", entry.principal]
    options += [] if entry.host == WILDCARD else [f"--{effect}-host", entry.host]
    for operation in [ALL] if ALL in operations else sorted(operations):
        options += ["--operation", operation]
    if entry.resource_type == "Cluster":
        return _quoted([*options, "--cluster"])
    options += [OPTIONS[entry.resource_type], entry.name]
    return _quoted([*options, *(["--resource-pattern-type", "prefixed"] if entry.prefixed else [])])


def _quoted(options: Sequence[str]) -> str:
    """Options and their values; one that looks like an option itself is joined to its own."""
    words: list[str] = []
    for option in options:
        is_value = bool(words) and words[-1] in KNOWN_OPTIONS
        if is_value and option.startswith("-"):
            words[-1] = f"{words[-1]}={option}"
        else:
            words.append(option)
    return " ".join(map(shlex.quote, words))


KNOWN_OPTIONS = {
    *OPTIONS.values(),
    *(f"--{effect}-{what}" for effect in ("allow", "deny") for what in ("principal", "host")),
}


def _property(text: str) -> str:
    """As a file of Java properties writes it: ASCII, each backslash twice. JSON's escapes are among those of Java."""
    return json.dumps(text)[1:-1]


def _note_settings(spec: Document, spot: Spot) -> None:
    users = spec.get("super_users") or ()
    if unsayable := [user for user in users if ";" in user]:
        why = f"super.users has no {', '.join(map(repr, unsayable))}: the ; ends a name there, so they are left out"
        spot.warning(why, "allow them what they need with entries")
    users = _property(";".join(user for user in users if ";" not in user))
    open_ = str(spec.get("allow_everyone_if_no_acl_found", False)).lower()
    settings = f"super.users={users} and allow.everyone.if.no.acl.found={open_}"
    spot.note("is left out: these are settings of brokers, no ACLs", f"set {settings} in server.properties")
