"""The report as one HTML page that needs nothing else: no script, no file, no network.

What comes from records is escaped by jinja, whatever it is; `templates` has made it short and visible before.
"""

import contextlib
import importlib.resources
import io
import statistics
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import jinja2
import matplotlib
import yaml
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from policy import OUTCOMES, to_text
from streaming.history.span import DAY, HOUR, Span
from streaming.report.decisions import DecisionTotals, SystemTotals
from streaming.report.gather import Report
from streaming.report.incidents import MANNERS, SEVERITIES, AlertTotals
from streaming.report.templates import page_environment
from streaming.report.untrusted import shortened
from streaming.settings.console import ConsoleSettings
from streaming.terminal import one_line

REASONS: dict[str, dict[str, str]] = yaml.safe_load(
    importlib.resources.files("streaming.records").joinpath("reasons.yaml").read_text(encoding="utf-8")
)
"""By code: `words` for it, and what to do (`fix`)."""

LISTED = 200  # rows of statements; --json has all of them
MANY_ERRORS = 0.01  # of the decisions; as many dead letters of all records
PEAK, PEAK_DENIALS = 5, 10  # denials in a step: times the median, and at least
LONGEST_NAME = 400  # characters


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
            alert_page=lambda id_: ConsoleSettings(url=report.console).page("alerts", id_) if id_ else "",
        )
    )


def unusual(report: Report) -> str:
    """One sentence that says what is unusual in the range, the most severe first; or that nothing is."""
    remarks = list(_unusual(report))
    if remarks:
        return f"Unusual: {'; '.join(remarks)}."
    return "Nothing unusual: no alert is critical or high, no document was refused, and few answers are errors."


def _unusual(report: Report) -> Iterator[str]:
    decisions, alerts, dead_letters = report.decisions, report.alerts, report.dead_letters
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
    if dead_letters.total > MANY_ERRORS * (decisions.total + dead_letters.total):
        yield _counted(dead_letters.total, "dead letter")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def with_words(reason: str) -> str:
    """ "deny: no-grant" as "deny: no grant covers it (no-grant)"; an unknown code stays."""
    outcome, colon, code = reason.partition(": ")
    words = REASONS.get(code, {}).get("words")
    return f"{outcome}{colon}{words.replace('`', '')} ({code})" if words else reason


def _environment() -> jinja2.Environment:
    environment = page_environment("streaming.report")
    environment.filters |= {
        "moment": _moment,
        "share": _share,
        "number": "{:,}".format,
        "short": _short,
        "duration": length_text,
        "words": with_words,
    }
    return environment


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


# Colours that colour-blind readers can distinguish (Okabe and Ito), and hatches.
LOOKS = {"allow": ("#009E73", ""), "deny": ("#D55E00", "////"), "error": ("#7A6FAC", "xxx")}
SEVERITY_COLOURS = {
    "critical": ("#8C1D40", ""),
    "high": ("#D55E00", "////"),
    "medium": ("#E69F00", "...."),
    "low": ("#56B4E9", "----"),
    "info": ("#8A8F98", ""),
    "other": ("#B9BEC6", "xxx"),
}
WIDTH, PANEL, BAR = 9.6, 1.55, 0.36  # inches
LABELS = 9
MOST_KINDS = 12
LONGEST_LABEL = 42


def plot_decisions(totals: DecisionTotals) -> str:
    """Decisions over time, a panel for each system, outcomes stacked."""
    count = len(totals.systems)
    with drawing(WIDTH, PANEL * count + 0.5) as figure:
        panels = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        for axes, system in zip(panels, totals.systems, strict=True):
            _stack(axes, system)
        _label_times(panels[-1], totals.axis)
        what = f"Decisions over time, in steps of {length_text(totals.axis.step)}; the table below has the totals"
        return to_svg(figure, "decisions", what)


