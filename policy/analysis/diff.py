"""What a change of policies changes: requests replayed on both sides, grants and memberships compared."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from policy.analysis.openings import opening_text, openings
from policy.analysis.wording import grant_text, membership_text
from policy.core.decision import Decision
from policy.core.model import ALLOW, DENY, Effect, Fact, Grant, Membership, StatementId
from policy.core.request import CLAIMS
from policy.core.times import Window
from policy.evaluation.authorize import decide
from policy.matching.subsuming import SubsumptionIndex
from policy.store.memberships import MembershipIndex
from policy.store.snapshot import PolicySet, Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import Engine, Statement, engine_of, statement_facts, statements_of
from policy.systems.kit.fact_changes import FactChange, fact_changes

Sign = Literal["removed", "changed", "added"]
SIGNS: tuple[Sign, ...] = ("removed", "changed", "added")
Written = TypeVar("Written", Grant, Membership)


Compared = Grant | Membership | Statement | None

Contents = dict[tuple[Hashable, Window], tuple[Statement, str]]
"""What an engine's statements do; each with the first of them that does so, and its document."""


class Changed(msgspec.Struct, frozen=True):
    """A request that is answered otherwise now. ``number`` counts the requests from 1."""

    number: int
    request: Mapping[str, Any]
    before: Decision
    after: Decision


class Difference(msgspec.Struct, frozen=True):
    """A grant, membership or fact that came, went or changed.

    ``widens``: more may get through than before; ``narrows``: less. A grant that another one gave or still gives does
    not count; a fact widens unless its system knows that it opens nothing. Grants are in the notation of their system.
    """

    system: str
    sign: Sign
    text: str
    document: str
    widens: bool
    narrows: bool = False


def replay(
    old: Snapshot, new: Snapshot, requests: Iterable[Mapping[str, Any]], trust: frozenset[str] = CLAIMS
) -> Iterator[Changed]:
    """The requests whose outcome, or that of one of their evaluations, differs."""
    for number, request in enumerate(requests, 1):
        before, after = decide(old, request, trust=trust), decide(new, request, trust=trust)
        if _outcomes(before) != _outcomes(after):
            yield Changed(number, request, before, after)


def _outcomes(decision: Decision) -> list[str]:
    return [decision.outcome, *(item.outcome for item in decision.evaluations)]


def compare(old: Snapshot, new: Snapshot) -> list[Difference]:
    """Every grant, membership and fact that differs, by system and document, removed ones first."""
    return [difference for difference, _ in compare_written(old, new)]


def compare_written(old: Snapshot, new: Snapshot) -> list[tuple[Difference, Compared]]:
    """The same, each with the grant, membership or statement that it is; None: a fact."""
    found: list[tuple[Difference, Compared]] = []
    for system, policy_set in new.policy_sets.items():
        before = old.policy_sets[system]
        found += [
            *_of_one_side(system, "removed", before, policy_set),
            *_of_one_side(system, "added", policy_set, before),
        ]
        found += [*_of_facts(system, before, policy_set), *_of_refusals(system, before, policy_set)]
    return sorted(found, key=lambda d: (d[0].system, d[0].document, SIGNS.index(d[0].sign), d[0].text))


def _of_one_side(system: str, sign: Sign, here: PolicySet, there: PolicySet) -> Iterator[tuple[Difference, Compared]]:
    """What is ``here`` and not ``there``; where it is written counts for nothing."""
    known = {placeless(grant) for grant in _grants(there)}
    grants = [grant for grant in _grants(here) if placeless(grant) not in known]
    principals = {grant.principal for grant in grants}
    others = SubsumptionIndex(grant for principal in principals for grant in there.grants.get(principal, ()))
    yield from ((_of_grant(system, sign, grant, others), grant) for grant in grants)
    links = {placeless(way) for way in _memberships(there)}
    ways = [way for way in _memberships(here) if placeless(way) not in links]
    # A new one widens by the allows it leads to, a lost one by the denies.
    # One that led to what a refused document affects made requests errors.
    opening = _leading_to(here, ALLOW if sign == "added" else DENY) if ways else set[str]()
    if sign == "removed" and ways and (broken := here.broken_at(None)):
        opening |= MembershipIndex(_memberships(here)).members(broken)
    closing = _leading_to(here, DENY if sign == "added" else ALLOW) if ways else set[str]()
    for way in ways:
        widens, narrows = way.principal in opening, way.principal in closing
        text, document = membership_text(way), way.statement_id.document
        yield Difference(system, sign, text, document, widens, narrows), way


