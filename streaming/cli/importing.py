"""`lockkeeper import`: what a platform keeps today, as policy documents; `lockkeeper export`: the other direction."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from streaming.cli.app import app
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.failure import FAILED, MISUSED, Failure, read_file
from streaming.cli.output import echo_err, echo_exactly, echo_json, echo_lines

if TYPE_CHECKING:
    from policy.importers import ImportInput, Source, Target, Translation
    from streaming.imported import Plan
    from streaming.settings import Settings

Named = TypeVar("Named")
HELP_WIDTH = 100  # columns of the list of sources


def _command_listing(choices: str, *more: str) -> type[TyperCommand]:
    """A command whose help lists sources or targets, which say themselves what they do: loaded for it alone."""

    class ListingCommand(TyperCommand):
        def format_help_text(self, ctx: Any, formatter: Any) -> None:
            from policy import importers

            self.help = _with_listing(self.help or "", getattr(importers, choices)(), *more)
            super().format_help_text(ctx, formatter)

    return ListingCommand


def _with_listing(text: str, choices: "Mapping[str, Source] | Mapping[str, Target]", *more: str) -> str:
    examples = ["\b", "Examples:", *(f"  {line}" for choice in choices.values() for line in choice.examples)]
    listing = "\n".join((*_listing(choices), *more))
    return text.replace("[listing]", listing).replace("[examples]", "\n".join(examples))


def _listing(choices: "Mapping[str, Source] | Mapping[str, Target]") -> Iterator[str]:
    """A paragraph of the help that is shown as it is: one a line, followed by more lines where it needs them."""
    width = max(map(len, choices)) + 2
    yield "\b"
    for name, source in choices.items():
        indent = " " * width
        yield textwrap.fill(source.about, HELP_WIDTH, initial_indent=name.ljust(width), subsequent_indent=indent)


@app.command("import", cls=_command_listing("sources", "In CSV, lists have | between their items."))
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="One of those above.")],
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help="What the platform exports.")] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder; the documents go into its file SOURCE.yaml.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Go on after errors, without what they concern: see above.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; print what would be written.")] = False,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Turn what a platform keeps into policy documents, and report all that could not be taken over.

    [listing]

    Nothing is imported that could allow more than the platform does. What allows and cannot be taken over is left
    out: a warning. What takes away and cannot be taken over (a deny, an exception, a mask) is an error: nothing is
    written. With --partial the rest is, and what the error concerns is left out or denied; but not
    where that is not known.

    The file is made anew each time, so that what the source has no more goes from it, and the same input gives the
    same bytes. Other files of the folder stay as they are. Exit code 1: nothing was written, because of an error, a
    file that somebody edited, or a document that another file of the folder has.

    [examples]
    """
    from policy.importers import sources, translate
    from streaming.imported import plan, write

    importer = _one_of(sources(), source)
    if not files and not importer.cluster:
        raise Failure(f"{source}: give the FILEs to import", MISUSED)
    translation = translate(importer, [_given(file) for file in files] if files else [_acls_of(kafka.settings())])
    planned = plan(source, translation.documents, out)
    refused = translation.fatal or (bool(translation.errors) and not partial)
    if planned.differs and not refused and not dry_run:
        write(planned)
    _report(source, translation, planned, refused, as_json)
    if refused:
        remedy = (
            "correct what makes every document of the run unsafe"
            if translation.fatal
            else "--partial goes on without it"
        )
        raise Failure(f"nothing was written, because of the errors above: {remedy}", FAILED)
    echo_err(_sum_up(translation, planned, dry_run))


@app.command("export", cls=_command_listing("targets"))
def export(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="One of those above.")],
    path: Annotated[Path, typer.Argument(help="A folder of policy documents, or a file.")],
) -> None:
    """Print policy documents as what their platform takes, and report all that has no counterpart there.

    [listing]

    Nothing is printed that could allow more than the documents do; findings go to stderr. Documents of other systems
    are passed over.

    [examples]
    """
    from policy import read_documents
    from policy.importers import export, targets

    exported = export(_one_of(targets(), target), [document.value for document in read_documents(path)])
    echo_exactly(exported.text.rstrip("\n"))
    for finding in exported.findings:
        echo_err(str(finding))


def _one_of(choices: "Mapping[str, Named]", name: str) -> "Named":
    if name in choices:
        return choices[name]
    from policy import nearest

    raise Failure(f"{name}: not one of {', '.join(choices)}{nearest(name, choices, most=1)}", MISUSED)


def _acls_of(settings: "Settings") -> "ImportInput":
    """The ACLs of the cluster, as a file that holds them."""
    import json

    from policy.importers import ImportInput
    from streaming.cli.cluster import connect
    from streaming.kafka.permissions import DESCRIBE_CLUSTER, described_acls

    rows = described_acls(connect(settings, permissions=[DESCRIBE_CLUSTER]))
    if not rows:  # librdkafka drops the error of a broker without an authorizer, too, and that one allows everything
        raise Failure(
            f"nothing was written: {settings.bootstrap_servers} lists no ACLs. It has none, or no authorizer (the "
            "broker setting authorizer.class.name), without which everybody may do everything"
        )
    return ImportInput(f"{settings.bootstrap_servers}/acls.json", json.dumps(rows).encode())


def _given(file: Path) -> "ImportInput":
    from policy.importers import ImportInput

    return ImportInput(str(file), read_file(file))


def _report(source: str, translation: "Translation", planned: "Plan", refused: bool, as_json: bool) -> None:
    """Every finding, and unless the run is refused what becomes of each document that is not as it was."""
    if as_json:
        changes = {field: getattr(planned, field) for field in ("added", "changed", "removed")}
        summary = {
            "source": source,
            "file": str(planned.file),
            "refused": refused,
            "documents": len(translation.documents),
        }
        echo_json({**summary, **({} if refused else changes), "findings": translation.findings})
        return
    echo_lines(map(str, translation.findings))
    if refused:
        return
    for mark, keys in (("+", planned.added), ("~", planned.changed), ("-", planned.removed)):
        echo_lines(f"{mark} {key}" for key in keys)


def _sum_up(translation: "Translation", planned: "Plan", dry_run: bool) -> str:
    count = Counter[str](finding.level for finding in translation.findings)
    verb = "would be written to" if dry_run else "written to"
    end = f"{verb} {planned.file}" if planned.differs else f"as they already are in {planned.file}"
    findings = ", ".join(f"{count[level]} {level}s" for level in ("error", "warning", "note"))
    return f"{len(translation.documents)} documents {end}; {findings}"
