"""Policy documents in files: one file or a folder of them, each document with its place."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from policy.core.plain_data import Part, Unreadable, decode_text, read_json, read_yaml

YAML = frozenset({".yaml", ".yml"})
JSON = frozenset({".json"})
JSON_LINES = frozenset({".jsonl", ".ndjson"})
SUFFIXES = YAML | JSON | JSON_LINES


class Place(msgspec.Struct, frozen=True, order=True):
    """The place of a document: its file, the line it begins on, and its number in the file; both from 1.

    With a `column`, the place of a field in it. What is None is not known.
    """

    file: str
    line: int | None = None
    number: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.column is not None:
            return f"{self.file}:{self.line}:{self.column}"
        line = "" if self.line is None else f":{self.line}"
        number = "" if self.number is None else f" (document {self.number})"
        return f"{self.file}{line}{number}"


class Located(NamedTuple):
    """A document as it was read, unchecked, and its place."""

    place: Place
    value: Any


class FilesRefused(Exception):
    """Files that cannot be read; `errors` names every one, each text beginning with the place."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


class FilesMissing(FilesRefused):
    """A path at which there is nothing."""


def read_documents(path: Path, may_be_empty: bool = False) -> list[Located]:
    """Every document of a file, or of all files below a folder, by file name and place in the file.

    Files are YAML (`.yaml`, `.yml`), JSON (`.json`) or JSON lines (`.jsonl`, `.ndjson`), and hold one document
    or many. Hidden files and folders are left out. Raises FilesRefused when a file cannot be read, or when
    there is no document at all and that is not expected.
    """
    documents: list[Located] = []
    errors: list[str] = []
    for file in document_files(path):
        try:
            documents += read_document_text(decode_text(file.read_bytes()), str(file))
        except Unreadable as error:
            errors.append(f"{Place(str(file), error.line, column=error.column)}: {error.message}")
        except OSError as error:
            errors.append(f"{file}: {error.strerror}")
    if not documents and not errors and not may_be_empty:
        hint = f"; they are read from files ending in {_suffixes()}" if path.is_dir() else ""
        errors.append(f"{path}: no documents{hint}")
    if errors:
        raise FilesRefused(errors)
    return documents


def read_document_text(text: str, file: str) -> list[Located]:
    """Every document of a text, as in a file of this name. Raises Unreadable."""
    values = enumerate(_values(Path(file).suffix.lower(), text), 1)
    return [Located(Place(file, line, number), value) for number, (line, value) in values]


def document_files(path: Path) -> list[Path]:
    """The files that `read_documents` reads. Raises FilesRefused for a path that is none."""
    if path.is_dir():
        return files_below(path, SUFFIXES)
    if not path.exists():
        raise FilesMissing([f"{path}: there is no such file or folder"])
    if path.suffix.lower() not in SUFFIXES:
        raise FilesRefused([f"{path}: the name must end in {_suffixes()}, to say what the file holds"])
    return [path]


def is_document(name: str) -> bool:
    """Whether `read_documents` reads a file of this name in a folder: not hidden, and with a suffix for documents."""
    path = Path(name)
    return path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts)


def files_below(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files with these suffixes in a folder and all folders below, but for hidden ones, by name.

    Raises FilesRefused for a folder that cannot be read and for a link to one: what is left out may hold a deny, and
    `apply --prune` would delete it.
    """
    unread, links, files = list[OSError](), list[Path](), list[Path]()
    for parent, folders, names in os.walk(folder, onerror=unread.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += [path for path in (Path(parent, name) for name in folders) if path.is_symlink()]
        visible = (Path(parent, name) for name in names if not name.startswith("."))
        files += [path for path in visible if path.suffix.lower() in suffixes]
    errors = [f"{Path(error.filename)}: {error.strerror}" for error in unread]
    errors += [f"{path}: links to folders are not followed: put the folder there, or links to files" for path in links]
    if errors:
        raise FilesRefused(errors)
    return sorted(files)


def _suffixes() -> str:
    return ", ".join(sorted(SUFFIXES))


def _values(suffix: str, text: str) -> Iterator[tuple[int | None, Any]]:
    """(line, value) of each document of a file's text."""
    if suffix in YAML:
        for part in read_yaml(text):
            yield from _items(part)
    elif suffix in JSON:
        value = read_json(text)
        yield from ((None, item) for item in value) if isinstance(value, list) else [(1, value)]
    else:
        yield from _json_lines(text)


def _items(part: Part) -> Iterator[tuple[int | None, Any]]:
    if isinstance(part.value, list):
        yield from zip(part.lines, part.value, strict=True)
    else:
        yield part.line, part.value


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            try:
                yield line, read_json(content)
            except Unreadable as error:
                raise Unreadable(error.message, line) from None
