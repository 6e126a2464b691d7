"""Which statements decide: all that do, where the reasons of a decision name one of those that say the same.

A statement *decides* a request when it matches an atom that made the answer what it is: for an allow the allows,
for a deny the denies. What matched in a part that did not count (the part that held of an ``all`` that failed, an
allow below a deny) did not decide. A request that is answered ``error`` is decided by none.
"""

import itertools
import operator
import weakref
from collections.abc import Iterator

from policy.core.model import EngineResult, Grant, StatementId
from policy.core.request import CLAIMS, Batch, Request
from policy.evaluation.authorize import STOPS, answer
from policy.evaluation.evaluate import evaluate_request
from policy.evaluation.trace import ExpressionResult
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import Statement, engine_of, statement_facts, statements_of

Use = tuple[StatementId, ...]
"""The statements that decided one atom together: of several each is dispensable, but not all of them."""


Statements = dict[StatementId, list[Grant | Statement]]


def statements(snapshot: Snapshot) -> Statements:
    """Every statement in the snapshot's documents that grants or denies something, with its grants.

    Of a system with an engine of its own with what the engine says of it.
    """
    by_id: Statements = {}
    for system, policy_set in snapshot.policy_sets.items():
        by_id |= _statements(policy_set, system)
    return by_id


_ordered: weakref.WeakKeyDictionary[object, Statements] = weakref.WeakKeyDictionary()
"""By what they are of: to collect and sort them takes longer than most questions about them."""


def ordered_statements(snapshot: Snapshot, system: str) -> Statements:
    """The same of one system, by document and number, to be read alone. It is kept for as long as the policies are."""
    policy_set = snapshot.policy_sets.get(system)
    if policy_set is None:
        return {}
    # Facts change often, and are no statements but of an engine.
    owner = policy_set.index if engine_of(all_systems()[system]) is None else policy_set
    if owner not in _ordered:
        unordered = _statements(policy_set, system)
        _ordered[owner] = {statement_id: unordered[statement_id] for statement_id in sorted(unordered, key=_by_place)}
    return _ordered[owner]


_by_place = operator.attrgetter("place")


def _statements(policy_set: PolicySet, system: str) -> Statements:
    by_id: Statements = {}
    if (engine := engine_of(all_systems()[system])) is not None:
        for statement_id, statement in statements_of(engine, statement_facts(engine, policy_set.facts)):
            by_id.setdefault(statement_id, []).append(statement)
    for grant in itertools.chain.from_iterable(policy_set.grants.values()):
        by_id.setdefault(grant.statement_id, []).append(grant)
    return by_id


def uses(snapshot: Snapshot, request: Request | Batch, trust: frozenset[str] = CLAIMS) -> Iterator[Use]:
    """What decided a request, or those evaluations of a batch that are answered. Never raises for a bad one."""
    for item in request.items:
        allowed = False
        if isinstance(item, Request) and (decision := answer(snapshot, item, trust)).outcome != "error":
            allowed = decision.allowed
            yield from _uses(evaluate_request(snapshot, item, trust).result)
        if isinstance(request, Batch) and STOPS.get(request.semantic) is allowed:
            return


def _uses(result: ExpressionResult) -> Iterator[Use]:
    for leaf in result.deciding():
        if use := tuple(dict.fromkeys(_determining(leaf))):
            yield use


def _determining(leaf: ExpressionResult) -> Iterator[StatementId]:
    yield from (grant.statement_id for grant in leaf.grants)
    if isinstance(leaf.expression, EngineResult):
        reasons = leaf.expression.reasons
        yield from (StatementId(reason.document, reason.statement) for reason in reasons if reason.document is not None)
