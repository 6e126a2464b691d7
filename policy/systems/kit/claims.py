"""What a request claims about its subject."""

from collections.abc import Mapping

import msgspec

from policy.core.model import Unanswerable
from policy.core.names import fault, is_simple
from policy.core.request import Request


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The names that count, and their claim: ``used`` where it gave some, ``untrusted`` where it must not be used."""

    names: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()


def claimed(request: Request, claim: str, rule: str, trust: frozenset[str], blanks: bool = False) -> Claimed:
    """What ``subject.properties.<claim>`` gives; raises Unanswerable when it is trusted and no list of names.

    What is not trusted is not looked at: whatever it is, but for an empty list, it is something that was claimed.
    ``blanks``: names may have some at their ends.
    """
    if claim not in trust:
        # What was claimed is noted, not read: without it an answer that is no allow may be wrong, and is an error.
        value = request.subject.properties.get(claim)
        return Claimed() if value is None or value == [] else Claimed(untrusted=(claim,))
    path = f"subject.properties.{claim}"
    names = names_in(request.subject.properties, claim, path, rule, request.max_claimed_groups)
    check_names(names, path, rule, blanks)
    return Claimed(names, used=(claim,)) if names else Claimed()


def names_in(properties: Mapping[str, object], field: str, place: str, rule: str, most: int) -> tuple[str, ...]:
    """The list of texts under ``field``, sorted; () when it is not given. ``place``: what an error calls it.

    Raises Unanswerable too when there are more than ``most``.
    """
    names = properties.get(field)
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Unanswerable("malformed-claim", f"{place} must be a list of texts", rule)
    check_count(len(names), most, place, rule)
    return tuple(sorted(set(names)))


def check_names(names: tuple[str, ...], path: str, rule: str, blanks: bool = False) -> None:
    """Raise Unanswerable where a name may be taken for another one. ``blanks``: names may have some at their ends."""
    for name in () if is_simple("".join(names)) else names:
        if wrong := fault(name, blanks):
            raise Unanswerable("malformed-name", f"{path}: {name!r} {wrong}", rule)


def check_count(count: int, most: int, place: str, rule: str) -> None:
    """Raise Unanswerable when more names are claimed than may be; each costs memory and time."""
    if count > most:
        message = f"{place} has {count} names; at most {most}: send those that policies name"
        raise Unanswerable("too-many-claims", message, rule)
