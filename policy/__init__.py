"""lockkeeper's policy engine: pure, the same answers everywhere.

>>> snapshot = compile_documents(documents)
>>> decide(snapshot, request).outcome
'allow'
"""

from policy.core.decision import Decision, Missing
from policy.core.model import Reason
from policy.core.pattern import match_text as matches
from policy.core.request import MalformedRequest, parse_request
from policy.evaluation.authorize import answer, decide
from policy.store.documents import DocumentStore, Rejected
from policy.store.snapshot import Snapshot, compile_documents

__all__ = [
    "Decision",
    "DocumentStore",
    "MalformedRequest",
    "Missing",
    "Reason",
    "Rejected",
    "Snapshot",
    "answer",
    "compile_documents",
    "decide",
    "matches",
    "parse_request",
]
