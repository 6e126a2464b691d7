"""What `lockkeeper policy diff` prints: as text, Markdown for a pull request, SARIF for code scanning, or JSON."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from streaming.cli.sarif import sarif_log, sarif_result
from streaming.terminal import one_line

if TYPE_CHECKING:
    from policy import Place
    from policy.analysis import Changed, Concerned, Difference

SIGNS = {"added": "+", "removed": "-", "changed": "~"}
SHOWN = 5  # names of those whom a difference concerns
MOST_ROWS = 200  # of a table in Markdown: comments on pull requests have a limit
RULES = {
    "widens": ("warning", "More may be allowed than before"),
    "narrows": ("note", "Less may be allowed than before"),
    "same": ("note", "A difference that changes nothing by itself"),
    "decision": ("warning", "A request would be decided otherwise"),
}


class Comparison(NamedTuple):
    """`effects`: the differences, each with the subjects and claims whose access it changes. `requests`: how many were
    decided with both sides.

    `places`: of the new documents, by key; `path`: where they are.
    """

    effects: "Sequence[Concerned]"
    changes: "Sequence[Changed]"
    requests: int
    places: "Mapping[str, Place]"
    path: str

    @property
    def differences(self) -> "Sequence[Difference]":
        """The differences alone."""
        return [entry.difference for entry in self.effects]

    @property
    def summary(self) -> str:
        """How many of each there are."""
        if not self.requests:
            return f"{len(self.differences)} differences; no requests were compared"
        return f"{len(self.differences)} differences, {len(self.changes)} of {self.requests} decisions would change"


def render(comparison: Comparison, output: str) -> Iterator[str]:
    """The lines of the output; `output`: text, markdown, sarif or json."""
    if output == "markdown":
        return _markdown(comparison)
    if output == "text":
        return _text(comparison)
    return iter([json.dumps(_sarif(comparison) if output == "sarif" else _plain(comparison), ensure_ascii=False)])


def difference_line(difference: "Difference") -> str:
    """A difference in a line, with an exclamation mark where more may be allowed than before."""
    return f"{SIGNS[difference.sign]}{'!' if difference.widens else ' '} {difference.document}: {difference.text}"


def _concerned(entry: "Concerned", quote: Callable[[str], str] = str) -> str:
    """Who gains and who loses by a difference; "" for nobody. A role with denies does both."""
    sides = (("gained by", entry.gain), ("lost by", entry.lose))
    return "; ".join(f"{verb} {quote(some_names(sorted(set(names))))}" for verb, names in sides if names)


def some_names(names: Sequence[str], most: int = SHOWN) -> str:
    """The first few, and how many more."""
    more = len(names) - most
    return f"{', '.join(names[:most])}{f' and {more} more' if more > 0 else ''}"


def _text(comparison: Comparison) -> Iterator[str]:
    for entry in comparison.effects:
        yield difference_line(entry.difference)
        if concerned := _concerned(entry):
            yield f"   {concerned}"
    for change in comparison.changes:
        yield f"request {change.number}: {_decision(change)}"
        yield from (f"  {reason.message}" for reason in change.after.reasons)
    yield comparison.summary


def _decision(change: "Changed") -> str:
    from policy.testing import describe

    return f"{describe(dict(change.request))}: {change.before.outcome} → {change.after.outcome}"


def _markdown(comparison: Comparison) -> Iterator[str]:
    widening = sum(difference.widens for difference in comparison.differences)
    yield f"### Policies: {comparison.summary}"
    yield ""
    if not comparison.differences and not comparison.changes:
        yield "Nothing changes."
        return
    yield f"**{widening} of the differences may allow more than before.**" if widening else "None may allow more."
    if comparison.differences:
        yield ""
        yield from table(("", "document", "difference", "who"), list(map(_row, comparison.effects)))
    if comparison.changes:
        yield ""
        changes = [(str(change.number), code(_decision(change))) for change in comparison.changes]
        yield from table(("request", "decision"), changes)


def _row(entry: "Concerned") -> tuple[str, ...]:
    difference = entry.difference
    sign = f"{SIGNS[difference.sign]} **widens**" if difference.widens else SIGNS[difference.sign]
    return sign, code(difference.document), code(difference.text), _concerned(entry, code)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown, and below one that does not show all how many more there are."""
    yield from (f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    yield from (f"| {' | '.join(row)} |" for row in rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        yield from ("", f"And {len(rows) - MOST_ROWS} more.")


def code(text: str) -> str:
    """Names come from those who write the documents: they must not be read as Markdown, nor look like others."""
    plain = one_line(text.replace("\\", "\\\\")).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    # A blank at both ends is not shown, so that a name may begin or end with what would end the fence, or a blank.
    room = " " if plain[:1] in ("", "`", " ") or plain[-1:] in ("`", " ") else ""
    return f"{fence}{room}{plain}{room}{fence}"


def _plain(comparison: Comparison) -> dict[str, Any]:
    import msgspec

    return {
        "differences": [
            {**msgspec.to_builtins(entry.difference), "who": sorted({*entry.gain, *entry.lose})}
            for entry in comparison.effects
        ],
        "changes": [_change(change) for change in comparison.changes],
        "requests": comparison.requests,
    }


def _change(change: "Changed") -> dict[str, Any]:
    before, after = change.before.to_record(), change.after.to_record()
    return {"number": change.number, "request": dict(change.request), "before": before, "after": after}


def _sarif(comparison: Comparison) -> dict[str, Any]:
    results = [
        *(_result_of(entry, comparison) for entry in comparison.effects),
        *(_result_of_change(change, comparison) for change in comparison.changes),
    ]
    return sarif_log("lockkeeper policy diff", RULES, results)


def _result_of(entry: "Concerned", comparison: Comparison) -> dict[str, Any]:
    difference = entry.difference
    rule = "widens" if difference.widens else "narrows" if difference.narrows else "same"
    location = comparison.places.get(difference.document)
    text = f"{difference.document}: {difference.sign}: {difference.text}"
    if concerned := _concerned(entry):
        text = f"{text}; {concerned}"
    return sarif_result(RULES, rule, text, comparison.path, location)


def _result_of_change(change: "Changed", comparison: Comparison) -> dict[str, Any]:
    return sarif_result(RULES, "decision", f"request {change.number}: {_decision(change)}", comparison.path)
