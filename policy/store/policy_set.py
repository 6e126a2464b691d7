"""One system's part of a snapshot: grants, memberships and facts, indexed."""

import bisect
import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from policy.core.caching import Cache, weight_of_texts
from policy.core.document import SINCE_EVER, Key
from policy.core.fact_table import FactTable
from policy.core.facts import Facts
from policy.core.grouping import grouped
from policy.core.model import TIME_NEEDED, Grant, Membership, Unanswerable
from policy.core.pattern import Name
from policy.core.times import ALWAYS, Window
from policy.matching.grants import EffectivePermissions, Grants, without
from policy.store.delta import PolicySetChange, Refused
from policy.store.history import Refusal
from policy.store.memberships import MembershipIndex, Via, reachable_principals
from policy.store.overlay import FactOverlay
from policy.store.packing import pack_grants, pack_memberships, unpack_grants, unpack_memberships
from policy.systems.kit.system import EVERYONE

PRINCIPAL_BYTES = 100  # of an effective principal, beside its name

Statement = TypeVar("Statement", Grant, Membership)


class EffectivePrincipals:
    """Who a subject is within an epoch: its effective principals, and what these may do."""

    def __init__(self, policy_set: "PolicySet", via: Via, at: int | None) -> None:
        self.via = via
        self._policy_set, self._at = policy_set, at

    def grants(self) -> Iterable[Grant]:
        """Every grant of theirs, in force or not."""
        return itertools.chain.from_iterable(self._policy_set.grants.get(principal, ()) for principal in self.via)

    def permissions(self, permission: Name) -> EffectivePermissions:
        """What may be done by one permission."""
        return self._policy_set.index.effective(self.via, permission, self._at)


