"""Escalations: the privileged access that a change of documents grants, and to whom.

Reported are privileged permissions (see `privileged_permissions`) that a principal has newly, and denies that are gone
from over something that is allowed now. A privilege may come by a grant, by a membership that leads to an old grant, or
by both in one change; a deny may go or shrink, or the membership go that led to it. Only what is in force counts: what
a newer grant repeats, what another one covered before, and what a deny takes away whole opens nothing.

How time counts: a grant, membership or deny counts from the moment of the change on. One that begins later is reported
when it is published, with its window, and not again when it begins; one that is over by then counts for nothing;
a deny that ends before what it lies on does not cover it, so that is reported at once as well.

What is claimed is not known to documents. So a deny that no longer applies is reported also where the allow under it is
another's with whom he might share a request: a group that he may claim as well (``companion``).

Where it reports too much: grants that cover something only together do not count as covering it; of two overlapping
globs (such as ``a*b`` and ``*c``) one stands for what both match. A refused document neither gives nor takes: what it
did before it was refused goes on counting.

Facts that restrict, such as kinds kept from Editors, count as denies where their system says that one is gone
(`policy.systems.kit.fact_changes`).

The work may be bounded (``Work``). What was found until then is reported, as incomplete.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from policy.analysis.edits import Edit, GrantChange
from policy.analysis.opened import Edits, Opened, OpenedByFact, OpenedGrants, OpenedStatement, opened
from policy.analysis.openings import opening_text
from policy.analysis.shadowed import ShadowedAllows, ShadowIndex
from policy.analysis.versions import EffectiveGrants, common
from policy.analysis.widening import Widenings, widenings_of
from policy.analysis.wording import grant_text, membership_text
from policy.core.limits import Work, WorkExceeded
from policy.core.model import ALLOW, DENY, Grant, Membership, StatementId
from policy.core.pattern import Pattern
from policy.store.policy_set import PolicySet
from policy.systems.kit.privileged import PrivilegedPermission, PrivilegeKind, PrivilegeTable, Severity, worst
from policy.systems.kit.system import EVERYONE, HasCompanions, System

TRACED = 10_000  # of those whom one grant or membership concerns, the first by name
NAMES_A_STEP = 5  # of those whom something concerns, gone through with a step of work
LINES = 5  # of what a statement says, before and after, and of memberships

EscalationKind = PrivilegeKind | Literal["deny-lifted"]
LIFTED: tuple[str, Severity] = ("a deny is lifted", "high")
PERHAPS: tuple[str, Severity] = ("a deny is lifted, for principals that also have an allow that it denied", "medium")


class Escalation(msgspec.Struct, frozen=True, order=True, rename={"principals": "holders"}):
    """What one statement opens, and for whom. ``document``, ``statement``: where it stands; -1: the document as such.

    ``names``: of the privileged_permissions. ``grants``: the first that it is about; of ``deny-lifted`` these are the
    denies, and
    ``allow`` is something under them, held by ``companion`` if that is not empty. ``principals``: whom it concerns, as
    the system calls subjects and claims, sorted; ``*`` is everyone. ``unseen``: how many more there may be, who were
    too many to look at. ``causes``: the documents that changed and made it so. ``before``, ``after``: the first lines
    of what the statement said and says; ``ways``: the first memberships that came, or that led to a deny and went.
    """

    document: str
    statement: int
    kind: EscalationKind
    severity: Severity
    names: tuple[str, ...]
    grants: tuple[str, ...]
    principals: tuple[str, ...]
    causes: tuple[str, ...]
    unseen: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    allow: str = ""
    companion: str = ""


class Analysis(msgspec.Struct, frozen=True):
    """What changes open, sorted. ``complete``: False where the work was not enough: there may be more, for more."""

    escalations: tuple[Escalation, ...] = ()
    complete: bool = True
    widenings: Widenings = Widenings()


def analyse(system: System, policy_set: PolicySet, edits: Sequence[Edit], at: int, work: Work) -> Analysis:
    """What ``edits`` together open. ``policy_set``: the system's after them. ``at``: when they were made, ms.

    ``work``: for what opens; as much again is taken to find out for whom, whose cost grows with these and, only where a
    deny is removed, with all grants.
    """
    result, more = opened(Edits(system, policy_set, edits, at), work), work.again()
    each = [*_Escalations(result, more).escalations(), *_by_facts(result), *_by_statements(result)]
    return Analysis(tuple(sorted(each)), result.complete and not more.exceeded, widenings_of(result))


def _by_facts(result: Opened) -> set[Escalation]:
    """The restrictions that facts had, and have no more; a document may hold thousands, and lift the same by each."""
    return {
        Escalation(
            *(change.document, -1, "deny-lifted", opening.severity, (opening.lifts,)),
            (opening_text(opening, change),),
            (opening.who,),
            (change.document,),
        )
        for change, opening in ((item.change, item.opening) for item in result.opens if isinstance(item, OpenedByFact))
        if opening.lifts
    }


def _by_statements(result: Opened) -> Iterator[Escalation]:
    """What the statements of an engine open. Whether there is something under a deny that is gone is not known."""
    for item in result.opens:
        if not isinstance(item, OpenedStatement):
            continue
        kinds: dict[EscalationKind, dict[str, Severity]] = {}
        if item.statement.effect == DENY:
            kinds["deny-lifted"] = dict([PERHAPS])
        else:
            for privilege in item.statement.privileges:
                kinds.setdefault(privilege.kind, {})[privilege.name] = privilege.severity
        document, number = item.statement_id.place
        for kind, names in kinds.items():
            yield Escalation(
                *(document, number, kind, worst(names.values()), tuple(sorted(names)), (grant_text(item.statement),)),
                item.statement.principals,
                (document,),
            )


def open_to_everyone(system: System, policy_set: PolicySet) -> list[Grant]:
    """The grants by which nothing is enforced, whenever they came."""
    unenforced = [privilege for privilege in system.privileged_permissions() if privilege.kind == "enforcement"]
    return [
        grant
        for grant in policy_set.grants.get(EVERYONE, ())
        if any(privilege.part_of(grant) for privilege in unenforced)
    ]


class _Group(msgspec.Struct, frozen=True):
    """Some who hold the same before, and the same after. ``is_claim``: they are claims, not subjects.

    ``principal``: the one that it is, in a system where others of its request depend on that (`HasCompanions`); "".
    """

    before: EffectiveGrants
    after: EffectiveGrants
    is_claim: bool
    principal: str


class _People(msgspec.Struct, frozen=True):
    """Whom a start concerns. ``unseen``: how many were too many to look at."""

    start: GrantChange
    groups: dict[_Group, list[str]]
    unseen: int


class _FindingKey(msgspec.Struct, frozen=True):
    """What findings are gathered by. ``sure``: it does not take a companion."""

    kind: EscalationKind
    statement_id: StatementId
    sure: bool = True


class _Finding(msgspec.Struct):
    """What was found at one place. ``concerned``: by document, those whom it concerns, each list once."""

    names: dict[str, Severity] = {}
    grants: dict[Grant, None] = {}
    memberships: dict[Membership, None] = {}
    concerned: dict[str, dict[int, list[str]]] = {}
    unseen: dict[str, int] = {}
    shadowed: ShadowedAllows | None = None

    def add(self, name: str, severity: Severity, grant: Grant, people: _People, groups: Iterable[_Group]) -> None:
        """Note one grant as one privilege for some of the people."""
        document = people.start.document
        self.names[name] = severity
        self.grants[grant] = None
        self.memberships.update(dict.fromkeys(people.start.memberships))
        lists = self.concerned.setdefault(document, {})
        lists.update((id(names), names) for names in map(people.groups.__getitem__, groups))
        self.unseen[document] = max(people.unseen, self.unseen.get(document, 0))

    @property
    def lists(self) -> int:
        """How many names there are to go through."""
        return sum(len(names) for lists in self.concerned.values() for names in lists.values())

    def count(self, causes: tuple[str, ...]) -> int:
        """How many it concerns by these documents, at most."""
        lists = (names for cause in causes for names in self.concerned.get(cause, {}).values())
        return sum(map(len, lists)) + self.unseen_by(causes)

    def unseen_by(self, causes: tuple[str, ...]) -> int:
        """How many more there may be, who were too many to look at."""
        return max(self.unseen.get(cause, 0) for cause in causes)

    def by_causes(self) -> dict[tuple[str, ...], set[str]]:
        """Whom it concerns, by the documents that made it so."""
        causes: dict[str, list[str]] = {}
        for document, lists in sorted(self.concerned.items()):
            for name in {name for names in lists.values() for name in names}:
                causes.setdefault(name, []).append(document)
        names_by_causes: dict[tuple[str, ...], set[str]] = {}
        for name, documents in causes.items():
            names_by_causes.setdefault(tuple(documents), set()).add(name)
        for document, unseen in self.unseen.items():
            if unseen:
                names_by_causes.setdefault((document,), set())
        return names_by_causes


class _Escalations:
    """Those that grants which open something are, in one change."""

    def __init__(self, result: Opened, work: Work) -> None:
        self._work, self._take, self._edits = work, work.take, result.edits
        self._gains, self._losses = (
            [item for item in result.opens if isinstance(item, OpenedGrants) and item.effect == effect]
            for effect in (ALLOW, DENY)
        )
        system = result.edits.system
        self._privileges = PrivilegeTable(system.privileged_permissions())
        self._subjects, self._claims = system.subjects, system.claims
        self._companions = system.in_one_request if isinstance(system, HasCompanions) else None
        self._findings: dict[_FindingKey, _Finding] = {}

    def escalations(self) -> Iterator[Escalation]:
        """Every one that was found, in no particular order."""
        with contextlib.suppress(WorkExceeded):
            for gained in self._gains:
                self._take(1 + len(gained.grants))
                self._gained(gained)
            for lost in self._losses:
                self._take(1 + len(lost.grants))
                self._lost(lost)
        return (
            escalation for key, finding in self._findings.items() for escalation in self._escalations_at(key, finding)
        )

    def _gained(self, gained: OpenedGrants) -> None:
        """Privileged permissions that a principal has newly."""
        grants = dict.fromkeys(opened_grant.grant for opened_grant in gained.grants)
        parts = [(grant, privilege) for grant in grants for privilege in self._privileges.of(grant)]
        if not parts:
            return
        people = self._people(gained.change)
        for grant, privilege in parts:
            self._take(1 + len(people.groups))
            groups = [group for group in people.groups if self._has_newly(group, grant, privilege)]
            if groups or people.unseen:
                finding = self._findings.setdefault(_FindingKey(privilege.kind, grant.statement_id), _Finding())
                finding.add(privilege.name, privilege.severity, grant, people, groups)

    def _has_newly(self, group: _Group, grant: Grant, privilege: PrivilegedPermission) -> bool:
        parts = (privilege.part_of(whole) for whole in group.after.parts(grant))
        new = (part for part in parts if part is not None and not group.before.allowed(part))
        return any(not group.after.denied(part) for part in new) and not self._began(grant, privilege)

    def _began(self, grant: Grant, privilege: PrivilegedPermission) -> bool:
        """Whether a principal always has the privileged permission and none had it yet."""
        return privilege.changes_hands and (grant.permission, grant.object) not in self._held

    @functools.cached_property
    def _held(self) -> set[tuple[Pattern, Pattern]]:
        """What the changed documents granted before."""
        return {(grant.permission, grant.object) for compiled in self._edits.said.values() for grant in compiled.grants}

    def _lost(self, lost: OpenedGrants) -> None:
        """Removed denies that shadowed allows."""
        people = self._people(lost.change)
        for deny in dict.fromkeys(opened_grant.grant for opened_grant in lost.grants):
            for group in people.groups:
                self._take()
                shadowed = self._shadow_index.find(deny, group.before, group.after, self._may_join(group))
                if shadowed is not None:
                    self._lifted(deny, shadowed, people, [group])
            if people.unseen:
                self._lifted(deny, None, people, [])

    def _may_join(self, group: _Group) -> Callable[[str], bool]:
        """Who may share a request with those of a group: claims, and with a claim also a subject."""
        if self._companions is not None:
            return functools.partial(self._companions, group.principal)
        wanted = (*self._subjects, *self._claims) if group.is_claim else self._claims
        return lambda name: name.startswith(wanted)

    def _lifted(self, deny: Grant, shadowed: ShadowedAllows | None, people: _People, groups: list[_Group]) -> None:
        sure = shadowed is not None and not shadowed.companion
        finding = self._findings.setdefault(_FindingKey("deny-lifted", deny.statement_id, sure), _Finding())
        finding.add(*(LIFTED if sure else PERHAPS), deny, people, groups)
        finding.shadowed = min(filter(None, (finding.shadowed, shadowed)), key=_order, default=None)
        opened = common(shadowed.allow, deny) if shadowed is not None and sure else None
        if opened is not None:
            finding.names.update((privilege.name, privilege.severity) for privilege in self._privileges.of(opened))

    @functools.cached_property
    def _shadow_index(self) -> ShadowIndex:
        denied = {opened_grant.grant.permission for lost in self._losses for opened_grant in lost.grants}
        return ShadowIndex(self._edits.after, self._edits.memberships, denied, self._take)

    def _people(self, start: GrantChange) -> _People:
        """Every principal that may be one of the start's principals, on either version."""
        names = self._edits.people(start.principals)
        groups: dict[_Group, list[str]] = {}
        for name in names[:TRACED]:
            self._take()
            groups.setdefault(self._group(name), []).append(name)
        return _People(start, groups, len(names[TRACED:]))

    def _group(self, principal: str) -> _Group:
        is_claim = principal == EVERYONE or principal.startswith(self._claims)
        before, after = self._edits.before.effective_grants(principal), self._edits.after.effective_grants(principal)
        return _Group(before, after, is_claim, principal if self._companions is not None else "")

    def _escalations_at(self, key: _FindingKey, finding: _Finding) -> Iterator[Escalation]:
        """One for each set of documents that together made it so."""
        document, statement = key.statement_id.place
        before, after = (_first(map(grant_text, lines.get(key.statement_id, ()))) for lines in self._lines)
        for causes, names in self._by_causes(finding).items():
            memberships = (
                membership for membership in finding.memberships if membership.statement_id.document in causes
            )
            yield Escalation(
                document,
                statement,
                key.kind,
                worst(finding.names.values()),
                tuple(sorted(finding.names)),
                _first(map(grant_text, finding.grants)),
                tuple(sorted(names)),
                causes,
                finding.count(causes) if self._work.exceeded and not names else finding.unseen_by(causes),
                before,
                after,
                _first(map(membership_text, memberships)),
                grant_text(finding.shadowed.allow) if finding.shadowed else "",
                finding.shadowed.companion if finding.shadowed else "",
            )

    def _by_causes(self, finding: _Finding) -> dict[tuple[str, ...], set[str]]:
        """Whom it concerns, by the documents that made it so; where the work is not enough, how many by each."""
        try:
            self._take(finding.lists // NAMES_A_STEP)
            return finding.by_causes()
        except WorkExceeded:
            return {(document,): set() for document in finding.concerned}

    @functools.cached_property
    def _lines(self) -> tuple[dict[StatementId, list[Grant]], ...]:
        """What each statement of the changed documents said, and what it says."""
        both: tuple[dict[StatementId, list[Grant]], ...] = ({}, {})
        for lines, documents in zip(both, (self._edits.said, self._edits.says), strict=True):
            for compiled in documents.values():
                for grant in compiled.grants:
                    lines.setdefault(grant.statement_id, []).append(grant)
        return both


def _order(shadowed: ShadowedAllows) -> tuple[str, ...]:
    return shadowed.companion, str(shadowed.allow.statement_id), grant_text(shadowed.allow)


def _first(texts: Iterable[str]) -> tuple[str, ...]:
    """The first few, sorted."""
    return tuple(sorted(texts)[:LINES])
