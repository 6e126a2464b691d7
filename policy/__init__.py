"""lockkeeper's policy engine: pure, the same answers everywhere.

>>> snapshot = compile_documents(documents)
>>> decide(snapshot, request).outcome
'allow'
"""

import importlib
from typing import TYPE_CHECKING, Any

from policy.core.decision import OUTCOMES, Decision, DecisionContext, Missing, Outcome, context_of
from policy.core.document import SINCE_EVER, Document, Key, identify
from policy.core.limits import Work
from policy.core.model import NO_LONGER_KNOWN, CompiledDocument, Grant, Reason, StatementId, Unanswerable
from policy.core.pattern import match_text as matches
from policy.core.request import (
    CLAIMS,
    MAX_CLAIMED_GROUPS,
    MAX_NESTING,
    REQUEST_NAMES,
    Action,
    Batch,
    MalformedRequest,
    Request,
    Resource,
    Subject,
    check_letter_case,
    check_nesting,
    decode_request,
    parse_request,
    usable_time,
)
from policy.core.suggest import nearest
from policy.core.times import LAST_MS, to_ms, to_text
from policy.core.unique_names import decode_json, unique_members
from policy.evaluation.authorize import answer, decide
from policy.store.compiler import Compiler
from policy.store.delta import SnapshotChange, together
from policy.store.documents import DocumentStore
from policy.store.drafts import drafted, with_drafts
from policy.store.history import DocumentHistory, Rejected, Version
from policy.store.overlay import FactChange, FactOverlay, changes_of, layer_of
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot, compile_documents
from policy.systems import all_systems
from policy.systems.kit.privileged import SEVERITIES, Severity, worst
from policy.systems.kit.system import Kind, ListsActions

if TYPE_CHECKING:
    from policy.core.plain_data import Unreadable, decode_text, read_json, read_value, read_yaml
    from policy.core.yaml_text import dump_yaml, is_exact, is_same_value
    from policy.store.positions import Positions
    from policy.store.publishable import encode_document, engine_findings, refusals, warnings_of
    from policy.store.repository import (
        FilesRefused,
        Located,
        Place,
        document_files,
        files_below,
        is_document,
        read_document_text,
        read_documents,
    )

__all__ = [
    "CLAIMS",
    "LAST_MS",
    "MAX_CLAIMED_GROUPS",
    "MAX_NESTING",
    "NO_LONGER_KNOWN",
    "OUTCOMES",
    "REQUEST_NAMES",
    "SEVERITIES",
    "SINCE_EVER",
    "Action",
    "Batch",
    "CompiledDocument",
    "Compiler",
    "Decision",
    "DecisionContext",
    "Document",
    "DocumentHistory",
    "DocumentStore",
    "FactChange",
    "FactOverlay",
    "FilesRefused",
    "Grant",
    "Key",
    "Kind",
    "ListsActions",
    "Located",
    "MalformedRequest",
    "Missing",
    "Outcome",
    "Place",
    "PolicySet",
    "Positions",
    "Reason",
    "Rejected",
    "Request",
    "Resource",
    "Severity",
    "Snapshot",
    "SnapshotChange",
    "StatementId",
    "Subject",
    "Unanswerable",
    "Unreadable",
    "Version",
    "Work",
    "all_systems",
    "answer",
    "changes_of",
    "check_letter_case",
    "check_nesting",
    "compile_documents",
    "context_of",
    "decide",
    "decode_json",
    "decode_request",
    "decode_text",
    "document_files",
    "drafted",
    "dump_yaml",
    "encode_document",
    "engine_findings",
    "files_below",
    "identify",
    "is_document",
    "is_exact",
    "is_same_value",
    "layer_of",
    "matches",
    "nearest",
    "parse_request",
    "read_document_text",
    "read_documents",
    "read_json",
    "read_value",
    "read_yaml",
    "refusals",
    "to_ms",
    "to_text",
    "together",
    "unique_members",
    "usable_time",
    "warnings_of",
    "with_drafts",
    "worst",
]

# Names of modules that read and write files: with YAML they take longer to import than the rest, and a service that
# asks for decisions needs none of them.
_FILES = {
    "policy.core.plain_data": ("Unreadable", "decode_text", "read_json", "read_value", "read_yaml"),
    "policy.core.yaml_text": ("dump_yaml", "is_exact", "is_same_value"),
    "policy.store.positions": ("Positions",),
    "policy.store.publishable": ("encode_document", "engine_findings", "refusals", "warnings_of"),
    "policy.store.repository": (
        "FilesRefused",
        "Located",
        "Place",
        "document_files",
        "files_below",
        "is_document",
        "read_document_text",
        "read_documents",
    ),
}
_LATER = {name: module for module, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The names of `_FILES`, imported when one is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value