def _grants(policy_set: PolicySet) -> list[Grant]:
    return [grant for grants in policy_set.grants.values() for grant in grants]


def _memberships(policy_set: PolicySet) -> list[Membership]:
    return [way for ways in policy_set.memberships.values() for way in ways]


def placeless(written: Written) -> Written:
    """A grant or membership without where it is written, which says nothing of what it does."""
    return msgspec.structs.replace(written, statement_id=StatementId(""))


def _of_grant(system: str, sign: Sign, grant: Grant, others: SubsumptionIndex) -> Difference:
    more = (sign == "added") == (grant.effect == ALLOW)
    is_effective = not others.says_as_much(grant)
    text = grant_text(grant, all_systems()[system])
    widens, narrows = more and is_effective, not more and is_effective
    return Difference(system, sign, text, grant.statement_id.document, widens, narrows)


def _leading_to(policy_set: PolicySet, effect: Effect) -> set[str]:
    """Every principal of a grant with an effect, and all that are one of them, at any depth."""
    principals = {grant.principal for grant in _grants(policy_set) if grant.effect == effect}
    return MembershipIndex(_memberships(policy_set)).members(principals)


def _of_facts(system: str, old: PolicySet, new: PolicySet) -> Iterator[tuple[Difference, Compared]]:
    engine = engine_of(all_systems()[system])
    if engine is not None:  # the policies themselves are facts
        yield from _of_statements(system, engine, old, new)
    apart = engine.statement_kinds if engine is not None else ()
    for kind in sorted({*old.facts.kinds(), *new.facts.kinds()} - set(apart)):
        for change in fact_changes(_facts(old, kind), _facts(new, kind)):
            yield from ((one, None) for one in _of_fact(system, change, new))


def _facts(policy_set: PolicySet, kind: str) -> Iterator[Fact]:
    facts = policy_set.facts
    return (fact for name in facts.names(kind) for fact in facts.versions(kind, name))


def _of_fact(system: str, change: FactChange, new: PolicySet) -> Iterator[Difference]:
    """One for each restriction that is gone, else one for the fact: where nothing opens, of document kinds alone."""
    translator = all_systems()[system]
    found = openings(translator, change, new.facts)
    sign: Sign = "added" if not change.before else "removed" if not change.after else "changed"
    document = change.document or f"{system}/{change.kind}/{change.name}"
    yield from (Difference(system, sign, opening_text(one, change), document, True) for one in found if one.lifts)
    widens = any(not one.lifts for one in found)
    if widens or (not found and (change.kind in translator.kinds or engine_of(translator) is not None)):
        name = change.name.removesuffix(f"#{document}")  # one document may hold several facts
        text = f"what is known of {change.kind} {name}"
        yield Difference(system, sign, text, document, widens)


def _of_refusals(system: str, old: PolicySet, new: PolicySet) -> Iterator[tuple[Difference, Compared]]:
    """Refused documents that affected requests, and no longer do, or not all of them."""
    for document in sorted(_refusals(system, old, new)):
        text = "was refused and without a good version: requests that it affected were errors"
        yield Difference(system, "removed", text, document, True), None


def _refusals(system: str, old: PolicySet, new: PolicySet) -> set[str]:
    before, after = old.broken_at(None), new.broken_at(None)
    found = {str(key) for principal, key in before.items() if principal not in after}
    for kind in all_systems()[system].kinds:
        names = set(old.facts.broken(kind)) - set(new.facts.broken(kind))
        found |= {f"{system}/{kind}/{name}" for name in names}
    return found


def _of_statements(
    system: str, engine: Engine, old: PolicySet, new: PolicySet
) -> Iterator[tuple[Difference, Compared]]:
    """The statements of an engine that are on one side alone, wherever they are written."""
    before, after = (_by_content(engine, side) for side in (old, new))
    sides: tuple[tuple[Sign, Contents, Contents], ...] = (("removed", before, after), ("added", after, before))
    for sign, here, there in sides:
        for content, (statement, document) in here.items():
            if content not in there:
                widens = (sign == "added") == (statement.effect == ALLOW)
                yield Difference(system, sign, grant_text(statement), document, widens, not widens), statement


def _by_content(engine: Engine, side: PolicySet) -> Contents:
    found: Contents = {}
    for statement_id, statement in statements_of(engine, statement_facts(engine, side.facts)):
        found.setdefault((statement.compared, statement.window), (statement, statement_id.document))
    return found
