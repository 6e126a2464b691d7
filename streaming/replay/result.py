"""What a replay found: counts, groups and examples, in bounded memory. Tasks return it, the driver adds it up."""

from collections.abc import Iterable, Sequence

import msgspec

from policy import StatementId

GROUPS = ("subject", "action", "resource", "statement")
HELD = 2000  # names of a group that a task or the driver counts; what comes later counts as `others`
EXAMPLES = 20  # of each direction
OTHERS = "others"
KINDS = ("opened", "closed", "other")
"""What happens to an answer: it would be allow and was not, no longer be allow, or differ otherwise."""

Pair = tuple[str, str]
"""The outcomes before and after: `allow`, `deny` or `error`."""


class Example(msgspec.Struct, frozen=True):
    """A request that would be answered otherwise. ``decision``: the id of its decision record; "" of one in a file.

    ``reason``: why it would be, with the determining statement where one is.
    """

    time: str
    decision: str
    request: str
    system: str
    subject: str
    action: str
    resource: str
    before: str
    after: str
    reason: str = ""
    document: str = ""
    statement: int | None = None


class Count(msgspec.Struct, order=True):
    """How many answers that concern a name would be allow and were not, no longer be allow, or differ otherwise."""

    name: str
    opened: int = 0
    closed: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.opened + self.closed + self.other

    def add(self, opened: int, closed: int, other: int) -> None:
        """Count some more."""
        self.opened, self.closed, self.other = self.opened + opened, self.closed + closed, self.other + other


class Totals(msgspec.Struct):
    """Of one task, or of all.

    ``records``: that were read; ``unreadable``: of these, what is no request and was a dead letter; ``answers``: a
    batch has several; ``outcomes``: of these, by the outcomes before and after; ``unknown``: for which facts would be
    needed that are not known any more. ``schemas``: ids of Avro schemas without which records were unreadable.
    ``groups``: by subject, action, resource and statement, those that differ.
    """

    records: int = 0
    unreadable: int = 0
    answers: int = 0
    unknown: int = 0
    schemas: list[int] = []
    outcomes: dict[str, int] = {}
    groups: dict[str, dict[str, Count]] = msgspec.field(default_factory=lambda: {name: {} for name in GROUPS})
    examples: dict[str, list[Example]] = msgspec.field(default_factory=lambda: {kind: [] for kind in KINDS})

    def note(self, pair: Pair, answers: int) -> None:
        """Count answers."""
        self.answers += answers
        name = " → ".join(pair)
        self.outcomes[name] = self.outcomes.get(name, 0) + answers

    def differ(self, kind: str, example: Example) -> None:
        """Count an answer that differs, see `kind_of`."""
        names = (example.subject, example.action, prefix_of(example.resource), _statement(example))
        for group, name in zip(GROUPS, names, strict=True):
            count(self.groups[group], name).add(*(int(kind == each) for each in KINDS))
        kept = self.examples[kind]
        if len(kept) < EXAMPLES or _sort_key(example) > _sort_key(kept[-1]):
            self._keep(kind, [example])

    def add(self, other: "Totals") -> None:
        """Put what another task found to it."""
        self.records += other.records
        self.unreadable += other.unreadable
        self.answers += other.answers
        self.unknown += other.unknown
        self.schemas = sorted({*self.schemas, *other.schemas})
        for name, number in other.outcomes.items():
            self.outcomes[name] = self.outcomes.get(name, 0) + number
        for group, counts in other.groups.items():
            for entry in counts.values():
                count(self.groups[group], entry.name).add(entry.opened, entry.closed, entry.other)
        for kind, examples in other.examples.items():
            self._keep(kind, examples)

    def _keep(self, kind: str, examples: Iterable[Example]) -> None:
        """The newest ones, whatever the order in which tasks end."""
        self.examples[kind] = sorted([*self.examples[kind], *examples], key=_sort_key, reverse=True)[:EXAMPLES]


def _sort_key(example: Example) -> tuple[object, ...]:
    """What examples are sorted by, and None is not: two may be equal, as of lines that stand twice in a file."""
    *fields, statement = msgspec.structs.astuple(example)
    return *fields, -1 if statement is None else statement


def kind_of(before: str, after: str) -> str:
    """What happens to an answer that differs."""
    return "opened" if after == "allow" else "closed" if before == "allow" else "other"


def prefix_of(resource: str) -> str:
    """The resources beside one: its id up to the last part of its path, or of its name."""
    mark = "/" if "/" in resource else ":"
    head, separator, _ = resource.rpartition(mark)
    return f"{head}{separator}*" if separator else resource


def _statement(example: Example) -> str:
    """The statement that decides, or did; without one the reason."""
    return str(StatementId(example.document, example.statement)) if example.document else example.reason


def count(counts: dict[str, Count], name: str) -> Count:
    """The count of a name; `OTHERS` where too many are held."""
    if name not in counts and len(counts) >= HELD:
        name = OTHERS
    return counts.setdefault(name, Count(name))


class Compared(msgspec.Struct, frozen=True):
    """What was compared. ``since``, ``until``: RFC 3339, of requests in topics; "" of those in files.

    ``before``, ``after``: the policy versions; ``draft``: that of the new documents alone.
    """

    before: str
    after: str
    draft: str
    since: str = ""
    until: str = ""


class Replayed(Compared, frozen=True, kw_only=True):
    """The result of a replay. ``gain``, ``lose``: subjects of answers that would be allow, or no longer be."""

    records: int
    unreadable: int
    answers: int
    unknown: int
    differ: int
    opened: int
    closed: int
    seconds: float
    outcomes: dict[str, int]
    subjects: tuple[Count, ...]
    actions: tuple[Count, ...]
    resources: tuple[Count, ...]
    statements: tuple[Count, ...]
    gain: tuple[str, ...]
    lose: tuple[str, ...]
    examples: tuple[Example, ...]


def replayed(totals: Totals, compared: Compared, seconds: float, top: int) -> Replayed:
    """The result, with the ``top`` most frequent names of each group."""
    subjects = totals.groups["subject"].values()
    parts = [name.split(" → ") for name in totals.outcomes]
    numbers = list(zip(parts, totals.outcomes.values(), strict=True))
    return Replayed(
        **msgspec.structs.asdict(compared),
        records=totals.records,
        unreadable=totals.unreadable,
        answers=totals.answers,
        unknown=totals.unknown,
        differ=sum(number for (before, after), number in numbers if before != after),
        opened=sum(number for (before, after), number in numbers if after == "allow" != before),
        closed=sum(number for (before, after), number in numbers if before == "allow" != after),
        seconds=round(seconds, 3),
        outcomes=dict(sorted(totals.outcomes.items())),
        subjects=_top(totals.groups["subject"].values(), top),
        actions=_top(totals.groups["action"].values(), top),
        resources=_top(totals.groups["resource"].values(), top),
        statements=_top(totals.groups["statement"].values(), top),
        gain=tuple(sorted(entry.name for entry in subjects if entry.opened)),
        lose=tuple(sorted(entry.name for entry in subjects if entry.closed)),
        examples=tuple(example for examples in totals.examples.values() for example in examples),
    )


def _top(counts: Iterable[Count], most: int) -> tuple[Count, ...]:
    ordered: Sequence[Count] = sorted(counts, key=lambda entry: (-entry.total, entry.name))
    return tuple(ordered[:most])
