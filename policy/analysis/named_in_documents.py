"""Names that the documents of a system lack: its subjects and resources, and what is near to them."""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from policy.analysis.impact import document_names, known_names
from policy.analysis.wording import literal_name
from policy.core.model import All, AnyOf, AuthorizationQuery, Condition, Expression, PermissionCheck
from policy.core.pattern import Exact, Name, Pattern, match_part
from policy.core.request import Request
from policy.core.suggest import misspelt, nearest
from policy.store.policy_set import PolicySet
from policy.systems import all_systems
from policy.systems.kit.system import EVERYONE

POLICY_SETS = 4  # whose names are kept, of a case file's stages
What = Literal["system", "action", "subject type", "resource type", "subject", "resource", "group"]
OPEN = ("subject", "resource", "group")  # of these, others exist than those that catalogues and documents name


class UnknownName(msgspec.Struct, frozen=True):
    """A name that nothing knows. ``hint``: what it may have been meant as, or empty.

    Its text is such as "no action kafka:DeleteTopci; did you mean kafka:DeleteTopic?".
    """

    what: What
    name: str
    hint: str = ""

    @property
    def is_mistake(self) -> bool:
        """Whether it is a typing error: always for what a catalogue lists. Other subjects, resources and groups may
        exist, and are denied because no document names them: one that is near to a known one is taken for it.
        """
        return self.what not in OPEN or bool(self.hint)

    def __str__(self) -> str:
        where = " in the documents" if self.what in OPEN else ""
        return f"no {self.what} {self.name}{where}{self.hint}"


class NamesOfDocuments:
    """What the documents of a system name. Most questions need the names alone: the rest is collected on demand."""

    def __init__(self, policy_set: PolicySet, system: str) -> None:
        self._policy_set, self._kinds = policy_set, all_systems()[system].kinds
        self.names = frozenset(document_names(policy_set, system)) - {EVERYONE}
        """The names in the grants, memberships and facts."""

    @functools.cached_property
    def facts(self) -> frozenset[str]:
        """The names of facts."""
        facts = self._policy_set.facts
        return frozenset(name for kind in self._kinds for name in facts.names(kind))

    @functools.cached_property
    def permissions(self) -> frozenset[Name | None]:
        """The permissions of all grants that name one."""
        patterns = {grant.permission for grants in self._policy_set.grants.values() for grant in grants}
        return frozenset(map(literal_name, patterns))

    @functools.cached_property
    def patterns(self) -> frozenset[Pattern]:
        """The resource patterns of all grants."""
        return frozenset(grant.object for grants in self._policy_set.grants.values() for grant in grants)

    def is_matched(self, name: Name) -> bool:
        """Whether one of the resource patterns matches a resource's name."""
        return bool(self._policy_set.index.tables(name))


@functools.lru_cache(POLICY_SETS)
def names_of_documents(policy_set: PolicySet, system: str) -> NamesOfDocuments:
    """The names in the grants, memberships and facts of a system."""
    return NamesOfDocuments(policy_set, system)


def unknown_subjects(named: NamesOfDocuments, request: Request, query: AuthorizationQuery) -> Iterator[UnknownName]:
    """No grant, membership or fact has a principal of the subject's name, nor one that it claims.

    And claimed groups or roles that are spelt nearly as one that documents name.
    """
    system, id_ = all_systems()[request.system], request.subject.id
    names = named.names
    claimed = [name for name in query.principals if system.claims and name.startswith(system.claims)]
    yield from _misspelt_claims(names, claimed, system.claims)
    if (
        id_ in names
        or id_ in named.facts
        or any(name.endswith(f":{id_}") for name in names)
        or names.intersection(claimed)
    ):
        return
    own = next((name for name in query.principals if name.endswith(id_)), id_)
    prefix = own.removesuffix(id_)
    ids = sorted({name.removeprefix(prefix) for name in names if name.startswith(prefix)})
    yield UnknownName("subject", id_, misspelt(id_, [name for name in ids if name.startswith(_kind(id_))]))


