"""The conditions of a policy of Ranger: who has which access, and who is excepted."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy.importers.frame import Spot
from policy.systems.cdap.catalogue import catalogue
from policy.systems.kit.validator import Validator

PRINCIPAL_KINDS = {"users": "user", "groups": "group", "roles": "role"}
EVERYBODY = "group:public"  # every user is in it, by Ranger's own rule


class Item(msgspec.Struct):
    """``principals``: user:NAME, group:NAME, role:NAME. ``accesses``: privileges. ``conditional``: not always."""

    spot: Spot
    principals: list[str]
    accesses: list[str]
    conditional: bool

    @property
    def users(self) -> frozenset[str] | None:
        """The users, if it is about users alone."""
        only = all(principal.startswith("user:") for principal in self.principals)
        return frozenset(principal.partition(":")[2] for principal in self.principals) if only else None


def read_items(value: Any, spot: Spot) -> tuple[list[Item], list[tuple[Spot, str]]]:
    """The items of a list, and the places of those that cannot be read, with the reason."""
    if value is None:
        return [], []
    if not isinstance(value, list):
        return [], [(spot, f"is not a list but {type(value).__name__}")]
    items, unread = [], []
    for number, each in enumerate(value):
        validator = Validator(each)
        item = _read_item(validator, spot.inside(number))
        if validator.errors:
            unread.append((spot.inside(number), "; ".join(validator.errors)))
        else:
            items.append(item)
    return items, unread


def _read_item(validator: Validator, spot: Spot) -> Item:
    named = {prefix: validator.texts(field, required=False) for field, prefix in PRINCIPAL_KINDS.items()}
    principals = [f"{prefix}:{name}" for prefix, names in named.items() for name in names]
    for dynamic in (principal for principal in principals if "{" in principal):
        validator.error(f"{dynamic!r} is filled in for each request")
    if validator.flag("delegateAdmin"):
        why = "lets its users administer policies in Ranger, which is not imported"
        spot.inside("delegateAdmin").warning(why, "name the administrators in a Backend document")
    conditional = bool(validator.raw("conditions"))
    accesses = [access for each in validator.forms("accesses", required=False) for access in _access(each)]
    validator.reject_unknown("dataMaskInfo", "rowFilterInfo")
    return Item(spot, list(dict.fromkeys(principals)), list(dict.fromkeys(accesses)), conditional)


def _access(validator: Validator) -> Iterator[str]:
    """Without `isAllowed` it is, as in Ranger."""
    privilege, allowed = validator.text("type").upper(), validator.flag("isAllowed")
    validator.reject_unknown()
    if privilege and privilege not in catalogue()["privileges"]:
        validator.error(f"{privilege!r} is not one of {', '.join(catalogue()['privileges'])}", "type")
    if allowed is not False:
        yield privilege


class Exceptions(msgspec.Struct):
    """``users``: user → accesses that the exceptions take from him. ``anybody``: accesses they may take from anyone."""

    users: Mapping[str, set[str]]
    anybody: set[str]

    def leave(self, item: Item) -> Iterator[tuple[str, list[str]]]:
        """(principal, accesses) of what an allow condition gives for sure, all its exceptions considered."""
        if item.conditional:
            item.spot.warning("is left out: it holds under conditions", "write a grant, if it is to hold always")
            return
        if EVERYBODY in item.principals:
            why = "Ranger's group `public` is everybody; here a request has to claim it"
            item.spot.warning(why, "let requests claim the group, or name who is meant")
        for principal in item.principals:
            if item.accesses and self._spares(principal, item):
                yield principal, item.accesses

    def _spares(self, principal: str, item: Item) -> bool:
        """Whether no exception takes anything: what takes some, or from somebody not named, is an error."""
        accesses = set(item.accesses)
        named = self.users.get(principal, set()) & accesses
        if not self.anybody.isdisjoint(accesses):
            why = f"exceptions may take some of it from members of a group or role, or under conditions; {principal}"
        elif not principal.startswith("user:") and (took := [u for u, a in self.users.items() if a & accesses]):
            why = f"exceptions take some of it from {', '.join(sorted(took))}, who may be in it; {principal}"
        elif named and named != accesses:
            why = f"exceptions take some of it, but not all; {principal}"
        else:
            return not named
        item.spot.error(
            f"{why} gets nothing of this condition with --partial", "write who has what, without exceptions"
        )
        return False


def exceptions(items: Iterable[Item]) -> Exceptions:
    """What the exceptions of a policy take away."""
    users: dict[str, set[str]] = {}
    anybody: set[str] = set()
    for item in items:
        if item.conditional or item.users is None:
            anybody |= set(item.accesses)
        for principal in item.principals:
            if principal.startswith("user:"):
                users.setdefault(principal, set()).update(item.accesses)
    return Exceptions(users, anybody)
