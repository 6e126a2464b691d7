"""A page of a list, newest first, between two moments of its address; a link leads to what is older."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from policy import to_text
from streaming.console.addresses import address, moment_of

ROWS = 50
NEVER, ALWAYS = 1 << 62, 0


class Dated(Protocol):
    """Something that came at a moment, ms."""

    @property
    def at(self) -> int:
        """When."""


Shown = TypeVar("Shown")
Entry = TypeVar("Entry", bound=Dated)


class Listing(msgspec.Struct, Generic[Shown], frozen=True):
    """`older`: the moment before which there is more, and `older_address` of that; "": there is none.

    `problem`: what is wrong with the address.
    """

    rows: list[Shown]
    older: str = ""
    older_address: str = ""
    problem: str = ""

    def values(self, fields: Mapping[str, str], row_of: Callable[[Shown], Any], is_cut: bool = False) -> dict[str, Any]:
        """What `list.html.j2` shows of it. `is_cut`: whether what is older than all of the list is not known."""
        return {
            "fields": fields,
            "shown": self,
            "rows": [row_of(entry) for entry in self.rows],
            "is_cut": is_cut,
            "is_filtered": any(fields.values()),
        }


def listed(
    path: str, fields: Mapping[str, str], entries: Iterable[Entry], fits: Callable[[Entry], bool]
) -> Listing[Entry]:
    """Of entries, newest first, those that fit and lie between `since` and `until` of the fields."""
    try:
        since, until = moment_of(fields["since"], ALWAYS), moment_of(fields["until"], NEVER)
    except ValueError as error:
        return Listing([], problem=str(error))
    fitting = [entry for entry in entries if since <= entry.at < until and fits(entry)]
    if len(fitting) <= ROWS:
        return Listing(fitting)
    last = fitting[ROWS - 1].at  # the next page begins before this moment, so all of it is on this one
    older = to_text(last)
    return Listing([entry for entry in fitting if entry.at >= last], older, address(path, {**fields, "until": older}))
