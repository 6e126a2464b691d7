"""Imported documents as one YAML file: the same documents are the same bytes, and edits are noticed."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Literal

import yaml

from policy.core.plain_data import CONSTANTS, DECIMAL, INTEGER, NOTHING
from policy.importers.frame import Document

State = Literal["written", "edited", "foreign"]

_HEAD = re.compile(
    r"# Written by `lockkeeper import (?P<source>\S+)`; (?P<mark>sha256:[0-9a-f]{64}) of what follows\.\n"
)
_ADVICE = "# Change it at the source and import it again: a file that was edited is not written over.\n"
_UNSEEN = {"Cc", "Cf"}  # control and format characters, which could make a reviewer see another text


class _Dumper(yaml.SafeDumper):
    """Writes every value out, and quotes all text that `policy.core.plain_data` would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Documents have no aliases."""
        return True


for _tag, _pattern in (
    ("null", "|".join(map(re.escape, NOTHING))),
    ("bool", "|".join(CONSTANTS)),
    ("int", INTEGER.pattern),
    ("float", DECIMAL.pattern),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None)


def to_text(source: str, documents: Iterable[Document]) -> str:
    """The file of the documents that ``source`` gave."""
    body = _ADVICE + "".join(f"---\n{_dump(document)}" for document in documents)
    return f"# Written by `lockkeeper import {source}`; {_mark(body)} of what follows.\n{body}"


def state_of(source: str, text: str) -> State:
    """Whether a file is as an import from ``source`` wrote it, was edited since, or is none."""
    head = _HEAD.match(text)
    if head is None or head["source"] != source:
        return "foreign"
    return "written" if _mark(text[head.end() :]) == head["mark"] else "edited"


def _mark(body: str) -> str:
    return "sha256:" + hashlib.sha256(body.encode()).hexdigest()


def _dump(document: Document) -> str:
    plain = _to_yaml(document, unescaped=True)
    unseen = any(unicodedata.category(mark) in _UNSEEN for mark in plain if mark != "\n")
    return _to_yaml(document, unescaped=False) if unseen else plain


def _to_yaml(document: Document, unescaped: bool) -> str:
    """``unescaped``: as they are, else as escapes where they are not ASCII."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=unescaped, width=110)
    return text
