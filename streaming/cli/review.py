"""`lockkeeper policy review`: the gate for a change of policies, as one page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import policy_app
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.comparing import LIVE, Sides, both_sides
from streaming.cli.failure import FAILED, MISUSED, Failure, read_file
from streaming.cli.output import echo_err, echo_json, echo_lines

if TYPE_CHECKING:
    from policy import Located, Place
    from policy.analysis import Finding, MayWiden, Review
    from streaming.replay.result import Replayed


@policy_app.command("review")
def review(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The old documents: a path, `live`, or a git reference.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The new documents.", show_default=False)],
    may_widen: Annotated[
        Path | None, typer.Option("--may-widen", help="The allow-list: widenings that do not fail, in YAML.")
    ] = None,
    replayed: Annotated[
        Path | None, typer.Option("--replayed", help="What `lockkeeper replay --json` printed, to be shown as well.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for new warnings too.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="With `live`: as `apply --prune`, which deletes what NEW does not have.")
    ] = False,
    sarif: Annotated[bool, typer.Option("--sarif", help="Print SARIF, for code scanning.")] = False,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Review a change of policies on one page of Markdown: what it opens, who gains and loses, what came and went.

    Fails where it may allow more than before and no entry of the allow-list covers that, and where `policy lint` has
    an error. The allow-list is a list of entries with any of `who`, `action`, `resource` and `document`, in which a *
    stands for any text; all fields of an entry must match. Exit code 1: the review failed.

    \b
    Examples:
      lockkeeper policy review origin/main policies/ --may-widen may-widen.yaml
      lockkeeper policy review origin/main policies/ --sarif > policies.sarif
      lockkeeper policy review live policies/ --replayed replayed.json --bootstrap localhost:9092
    """
    from policy.analysis import review as compare
    from streaming.cli.review_page import Page, as_sarif, markdown, plain

    allowed, past = _allow_list(may_widen), _replayed(replayed)
    sides = both_sides(old, new, prune, kafka.settings() if old == LIVE else None, True)
    for unread in sides.unread:
        echo_err(f"warning: {unread}")
    if past is not None and past.draft != (version := _version(sides)):
        raise Failure(
            f"--replayed {replayed}: its policies are {past.draft}, those of {new} are {version}: replay again", MISUSED
        )
    compared = compare(sides.before, sides.after, allowed)
    page = Page(compared, _new_findings(sides), past, _places(compared, sides), str(new), strict)
    if sarif or as_json:
        echo_json(as_sarif(page) if sarif else plain(page))
    else:
        echo_lines(markdown(page))
    if page.failures:
        raise typer.Exit(FAILED)


def _version(sides: Sides) -> str:
    """Of the new documents alone, whatever is live beside them."""
    from policy import compile_documents

    return compile_documents([document.value for document in sides.located]).version


def _allow_list(path: Path | None) -> "tuple[MayWiden, ...]":
    """The entries of a file. Raises Failure."""
    from policy import Unreadable, decode_text
    from policy.analysis import read_may_widen

    if path is None:
        return ()
    try:
        return read_may_widen(decode_text(read_file(path, "--may-widen")))
    except (Unreadable, ValueError) as error:
        raise Failure(f"--may-widen {path}: not an allow-list of widenings: {error}", MISUSED) from error


def _replayed(path: Path | None) -> "Replayed | None":
    """The result of a replay. Raises Failure."""
    import msgspec

    from streaming.replay.result import Replayed

    if path is None:
        return None
    try:
        return msgspec.json.decode(read_file(path, "--replayed"), type=Replayed)
    except ValueError as error:
        raise Failure(f"--replayed {path}: not what `lockkeeper replay --json` prints: {error}", MISUSED) from error


def _new_findings(sides: Sides) -> "list[tuple[Finding, Place | None]]":
    """What `policy lint` finds in the new documents and not in the old ones, each with its place."""
    from policy.analysis import lint
    from streaming.cli.authoring import located_findings

    before = {(finding.document, finding.code, finding.message) for finding in lint(sides.documents)}
    now = lint(document.value for document in sides.located)
    new = [finding for finding in now if (finding.document, finding.code, finding.message) not in before]
    return list(located_findings(new, sides.located))


def _places(compared: "Review", sides: Sides) -> "dict[tuple[str, int | None], Place]":
    """Where the statements stand by which something opens, and the documents that differ."""
    from policy import Positions
    from policy.testing import document_key

    located: dict[str, Located] = {
        document_key("", document.value): document for document in sides.located if isinstance(document.value, dict)
    }
    positions = Positions()
    named: Sequence[tuple[str, int | None]] = [
        *((widening.document, widening.statement) for widening, _ in compared.widenings),
        *((each.difference.document, None) for each in compared.differences),
    ]
    return {
        (document, statement): positions.find(located[document], "", statement)
        for document, statement in dict.fromkeys(named)
        if document in located
    }
