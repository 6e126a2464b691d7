"""A review of a change of policies: what came and went, what it opens and whether that is allowed, who gains and loses.

An allow-list says which widenings are expected. In its patterns ``*`` stands for any text, and nothing else is special:
so what is widened by a pattern of its own is covered as a whole or not at all. In the text of an engine's statement a
``*`` that does not end the pattern stays within the brackets and the string in which it stands.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from policy.analysis.concerned import Concerned, concerned_on
from policy.analysis.diff import sides_of
from policy.analysis.widening import Widening, widenings_of
from policy.core.plain_data import read_yaml
from policy.store.snapshot import Snapshot

STRING = r'"(?:[^"\\]|\\.)*"'
FLAT = rf'(?:[^"()\[\]{{}}]|{STRING})'
BALANCED = rf"(?:{FLAT}|\({FLAT}*\)|\[{FLAT}*\])*"  # a scope and an annotation have no brackets within brackets
IN_STRING = r'(?:[^"\\]|\\.)*'
QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')


class MayWiden(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A widening that is expected: each field that is there has to match. ``reason``: for readers.

    ``document``: the one whose change opens it: of a membership, its own, not that of the grant to which it leads.
    """

    who: str = ""
    action: str = ""
    resource: str = ""
    document: str = ""
    reason: str = ""

    def covers(self, widening: Widening) -> bool:
        """Whether all of a widening is meant."""
        # What is known of a fact's name may open anything: the name, which its author chooses, is no resource.
        resource = "*" if widening.kind == "fact" else widening.resource
        document = widening.by or widening.document
        fields = ((self.who, widening.who), (self.resource, resource), (self.document, document))
        return all(not pattern or _matches(_pattern(pattern), text) for pattern, text in fields) and (
            not self.action
            or _matches((_pattern if widening.resource else _statement_pattern)(self.action), widening.action)
        )


def _pattern(pattern: str) -> str:
    return ".*".join(map(re.escape, pattern.split("*")))


def _statement_pattern(pattern: str) -> str:
    """For the text of a statement. Its author must not write in a condition what the entry says of the scope."""
    *pieces, last = pattern.split("*")
    expression, is_in_string = "", False
    for number, piece in enumerate(pieces):
        is_in_string ^= len(QUOTE.findall(piece)) % 2 == 1
        ends = number == len(pieces) - 1 and not last
        expression += re.escape(piece) + (".*" if ends else IN_STRING if is_in_string else BALANCED)
    return expression + re.escape(last)


def _matches(expression: str, text: str) -> bool:
    return re.fullmatch(expression, text, re.DOTALL) is not None


def read_may_widen(text: str) -> tuple[MayWiden, ...]:
    """The entries of an allow-list in YAML or JSON. Raises ValueError (Unreadable, msgspec's) for what is none."""
    values = [part.value for part in read_yaml(text)]
    entries = msgspec.convert(values[0] if len(values) == 1 else values, list[MayWiden])
    for number, entry in enumerate(entries):
        if not (entry.who or entry.action or entry.resource or entry.document):
            raise ValueError(f"[{number}]: needs `who`, `action`, `resource` or `document`; a * stands for any text")
    return tuple(entries)


class Access(msgspec.Struct, frozen=True):
    """What a change does to one subject or claim: the differences by which it may do more, and less."""

    name: str
    gains: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()


class Review(msgspec.Struct, frozen=True):
    """``differences``: all, with whom they concern. ``widenings``: what is opened, each with whether it is allowed."""

    differences: tuple[Concerned, ...]
    widenings: tuple[tuple[Widening, bool], ...]

    @property
    def refused(self) -> tuple[Widening, ...]:
        """The widenings that no entry of the allow-list covers."""
        return tuple(widening for widening, is_allowed in self.widenings if not is_allowed)

    def people(self) -> Sequence[Access]:
        """Who gains and loses, by name."""
        gains: dict[str, list[str]] = {}
        loses: dict[str, list[str]] = {}
        for entry in self.differences:
            for names, into in ((entry.gain, gains), (entry.lose, loses)):
                for name in names:
                    into.setdefault(name, []).append(entry.difference.text)
        return [
            Access(name, tuple(gains.get(name, ())), tuple(loses.get(name, ()))) for name in sorted({*gains, *loses})
        ]


def review(old: Snapshot, new: Snapshot, may_widen: Iterable[MayWiden] = ()) -> Review:
    """What the change from one snapshot to another does. Without an allow-list no widening is allowed."""
    entries, sides = tuple(may_widen), sides_of(old, new)
    widenings = (widening for each in sides for widening in widenings_of(each.opened).found)
    return Review(
        tuple(entry for each in sides for entry in concerned_on(each)),
        tuple((widening, any(entry.covers(widening) for entry in entries)) for widening in widenings),
    )