def _misspelt_claims(names: frozenset[str], claimed: Iterable[str], prefixes: Iterable[str]) -> Iterator[UnknownName]:
    for prefix in prefixes:
        candidates = sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        for name in (full.removeprefix(prefix) for full in claimed if full.startswith(prefix) and full not in names):
            if hint := misspelt(name, candidates):
                yield UnknownName("group", name, hint)


def _kind(id_: str) -> str:
    """``user:`` of ``user:dana``: names of one kind alone are suggested."""
    kind, colon, _ = id_.partition(":")
    return f"{kind}:" if colon else ""


def unknown_resources(named: NamesOfDocuments, request: Request, expression: Expression) -> Iterator[UnknownName]:
    """Nothing that the action needs is on an object which a grant matches, and no fact has the resource's name."""
    id_, checked = request.resource.id, list(leaves(expression))
    objects = {leaf.object for leaf in checked if isinstance(leaf, PermissionCheck)}
    missing = any(isinstance(leaf, Condition) and leaf.code == "unknown-object" for leaf in checked)
    if id_ in named.facts or not (objects or missing):
        return
    if not missing and any(map(named.is_matched, objects)):
        return
    near = {_with_part(id_, old, new) for name in objects for old, new in _one_part_off(named.patterns, name)}
    same_kind = {name for name in named.facts if name.startswith(_kind(id_))}
    yield UnknownName("resource", id_, misspelt(id_, sorted(near | same_kind)))


def _with_part(id_: str, old: str, new: str) -> str:
    """The id with another text for the last part that is this one."""
    # Not within a longer name: of `shop` in `shop-eu/shop` the last one is meant, and dots and hyphens are of names.
    matches = list(re.finditer(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", id_))
    return f"{id_[: matches[-1].start()]}{new}{id_[matches[-1].end() :]}" if matches else id_


def leaves(expression: Expression) -> Iterator[Expression]:
    """The permission checks and conditions of an expression."""
    if isinstance(expression, All | AnyOf):
        for item in expression.items:
            yield from leaves(item)
    else:
        yield expression


def _one_part_off(patterns: Iterable[Pattern], name: Name) -> Iterator[tuple[str, str]]:
    """The part of a name by which alone it differs from a pattern, and what the pattern has there."""
    for pattern in patterns:
        if len(pattern.parts) != len(name):
            continue
        off = [(text, part) for text, part in zip(name, pattern.parts, strict=True) if not match_part(part, text)]
        if len(off) == 1 and isinstance(off[0][1], Exact):
            yield off[0][0], off[0][1].text


def unknown_to_engine(policy_set: PolicySet, request: Request, subject: bool) -> Iterator[UnknownName]:
    """What policies of an engine may match is not known: a name counts as unknown where it is near to a known one."""
    named = known_names(policy_set, request.system)
    assert named is not None
    names = [_RequestedName("action", request.action.name, frozenset(named.actions))]
    names.append(_requested_name("resource", request.resource.type, request.resource.id, named.resources))
    if subject:
        names.append(_requested_name("subject", request.subject.type, request.subject.id, named.subjects))
    for requested in names:
        near = misspelt if requested.what in ("subject", "resource") else functools.partial(nearest, most=1)
        if requested.name not in requested.known and (hint := near(requested.name, sorted(requested.known))):
            yield UnknownName(requested.what, requested.name, hint)


class _RequestedName(msgspec.Struct, frozen=True):
    what: What
    name: str
    known: frozenset[str]


def _requested_name(
    what: Literal["subject", "resource"], type_: str, id_: str, entities: Iterable[tuple[str, str]]
) -> _RequestedName:
    """The type, where no entity that is known is of it; else the id."""
    ids = frozenset(id_ for other, id_ in entities if other == type_)
    if ids:
        return _RequestedName(what, id_, ids)
    types: What = "subject type" if what == "subject" else "resource type"
    return _RequestedName(types, type_, frozenset(other for other, _ in entities))
