"""What `lockkeeper policy diff` prints: as text, Markdown for a pull request, SARIF for code scanning, or JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from streaming.cli.sarif import sarif_log, sarif_result

if TYPE_CHECKING:
    from policy import Place
    from policy.analysis import Changed, Difference

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
    """`who`: the differences, each with the subjects and claims whose access it changes. `requests`: how many were
    decided with both sides.

    `places`: of the new documents, by key; `path`: where they are.
    """

    who: "Mapping[Difference, tuple[str, ...]]"
    changes: "Sequence[Changed]"
    requests: int
    places: "Mapping[str, Place]"
    path: str

    @property
    def differences(self) -> "Sequence[Difference]":
        """The differences alone."""
        return list(self.who)

    @property
    def summary(self) -> str:
        """How many of each there are."""
        if not self.requests:
            return f"{len(self.differences)} differences; no requests were compared"
        return f"{len(self.differences)} differences, {len(self.changes)} of {self.requests} decisions would change"


def render(found: Comparison, form: str) -> Iterator[str]:
    """The lines of the output; `form`: text, markdown, sarif or json."""
    if form == "markdown":
        return _markdown(found)
    if form == "text":
        return _text(found)
    return iter([json.dumps(_sarif(found) if form == "sarif" else _plain(found), ensure_ascii=False)])


def _verb(one: "Difference") -> str:
    """What it means to those whom it concerns; "" for nothing by itself."""
    return "gained by" if one.widens else "lost by" if one.narrows else ""


def some_names(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _text(found: Comparison) -> Iterator[str]:
    for one in found.differences:
        yield f"{SIGNS[one.sign]}{'!' if one.widens else ' '} {one.document}: {one.text}"
        if found.who[one] and _verb(one):
            yield f"   {_verb(one)} {some_names(found.who[one])}"
    for change in found.changes:
        yield f"request {change.number}: {_decision(change)}"
        yield from (f"  {reason.message}" for reason in change.after.reasons)
    yield found.summary


def _decision(change: "Changed") -> str:
    from policy.testing import describe

    return f"{describe(dict(change.request))}: {change.before.outcome} → {change.after.outcome}"


def _markdown(found: Comparison) -> Iterator[str]:
    widening = sum(one.widens for one in found.differences)
    yield f"### Policies: {found.summary}"
    yield ""
    if not found.differences and not found.changes:
        yield "Nothing changes."
        return
    yield f"**{widening} of the differences may allow more than before.**" if widening else "None may allow more."
    if found.differences:
        yield from ("", "| | document | difference | who |", "|---|---|---|---|")
        for one in found.differences[:MOST_ROWS]:
            sign = f"{SIGNS[one.sign]} **widens**" if one.widens else SIGNS[one.sign]
            who = f"{_verb(one)} {code(some_names(found.who[one]))}" if found.who[one] and _verb(one) else ""
            yield f"| {sign} | {code(one.document)} | {code(one.text)} | {who} |"
        yield from more(len(found.differences))
    if found.changes:
        yield from ("", "| request | decision |", "|---|---|")
        for change in found.changes[:MOST_ROWS]:
            yield f"| {change.number} | {code(_decision(change))} |"
        yield from more(len(found.changes))


def more(count: int) -> Iterator[str]:
    """A line below a table that does not show all."""
    if count > MOST_ROWS:
        yield from ("", f"And {count - MOST_ROWS} more.")


def code(text: str) -> str:
    """Names come from those who write the documents: they must not be read as Markdown."""
    plain = " ".join(text.split()).replace("`", "'").replace("\\", "\\\\").replace("|", "\\|")
    return f"`{plain}`"


def _plain(found: Comparison) -> dict[str, Any]:
    import msgspec

    return {
        "differences": [{**msgspec.to_builtins(one), "who": found.who[one]} for one in found.differences],
        "changes": [_change(change) for change in found.changes],
        "requests": found.requests,
    }


def _change(change: "Changed") -> dict[str, Any]:
    before, after = change.before.to_record(), change.after.to_record()
    return {"number": change.number, "request": dict(change.request), "before": before, "after": after}


def _sarif(found: Comparison) -> dict[str, Any]:
    results = [
        *(_result_of(one, found) for one in found.differences),
        *(_result_of_change(c, found) for c in found.changes),
    ]
    return sarif_log("lockkeeper policy diff", RULES, results)


def _result_of(one: "Difference", found: Comparison) -> dict[str, Any]:
    rule = "widens" if one.widens else "narrows" if one.narrows else "same"
    who = f"; {_verb(one)} {some_names(found.who[one])}" if found.who[one] and _verb(one) else ""
    place = found.places.get(one.document)
    file, line = (place.file, place.line) if place is not None else (found.path, None)
    return sarif_result(RULES, rule, f"{one.document}: {one.sign}: {one.text}{who}", file, line)


def _result_of_change(change: "Changed", found: Comparison) -> dict[str, Any]:
    return sarif_result(RULES, "decision", f"request {change.number}: {_decision(change)}", found.path, None)