class PolicySet:
    """Empty at first. ``grants`` by principal, ``memberships`` by member; ``facts``: those of the policies and of a
    layer below; ``broken``: principals that documents affect which are refused at every moment, each with the first.

    It does not change: `with_change` and `with_facts` make others, which share with it all that is alike.
    """

    def __init__(self) -> None:
        self.grants: dict[str, list[Grant]] = {}
        self.memberships: dict[str, list[Membership]] = {}
        self.index = Grants()
        self._windows: Counter[Window] = Counter()  # of grants and memberships that are not valid for ever
        # Decisions about the past look at the policies of their time: of these facts no past is kept.
        self._policy_facts = FactTable(superseded_kept=0, all_after=SINCE_EVER - 1)
        self._refused = Refused()
        self._prepare()

    def _prepare(self) -> None:
        windows = (*self._windows, *(refusal.window for refusal in self._refused.for_a_time))
        self._policy_edges = sorted({edge for window in windows for edge in window.edges})
        self._cached_principals: Cache[tuple[tuple[str, ...], int], EffectivePrincipals] = Cache()
        self._set_layer(None, {})

    def _set_layer(self, layer: FactTable | None, bound: Mapping[Key, frozenset[str]]) -> None:
        self._layer, self._bound = layer, bound
        self.facts = Facts(self._policy_facts) if layer is None else Facts(self._policy_facts, layer)
        documents = {**self._refused.broken, **self._refused.nameless, **bound}
        self.broken = {principal: key for key in sorted(documents, reverse=True) for principal in documents[key]}
        self.__dict__.pop("edges", None)

    def _alias(self) -> "PolicySet":
        other = object.__new__(PolicySet)
        other.__dict__.update(self.__dict__)
        return other

    def with_change(self, change: PolicySetChange) -> "PolicySet":
        """The policy set after a change of documents, without facts of a layer.

        It costs as much as is different, beside copies of a few plain dictionaries.
        """
        other = self._alias()
        other.grants = _changed(self.grants, change.no_grants, change.grants, _principal)
        other.memberships = _changed(self.memberships, change.no_memberships, change.memberships, _member)
        for member in {membership.member for membership in change.memberships}:
            other.memberships[member].sort(key=_route_order)  # a list of this change's own: others are not sorted again
        if other.memberships is not self.memberships:
            other.__dict__.pop("membership_index", None)
        if change.no_grants or change.grants:
            other.index = self.index.with_changes(change.no_grants, change.grants)
        other._windows = self._windows.copy()
        other._windows.subtract(_bounded(change.no_grants, change.no_memberships))
        other._windows.update(_bounded(change.grants, change.memberships))
        other._windows = +other._windows  # without those of which none is left: their edges are none any more
        if change.facts:
            other._policy_facts = self._policy_facts.copy()
            for thing, version in change.facts.items():
                other._policy_facts.put(thing, version)
        other._refused = change.refused or self._refused
        other._prepare()
        return other

    def with_facts(self, system: str, overlay: FactOverlay, moment: int | None = None) -> "PolicySet":
        """The same with the facts of a layer below those of the policy topics, which win; see `Snapshot.with_facts`.

        What was worked out of grants and memberships is shared.
        """
        other = self._alias()
        other._set_layer(overlay.table(system, moment), overlay.refused_documents(system, moment))
        return other

    def says_the_same(self, other: "PolicySet") -> bool:
        """Whether both surely say the same, whatever their facts of a layer: one was made of the other."""
        return (
            self.grants is other.grants
            and self.memberships is other.memberships
            and self._policy_facts is other._policy_facts
            and self._refused is other._refused
        )

    @functools.cached_property
    def edges(self) -> list[int]:
        """The moments (ms) at which answers may change, rising; computed on demand, which decisions never do."""
        of_facts = self.facts.edges()
        return sorted({*self._policy_edges, *of_facts}) if of_facts else self._policy_edges

    @functools.cached_property
    def membership_index(self) -> MembershipIndex:
        """The members of principals; computed on demand, which decisions never do."""
        return MembershipIndex(itertools.chain.from_iterable(self.memberships.values()))

    def affected_principals(self, other: "PolicySet") -> set[str] | None:
        """The principals whose decisions may differ by ``other``, which was made from this one; None: all principals.

        A decision reads the grants and memberships of each effective principal. So the principals are affected whose
        lists of these differ, and all members of those, at any depth, by the memberships of this one: a path that only
        the other one has begins at a member whose list differs. Changed facts and refused documents affect all.
        """
        if self._policy_facts is not other._policy_facts or self._refused is not other._refused:
            return None
        changed = {*_different(self.grants, other.grants), *_different(self.memberships, other.memberships)}
        if not changed:
            return changed
        affected = self.membership_index.members(changed)
        return None if EVERYONE in affected else affected

    def __reduce__(self) -> tuple[Any, ...]:
        """What came by changes is packed as a change of the empty one; indexes are made where it is unpacked."""
        packed = pack_grants(self.grants), pack_memberships(self.memberships)
        return _unpacked, (*packed, self._refused, self._policy_facts, self._layer, self._bound)

    def refused_documents(self) -> dict[str, frozenset[str]]:
        """The documents that are refused at some moment without a good version, and the principals they affect."""
        return {
            document: frozenset[str]().union(*(refusal.affected_principals for refusal in refusals))
            for document, refusals in self.refusals().items()
        }

    def refusals(self) -> dict[str, list[Refusal]]:
        """When documents are refused without a good version, by document."""
        always = {**self._refused.broken, **self._refused.nameless}
        refusals = (Refusal(key, ALWAYS, affected) for key, affected in always.items())
        return grouped((*refusals, *self._refused.for_a_time), lambda refusal: str(refusal.key))

    def broken_at(self, at: int | None) -> Mapping[str, Key]:
        """Principals that a document refused at ``at`` affects (None: at any moment), each with that one."""
        if not self._refused.for_a_time:
            return self.broken
        broken = dict(self.broken)
        for refusal in self._refused.for_a_time:
            if at is None or refusal.window.holds(at):
                for principal in refusal.affected_principals:
                    broken[principal] = min(refusal.key, broken.get(principal, refusal.key))
        return broken

    def epoch(self, at: int | None) -> int:
        """How many edges lie behind ``at``: answers do not change within an epoch. -1: unknown."""
        return -1 if at is None else bisect.bisect_right(self.edges, at)

    def interval(self, at: int, edges: Collection[int] = ()) -> tuple[int | None, int | None]:
        """Since when and until when (ms; None: for ever) nothing begins or ceases to be in force, around a moment.

        Of the facts ``edges`` alone count, which a decision has read.
        """
        if not (self._policy_edges or edges):
            return None, None
        number = bisect.bisect_right(self._policy_edges, at)
        since, until = self._policy_edges[:number][-1:], self._policy_edges[number : number + 1]
        if edges:
            since += [edge for edge in edges if edge <= at]
            until += [edge for edge in edges if edge > at]
        return max(since, default=None), min(until, default=None)

    def effective_principals(self, start: tuple[str, ...], at: int | None) -> EffectivePrincipals:
        """Every principal that ``start`` is, directly or through memberships in force at ``at``.

        Raises Unanswerable when it depends on the time, and that is not known.
        """
        # Memberships depend on no facts: logins, which are edges of facts, must not end what is known of principals.
        key = (start, -1 if at is None else bisect.bisect_right(self._policy_edges, at))
        effective = self._cached_principals.get(key)
        if effective is None:
            via = reachable_principals((*start, EVERYONE), self.memberships, lambda window: window.known_to_hold(at))
            if at is None:
                self._check_complete(via)
            effective = EffectivePrincipals(self, via, at)
            # The names of the other principals are kept with the documents.
            weight = weight_of_texts(start) + PRINCIPAL_BYTES * len(via)
            self._cached_principals.hold(key, effective, weight)
        return effective

    def _check_complete(self, via: Via) -> None:
        """Raise Unanswerable if a time-bound membership may lead further than those that always are in force."""
        memberships = itertools.chain.from_iterable(self.memberships.get(member, ()) for member in via)
        if any(membership.principal not in via for membership in memberships):
            raise Unanswerable("time-needed", TIME_NEEDED)


