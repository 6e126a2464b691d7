"""What the packages of systems are made with. One of another distribution needs no other module than this.

The protocol, the validator of documents, claims and catalogues are in its modules; documents, requests, patterns, facts
and what queries are made of come from `policy.core`.
"""

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import (
    ALLOW,
    DENY,
    NO_LONGER_KNOWN,
    All,
    AnyOf,
    AuthorizationQuery,
    CompiledDocument,
    Condition,
    Effect,
    EngineResult,
    Expression,
    Fact,
    Grant,
    Membership,
    PermissionCheck,
    Reason,
    StatementId,
    Unanswerable,
)
from policy.core.names import fault, fold, is_simple
from policy.core.pattern import (
    ANY,
    EVERYTHING,
    Exact,
    Name,
    Part,
    Pattern,
    Prefix,
    exactly,
    match_text,
    part_text,
    wildcard,
)
from policy.core.request import Request, Resource
from policy.core.suggest import nearest
from policy.core.times import ALWAYS, Window, to_ms, to_text
from policy.systems.kit.claims import Claimed, check_count, claimed, names_in
from policy.systems.kit.engine import Engine, EngineFinding, NearStatement, Privilege, Statement, statement_facts
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.query import Need, all_of, any_of, check_name, expression
from policy.systems.kit.system import EVERYONE, UNTYPED, Kind, NamesKinds, ObjectOf, System, kind_of, load_catalogue
from policy.systems.kit.validator import MAX_STATEMENTS, Validator, one_fact

read_powers = read_privileged_permissions  # its name before: systems of other distributions import it

__all__ = [
    "ALLOW",
    "ALWAYS",
    "ANY",
    "DENY",
    "EVERYONE",
    "EVERYTHING",
    "MAX_STATEMENTS",
    "NO_LONGER_KNOWN",
    "UNTYPED",
    "All",
    "AnyOf",
    "AuthorizationQuery",
    "Claimed",
    "CompiledDocument",
    "Condition",
    "Document",
    "Effect",
    "Engine",
    "EngineFinding",
    "EngineResult",
    "Exact",
    "Expression",
    "Fact",
    "FactChange",
    "Facts",
    "Grant",
    "Kind",
    "Membership",
    "Name",
    "NamesKinds",
    "NearStatement",
    "Need",
    "ObjectOf",
    "Opening",
    "Part",
    "Pattern",
    "PermissionCheck",
    "Prefix",
    "Privilege",
    "PrivilegedPermission",
    "Reason",
    "Request",
    "Resource",
    "Statement",
    "StatementId",
    "System",
    "Unanswerable",
    "Validator",
    "Window",
    "all_of",
    "any_of",
    "check_count",
    "check_name",
    "claimed",
    "exactly",
    "expression",
    "fault",
    "fold",
    "is_simple",
    "kind_of",
    "load_catalogue",
    "match_text",
    "names_in",
    "nearest",
    "one_fact",
    "part_text",
    "read_powers",
    "read_privileged_permissions",
    "statement_facts",
    "to_ms",
    "to_text",
    "wildcard",
]
