"""`lockkeeper policy lint | test`: tools for policy authors, before policies are applied."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import policy_app
from streaming.cli.common_options import Json
from streaming.cli.comparing import sound_documents
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_json
from streaming.cli.request_options import AllowUnknown, refuse_mistakes

if TYPE_CHECKING:
    from policy import Located, Place
    from policy.analysis import Finding
    from policy.testing import Coverage, Result

Documents = Annotated[Path, typer.Argument(help="A file or folder of documents.", show_default=False)]


@policy_app.command("lint")
def lint(
    path: Documents,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings too.")] = False,
    as_json: Json = False,
) -> None:
    """Find errors, and valid statements that are probably mistakes.

    Errors refuse a document. Warnings: an operation or permission that the system does not know, a statement
    that another covers, an allow cancelled by a deny, a role that no principal has, a role or group that does not
    exist, a document that topics do not take at the default limit. Statements count from 0. Exit code 1: an error; with
    --strict also a warning. --json prints a line for each finding, so nothing where there is none.

    \b
    Examples:
      lockkeeper policy lint policies/
      lockkeeper policy lint policies/ --strict --json
    """
    from policy import read_documents
    from policy.analysis import lint as find

    documents = read_documents(path)
    findings = find(document.value for document in documents)
    for finding, location in sorted(located_findings(findings, documents), key=_line_of):
        if as_json:
            echo_json(finding_fields(finding, location))
        else:
            statement = "" if finding.statement is None else f" statement {finding.statement}"
            where = "" if location is None else f"{location}: "
            echo(f"{where}{finding.level}: {finding.document}{statement}: {finding.message} [{finding.code}]")
    errors = sum(finding.level == "error" for finding in findings)
    warnings = _counted(len(findings) - errors, "warning")
    echo_err(f"{_counted(len(documents), 'document')}: {_counted(errors, 'error')}, {warnings}")
    if errors or (strict and findings):
        raise typer.Exit(FAILED)


def _line_of(located: "tuple[Finding, Place | None]") -> tuple[str, int, int]:
    """The order of findings: that of the lines of each file, then those without a place."""
    location = located[1]
    return ("\uffff", 0, 0) if location is None else (location.file, location.line or 0, location.column or 0)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def finding_fields(finding: "Finding", location: "Place | None") -> dict[str, Any]:
    """A finding as JSON has it, with its location."""
    import msgspec

    line, column = (None, None) if location is None else (location.line, location.column)
    where = None if location is None else str(location)
    return {**msgspec.to_builtins(finding), "place": where, "line": line, "column": column}


def located_findings(
    findings: Iterable["Finding"], documents: Sequence["Located"]
) -> Iterator[tuple["Finding", "Place | None"]]:
    """Each finding with its place; of several documents with one key the last, with the places of the others."""
    import msgspec

    from policy import Positions
    from policy.testing import document_key

    by_key: dict[str, list[Located]] = {}
    for document in documents:
        key = document_key("", document.value) if isinstance(document.value, dict) else "?"
        by_key.setdefault(key, []).append(document)
    positions = Positions()
    for finding in findings:
        *others, last = by_key.get(finding.document, [None])
        if last is None:
            yield finding, None
            continue
        if others and finding.code == "refused":
            also = ", ".join(str(other.place) for other in others if other is not None)
            finding = msgspec.structs.replace(finding, message=f"{finding.message}; also in {also}")
        yield finding, positions.find(last, finding.message, finding.statement)


@policy_app.command("test")
def run_tests(
    paths: Annotated[list[Path], typer.Argument(help="Case files, or folders of them.", show_default=False)],
    policies: Annotated[
        Path | None, typer.Option("--policies", "-p", help="Documents in force before each case's first stage.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the results here, as JUnit XML.")] = None,
    at_least: Annotated[
        float, typer.Option("--coverage", min=0, max=100, help="Fail below this percentage of statements.")
    ] = 0,
    allow_unknown: AllowUnknown = False,
    as_json: Json = False,
) -> None:
    """Run case files: documents, requests and the expected answers, stage by stage.

    Ends with the statements that decided no request: what no case would miss. Warns where the documents do not
    conform to their schema (Cedar). Exit code 1: an expectation failed, coverage is too low, or no request of a file
    has a subject and a resource that the documents know. Exit code 2: an action or type does not exist, or a subject or
    resource that no document names is spelt nearly as one that is.

    \b
    Examples:
      lockkeeper policy test tests/ --policies policies/
      lockkeeper policy test cases.yaml --junit results.xml --coverage 80
    """
    from policy.testing import cover, junit_xml, load_cases, names_in, run_cases

    documents = [] if policies is None else _for_tests(policies)
    files = {path: load_cases(path) for path in _case_files(paths)}
    names = {} if allow_unknown else {path: names_in(file, documents) for path, file in files.items()}
    refuse_mistakes([f"{path}: {mistake}" for path, case_names in names.items() for mistake in case_names.mistakes])
    results = {str(path): run_cases(file, documents) for path, file in files.items()}
    coverage = _sum_up([cover(file, documents) for file in files.values()])
    if junit is not None:
        _write(junit, junit_xml(results))
    _show_results(results, coverage, as_json)
    if coverage.percent < at_least:
        raise Failure(f"{coverage.percent:.1f} % of the statements are covered; required: {at_least:g} %")
    if nothing := [str(path) for path, case_names in names.items() if case_names.matches_nothing]:
        raise Failure(
            f"{', '.join(nothing)}: no request has a subject and a resource that the documents know. Name the "
            "documents with --policies, or add --allow-unknown"
        )
    if any(not result.passed for file_results in results.values() for result in file_results):
        raise typer.Exit(FAILED)


def _write(junit: Path, text: str) -> None:
    try:
        junit.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"--junit {junit}: {error.strerror}; name a file that can be written") from error


def _for_tests(path: Path) -> "list[Any]":
    """The documents at `path`; what does not conform to their schema is printed. Raises Failure and FilesRefused."""
    from policy import engine_findings

    snapshot, located = sound_documents(path)
    for finding in engine_findings(snapshot):
        statement = "" if finding.statement is None else f" statement {finding.statement}"
        echo_err(f"warning: {finding.document}{statement}: {finding.message} [{finding.code}]")
    return [document.value for document in located]


def _case_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and the YAML files of folders. Raises Failure when there are none, and FilesRefused."""
    from policy import files_below

    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise Failure(f"{path}: there is no such file or folder", MISUSED)
        inside = files_below(path, (".yaml", ".yml")) if path.is_dir() else []
        if path.is_dir() and not inside:
            raise Failure(f"{path}: no case files; they end in .yaml or .yml", MISUSED)
        files += inside or [path]
    return files


def _sum_up(parts: Sequence["Coverage"]) -> "Coverage":
    from policy.testing import Coverage

    everything = frozenset().union(*(part.statements for part in parts))
    return Coverage(everything, frozenset().union(*(part.decided for part in parts)))


def _show_results(results: dict[str, list["Result"]], coverage: "Coverage", as_json: bool) -> None:
    import msgspec

    wrong = [(name, result) for name, file_results in results.items() for result in file_results if not result.passed]
    total = sum(map(len, results.values()))
    if as_json:
        failures = [{"file": name, **msgspec.to_builtins(result)} for name, result in wrong]
        idle = [str(statement_id) for statement_id in coverage.idle]
        echo_json({"expectations": total, "failures": failures, "coverage": coverage.percent, "idle": idle})
        return
    for name, result in wrong:
        echo(f"FAILED {name}: {result.case}, stage {result.stage + 1}: {result.subject}: {result.why}")
    for statement_id in coverage.idle:
        echo(f"not covered by any case: {statement_id}")
    echo(f"{total - len(wrong)} of {total} expectations hold; {coverage.percent:.1f} % of the statements decided")
