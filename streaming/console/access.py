"""What the page of access shows: a subject's permissions, or the statements of a system, each with when it decided.

When a statement decided last is read from the newest decisions alone; further back the page does not look.
"""

import itertools
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from policy import MalformedRequest, Snapshot, Unreadable, all_systems, read_value, to_text
from policy.analysis import (
    Permitted,
    Undetermined,
    grant_text,
    lint,
    ordered_statements,
    unknown_subject,
    what_subject_can,
)
from policy.testing import (
    BESIDE_SUBJECT,
    CaseFileError,
    DraftRequest,
    full_request,
    refuse_unknown_members,
    short_form_of,
)
from streaming.console.playground import TITLES
from streaming.console.recent import DocumentStatement, RecentDecisions
from streaming.console.viewer import Viewer
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown

MOST_PERMISSIONS = 500  # that are shown, and statements
MOST_LINTED = 2000  # statements: more take longer than a page may
NEWEST = 2000  # decisions that are looked through


class Uses(msgspec.Struct, frozen=True):
    """When statements decided last, by document and statement. `since`: of older decisions it is not known; "": all."""

    at: dict[DocumentStatement, str]
    since: str = ""


def uses(recent: RecentDecisions, viewer: Viewer, subject: str = "", system: str = "") -> Uses:
    """Which statements decided lately. Raises KafkaException and TimeoutError."""
    decisions, since = recent.newest()
    fitting = [decision for decision in decisions if decision.fits(viewer, subject, system)]
    if len(fitting) > NEWEST:
        since = fitting[NEWEST - 1].at
        fitting = [decision for decision in fitting if decision.at >= since]
    at = dict[DocumentStatement, str]()
    for decision in fitting:
        for named in decision.statements:
            at.setdefault(named, decision.time)
    return Uses(at, "" if since is None else to_text(since))


def subject_in(fields: Mapping[str, str]) -> dict[str, Any]:
    """The subject of a form in the short form of case files. Raises CaseFileError."""
    short = short_form_of(DraftRequest(fields["subject"], fields["groups"], more=fields["more"]))
    refuse_unknown_members(short)
    return {name: short[name] for name in ("subject", *BESIDE_SUBJECT) if name in short}


def access_in(
    snapshot: Snapshot, system: str, short: Mapping[str, Any], used: Uses, is_chosen: bool
) -> dict[str, Any] | None:
    """What a subject has in one system. `is_chosen`: it is the only one; of others that know nothing of it, None.

    `why`: it cannot be said. Raises MalformedRequest and CaseFileError for no subject of a chosen system.
    """
    shown = {"system": TITLES.get(system, system), "lines": [], "count": 0, "names": [], "why": ""}
    now = time.time_ns() // 1_000_000
    try:
        subject = full_request({**short, "action": "any", "resource": "any"}, system)["subject"]
        unknown = unknown_subject(snapshot, system, subject, now)
        permissions = what_subject_can(snapshot, system, subject, now)
    except Undetermined as error:
        return {**shown, "why": str(error)}
    except (CaseFileError, MalformedRequest):
        if is_chosen:
            raise
        return None
    if not permissions and not is_chosen and unknown:
        return None
    lines = [_permission(permission, system, used) for permission in permissions[:MOST_PERMISSIONS]]
    return {**shown, "lines": lines, "count": len(permissions), "names": [str(name) for name in unknown]}


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
    written = ordered_statements(snapshot, system)
    unused = [id_ for id_ in written if (id_.document, id_.statement) not in used.at]
    others = (id_ for id_ in written if (id_.document, id_.statement) in used.at)
    ordered = itertools.islice(itertools.chain(unused, others), MOST_PERMISSIONS)
    lines: list[dict[str, Any]] = [
        {
            "statement": str(id_),
            "text": "; ".join(grant_text(grant, own) for grant in written[id_][:3]),
            "used": used.at.get((id_.document, id_.statement), ""),
        }
        for id_ in ordered
    ]
    refused = [rejected for rejected in snapshot.rejected if rejected.key.partition("/")[0] == system]
    findings = _findings(system, log, topic) if len(written) <= MOST_LINTED else None
    return {
        "title": TITLES.get(system, system),
        "lines": lines,
        "count": len(written),
        "unused": len(unused),
        "refused": len(refused),
        "findings": findings or [],
        "is_linted": findings is not None,
    }


def _findings(system: str, log: DocumentLog, topic: str) -> list[dict[str, Any]] | None:
    """What `lockkeeper policy lint` says of the documents in force; None: they cannot be read."""
    try:
        in_force = log.documents_at({topic: {"0": log.end(topic) - 1}})
        documents = [read_value(record.value) for key, record in in_force.items() if key.system == system]
    except (NoLongerKnown, Unreadable):
        return None
    return [
        {"document": finding.document, "statement": finding.statement, "message": finding.message}
        for finding in lint(documents)
    ]
