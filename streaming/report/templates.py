"""Templates of pages. What comes from outside is escaped, whatever it is."""

from typing import Any

import jinja2
from markupsafe import Markup

from streaming.report.untrusted import shortened
from streaming.terminal import one_line

LONGEST = 2000  # characters of any text: a message, a piece of evidence


def page_environment(package: str) -> jinja2.Environment:
    """The templates of a package. A name that they are not given is an error, never an empty text."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _harmless(value: Any) -> Any:
    """What every expression goes through before it is escaped. Markup is of our own templates."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else one_line(shortened(value, LONGEST))
