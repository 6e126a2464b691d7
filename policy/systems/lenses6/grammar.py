"""Actions and resource names (LRNs) of Lenses 6: what is valid, and the pattern that it is parsed to."""

import re
from collections.abc import Sequence

from policy.core.model import Unanswerable
from policy.core.names import fault, is_simple
from policy.core.pattern import ANY, EVERYTHING, Exact, Name, Part, Pattern, Prefix, part_text
from policy.systems.lenses6.catalogue import other_case, other_case_of_resource, segment_counts, service_of_resource

SHORTEST_NAME = 3  # service, type, one segment
NO_SERVICE = ("",)
SEPARATOR = re.compile("[:/]")  # between resource type and path: both spellings are one (L6-Q1)


def action_name(action: str) -> Name:
    """(service, operation) of a requested action; raises Unanswerable (L6-ACTION-FORMAT)."""
    service, colon, operation = action.partition(":")
    if not (service and colon and operation):
        message = f"action {action!r} is not service:operation, such as kafka:ReadTopicData"
        raise Unanswerable("malformed-action", message, "L6-ACTION-FORMAT")
    return (service, operation)


def resource_name(lrn: str) -> Name:
    """(service, type, segment, …) of a requested resource; raises Unanswerable (L6-LRN-FORMAT).

    A ``*`` in it is an ordinary character (L6-Q11); its number of segments is not checked (L6-Q5).
    """
    head, *segments = lrn.split("/")
    name = (*_beginning(head), *segments)
    if len(name) < SHORTEST_NAME or not all(name):
        message = f"resource {lrn!r} is not service:type:segment/segment/…, with no part empty"
        raise Unanswerable("malformed-resource", message, "L6-LRN-FORMAT")
    if not is_simple(lrn) and (wrong := next(filter(None, map(fault, (lrn, *segments))), "")):
        raise Unanswerable("malformed-name", f"resource {lrn!r} {wrong}", "L6-LRN-FORMAT")
    return name


def _beginning(head: str) -> Name:
    """What of a name stands before its first slash. Without a colon it has no service."""
    service, colon, rest = head.partition(":")
    name = (service_of_resource(service), *rest.split(":", 1)) if colon else NO_SERVICE
    if colon and is_simple(head) and segment_counts(name[0], name[1]) is not None:  # as most are: nothing is at fault
        return name
    if wrong := next(filter(None, map(fault, name)), "") or other_case_of_resource(*name[:2]):
        raise Unanswerable("malformed-name", f"resource {head!r} {wrong}", "L6-LRN-FORMAT")
    return name


def action_pattern(text: str) -> Pattern:
    """An action pattern, parsed; raises ValueError (L6-ACTION-WILDCARD, L6-Q8)."""
    if text == "*":
        return EVERYTHING
    service, colon, operation = text.partition(":")
    if not (service and colon and operation):
        raise ValueError("is not service:operation or a lone * (L6-ACTION-FORMAT)")
    if "*" in service:
        raise ValueError("has a wildcard in its service; only the lone * spans services (L6-Q8)")
    if meant := other_case(service, operation):
        raise ValueError(meant)
    # The service is compared by itself: no text of an operation makes up for another service (L6-MATCH-ACTION).
    return Pattern((Exact(service), closing_wildcard(operation, "L6-ACTION-WILDCARD")))


def closing_wildcard(text: str, rule: str) -> Part:
    """Text, or text with one closing ``*``; raises ValueError naming ``rule`` for any other ``*``."""
    if not text:
        raise ValueError(f"has an empty part ({rule})")
    if "*" in text[:-1]:
        raise ValueError(f"has a * before the end of {text!r}; a wildcard may only close it ({rule})")
    # ``foo*`` matches ``foo`` too: of what stands before the * nothing need be left (L6-MATCH-STRING, L6-Q14).
    return Prefix(text[:-1]) if text.endswith("*") else Exact(text)


def resource_pattern(text: str) -> Pattern:
    """A resource pattern, parsed; raises ValueError naming the rule it breaks."""
    if text == "*":
        return EVERYTHING
    service, colon, rest = text.partition(":")
    if not service or not colon or "*" in service or "/" in service:
        raise ValueError(
            "must start with a service written in full; only the lone * spans services (L6-LRN-SERVICE-REQUIRED)"
        )
    service = service_of_resource(service)
    type_, *behind = SEPARATOR.split(rest, maxsplit=1)
    path = behind[0] if behind else None
    if meant := other_case_of_resource(service, type_):
        raise ValueError(meant)
    if "*" in type_:
        return _whole_service(service, type_, path)
    if not type_ or path is None:
        raise ValueError("is not service:type:segment/segment/… (L6-LRN-FORMAT)")
    segments = path.split("/")
    # Of a request with such a part the answer is an error: a deny of it would never match.
    if not is_simple(text) and (wrong := next(filter(None, map(fault, (type_, *segments))), "")):
        raise ValueError(f"{wrong} of a part (L6-LRN-FORMAT)")
    # Each is compared by itself, so that segments may follow one that is a wildcard (L6-Q19).
    parts = [closing_wildcard(segment, "L6-LRN-SEGMENT-WILDCARD") for segment in segments]
    _check_count(segments, segment_counts(service, type_))
    return _close(service, type_, parts)


def _whole_service(service: str, type_: str, path: str | None) -> Pattern:
    """``SERVICE:*``, also written ``SERVICE:*:*`` and ``SERVICE:*/*`` (L6-Q9)."""
    if type_ != "*":
        raise ValueError(f"mixes characters and a wildcard in the type {type_!r} (L6-LRN-TYPE-WILDCARD)")
    if path not in (None, "*"):
        raise ValueError("names a resource id after a wildcard type (L6-LRN-TYPE-WILDCARD-NO-ID)")
    return Pattern((Exact(service),), open=True)


def _check_count(segments: Sequence[str], counts: list[int] | None) -> None:
    if counts is None:
        return
    many = ", ".join(str(count) for count in counts)
    if len(segments) > max(counts):
        raise ValueError(f"has {len(segments)} segments where the type has {many} (L6-Q6)")
    if segments[-1] != "*" and len(segments) not in counts:
        raise ValueError(
            f"has {len(segments)} segments where the type has {many}: give the missing ones, or end in a segment "
            "that is a lone * (L6-LRN-MISSING-SEGMENT)"
        )


def _close(service: str, type_: str, parts: list[Part]) -> Pattern:
    """Closing wildcard segments stand for themselves and all that follows (L6-LRN-EXPAND, L6-MATCH-SEGMENTS)."""
    is_open = parts[-1] == ANY
    while parts and parts[-1] == ANY:
        parts.pop()
    return Pattern((Exact(service), Exact(type_), *parts), is_open)


def written_action(pattern: Pattern) -> str:
    """The reverse of `action_pattern`."""
    return ":".join(map(part_text, pattern.parts)) or "*"


def written_resource(pattern: Pattern) -> str:
    """The reverse of `resource_pattern`, in its shortest spelling."""
    head, path = pattern.parts[:2], pattern.parts[2:]
    beginning = [*map(part_text, head), *(["*"] if pattern.open and len(head) < 2 else [])]
    segments = [*map(part_text, path), *(["*"] if pattern.open and len(head) == 2 else [])]
    return ":".join([*beginning, *(["/".join(segments)] if segments else [])])
