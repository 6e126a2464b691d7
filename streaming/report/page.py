"""The report as one HTML page that needs nothing else: no script, no file, no network.

What comes from records is escaped by jinja, whatever it is; `_harmless` has made it short and visible before.
"""

from datetime import UTC, datetime
from typing import Any

import jinja2
from markupsafe import Markup

from streaming.report.alerts import SEVERITIES
from streaming.report.changes import MANNERS
from streaming.report.gather import Report
from streaming.report.plots import length_text, plot_alerts, plot_decisions
from streaming.report.records import OUTCOMES
from streaming.report.untrusted import shortened, visible

LISTED = 200  # rows of statements; --json has all of them
LONGEST_NAME, LONGEST = 400, 2000  # characters of a name, and of any text: a message, a piece of evidence


def render(report: Report) -> str:
    """The page. The same report gives the same page."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            decisions_plot=Markup(plot_decisions(report.decisions, report.span)) if report.decisions.systems else None,
            alerts_plot=Markup(plot_alerts(report.alerts)) if report.alerts.kinds else None,
            outcomes=OUTCOMES,
            severities=(*SEVERITIES, "other"),
            manners=MANNERS,
            listed=LISTED,
        )
    )


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
