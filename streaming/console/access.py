"""What the page of access shows: a subject's permissions, or the statements of a system, each with when it decided.

When a statement decided last is read from the newest decisions alone; further back the page does not look.
"""

import time
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from policy import MalformedRequest, Snapshot, StatementId, Unreadable, all_systems, read_value, to_text
from policy.analysis import (
    Permitted,
    grant_text,
    lint,
    statements,
    unknown_subject,
    what_subject_can,
)
from policy.testing import CaseFileError, full_request
from streaming.console.playground import TITLES
from streaming.console.records import Records
from streaming.console.viewer import Viewer
from streaming.decision_log.newest import Wanted
from streaming.decision_log.search import Query
from streaming.history.span import Span
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown

MOST_PERMISSIONS = 500  # that are shown, and statements
MOST_LINTED = 2000  # statements: more take longer than a page may
NEWEST, SECONDS = 2000, 0.25  # decisions that are looked through, and for how long
FOR_EVER = Span(0, 1 << 53)

DocumentStatement = tuple[str, int | None]
Statements = dict[str, dict[StatementId, list[Any]]]


class Uses(msgspec.Struct, frozen=True):
    """When statements decided last, by document and statement. `since`: of older decisions it is not known; "": all."""

    at: dict[DocumentStatement, str]
    since: str = ""


def uses(records: Records, viewer: Viewer, subject: str = "", system: str = "") -> Uses:
    """Which statements decided lately. Raises KafkaException and TimeoutError."""
    wanted = Wanted(Query(FOR_EVER, subject, limit=NEWEST), system, systems=viewer.systems)
    shown, at = records.newest(wanted, SECONDS), dict[DocumentStatement, str]()
    for decided in shown.found:
        parts = (decided.decision, *(decided.decision.get("evaluations") or ()))
        for reason in (reason for part in parts for reason in (part.get("context") or {}).get("reasons") or ()):
            named = str(reason.get("document")), reason.get("statement")
            at.setdefault(named, str(decided.decision.get("time") or ""))
    return Uses(at, "" if shown.read_from is None else to_text(shown.read_from))


def access_in(snapshot: Snapshot, system: str, fields: Mapping[str, str], used: Uses) -> dict[str, Any] | None:
    """What a subject has in one system; None: nothing, and no document names it. Raises MalformedRequest."""
    claimed = [name.strip() for name in fields["groups"].split(",") if name.strip()]
    ask = {"subject": fields["subject"], "action": "any", "resource": "any", **({"groups": claimed} if claimed else {})}
    now = time.time_ns() // 1_000_000
    try:
        subject = full_request(ask, system)["subject"]
        unknown = unknown_subject(snapshot, system, subject, now)
        permissions = what_subject_can(snapshot, system, subject, now)
    except (CaseFileError, MalformedRequest):
        if fields["system"]:
            raise MalformedRequest("no subject of this system; see its guide for how subjects are written") from None
        return None
    if not permissions and not fields["system"] and unknown:
        return None
    lines = [_permission(permission, system, used) for permission in permissions[:MOST_PERMISSIONS]]
    names = [str(name) for name in unknown]
    return {"system": TITLES.get(system, system), "lines": lines, "count": len(permissions), "names": names}


def _permission(permission: Any, system: str, used: Uses) -> dict[str, Any]:
    if isinstance(permission, Permitted):
        text = f"{permission.action} on {permission.type} {permission.id}"
        return {"effect": "allow", "text": text, "route": "", "statement": "", "whole": [], "part": [], "used": ""}
    grant, own = permission.grant, all_systems()[system]
    text = grant_text(grant, own).removeprefix(f"{grant.principal} {grant.effect} ")
    return {
        "effect": grant.effect,
        "text": text,
        "route": permission.route,
        "statement": str(grant.statement_id),
        "whole": [str(deny.statement_id) for deny in permission.cancelled_by],
        "part": [f"{deny.statement_id}: {grant_text(deny, own)}" for deny in permission.narrowed_by],
        "used": used.at.get((grant.statement_id.document, grant.statement_id.statement), ""),
    }


def statements_in(snapshot: Snapshot, system: str, used: Uses, log: DocumentLog, topic: str) -> dict[str, Any]:
    """The statements of a system, those first that did not decide lately, and what is to be said of them.

    `topic`: of its documents.
    """
    own = all_systems()[system]
    written = _statements_of(snapshot).get(system, {})
    ordered = sorted(written, key=lambda id_: ((id_.document, id_.statement) in used.at, id_.place))
    lines: list[dict[str, Any]] = [
        {
            "statement": str(id_),
            "text": "; ".join(grant_text(grant, own) for grant in written[id_][:3]),
            "used": used.at.get((id_.document, id_.statement), ""),
        }
        for id_ in ordered[:MOST_PERMISSIONS]
    ]
    is_linted = len(written) <= MOST_LINTED
    return {
        "title": TITLES.get(system, system),
        "lines": lines,
        "count": len(written),
        "unused": sum(1 for id_ in written if (id_.document, id_.statement) not in used.at),
        "findings": _findings(system, log, topic) if is_linted else [],
        "is_linted": is_linted,
    }


_statements: weakref.WeakKeyDictionary[Snapshot, Statements] = weakref.WeakKeyDictionary()
"""By system, of the snapshots that were asked about: to collect them takes longer than the rest of the page."""


def _statements_of(snapshot: Snapshot) -> Statements:
    by_system = _statements.get(snapshot)
    if by_system is None:
        by_system = _statements[snapshot] = {}
        for id_, grants in statements(snapshot).items():
            by_system.setdefault(id_.document.partition("/")[0], {})[id_] = grants
    return by_system


def _findings(system: str, log: DocumentLog, topic: str) -> list[dict[str, Any]]:
    """What `lockkeeper policy lint` says of the documents in force."""
    try:
        in_force = log.documents_at({topic: {"0": log.end(topic) - 1}})
        documents = [read_value(record.value) for key, record in in_force.items() if key.system == system]
    except (NoLongerKnown, Unreadable):
        return []
    return [
        {"document": finding.document, "statement": finding.statement, "message": finding.message}
        for finding in lint(documents)
    ]
