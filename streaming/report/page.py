"""The report as one HTML page that needs nothing else: no script, no file, no network.

What comes from records is escaped by jinja, whatever it is; `_harmless` has made it short and visible before.
"""

import importlib.resources
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from streaming.report.alerts import SEVERITIES
from streaming.report.changes import MANNERS
from streaming.report.gather import Report
from streaming.report.plots import length_text, plot_alerts, plot_decisions
from streaming.report.records import OUTCOMES
from streaming.report.untrusted import shortened, visible

REASONS: dict[str, dict[str, str]] = yaml.safe_load(
    importlib.resources.files("streaming.records").joinpath("reasons.yaml").read_text(encoding="utf-8")
)
"""By code: `words` for it, and what to do (`fix`)."""

LISTED = 200  # rows of statements; --json has all of them
MANY_ERRORS = 0.01  # of the decisions; as many dead letters of all records
PEAK, PEAK_DENIALS = 5, 10  # denials in a step: times the median, and at least
LONGEST_NAME, LONGEST = 400, 2000  # characters of a name, and of any text: a message, a piece of evidence


def render(report: Report) -> str:
    """The page. The same report gives the same page."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            decisions_plot=Markup(plot_decisions(report.decisions)) if report.decisions.systems else None,
            alerts_plot=Markup(plot_alerts(report.alerts)) if report.alerts.kinds else None,
            outcomes=OUTCOMES,
            severities=(*SEVERITIES, "other"),
            manners=MANNERS,
            listed=LISTED,
            summary=unusual(report),
        )
    )


def unusual(report: Report) -> str:
    """One sentence that says what is unusual in the range, the most severe first; or that nothing is."""
    found = list(_unusual(report))
    if found:
        return f"Unusual: {'; '.join(found)}."
    return "Nothing unusual: no alert is critical or high, no document was refused, and few answers are errors."


def _unusual(report: Report) -> Iterator[str]:
    decisions, alerts, letters = report.decisions, report.alerts, report.dead_letters
    if alerts.grave:
        newest = alerts.newest_grave[0]
        yield f"{_counted(alerts.grave, 'alert')} critical or high, the newest {newest.kind} ({_short(newest.subject)})"
    if report.changes.refused:
        yield f"{_counted(report.changes.refused, 'document')} refused"
    if decisions.error > MANY_ERRORS * decisions.total:
        yield f"{_share(decisions.error, decisions.total)} of the decisions are errors"
    denials = decisions.denials_by_step
    peak, usual = max(denials, default=0), statistics.median_low(denials) if denials else 0
    if peak >= PEAK_DENIALS and peak > PEAK * max(usual, 1):
        at = decisions.axis.first + denials.index(peak) * decisions.axis.step
        step = length_text(decisions.axis.step)
        yield f"{peak:,} denials in the {step} from {_moment(at)}, the median is {usual:,}"
    if letters.total > MANY_ERRORS * (decisions.total + letters.total):
        yield _counted(letters.total, "dead letter")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def with_words(reason: str) -> str:
    """ "deny: no-grant" as "deny: no grant covers it (no-grant)"; an unknown code stays."""
    outcome, colon, code = reason.partition(": ")
    words = REASONS.get(code, {}).get("words")
    return f"{outcome}{colon}{words.replace('`', '')} ({code})" if words else reason


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("streaming.report"),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": _moment,
        "share": _share,
        "number": _number,
        "short": _short,
        "duration": length_text,
        "words": with_words,
    }
    return environment


def _harmless(value: Any) -> Any:
    """What every expression of the template goes through before it is escaped. Markup is ours."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(shortened(value, LONGEST))


def _moment(ms: int) -> str:
    """ "2026-11-21 14:00:05"; UTC, as the page says."""
    seconds, rest = divmod(ms, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{rest:03d}" if rest else text


def _share(part: int, whole: int) -> str:
    """In percent: "0.1 %" is never nothing, and "100 %" is all."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if part in (0, whole) else f"{percent:.1f} %"


def _short(name: str) -> str:
    return shortened(name, LONGEST_NAME)


def _number(value: int) -> str:
    return f"{value:,}"
