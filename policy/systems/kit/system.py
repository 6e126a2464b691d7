"""What a system's module provides; the core knows systems by this alone."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from policy.core.conversion import prepare_types
from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import AuthorizationQuery, CompiledDocument, Grant
from policy.core.pattern import Name, part_text, pattern_text
from policy.core.request import Request
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.privileged import PrivilegedPermission

EVERYONE = "*"  # every principal
UNTYPED = "resource"  # the type of a resource whose type is not known

Loaded = TypeVar("Loaded")


def kind_of(resource: str, otherwise: str = UNTYPED) -> str:
    """The ``resource.type`` of an id that is written ``KIND:NAME``; ``otherwise`` of another."""
    kind, colon, _ = resource.partition(":")
    return kind if colon and kind else otherwise


def load_catalogue(package: str, type_: type[Loaded]) -> Loaded:
    """``catalogue.yaml`` of a system's package, as this type. Raises msgspec.ValidationError."""
    import yaml  # a catalogue is loaded when it is first used; `import policy` needs no YAML

    from policy.core.plain_data import Parser

    text = resources.files(package).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    prepare_types(type_)  # the first requests may come in several threads
    return msgspec.convert(yaml.load(text, Parser), type_)


class Kind(msgspec.Struct, frozen=True):
    """A document kind. ``fact``: may stand in the facts topic. ``point_in_time``: older versions count.

    ``read``: what a document of the kind says, see `System.read`.

    ``since``: the field (ms) of its facts that says since when it is so, where that is not when it was published.

    Of a refused document (`policy.store.affected`): ``missed``: each request that needs one of the kind is answered
    ``error``, so that it affects no other request. ``principals``: the fields that name principals. ``beside``: other
    fields, which name one with a prefix alone. ``anyone``: how a text begins that may stand for any principal, such as
    a group of which no document has the members. ``of_entries``: where each entry of a list must name a principal, its
    other fields: an entry without a text elsewhere may be about any principal.
    """

    fact: bool = False
    point_in_time: bool = False
    since: str = ""
    missed: bool = False
    principals: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    anyone: tuple[str, ...] = ()
    of_entries: tuple[str, ...] = ()
    read: Callable[[Document], CompiledDocument] | None = None


class ObjectOf(msgspec.Struct, frozen=True):
    """The object of a permission check as a function of the resource's id: its ``name``, and its text.

    The text is the id between ``before`` and ``after``. ``has_levels``: in an id with a slash, the last part of the
    name is what stands behind the last one, and the rest of the name is up to what stands before it; without levels the
    last part is the id, and the rest the same for all. ``scope``: what else ``name`` depends on.
    """

    name: Callable[[str], Name]
    before: str = ""
    after: str = ""
    has_levels: bool = True
    scope: str = ""

    def text(self, id_: str) -> str:
        """The object as explanations have it."""
        return f"{self.before}{id_}{self.after}"