_principal, _member = operator.attrgetter("principal"), operator.attrgetter("member")


def _unpacked(
    grants: bytes,
    memberships: bytes,
    refused: Refused,
    policy_facts: FactTable,
    layer: FactTable | None,
    bound: Mapping[Key, frozenset[str]],
) -> PolicySet:
    change = PolicySetChange(grants=unpack_grants(grants), memberships=unpack_memberships(memberships), refused=refused)
    policy_set = PolicySet().with_change(change)
    policy_set._policy_facts = policy_facts
    policy_set._set_layer(layer, bound)
    return policy_set


def _changed(
    statements: dict[str, list[Statement]],
    removed: Sequence[Statement],
    added: Sequence[Statement],
    owner: Callable[[Statement], str],
) -> dict[str, list[Statement]]:
    """The statements of owners after a change: lists that change are others, all others are the same."""
    if not removed and not added:
        return statements
    changed = dict(statements)
    for name, less in grouped(removed, owner).items():
        changed[name] = _left(changed[name], less)
    for name, more in grouped(added, owner).items():
        changed[name] = changed.get(name, []) + more
    for name in {owner(statement) for statement in removed}:
        if not changed[name]:
            del changed[name]
    return changed


def _different(statements: Mapping[str, list[Statement]], others: Mapping[str, list[Statement]]) -> Iterator[str]:
    """The owners whose lists are not the very same: see `_changed`."""
    if statements is not others:
        owners = itertools.chain(statements, others)
        yield from (name for name in owners if statements.get(name) is not others.get(name))


def _left(statements: list[Statement], removed: list[Statement]) -> list[Statement]:
    documents = {statement.statement_id.document for statement in removed}
    return without(statements, removed, lambda statement: statement.statement_id.document in documents)


def _bounded(*parts: Sequence[Grant] | Sequence[Membership]) -> Iterator[Window]:
    windows = (statement.window for part in parts for statement in part)
    return (window for window in windows if window is not ALWAYS and window != ALWAYS)


def _route_order(membership: Membership) -> tuple[Any, ...]:
    """Of several routes to a principal the first is reported: the same one in whatever order the documents came."""
    start, end = membership.window.start, membership.window.end
    since, until = -1 if start is None else start, math.inf if end is None else end
    return membership.principal, membership.statement_id.place, since, until