def _stack(axes: Axes, system: SystemTotals) -> None:
    below = [0] * len(system.steps)
    drawn = []
    for number, outcome in enumerate(OUTCOMES):
        colour, hatch = LOOKS[outcome]
        counts = [step[number] for step in system.steps]
        label = f"{outcome}  {getattr(system, outcome):,}"
        positions = range(len(counts))
        bars = axes.bar(positions, counts, 0.9, below, color=colour, hatch=hatch, linewidth=0, label=label)
        drawn.append(bars)
        below = [low + high for low, high in zip(below, counts, strict=True)]
    axes.set_title(f"{system.system}: {system.total:,}", loc="left", fontsize=10.5, fontweight="bold")
    axes.legend(handles=drawn[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, handleheight=1.1)
    axes.margins(x=0.01)
    axes.set_ylim(0, max(1, *below) * 1.08)
    _bare(axes)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_alpha(0.4)
    axes.tick_params(length=3)


def _label_times(axes: Axes, span: Span) -> None:
    """At most so many labels as can be read; with the day where it begins, or throughout in long ranges."""
    stride = -(-span.steps // LABELS)
    positions = range(0, span.steps, stride)
    moments = [span.first + position * span.step for position in positions]
    days = [None, *(moment // DAY for moment in moments)]
    texts = [_time_label(m, before != m // DAY, span.step) for m, before in zip(moments, days, strict=False)]
    axes.set_xticks([position - 0.5 for position in positions], texts)
    axes.set_xlim(-0.7, span.steps - 0.3)


def _time_label(moment: int, new_day: bool, step: int) -> str:
    text = to_text(moment)
    day, clock = text[:10], text[11:16] if step >= 60_000 else text[11:19]
    if step >= DAY:
        return day
    return f"{clock}\n{day} UTC" if new_day else clock


def length_text(length: int) -> str:
    """A length of time, ms, in its largest whole unit: "30 minutes"."""
    for unit, name in ((DAY, "day"), (HOUR, "hour"), (60_000, "minute"), (1000, "second"), (1, "millisecond")):
        if length % unit == 0 and length >= unit:
            number = length // unit
            return f"{number} {name}" if number == 1 else f"{number} {name}s"
    return "no time"


def plot_alerts(totals: AlertTotals) -> str:
    """Alerts by kind, severities stacked, each bar with its number."""
    kinds = totals.kinds[:MOST_KINDS]
    with drawing(WIDTH, BAR * len(kinds) + 0.6) as figure:
        axes = figure.subplots()
        left = [0] * len(kinds)
        for number, severity in enumerate((*SEVERITIES, "other")):
            counts = [kind.counts[number] for kind in kinds]
            if any(counts):
                _add_severity(axes, severity, counts, left)
                left = [low + high for low, high in zip(left, counts, strict=True)]
        _name_bars(axes, [kind.kind for kind in kinds], left)
        return to_svg(figure, "alerts", "Alerts by kind and severity; the table below has the numbers")


def _add_severity(axes: Axes, severity: str, counts: Sequence[int], left: Sequence[int]) -> None:
    colour, hatch = SEVERITY_COLOURS[severity]
    label = f"{severity}  {sum(counts):,}"
    positions = range(len(counts))
    axes.barh(positions, counts, height=0.72, left=left, color=colour, hatch=hatch, linewidth=0, label=label)


def _label(name: str) -> str:
    text = one_line(name)
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}…"


def _name_bars(axes: Axes, names: Sequence[str], totals: Sequence[int]) -> None:
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.invert_yaxis()
    for position, total in enumerate(totals):
        axes.annotate(f"{total:,}", (total, position), xytext=(5, 0), textcoords="offset points", va="center")
    axes.legend(loc="center left", bbox_to_anchor=(1.04, 0.5), frameon=False, handleheight=1.1)
    axes.margins(x=0.08)
    _bare(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])


INK = "#0a0b0c"  # stands for the page's text colour, dark or light, in what matplotlib draws
PAPER = "#fbfcfd"  # stands for the page's background
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockkeeper",
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.7,
    "hatch.color": PAPER,
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}

ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


@contextlib.contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """A figure to draw in, in inches; the settings hold while it is open, for matplotlib looks at them all the time."""
    with matplotlib.rc_context(SETTINGS):
        yield Figure(figsize=(width, height), layout="constrained")


def to_svg(figure: Figure, name: str, title: str) -> str:
    """An ``svg`` element for a page. ``name``: begins its ids, unlike those of others; ``title``: read aloud.

    The same figure gives the same text. Within `drawing`.
    """
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # of characters that its font lacks: the page's font shows them
        figure.savefig(out, format="svg", metadata=NO_METADATA)
    root = ElementTree.fromstring(out.getvalue())
    for element in root.iter():
        _own(element, name)
    del root.attrib["width"], root.attrib["height"]  # as wide as the page; the viewBox keeps its form
    root.attrib |= {"role": "img", "aria-label": title}
    return ElementTree.tostring(root, encoding="unicode")


def _own(element: ElementTree.Element, name: str) -> None:
    """Ids and references to them get the name before them, so that two drawings on a page do not share any."""
    for attribute, value in element.attrib.items():
        if attribute == "id":
            element.set(attribute, f"{name}-{value}")
        elif attribute == f"{{{XLINK}}}href":
            element.set(attribute, value.replace("#", f"#{name}-", 1))
        else:
            inked = value.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
            element.set(attribute, inked.replace("url(#", f"url(#{name}-"))