class System(Protocol):
    """Translates documents to grants and facts, and requests to queries.

    A system derives from it, and has what stands here unless it says otherwise. One with an engine of its own also has
    an ``engine``; see `policy.systems.kit.engine`.
    """

    name: str
    kinds: Mapping[str, Kind]
    deny_rule: str | None = None  # the rule that a matching deny decides by; None: the system has no deny
    default_rule: str | None = None  # the rule by which nothing is allowed without a grant; None: the atom's own
    subject_types: tuple[str, ...]  # what a request's subject.type may be; none: anything
    subjects: tuple[str, ...]  # prefixes of the principals that subjects are: a request has one (none: an engine's) …
    claims: tuple[str, ...] = ()  # … and beside it any number that it claims to be, with these prefixes

    needed_properties: tuple[str, ...] = ()
    """Of a resource, where it is read by its properties too: a request without one of these is not answered."""

    reads_resource_id: bool = True
    """Whether anything of a query depends on the resource's id beside that its name has no fault."""

    @property
    def has_facts(self) -> bool:
        """Whether documents of it may stand in the facts topic."""
        return any(kind.fact for kind in self.kinds.values())

    @property
    def context_fields(self) -> frozenset[str] | None:
        """The fields of a request's context that it is shown; None: all. Requests that differ in others, such as the
        address of a client, have the same answer, which is worked out once.
        """
        return None

    @property
    def name_of_resource(self) -> Callable[[str], Name] | None:
        """How a resource's id is read, where that is all it is for.

        That is: whether a question is one atom does not depend on the id; if it is, its object is this of the id, its
        object's text the id itself; nothing else of it depends on the id, and when this raises, `to_query` does. If an
        id has a slash, the last part of its name is what stands behind the last one, whatever that is but empty or at
        fault (`policy.core.names`); all else of the name, and whether it has one, is up to what stands before. None: it
        is not so simple.
        """
        return None

    def read(self, document: Document) -> CompiledDocument:
        """What ``document`` says, as its kind reads it; raises DocumentRefused naming every error."""
        reader = self.kinds[document.key.kind].read
        if reader is None:
            raise NotImplementedError(f"{self.name} reads no document of the kind {document.key.kind}")
        return reader(document)

    def held_by(self, kind: str, name: str, fields: frozenset[str]) -> Iterable[str]:
        """Principals through which others have what a document of this name says: a role, a group.

        None where a document's name means nothing. ``fields``: all of the document's and its spec's, which may be those
        of another kind.
        """
        return ()

    def claimed_name(self, principal: str) -> str:
        """What a request claims in order to be this principal: its name behind the prefix."""
        return principal.partition(":")[2]

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """The resource of a request as the system reads it: equal for two resources that it does not distinguish.

        Plain data, for any request, also one that the system cannot answer. Whether an access was requested is decided
        by it, with the subject's id and the action (`canonical_action`).
        """
        return (request.resource.id,)

    def canonical_action(self, action: str) -> str:
        """An action as the system reads it, also one that it does not know: Kafka's are written in any letter case."""
        return action

    def may_grant(self, grant: Grant, permission: Name) -> bool:
        """Whether the statement of a grant, written with another action, could grant a permission on its object.

        Not every one can where statements are of one resource type, as an entry of Kafka's is.
        """
        return True

    def resource_type(self, action: str, resource: str) -> str:
        """The documented ``resource.type`` of the resource with this id."""
        return kind_of(resource)

    def notation(self, grant: Grant) -> tuple[str, str]:
        """The permission and the object of a grant as a document of the system writes them."""
        return pattern_text(grant.permission), pattern_text(grant.object)

    def object_of(self, request: Request) -> ObjectOf | None:
        """The object of the request's permission check by the resource's id, where a property repeats that.

        Asked of a request of which exactly one property is the id. As `name_of_resource` has it, for all requests that
        differ from this one in their id and, in the same property, its repetition. None: it is not so simple.
        """
        return None

    def always_with(self, principal: str) -> tuple[str, ...]:
        """The principals that count, without a membership, wherever ``principal`` does, as Kafka's User:* does."""
        return ()

    def implied(self, grant: Grant) -> Iterable[Grant]:
        """The grants that would give nothing beside ``grant``, of its principal and window, as VIEWER beside OWNER."""
        return ()

    def grants_that_count(
        self, request: Request, facts: Facts, trust: frozenset[str]
    ) -> Callable[[Grant], bool] | None:
        """Whether a grant of the effective principals counts for the request's subject, as StreamSets' do by his last
        login; None: each in force does. Raises Unanswerable.
        """
        return None

    def opened_by(self, change: FactChange, facts: Facts) -> Iterable[Opening]:
        """What a change of facts opens beside what grants say; nothing: nothing. ``facts``: of the policy set after it.

        Is asked of facts alone that count at every moment. May raise Unanswerable: then it is not known. Of a system
        that does not say it, it may be anything.
        """
        return (Opening(),)

    @abstractmethod
    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """The request as a query; raises Unanswerable. ``trust``: the claims that may be used."""

    def retention_floor(self, facts: Facts) -> int | None:
        """The oldest moment (ms) at which decisions may still look back; None: they never do."""
        return None

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """The rights over the system itself or over everything, from its catalogue: an alert says who gets one."""
        return ()


class NamesKinds(System):
    """A system that writes resources ``KIND:NAME``, in requests and in documents, and grants one permission at a time.

    It also lists its kinds (`ListsResourceTypes`).
    """

    def notation(self, grant: Grant) -> tuple[str, str]:
        """A permission, and ``KIND:NAME``; whatever else a pattern has behind the name is not written."""
        permission, object_ = grant.permission.parts[:1], grant.object.parts[:2]
        return "".join(map(part_text, permission)) or "*", ":".join(map(part_text, object_)) or "*"

    def requested_type(self, request: Request) -> str:
        """The kind in ``KIND:NAME``."""
        return kind_of(request.resource.id, "")


@runtime_checkable
class HasCompanions(Protocol):
    """A system in which a request has several principals at once that are no claims, as Kafka's does by its host."""

    def in_one_request(self, principal: str, other: str) -> bool:
        """Whether some request has both."""


@runtime_checkable
class ListsActions(Protocol):
    """A system whose actions are known beforehand, by its catalogue: those of a search for actions."""

    def actions(self) -> Iterable[str]:
        """Each ``action.name`` that the system knows."""


@runtime_checkable
class ListsResourceTypes(Protocol):
    """A system whose types of resources are known beforehand."""

    def resource_types(self) -> Iterable[str]:
        """Each type that the system knows."""

    def requested_type(self, request: Request) -> str:
        """The type of a request's resource, in most systems a part of its id; empty where it cannot be read."""
