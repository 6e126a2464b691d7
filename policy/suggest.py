"""What a misspelt name may have been meant as."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean …?", or nothing when nothing is near. `prefix`: what every name begins with says nothing."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [other.removeprefix(prefix) for other in known], n=3)
    return f"; did you mean {' or '.join(prefix + other for other in close)}?" if close else ""
