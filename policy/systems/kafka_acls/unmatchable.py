"""Entries and super users that no client is likely to meet. Kafka takes them, so they are warnings."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from policy.systems.kafka_acls.catalogue import catalogue, is_asked_for

if TYPE_CHECKING:
    from policy.systems.kafka_acls.entries import Entry

USER, GROUP = "User", "Group"  # the type of Kafka's principals, and that of Confluent's LDAP authorizer for groups
WILDCARD = "*"
NO_HOST = "none"  # no client has it as its address
TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # a legal name, see org.apache.kafka.common.internals.Topic


def warnings_of(entries: "Sequence[Entry]") -> Iterator[str]:
    """What may not be meant in the entries of a document, by its place."""
    for number, entry in enumerate(entries):
        for field, text in (
            ("principal", principal_warning(entry.principal)),
            ("host", host_warning(entry.host)),
            ("name", _name_warning(entry)),
            ("operation", _operation_warning(entry)),
        ):
            if text:
                yield f"entries[{number}].{field}: {text}"


def principal_warning(principal: str, has_wildcard: bool = True) -> str:
    """Why no client has the principal; "": one may have it. ``has_wildcard``: whether ``User:*`` is every principal."""
    type_, _, name = principal.partition(":")
    if type_ == GROUP:
        return f"{principal!r} is no client's: Kafka has no groups; name the users, or deny {USER}:* (KA-GROUP-DENY)"
    if type_ != USER:
        hint = f"; did you mean {USER}:{name}?" if type_.casefold() == USER.casefold() else ""
        return f"{principal!r} has another type than {USER}, which all clients of plain Kafka have{hint} (KA-PRINCIPAL)"
    if WILDCARD in name and not (has_wildcard and name == WILDCARD):
        return f"the * in {principal!r} is no wildcard (KA-PRINCIPAL)"
    return ""


def host_warning(host: str) -> str:
    """Why no client has the address: it is compared as text with what Java's getHostAddress returns."""
    if host == WILDCARD:
        return ""
    address, scope, zone = host.partition("%")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return f"{host!r} is compared as text, and no client has such an address: give an IP address (KA-HOST)"
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped  # Java makes it an IPv4 address
        written = str(mapped) if mapped else ":".join(f"{int(part, 16):x}" for part in parsed.exploded.split(":"))
    else:
        written = str(parsed)
    if host == f"{written}{scope}{zone}":
        return ""
    return f"{host!r} is compared as text, and clients from there have {written!r} (KA-HOST)"


def _name_warning(entry: "Entry") -> str:
    name, cluster = entry.name, catalogue()["cluster"]
    if entry.resource_type == "Cluster":
        matches = cluster.startswith(name) if entry.prefixed else name in (cluster, WILDCARD)
        return "" if matches else f"{name!r} matches no cluster: its name is {cluster}"
    if entry.prefixed and name.endswith(WILDCARD):
        return f"the * in {name!r} is no wildcard: PREFIXED {name[:-1]!r} has every name that begins so (KA-PREFIXED)"
    if entry.resource_type == "Topic" and name != WILDCARD and not TOPIC.fullmatch(name):
        return f"no topic has a name such as {name!r}: it has letters, digits, ., _ and -, at most 249 (KA-LITERAL)"
    if not entry.prefixed and name != WILDCARD and name.endswith(WILDCARD):
        return f"the * in {name!r} is no wildcard: give {name[:-1]!r} with pattern_type PREFIXED (KA-LITERAL)"
    return ""


def _operation_warning(entry: "Entry") -> str:
    if is_asked_for(entry.resource_type, entry.operation):
        return ""
    allowed = ", ".join(catalogue()["operations"][entry.resource_type])
    return f"no API of Kafka asks for {entry.operation} on {entry.resource_type}, only for {allowed} (KA-TYPES)"
