"""The plots of a report. Every series has a hatch of its own, so that they differ in print and in grey."""

import io
import warnings
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from policy import to_text
from streaming.report.alerts import SEVERITIES, AlertTotals
from streaming.report.decisions import DecisionTotals, SystemTotals
from streaming.report.records import OUTCOMES
from streaming.report.span import DAY, HOUR, Span
from streaming.report.untrusted import visible

# Colours that colour-blind readers can distinguish (Okabe and Ito), and hatches.
LOOKS = {"allow": ("#009E73", ""), "deny": ("#D55E00", "////"), "error": ("#7A6FAC", "xxx")}
GRAVITY = {
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
    with Drawing(WIDTH, PANEL * count + 0.5) as figure:
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
        places = range(len(counts))
        bars = axes.bar(places, counts, 0.9, below, color=colour, hatch=hatch, linewidth=0, label=label)
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
    places = range(0, span.steps, stride)
    moments = [span.first + place * span.step for place in places]
    days = [None, *(moment // DAY for moment in moments)]
    texts = [_time_label(m, before != m // DAY, span.step) for m, before in zip(moments, days, strict=False)]
    axes.set_xticks([place - 0.5 for place in places], texts)
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
    with Drawing(WIDTH, BAR * len(kinds) + 0.6) as figure:
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
    colour, hatch = GRAVITY[severity]
    label = f"{severity}  {sum(counts):,}"
    places = range(len(counts))
    axes.barh(places, counts, height=0.72, left=left, color=colour, hatch=hatch, linewidth=0, label=label)


def _label(name: str) -> str:
    text = visible(name)
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}…"


def _name_bars(axes: Axes, names: Sequence[str], totals: Sequence[int]) -> None:
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.invert_yaxis()
    for place, total in enumerate(totals):
        axes.annotate(f"{total:,}", (total, place), xytext=(5, 0), textcoords="offset points", va="center")
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


class Drawing:
    """A figure to draw in, in inches; the settings hold while it is open, for matplotlib looks at them all the time."""

    def __init__(self, width: float, height: float) -> None:
        self._context = matplotlib.rc_context(SETTINGS)
        self._size = (width, height)

    def __enter__(self) -> Figure:
        self._context.__enter__()
        return Figure(figsize=self._size, layout="constrained")

    def __exit__(self, *failure: object) -> None:
        self._context.__exit__(None, None, None)


def to_svg(figure: Figure, name: str, title: str) -> str:
    """An ``svg`` element for a page. ``name``: begins its ids, unlike those of others; ``title``: read aloud.

    The same figure gives the same text. Within `Drawing`.
    """
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # of letters that its font lacks: the page's font shows them
        figure.savefig(out, format="svg", metadata=NO_METADATA)
    root = ElementTree.fromstring(out.getvalue())
    for element in root.findall(f"{{{SVG}}}metadata"):
        root.remove(element)
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
