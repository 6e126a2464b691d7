"""The page of `lockkeeper policy review`: as Markdown, SARIF or JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from streaming.cli.authoring import finding_fields
from streaming.cli.differences import SIGNS, code, some_names, table
from streaming.cli.sarif import sarif_log, sarif_result

if TYPE_CHECKING:
    from policy import Place
    from policy.analysis import Access, Concerned, Finding, Review, Widening
    from streaming.replay.result import Count, Replayed

RULES = {
    "widens": ("error", "More may be allowed than before, and no entry of the allow-list covers it"),
    "may-widen": ("note", "More may be allowed than before, as the allow-list says"),
    "narrows": ("note", "Less may be allowed than before"),
    "lint-error": ("error", "A document is refused, or makes requests errors"),
    "lint-warning": ("warning", "A valid statement that is probably a mistake"),
    "decision": ("warning", "Past requests would be decided otherwise"),
}
EXAMPLES = 20
NAMED = 5  # of each group of a replay


class Page(NamedTuple):
    """What is shown. `places`: of statements and documents, by key and number; `path`: where the new documents are."""

    review: "Review"
    findings: "Sequence[tuple[Finding, Place | None]]"
    replayed: "Replayed | None"
    places: "Mapping[tuple[str, int | None], Place]"
    path: str
    strict: bool

    @property
    def failures(self) -> list[str]:
        """Why the review fails; none: it passes."""
        refused = len(self.review.refused)
        errors = sum(finding.level == "error" for finding, _ in self.findings)
        warnings = len(self.findings) - errors if self.strict else 0
        counts = (
            (refused, "widening", " outside of the allow-list"),
            (errors, "lint error", ""),
            (warnings, "lint warning", ""),
        )
        return [f"{number} {what}{'s' if number > 1 else ''}{where}" for number, what, where in counts if number]


def markdown(page: Page) -> Iterator[str]:
    """The lines of the page."""
    failures = page.failures
    yield f"## Policy review: {'fails: ' + ', '.join(failures) if failures else 'passes'}"
    parts = (_widenings(page), _people(page.review.people()), _differences(page.review.differences))
    for part in (*parts, _past(page.replayed), _lint(page)):
        lines = list(part)
        if lines:
            yield ""
            yield from lines
    if not (page.review.differences or page.findings):
        yield from ("", "Nothing changes.")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield from (f"### {title}", "")
    yield from table(columns, rows)


def _widenings(page: Page) -> Iterator[str]:
    from policy.analysis import widening_text

    ordered = sorted(page.review.widenings, key=lambda pair: pair[1])
    rows = [
        (
            "allowed" if is_allowed else "**refused**",
            code(widening_text(entry)),
            _place(page, entry.document, entry.statement),
        )
        for entry, is_allowed in ordered
    ]
    yield from _table("What it opens", ("", "what", "where"), rows)


def _place(page: Page, document: str, statement: int | None) -> str:
    location = page.places.get((document, statement))
    return code(str(location)) if location is not None else ""


def _people(people: "Sequence[Access]") -> Iterator[str]:
    rows = [(code(entry.name), _texts(entry.gains), _texts(entry.loses)) for entry in people]
    yield from _table("Who gains and loses", ("who", "gains by", "loses by"), rows)


def _texts(texts: Sequence[str]) -> str:
    return code(some_names(texts)) if texts else ""


def _differences(differences: "Sequence[Concerned]") -> Iterator[str]:
    rows = [
        (
            SIGNS[entry.difference.sign],
            code(entry.difference.document),
            code(entry.difference.text),
            _texts(tuple(dict.fromkeys((*entry.gain, *entry.lose)))),
        )
        for entry in differences
    ]
    yield from _table("What came and went", ("", "document", "difference", "who"), rows)


def _past(past: "Replayed | None") -> Iterator[str]:
    """Which decisions of the past would differ."""
    if past is None:
        return
    span = f" from {past.since} until {past.until}" if past.since else ""
    yield "### Past requests"
    yield ""
    yield (
        f"Of {past.answers:,} answers{span}, {past.differ:,} would differ: {past.opened:,} would be allow, "
        f"{past.closed:,} would no longer be. Unknown: {past.unknown:,}."
    )
    for name, counts in (("subjects", past.subjects), ("actions", past.actions), ("resources", past.resources)):
        if counts:
            yield from ("", f"{name}: {', '.join(map(_counted, counts[:NAMED]))}")
    if past.examples:
        yield ""
        rows = [
            (
                code(entry.decision),
                code(f"{entry.subject} {entry.action} {entry.resource}"),
                f"{entry.before} → {entry.after}",
                code(entry.reason),
            )
            for entry in past.examples[:EXAMPLES]
        ]
        yield from _table("Examples", ("decision", "request", "outcome", "why"), rows)


def _counted(entry: "Count") -> str:
    return f"{code(entry.name)} ({entry.total:,})"


def _lint(page: Page) -> Iterator[str]:
    rows = [
        (
            finding.level,
            code(str(location)) if location is not None else "",
            code(finding.document),
            code(finding.message),
        )
        for finding, location in page.findings
    ]
    yield from _table("Lint", ("", "where", "document", "finding"), rows)


def as_sarif(page: Page) -> dict[str, Any]:
    """The findings beside their lines."""
    review = page.review
    narrows = [entry for entry in review.differences if entry.difference.narrows]
    results = [
        *(_result_of_widening(page, entry, is_allowed) for entry, is_allowed in review.widenings),
        *(_result(page, "narrows", _difference_text(entry), entry.difference.document, None) for entry in narrows),
        *(_result_of_finding(page, finding, location) for finding, location in page.findings),
        *_result_of_past(page),
    ]
    return sarif_log("lockkeeper policy review", RULES, results)


def _difference_text(entry: "Concerned") -> str:
    who = f"; lost by {some_names(entry.lose)}" if entry.lose else ""
    return f"{entry.difference.document}: {entry.difference.sign}: {entry.difference.text}{who}"


def _result_of_widening(page: Page, entry: "Widening", is_allowed: bool) -> dict[str, Any]:
    from policy.analysis import widening_text

    rule = "may-widen" if is_allowed else "widens"
    gain = sorted(
        {name for each in page.review.differences for name in each.gain if each.difference.document == entry.document}
    )
    who = f"; gained by {some_names(gain)}" if gain else ""
    return _result(page, rule, f"{widening_text(entry)}{who}", entry.document, entry.statement)


def _result(page: Page, rule: str, text: str, document: str, statement: int | None) -> dict[str, Any]:
    location = page.places.get((document, statement)) or page.places.get((document, None))
    return sarif_result(RULES, rule, text, page.path, location)


def _result_of_finding(page: Page, finding: "Finding", location: "Place | None") -> dict[str, Any]:
    text = f"{finding.document}: {finding.message} [{finding.code}]"
    return sarif_result(RULES, f"lint-{finding.level}", text, page.path, location)


def _result_of_past(page: Page) -> Iterator[dict[str, Any]]:
    past = page.replayed
    if past is not None and past.differ:
        text = f"{past.differ:,} of {past.answers:,} past answers would differ: {past.opened:,} would be allow"
        yield sarif_result(RULES, "decision", text, page.path)


def plain(page: Page) -> dict[str, Any]:
    """All of it as plain data."""
    import msgspec

    builtins = msgspec.to_builtins
    return {
        "ok": not page.failures,
        "failures": page.failures,
        "widenings": [{**builtins(entry), "allowed": is_allowed} for entry, is_allowed in page.review.widenings],
        "people": page.review.people(),
        "differences": [
            {**builtins(entry.difference), "gain": entry.gain, "lose": entry.lose} for entry in page.review.differences
        ],
        "lint": [finding_fields(finding, location) for finding, location in page.findings],
        "replayed": page.replayed,
    }
