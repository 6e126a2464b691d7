"""A matplotlib figure as an element for a page: its text is text, its ids are its own, its ink is the page's."""

import io
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

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
