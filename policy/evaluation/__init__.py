"""Decisions: a request evaluated over a snapshot, and why; the cache of answers for evaluators."""

from policy.core.fact_table import Lookup
from policy.evaluation.answers import (
    ANSWERS_KEPT,
    FIRST,
    ID,
    Answer,
    AnswerCache,
    ByState,
    CachedQuery,
    PolicySets,
    State,
)

__all__ = [
    "ANSWERS_KEPT",
    "FIRST",
    "ID",
    "Answer",
    "AnswerCache",
    "ByState",
    "CachedQuery",
    "Lookup",
    "PolicySets",
    "State",
]
