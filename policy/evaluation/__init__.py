"""Decisions: a request evaluated over a snapshot, and why; prepared queries and caches for evaluators."""

from policy.core.caching import BUDGET, ENTRY_BYTES, HELD_BYTES, Cache, weight_of
from policy.core.facts import Lookup
from policy.core.model import EFFECTS
from policy.core.names import is_simple
from policy.core.pattern import EVERYTHING, Name
from policy.evaluation.explain import route
from policy.evaluation.prepared import CachedQuery, PreparedQueries, PreparedQuery, check_resource
from policy.matching.grants import Table
from policy.matching.index import TrieState
from policy.store.memberships import Via
from policy.systems.kit.query import check_name
from policy.systems.kit.system import ObjectOf

__all__ = [
    "BUDGET",
    "EFFECTS",
    "ENTRY_BYTES",
    "EVERYTHING",
    "HELD_BYTES",
    "Cache",
    "CachedQuery",
    "Lookup",
    "Name",
    "ObjectOf",
    "PreparedQueries",
    "PreparedQuery",
    "Table",
    "TrieState",
    "Via",
    "check_name",
    "check_resource",
    "is_simple",
    "route",
    "weight_of",
]
