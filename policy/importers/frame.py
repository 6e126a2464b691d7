"""What all importers share: what they are given, what they find, and what is made sure of at the end.

A source is a function from the files of one platform to policy documents. What it cannot take over exactly it reports,
and it never lets that widen access: an allow is left out (a warning), a deny or another restriction is an error that
refuses the run. Where the principals that an error concerns are known, the translator withholds their permissions, so
that the documents are safe with `--partial` too; where they are unknown, no document of the run is safe.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from policy.core.document import MAX_BYTES, Key, identify
from policy.store.documents import DocumentStore
from policy.store.repository import FilesRefused
from policy.store.snapshot import compile_documents
from policy.systems import all_systems

Level = Literal["error", "warning", "note"]
Document = dict[str, Any]

LONGEST = 400  # characters of the text of one finding: input may be of any length
FATAL = "; which principals that concerns is not known, so no document of this run is safe to import"


class ImportInput(msgspec.Struct, frozen=True):
    """An input file: its name, for findings, and its bytes."""

    file: str
    data: bytes


class Finding(msgspec.Struct, frozen=True):
    """What could not be taken over: where it stands, why, and what to do.

    error: ignored, it could widen access. warning: it narrows access. note: access stays the same.
    """

    level: Level
    file: str
    place: str
    why: str
    fix: str

    def __str__(self) -> str:
        where = ": ".join(filter(None, (self.file, self.place)))
        return f"{where}: {self.level}: {self.why}. To do: {self.fix}"


class Findings:
    """The findings of a run, in the order of its input. ``fatal``: no document of the run is safe."""

    def __init__(self) -> None:
        self.distinct: dict[Finding, None] = {}
        self.fatal = False

    def at(self, file: str, path: str = "") -> "Spot":
        """A place in a file."""
        return Spot(self, file, path)


class Spot:
    """A place in an input file, such as ``policies[3].denyPolicyItems`` or ``row 7``."""

    def __init__(self, findings: Findings, file: str, path: str) -> None:
        self._findings = findings
        self.file = file
        self.place = path

    def inside(self, step: str | int) -> "Spot":
        """A field or an item of what stands here."""
        dot = "." if self.place else ""
        path = f"{self.place}[{step}]" if isinstance(step, int) else f"{self.place}{dot}{step}"
        return Spot(self._findings, self.file, path)

    def beside(self, path: str) -> "Spot":
        """Another place in the same file."""
        return Spot(self._findings, self.file, path)

    def error(self, why: str, fix: str) -> None:
        """A restriction that is not imported; what it concerns is withheld."""
        self._add("error", why, fix)

    def fatal(self, why: str, fix: str) -> None:
        """What may be a restriction, of unknown principals: no document of the run is safe."""
        self._add("error", why, fix, FATAL)
        self._findings.fatal = True

    def warning(self, why: str, fix: str) -> None:
        """Something that allows and is not imported."""
        self._add("warning", why, fix)

    def note(self, why: str, fix: str) -> None:
        """Something without effect on access that is not imported, or is with a difference in form."""
        self._add("note", why, fix)

    def _add(self, level: Level, why: str, fix: str, end: str = "") -> None:
        why = why if len(why) <= LONGEST else f"{why[:LONGEST]} …"
        self._findings.distinct[Finding(level, self.file, self.place, why + end, fix)] = None


class Source(msgspec.Struct, frozen=True):
    """A platform's format. ``system``: of its documents. ``about``: what the files hold, in one sentence of the help.

    ``examples``: command lines for the help. ``cluster``: without files it is given the ACLs of a Kafka cluster, as a
    JSON list of them.
    """

    system: str
    about: str
    translate: Callable[[Sequence[ImportInput], Findings], Iterable[Document]]
    examples: tuple[str, ...] = ()
    cluster: bool = False


class Target(msgspec.Struct, frozen=True):
    """The other direction: documents of ``system`` as what its platform takes.

    ``write``: the lines for documents that are accepted, and findings about what has no counterpart there.
    """

    system: str
    about: str
    write: Callable[[Sequence[Document], Findings], Iterable[str]]
    examples: tuple[str, ...] = ()


class Export(msgspec.Struct, frozen=True):
    """What a platform is given, and what of the documents it does not say."""

    text: str
    findings: tuple[Finding, ...]


class Translation(msgspec.Struct, frozen=True):
    """Documents by kind and name, fit for `compile_documents`, and the findings in the order of the input.

    ``fatal``: there are no documents since none would be safe, which is another thing than that there are none:
    what was imported before may hold a deny, and has to stay.
    """

    documents: tuple[Document, ...]
    findings: tuple[Finding, ...]
    fatal: bool

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What refuses the run, unless what it concerns may be withheld."""
        return tuple(finding for finding in self.findings if finding.level == "error")


def translate(source: Source, files: Sequence[ImportInput]) -> Translation:
    """Import the files of one source, all of them at once. Raises FilesRefused for files that cannot be read.

    The documents are safe whatever was found: what an error concerns is not in them.
    """
    findings = Findings()
    documents = _checked(source, list(source.translate(files, findings)), findings)
    safe = [] if findings.fatal else sorted(documents, key=lambda item: (item["kind"], item["name"]))
    return Translation(tuple(safe), tuple(findings.distinct), findings.fatal)


def export(target: Target, documents: Iterable[Any]) -> Export:
    """The documents of the target's system, in the form of its platform.

    Raises FilesRefused for a refused one, and for one whose system is not known: it may hold a deny.
    """
    others = [name for name in all_systems() if name != target.system]
    of_system = [item for item in documents if not (isinstance(item, dict) and item.get("system") in others)]
    if refused := compile_documents(of_system).rejected:
        raise FilesRefused([f"{item.key}: {error}" for item in refused for error in item.errors])
    findings = Findings()
    lines = list(target.write(of_system, findings))
    return Export("".join(f"{line}\n" for line in lines), tuple(findings.distinct))


def document(system: str, kind: str, name: str, spec: dict[str, Any], **window: str) -> Document:
    """A policy document; ``window``: valid_from, valid_until."""
    return {"system": system, "kind": kind, "name": name, "spec": spec, **window}


def refusal(document: Document) -> tuple[str, ...]:
    """Why lockkeeper would refuse a document; empty when it would not."""
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > MAX_BYTES:
        return (f"has {size} bytes as JSON; a document has at most {MAX_BYTES}",)
    rejected = DocumentStore().put(document)
    return () if rejected is None else rejected.errors


def refusal_of_item(system: str, kind: str, field: str, item: Any) -> tuple[str, ...]:
    """Why lockkeeper would refuse an item of a document's list, without its place; empty when it would not."""
    errors = refusal(document(system, kind, "name", {field: [item]}))
    return tuple(error.removeprefix(f"{field}[0]").lstrip(".: ") for error in errors)


def _checked(source: Source, documents: Iterable[Document], findings: Findings) -> list[Document]:
    """Without documents that lockkeeper would refuse; in a system with denies these leave nothing safe."""
    kept: dict[Key, Document] = {}
    for item in documents:
        errors = refusal(item)
        name = f"{item['kind']} {item['name']}"
        if errors:
            spot, why = findings.at(name), f"lockkeeper refuses what it translates to: {'; '.join(errors)}"
            has_denies = all_systems()[source.system].deny_rule is not None
            (spot.fatal if has_denies else spot.warning)(why, "change it at the source, or write it by hand")
        elif kept.setdefault(identify(item), item) != item:
            findings.at(name).fatal("two documents of this name came out", "give them different names at the source")
        # the same document twice is one
    return list(kept.values())
