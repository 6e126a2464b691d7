"""Lists of passes, in CSV."""

from collections.abc import Iterable, Sequence

from policy.importers.frame import Document, Findings, ImportInput, Source, document
from policy.importers.inputs import read_rows


def translate(given: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """A document for each row."""
    if not given:
        findings.at("").note("no files", "give one")
    for one in given:
        for row in read_rows(one, ("user", "door"), ()):
            user, door = row.cells["user"], row.cells["door"]
            yield document("doors", "Pass", f"{user} {door}", {"user": user, "doors": [door]})


SOURCES = {"passes": Source("doors", "passes (CSV): user, door", translate)}
