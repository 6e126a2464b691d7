"""YAML and JSON text as plain data, and nothing that means more than it shows.

YAML here is its JSON-like core: `true`/`false`, `null`, numbers, text, lists and mappings. A date stays
text, `no` and `on` stay text, `010` stays text; duplicate keys, aliases and tags are refused. Reading
works on the parser's events and stops at the nesting limit: deeper, libyaml takes minutes for a text of 500 kB.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from policy.core.request import MAX_NESTING, check_nesting
from policy.core.unique_names import unique_members

Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of documents its events alone are used, never its values

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18}([eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})")
CONSTANTS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
HINTS = {
    ("alias", "anchor"): ". A text that begins with * or & needs quotes",
    (
        "expected key",
        "block end",
        "block entry",
        "'-' indicator",
        "mapping values",
    ): ". Check the indentation: fields of one mapping begin in the same column",
    (
        "cannot start any token",
    ): ". Indent with spaces, not with tabs, and put text that begins with @, % or ` in quotes",
}
"""What to try, by words of a parser's error."""

SHOWN = 40  # characters of a number in a message


class Unreadable(Exception):
    """Text that is not YAML or JSON as it should be; `line` and `column` count from 1, None when they are not known."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.message = message
        self.line = line
        self.column = column


class UnreadableNumber(Unreadable):
    """A number in JSON that has no value here. YAML takes the same characters as text: it must not be tried."""


class Part(msgspec.Struct, frozen=True):
    """One value of a text that may hold many. `line`: where it begins; `lines`: where its items do, if a list."""

    line: int
    value: Any
    lines: tuple[int, ...] = ()


def decode_text(data: bytes) -> str:
    """UTF-8 as text, without a byte order mark. Raises Unreadable."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"byte {error.start} is not UTF-8: save the file as UTF-8, or remove it if it is not text", line
        ) from None


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises Unreadable, also for duplicate keys and too deep nesting, and
    UnreadableNumber for NaN and for numbers that are too large.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_members,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_no_constant,
        )
        _check(value)
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error.msg} at column {error.colno}", error.lineno, error.colno) from None
    except RecursionError:
        raise Unreadable(f"nested deeper than {MAX_NESTING}") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UnreadableNumber(f"a number of {len(text)} digits is too large: put it in quotes if it is text") from None


def _decimal(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnreadableNumber(f"{text[:SHOWN]} is too large for a number: put it in quotes if it is text")
    return value


def _no_constant(text: str) -> None:
    raise UnreadableNumber(f"{text} is not a JSON number: put it in quotes if it is text")


def _check(value: Any) -> None:
    """Raise ValueError for what could not be written again."""
    check_nesting(value)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair (\\ud800 to \\udfff): it is no character") from None


def read_value(data: bytes) -> Any:
    """The one value in the bytes of a record, in JSON or YAML. Raises Unreadable.

    What is JSON says the same here as in a file: a number that `read_json` refuses is not read as text.
    """
    text = decode_text(data)
    try:
        return read_json(text)
    except UnreadableNumber:
        raise
    except Unreadable as not_json:
        parts = read_yaml(text)
        if len(parts) != 1:
            message = f"holds {len(parts)} documents instead of one; read as JSON: {not_json}"
            raise Unreadable(message) from None
        return parts[0].value


def read_yaml(text: str) -> list[Part]:
    """The documents of a YAML text, empty ones left out.

    Raises Unreadable for anything but the plain YAML that this module reads.
    """
    try:
        return [part for part in _parts(text) if part.value is not None]
    except yaml.YAMLError as error:
        raise unreadable_yaml(error, text) from None


def unreadable_yaml(error: yaml.YAMLError, text: str) -> Unreadable:
    """What PyYAML says of a text, with the line and what to try."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        return Unreadable(_explain(error), *(() if mark is None else (mark.line + 1, mark.column + 1)))
    unprintable = yaml.reader.Reader.NON_PRINTABLE.search(text) if isinstance(error, yaml.reader.ReaderError) else None
    if unprintable is None:
        return Unreadable(f"not YAML: {error}")
    message = f"not YAML: unacceptable character U+{ord(unprintable[0]):04X}; remove it, or the file if it is not text"
    return Unreadable(message, text.count("\n", 0, unprintable.start()) + 1)


def _explain(error: yaml.MarkedYAMLError) -> str:
    problem = " ".join(filter(None, (error.context, error.problem)))
    hints = (hint for words, hint in HINTS.items() if any(word in problem for word in words))
    return f"not YAML: {problem}{next(hints, '')}"


def _parts(text: str) -> Iterator[Part]:
    builder = _Builder()
    for event in yaml.parse(text, Loader=Parser):
        if isinstance(event, yaml.DocumentStartEvent):
            builder = _Builder()
        elif isinstance(event, yaml.DocumentEndEvent):
            yield builder.part()
        else:
            builder.take(event)


class _Node:
    """A list or mapping being filled."""

    def __init__(self, value: list[Any] | dict[str, Any]) -> None:
        self.value = value
        self.lines: list[int] = []
        self.key: str | None = None

    def add(self, value: Any, line: int) -> None:
        """Take an item, or in turn a key and its value."""
        if isinstance(self.value, list):
            self.value.append(value)
            self.lines.append(line)
        elif self.key is None:
            self.key = self._new_key(value, line)
        else:
            self.value[self.key] = value
            self.key = None

    def _new_key(self, key: Any, line: int) -> str:
        if not isinstance(key, str):
            raise Unreadable(f"the key {key!r} is not text: put it in quotes", line)
        if key in self.value:
            raise Unreadable(f"duplicate key {key!r} in one mapping: remove one", line)
        return key


class _Builder:
    """Makes the value of one YAML document out of the parser's events."""

    def __init__(self) -> None:
        self._documents: list[Any] = []
        self._root = _Node(self._documents)
        self._top: _Node | None = None
        self._open = [self._root]

    def take(self, event: yaml.Event) -> None:
        """Take the document's next event. Raises Unreadable."""
        if isinstance(event, yaml.NodeEvent):
            _refuse_indirection(event)
        if isinstance(event, yaml.ScalarEvent):
            self._open[-1].add(_scalar(event), _line(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._open) > MAX_NESTING:
            raise Unreadable(f"nested deeper than {MAX_NESTING}", _line(event))
        node = _Node([] if isinstance(event, yaml.SequenceStartEvent) else {})
        self._top = self._top or node
        self._open[-1].add(node.value, _line(event))
        self._open.append(node)

    def part(self) -> Part:
        """The document, when its last event was taken."""
        top = self._top.lines if self._top is not None and isinstance(self._top.value, list) else []
        return Part(self._root.lines[0], self._documents[0], tuple(top))


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None, "what came from a text has a mark"
    return event.start_mark.line + 1


def _refuse_indirection(event: yaml.NodeEvent) -> None:
    """What a document says must stand where it is read."""
    if isinstance(event, yaml.AliasEvent):
        message = f"an alias, *{event.anchor}, is not supported: write the value out, or quote it if it is text"
        raise Unreadable(message, _line(event))
    if event.anchor is not None:
        message = f"an anchor, &{event.anchor}, is not supported: leave it out, or quote it if it is text"
        raise Unreadable(message, _line(event))
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise Unreadable(f"a tag, {tag}, is not supported: leave it out, or quote it if it is text", _line(event))


def _scalar(event: yaml.ScalarEvent) -> Any:
    text = str(event.value)
    if not event.implicit[0]:  # in quotes
        return text
    if text in NOTHING:
        return None
    if text in CONSTANTS:
        return CONSTANTS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if DECIMAL.fullmatch(text) else text
