"""Reading what importers are given: YAML and JSON as plain data, CSV as rows of named cells."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from policy.core.plain_data import Unreadable, decode_text, read_json, read_yaml
from policy.importers.frame import Findings, ImportInput, Spot
from policy.store.repository import FilesRefused

MAX_INPUT = 64 << 20  # bytes of one input file
EMPTY_LIST = "[]"  # of a CSV cell: a list without items, where an empty cell would say that it is not known
CUT_OFF = "ends in a comma, without an end of the line: the file may be cut off; end the line if it is not"
SEPARATOR = "|"  # between the items of a list in a CSV cell


class Row(msgspec.Struct, frozen=True):
    """A row of a CSV file. ``line``: where it ends, from 1; ``cells``: those that are not empty, by column.

    ``columns``: of the file. ``problem``: why the row cannot be read; then its cells may stand in wrong columns.
    """

    line: int
    columns: tuple[str, ...]
    cells: dict[str, str]
    problem: str = ""

    @property
    def place(self) -> str:
        """For findings."""
        return f"line {self.line}"


def read_spots(files: Iterable[ImportInput], findings: Findings) -> Iterator[tuple[Spot, Any]]:
    """Each document of YAML or JSON files, with its place, such as ``document 2``.

    Raises FilesRefused, also for YAML with anchors, aliases or tags: what a file says must stand where it is read.
    """
    for file in files:
        text = read_text(file)
        try:
            is_json = file.file.lower().endswith(".json")
            values = [read_json(text)] if is_json else [part.value for part in read_yaml(text)]
        except Unreadable as error:
            raise _refused(file, error) from None
        if not values:
            raise FilesRefused([f"{file.file}: holds nothing"])
        for number, value in enumerate(values, 1):
            yield findings.at(file.file, "" if len(values) == 1 else f"document {number}"), value


def read_rows(file: ImportInput, required: Collection[str], optional: Collection[str]) -> list[Row]:
    """The rows of a CSV file whose first row names its columns, blank rows left out.

    Raises FilesRefused for what is no such file: a column that is missing, named twice or unknown (it might say that
    a row is a restriction), a quote that is not closed.
    """
    text = read_text(file)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = tuple(name.strip().lower() for name in next(reader, []))
        _check_columns(file, columns, required, optional)
        rows = [_row(reader.line_num, columns, cells) for cells in reader if any(cells)]
    except csv.Error as error:
        message = f"not CSV: {error}; write quotes inside of quotes twice, and separate cells with commas"
        raise FilesRefused([f"{file.file}:{reader.line_num}: {message}"]) from None
    # Cut off behind a comma, a row would only lack what restricts it: an effect, an end.
    if rows and not rows[-1].problem and text.endswith(","):
        rows[-1] = msgspec.structs.replace(rows[-1], problem=CUT_OFF)
    return rows


def list_cell(cell: str) -> list[str]:
    """The items of a cell that holds a list."""
    return [] if cell == EMPTY_LIST else cell.split(SEPARATOR)


def read_text(file: ImportInput) -> str:
    """The text of a file in UTF-8. Raises FilesRefused, also for one that is too large."""
    if len(file.data) > MAX_INPUT:
        raise FilesRefused([f"{file.file}: {len(file.data)} bytes; at most {MAX_INPUT}: split the file"])
    try:
        return decode_text(file.data)
    except Unreadable as error:
        raise _refused(file, error) from None


def _refused(file: ImportInput, error: Unreadable) -> FilesRefused:
    line = "" if error.line is None else f":{error.line}"
    return FilesRefused([f"{file.file}{line}: {error.message}"])


def _check_columns(
    file: ImportInput, columns: tuple[str, ...], required: Collection[str], optional: Collection[str]
) -> None:
    names = [*required, *optional]
    errors = [f"the column {name!r} is missing" for name in required if name not in columns]
    errors += [f"the column {name!r} is not known" for name in dict.fromkeys(columns) if name not in names]
    errors += [f"duplicate column {name!r}" for name, count in Counter(columns).items() if count > 1]
    if errors:
        raise FilesRefused([f"{file.file}:1: {error}; columns are {', '.join(names)}" for error in errors])


def _row(line: int, columns: tuple[str, ...], cells: list[str]) -> Row:
    named = {name: cell for name, cell in zip(columns, cells, strict=False) if cell}
    if len(cells) != len(columns):
        return Row(line, columns, named, f"has {len(cells)} cells where the first row names {len(columns)} columns")
    spaced = sorted(name for name, cell in named.items() if cell != cell.strip())
    if spaced:
        return Row(
            line, columns, named, f"has spaces around what stands in {', '.join(spaced)}; names are compared exactly"
        )
    return Row(line, columns, named)
