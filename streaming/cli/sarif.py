"""SARIF 2.1.0: findings beside the lines of files, for code scanning."""

import os
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from policy import Place

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

Rules = Mapping[str, tuple[str, str]]
"""By its id, the level of a rule's results (error, warning, note) and what it is about."""


def sarif_log(command: str, rules: Rules, results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The output of a command."""
    from importlib.metadata import version

    from streaming import DISTRIBUTION

    described = [{"id": id_, "shortDescription": {"text": text}} for id_, (_, text) in rules.items()]
    driver = {"name": command, "version": version(DISTRIBUTION), "rules": described}
    run = {"tool": {"driver": driver}, "results": list(results)}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def sarif_result(rules: Rules, rule: str, text: str, path: str, location: "Place | None" = None) -> dict[str, Any]:
    """One finding, at a location in a file; without one at `path`, without a line at its beginning."""
    file, line, column = (path, 1, None) if location is None else (location.file, location.line or 1, location.column)
    region = {"startLine": line, **({} if column is None else {"startColumn": column})}
    uri = quote(os.fsencode(PurePath(file).as_posix()))
    where = {"artifactLocation": {"uri": uri}, "region": region}
    message = {"text": text}
    return {"ruleId": rule, "level": rules[rule][0], "message": message, "locations": [{"physicalLocation": where}]}
