"""lockkeeper's policy engine: pure, the same answers everywhere.

>>> snapshot = compile_documents(documents)
>>> decide(snapshot, request).outcome
'allow'
"""

from policy.decide import answer, decide
from policy.decisions import Decision, Missing
from policy.library import Library, Rejected
from policy.model import Reason
from policy.patterns import match_text as matches
from policy.requests import MalformedRequest, parse_request
from policy.snapshot import Snapshot, compile_documents

__all__ = [
    "Decision",
    "Library",
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
