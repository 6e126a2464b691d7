"""Which licence a component has, as an SPDX expression, and whether it is allowed: see licences.toml."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from license_expression import ExpressionError, get_spdx_licensing

SPDX = get_spdx_licensing()
_TABLE = tomllib.loads(Path(__file__).with_name("licences.toml").read_text(encoding="utf-8"))
ALLOWED: frozenset[str] = frozenset(_TABLE["allowed"])
DECLARED: dict[str, str] = _TABLE["declared"]
PYTHON: dict[str, str] = _TABLE["python"]
MAVEN: dict[str, str] = _TABLE["maven"]


class UnknownLicence(Exception):
    """A component declares no licence that can be named, and the table has none for it."""


def of_package(name: str, declared: Iterable[str]) -> str:
    """The licence of a Python package.

    Raises:
        UnknownLicence: neither the table nor the package names one.
    """
    return PYTHON.get(name) or _together(name, declared)


def of_jar(group: str, artifact: str, declared: Iterable[str]) -> str:
    """The licence of a jar: the table's for this jar, else what the jar declares, else the table's for its group.

    Raises:
        UnknownLicence: nothing names one.
    """
    exact = MAVEN.get(f"{group}:{artifact}")
    if exact or declared:
        return exact or _together(f"{group}:{artifact}", declared)
    groups = [key for key in MAVEN if ":" not in key and f"{group}.".startswith(f"{key}.")]
    if not groups:
        raise UnknownLicence(f"{group}:{artifact} declares no licence")
    return MAVEN[max(groups, key=len)]


def group_of(artifact: str) -> str:
    """The group of a jar that does not name it, by the table; empty if it is not there."""
    return next((key.partition(":")[0] for key in MAVEN if key.endswith(f":{artifact}")), "")


def is_allowed(expression: str) -> bool:
    """Whether the licence, or one of those that can be chosen, is on the list."""
    return _is_allowed(SPDX.parse(expression))


def _is_allowed(parsed: Any) -> bool:
    if isinstance(parsed, SPDX.OR):
        return any(map(_is_allowed, parsed.args))
    if isinstance(parsed, SPDX.AND):
        return all(map(_is_allowed, parsed.args))
    return str(parsed) in ALLOWED


def _together(component: str, declared: Iterable[str]) -> str:
    """All that is declared applies; a classifier says nothing beside the identifier of the same licence."""
    expressions = list(dict.fromkeys(_expression(component, text) for text in declared))
    if not expressions:
        raise UnknownLicence(f"{component} declares no licence")
    several = len(expressions) > 1
    return " AND ".join(f"({each})" if several and " OR " in each else each for each in expressions)


def _expression(component: str, text: str) -> str:
    short = re.sub(r"^https?://(www\.)?|\.(txt|html|php)$", "", text.split(";")[0].strip(' "'))
    for known in (text, short):
        if known in DECLARED:
            return DECLARED[known]
    try:
        return str(SPDX.parse(short, validate=True))
    except ExpressionError:
        raise UnknownLicence(f"{component} declares {text!r}, which deploy/sbom/licences.toml does not have") from None
