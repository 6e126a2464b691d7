"""The line and column in a file at which a finding about a document belongs: those of the field that it names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from policy.core.plain_data import Parser, Unreadable, decode_text
from policy.store.repository import JSON_LINES, Located, Place
from policy.systems import all_systems
from policy.systems.kit.engine import Engine, engine_of

PATH = re.compile(r"[\w-]+(\[\d+\])*(\.[\w-]+(\[\d+\])*)*")
STEP = re.compile(r"([\w-]+)|\[(\d+)\]")

Step = str | int
"""The name of a field, or the number of an item from 0."""


class Positions:
    """Positions in files, each of which is read when the first one in it is looked for.

    `texts`: by name, those of files that are not on the disk.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = texts or {}
        self._nodes: dict[str, list[yaml.Node]] = {}

    def find(self, document: Located, message: str, statement: int | None = None) -> Place:
        """The place of what a message names at its beginning (``statements[2].action: …``), or of a statement.

        The place of the document, where nothing in it is named.
        """
        node = self._document(document.place)
        if node is None:
            return document.place
        mark = _marked(node, list(_steps(message)), statement, _engine_of(document.value))
        if mark is None:
            return document.place
        first = document.place.line if Path(document.place.file).suffix.lower() in JSON_LINES else 1
        line = mark.line + (first or 1)
        return msgspec.structs.replace(document.place, line=line, column=mark.column + 1)

    def _document(self, place: Place) -> yaml.Node | None:
        lined = Path(place.file).suffix.lower() in JSON_LINES
        key = f"{place.file}:{place.line}" if lined else place.file
        if key not in self._nodes:
            self._nodes[key] = _read(place, lined, self._texts.get(place.file))
        nodes, number = self._nodes[key], 1 if lined else place.number or 1
        return nodes[number - 1] if number <= len(nodes) else None


def _read(place: Place, lined: bool, text: str | None) -> list[yaml.Node]:
    """The documents of a file, or the one of a line, as nodes with marks; none where it is no YAML, as JSON mostly is.

    The file may have changed since it was checked.
    """
    try:
        text = decode_text(Path(place.file).read_bytes()) if text is None else text
        if lined:
            text = text.split("\n")[(place.line or 1) - 1]
        return list(_documents(text))
    except (OSError, Unreadable, IndexError, yaml.YAMLError, RecursionError):
        return []


def _documents(text: str) -> Iterator[yaml.Node]:
    for node in yaml.compose_all(text, Loader=Parser):
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        elif isinstance(node, yaml.MappingNode):
            yield node


def _steps(message: str) -> Iterator[Step]:
    """The steps to what a message is about: its path, then its first word, which may be a field (`action …`)."""
    path, colon, text = message.partition(": ")
    if colon and PATH.fullmatch(path):
        for name, number in STEP.findall(path):
            yield name or int(number)
        yield text.partition(" ")[0]


class Mark(NamedTuple):
    """Line and column, from 0."""

    line: int
    column: int


def _engine_of(document: Any) -> Engine | None:
    system = document.get("system") if isinstance(document, Mapping) else None
    return engine_of(all_systems().get(system)) if isinstance(system, str) else None


def _marked(node: yaml.Node, steps: list[Step], statement: int | None, engine: Engine | None) -> Mark | None:
    """Where what the steps name begins, or the statement."""
    spec = _value(node, "spec")
    if not steps:
        return None if statement is None or spec is None else _statement(spec, statement, engine)
    of_text = engine is not None and steps[0] == engine.statement_text and len(steps) > 1
    number = steps[1] if of_text else None
    if isinstance(number, int) and spec is not None:  # `policies[2]: …`, where the policies are one text
        return _statement(spec, number, engine)
    return (_mark(spec, steps) if spec is not None else None) or _mark(node, steps)


def _mark(node: yaml.Node, steps: Sequence[Step]) -> Mark | None:
    """Where the last of the steps begins that is there; None: not even the first one is."""
    mark = None
    for step in steps:
        key, value = _child(node, step)
        if key is None or value is None:
            break
        mark, node = _begin(key), value
    return mark


def _child(node: yaml.Node, step: Step) -> tuple[yaml.Node | None, yaml.Node | None]:
    """What a step begins with, and what it leads to."""
    if isinstance(node, yaml.MappingNode):
        fields = ((key, value) for key, value in node.value if key.value == step)
        return next(fields, (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None, None


def _value(node: yaml.Node, field: str) -> yaml.Node | None:
    return _child(node, field)[1]


def _begin(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line, node.start_mark.column)


def _statement(spec: yaml.Node, number: int, engine: Engine | None) -> Mark | None:
    """Where a statement begins: in the text of statements, if there is one; behind these in the list of mappings."""
    text = _value(spec, engine.statement_text) if engine is not None and engine.statement_text else None
    if engine is not None and isinstance(text, yaml.ScalarNode):
        lines = engine.lines_of_statements(text.value)
        if number < len(lines):
            return _in_text(text, lines[number])
        number -= len(lines)
    lists = [value for _, value in spec.value if _is_list(value)] if isinstance(spec, yaml.MappingNode) else []
    return _begin(lists[0].value[number]) if len(lists) == 1 and number < len(lists[0].value) else None


def _in_text(text: yaml.ScalarNode, line: int) -> Mark:
    """A line of a text, from 1. Only a literal one (`|`) has each of its lines in a line of the file."""
    begin = _begin(text)
    return Mark(begin.line + line, 0) if text.style == "|" else begin


def _is_list(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.MappingNode) for item in node.value)
