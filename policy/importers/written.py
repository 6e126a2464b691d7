"""Imported documents as one YAML file: the same documents are the same bytes, and edits are noticed."""

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

from policy.core.yaml_text import dump_yaml
from policy.importers.frame import Document

State = Literal["written", "edited", "foreign"]

_HEAD = re.compile(
    r"# Written by `lockkeeper import (?P<source>\S+)`; (?P<mark>sha256:[0-9a-f]{64}) of what follows\.\n"
)
_ADVICE = "# Change it at the source and import it again: a file that was edited is not written over.\n"


def to_text(source: str, documents: Iterable[Document]) -> str:
    """The file of the documents that ``source`` gave."""
    body = _ADVICE + "".join(f"---\n{dump_yaml(document)}" for document in documents)
    return f"# Written by `lockkeeper import {source}`; {_mark(body)} of what follows.\n{body}"


def state_of(source: str, text: str) -> State:
    """Whether a file is as an import from ``source`` wrote it, was edited since, or is none."""
    head = _HEAD.match(text)
    if head is None or head["source"] != source:
        return "foreign"
    return "written" if _mark(text[head.end() :]) == head["mark"] else "edited"


def _mark(body: str) -> str:
    return "sha256:" + hashlib.sha256(body.encode()).hexdigest()
