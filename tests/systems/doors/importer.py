"""Lists of passes, in CSV."""

from collections.abc import Iterable, Sequence

from policy.importers.frame import Document, Findings, ImportInput, Source, document
from policy.importers.inputs import read_rows


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """A document for each row."""
    if not files:
        findings.at("").note("no files", "give one")
    for file in files:
        for row in read_rows(file, ("user", "door"), ()):
            user, door = row.cells["user"], row.cells["door"]
            yield document("doors", "Pass", f"{user} {door}", {"user": user, "doors": [door]})


SOURCES = {"passes": Source("doors", "passes (CSV): user, door", translate)}
