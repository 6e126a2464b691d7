"""Where imported documents are written: one file for each source. A file that was edited by hand is not overwritten."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from policy import FilesRefused, Unreadable, decode_text, identify, read_documents, read_yaml
from policy.importers import state_of, to_text


class Plan(msgspec.Struct, frozen=True):
    """What writing would do. Documents by ``system/kind/name``; ``before``: the file's text, None: there is none."""

    file: Path
    before: str | None
    now: str
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.now


def plan(source: str, documents: Sequence[dict[str, Any]], folder: Path) -> Plan:
    """What importing ``documents`` into ``folder`` would do.

    Raises FilesRefused where a file would be written over that was not written by an import of this source, or that
    was edited since, and for documents that other files of the folder have.
    """
    file, new = folder / f"{source}.yaml", {str(identify(document)): document for document in documents}
    before = _written_before(source, file)
    old = {} if before is None else {str(identify(part.value)): part.value for part in read_yaml(before)}
    if doubled := list(_doubled(new, folder, file)):
        raise FilesRefused(doubled)
    return Plan(
        file,
        before,
        to_text(source, documents),
        tuple(sorted(new.keys() - old.keys())),
        tuple(sorted(key for key in new.keys() & old.keys() if new[key] != old[key])),
        tuple(sorted(old.keys() - new.keys())),
    )


def write(plan: Plan) -> None:
    """Write the file, all of it or nothing. Raises FilesRefused."""
    draft = plan.file.with_name(f".{plan.file.name}.draft")
    try:
        plan.file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(plan.now, encoding="utf-8", newline="\n")
        os.replace(draft, plan.file)
    except OSError as error:
        raise FilesRefused([f"{plan.file}: cannot be written: {error.strerror}"]) from error


def _written_before(source: str, file: Path) -> str | None:
    try:
        text = decode_text(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FilesRefused([f"{file}: {error.strerror}"]) from error
    except Unreadable:
        text = ""
    state = state_of(source, text)
    if state == "foreign":
        raise FilesRefused([f"{file}: was not written by `lockkeeper import {source}`: move it, or choose a folder"])
    if state == "edited":
        why = "was edited since it was imported: move what was edited to the source or to a file of its own"
        raise FilesRefused([f"{file}: {why}, and delete it"])
    return text


def _doubled(new: dict[str, dict[str, Any]], folder: Path, file: Path) -> Iterator[str]:
    """Documents that another file of the folder has too: lockkeeper would refuse both."""
    if not folder.exists():
        return
    for place, value in read_documents(folder, may_be_empty=True):
        named = isinstance(value, dict) and all(isinstance(value.get(part), str) for part in ("system", "kind", "name"))
        if named and Path(place.file) != file and "/".join((value["system"], value["kind"], value["name"])) in new:
            key = "/".join((value["system"], value["kind"], value["name"]))
            yield f"{place}: has {key}, which is imported too: delete it there, or leave it out at the source"
