"""`lockkeeper import`: what a platform keeps today, as policy documents."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import Json, app, remark, tell, tell_json
from streaming.cli.failures import FAILED, MISUSED, Failure

if TYPE_CHECKING:
    from policy.importers import ImportInput, Source, Translation
    from streaming.imported import Plan


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="cdap, lenses5, lenses6, ranger, streamsets or ververica.")
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What the platform exports.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder; the documents go into its file SOURCE.yaml.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Go on after errors, without what they concern: see above.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; tell what would be written.")] = False,
    as_json: Json = False,
) -> None:
    """Turn what a platform keeps into policy documents, and report all that could not be taken over.

    \b
    ververica   the values of the Helm release (YAML): role assignments, authentication
    lenses6     IAM roles, groups, users and service accounts (YAML, JSON): give all of them in one run
    lenses5     groups as the command line or the HTTP API writes them (YAML, JSON)
    ranger      CDAP's policies in Apache Ranger: its export (JSON)
    cdap        CDAP grants (CSV): principal_type, principal, entity, privileges;
                optional: effect, valid_from, valid_until
    streamsets  objects and shares (CSV): object, owner, subject, levels;
                optional: organization, labels, pipeline, connections and the other fields of the documents
    In CSV, lists have | between their items.

    Nothing is imported that could allow more than the platform does. What allows and cannot be taken over is left
    out: a warning. What takes away and cannot be taken over (a deny, an exception, a mask) is an error: nothing is
    written. With --partial the rest is, and whoever or whatever the error concerns is left out or denied; but not
    where that cannot be told.

    The file is made anew each time, so that what the source has no more goes from it, and the same input gives the
    same bytes. Other files of the folder stay as they are. Exit code 1: nothing was written, because of an error, a
    file that somebody edited, or a document that another file of the folder has.

    \b
    Examples:
      helm get values ververica --all --output yaml > values.yaml
      lockkeeper import ververica values.yaml --out policies/
      lockkeeper import lenses6 roles.yaml groups.yaml users.yaml service-accounts.yaml --out policies/
      lockkeeper import ranger Ranger_Policies.json --out policies/ --dry-run
      lockkeeper import cdap grants.csv --out policies/ --partial --json
    """
    from policy.importers import translate
    from streaming.imported import plan, write

    found = translate(_source(source), [_given(file) for file in files])
    planned = plan(source, found.documents, out)
    refused = found.hopeless or (bool(found.errors) and not partial)
    if planned.differs and not refused and not dry_run:
        write(planned)
    _report(source, found, planned, refused, as_json)
    if refused:
        way_on = "mend what no part of the run is safe with" if found.hopeless else "--partial goes on without it"
        raise Failure(f"nothing was written, because of the errors above: {way_on}", FAILED)
    remark(_sum_up(found, planned, dry_run))


def _source(name: str) -> "Source":
    from policy.importers import SOURCES

    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise Failure(f"{name}: not one of {', '.join(SOURCES)}{hint}", MISUSED)


def _given(file: Path) -> "ImportInput":
    from policy.importers import ImportInput

    try:
        return ImportInput(str(file), file.read_bytes())
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}", MISUSED) from error


def _report(source: str, found: "Translation", planned: "Plan", refused: bool, as_json: bool) -> None:
    """Every finding, and unless the run is refused what becomes of each document that is not as it was."""
    import msgspec

    if as_json:
        changes = {field: getattr(planned, field) for field in ("added", "changed", "removed")}
        findings = [msgspec.to_builtins(finding) for finding in found.findings]
        told = {"source": source, "file": str(planned.file), "refused": refused, "documents": len(found.documents)}
        tell_json({**told, **({} if refused else changes), "findings": findings})
        return
    for finding in found.findings:
        tell(str(finding))
    if refused:
        return
    for mark, keys in (("+", planned.added), ("~", planned.changed), ("-", planned.removed)):
        for key in keys:
            tell(f"{mark} {key}")


def _sum_up(found: "Translation", planned: "Plan", dry_run: bool) -> str:
    count = {level: sum(finding.level == level for finding in found.findings) for level in ("error", "warning", "note")}
    verb = "would be written to" if dry_run else "written to"
    end = f"{verb} {planned.file}" if planned.differs else f"as they already are in {planned.file}"
    findings = ", ".join(f"{number} {level}s" for level, number in count.items())
    return f"{len(found.documents)} documents {end}; {findings}"
