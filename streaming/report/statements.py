"""Statements in force which decided nothing in the range, or nothing alone: what may be removed."""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from policy import Grant, StatementId
from policy.analysis import Statement, grant_text
from streaming.report.decisions import StoredVersion
from streaming.report.requests import Replay, Replayed
from streaming.report.span import Span


class Candidate(msgspec.Struct, frozen=True):
    """A statement, or with ``whole`` a document and all of its statements. ``count``: how many statements it is.

    ``since``: when its version came into force (ms), if that was within the range: only from then on could it
    decide. ``beside``: for a redundant one, another statement that decided together with it.
    """

    document: str
    statement: int | None
    whole: bool
    count: int
    effect: str
    text: str
    since: int | None = None
    lapsed: bool = False
    beside: str = ""


class StatementTotals(msgspec.Struct, frozen=True):
    """Statements in force. ``unused``: no decision of the range names them, and no replayed request matches them.

    ``redundant``: replayed requests match them, but always together with others. ``younger``: came into force after
    the range, so nothing is said of them. ``unused_statements``: how many statements ``unused`` stands for.
    """

    in_force: int
    named: int
    younger: int
    unused_statements: int
    unused: tuple[Candidate, ...]
    redundant: tuple[Candidate, ...]
    replayed: Replayed


def find_unused(
    written: Mapping[StatementId, Sequence[Grant | Statement]],
    stored: Mapping[StatementId, StoredVersion],
    named: Mapping[StatementId, int],
    replay: Replay,
    span: Span,
) -> StatementTotals:
    """Which of the statements ``written`` are unused or redundant. All of these are of documents in force."""
    younger = {
        statement_id for statement_id in written if statement_id in stored and stored[statement_id].at >= span.end
    }
    examined = sorted(written.keys() - younger, key=lambda statement_id: statement_id.place)
    unused = [
        statement_id for statement_id in examined if statement_id not in named and statement_id not in replay.matched
    ]
    redundant = [
        statement_id for statement_id in examined if statement_id in replay.matched and statement_id not in replay.alone
    ]

    def candidate(statement_id: StatementId) -> Candidate:
        since = stored[statement_id].at if statement_id in stored else span.start
        lapsed = not any(_overlaps(grant, span) for grant in written[statement_id])
        beside = str(replay.beside.get(statement_id, ""))
        recent = since if since > span.start else None
        return Candidate(*_words(statement_id, written[statement_id]), since=recent, lapsed=lapsed, beside=beside)

    return StatementTotals(
        len(written),
        len(named.keys() & written.keys()),
        len(younger),
        len(unused),
        _by_document([candidate(statement_id) for statement_id in unused], examined),
        tuple(candidate(statement_id) for statement_id in redundant),
        replay.result(),
    )


def _words(
    statement_id: StatementId, grants: Sequence[Grant | Statement]
) -> tuple[str, int | None, bool, int, str, str]:
    more = f" (and {len(grants) - 1} more)" if len(grants) > 1 else ""
    return statement_id.document, statement_id.statement, False, 1, grants[0].effect, grant_text(grants[0]) + more


def _overlaps(grant: Grant | Statement, span: Span) -> bool:
    """Whether the grant was valid at some moment of the range."""
    start, end = grant.window.start, grant.window.end
    return (start is None or start < span.end) and (end is None or end > span.start)


def _by_document(unused: Sequence[Candidate], examined: Sequence[StatementId]) -> tuple[Candidate, ...]:
    """A document none of whose statements is used stands for all of them."""
    totals: dict[str, int] = {}
    for statement_id in examined:
        totals[statement_id.document] = totals.get(statement_id.document, 0) + 1
    found: list[Candidate] = []
    for document, group in itertools.groupby(unused, key=lambda one: one.document):
        members = list(group)
        found += [_whole(members)] if len(members) == totals[document] else members
    return tuple(found)


def _whole(members: Sequence[Candidate]) -> Candidate:
    effects = "allow and deny" if len({one.effect for one in members}) > 1 else members[0].effect
    more = f" (and {len(members) - 1} more statements)" if len(members) > 1 else ""
    lapsed = all(one.lapsed for one in members)
    return msgspec.structs.replace(
        members[0],
        statement=None,
        whole=True,
        count=len(members),
        effect=effects,
        text=members[0].text + more,
        lapsed=lapsed,
    )
