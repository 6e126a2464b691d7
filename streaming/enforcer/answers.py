"""Answers to requests under one snapshot, kept by all that they read of a request and rendered as JSON once.

Most requests differ from one before them in their id, their deadline and their resource's id alone. So their query is
prepared once (`policy.evaluation.prepared`), known by the bytes of everything else that it reads. What a resource's id
means is the state to which its name leads in the trie of all resource patterns, and is kept as well; what is determined
there, and its text, too.
"""

import sys
from collections.abc import Hashable, Iterable

import msgspec

from policy import MAX_NESTING, Batch, Request, Snapshot, answer
from policy.evaluation import (
    Cache,
    CachedQuery,
    Lookup,
    ObjectOf,
    PreparedQueries,
    PreparedQuery,
    Table,
    TrieState,
    check_name,
    check_resource,
    is_simple,
)
from streaming.enforcer.pending_facts import derived_reads
from streaming.enforcer.rendering import (
    DECISION,
    OBJECT,
    AnswerTemplates,
    Form,
    RenderedAnswer,
    RenderedRequest,
    echo,
    evaluations,
    inner,
    rendered,
    rendered_request,
    to_json,
)

TIME = frozenset({"time"})
"""Added to the trust where the stream has set the time itself: it is no claim then."""

KEY_BYTES = 4096  # larger queries are not worth their memory
RESOURCE_BYTES = 256  # the same of longer ids
RESOURCES_BYTES = 1_000  # of the resources of a system or scope, beside its ids
RENDERED_QUERY_BYTES = 1_000  # beside its key and texts
STATE_BYTES = 100  # of an answer that is kept for a state
REQUEST_BYTES = 8192  # a larger request is not prepared
ID = b"\1"  # in keys, a property that is the resource's id
SLASH, QUOTE = b"/", ord('"')
FIRST, LAST = -sys.maxsize, sys.maxsize

_encode = msgspec.json.encode

Answer = tuple[bytes, bytes, bytes]
"""JSON of a decision: its fields up to and with `claims`, `,"request":{…}`, and `,"evaluations":[…]` of a batch."""

State = TrieState[Table]


class ResourcePart(msgspec.Struct, gc=False):
    """The resource of a request, its parts undecoded."""

    type: msgspec.Raw
    id: msgspec.Raw
    properties: msgspec.Raw = msgspec.Raw()


class QueryParts(msgspec.Struct, gc=False):
    """A request with its parts undecoded: to look its query up, nothing more is needed."""

    id: msgspec.Raw
    system: msgspec.Raw
    subject: msgspec.Raw
    action: msgspec.Raw
    resource: ResourcePart
    context: msgspec.Raw = msgspec.Raw()
    time: str | int | None = None
    deadline: str | int | None = None
    evaluations: msgspec.Raw = msgspec.Raw()
    options: msgspec.Raw = msgspec.Raw()


class Resources:
    """The ids of one system's resources, each with the state of the trie to which its name leads.

    Ids that begin alike are read once, up to their last slash.
    """

    def __init__(self, snapshot: Snapshot, system: str, objects: ObjectOf) -> None:
        self._index, self._name_of, self._has_levels = (
            snapshot.policy_sets[system].index,
            objects.name,
            objects.has_levels,
        )
        self.states: Cache[bytes, State] = Cache()  # by id as JSON has it
        self._heads: Cache[bytes, State] = Cache()

    def find(self, text: bytes) -> State:
        """The state for an id as JSON has it, without escapes. Raises Unanswerable or ValueError for an invalid id."""
        state = self._find(text)
        if len(text) <= RESOURCE_BYTES:
            self.states.hold(text, state, len(text))
        return state

    def _find(self, text: bytes) -> State:
        id_ = text[1:-1].decode()
        head, slash, tail = text[1:-1].rpartition(SLASH) if self._has_levels else (b"", SLASH, text[1:-1])
        if not (slash and tail and is_simple(id_)):
            check_name(id_, "resource.id")
            return self._index.state(self._name_of(id_))
        state = self._heads.get(head)
        if state is None:
            beginning = f"{head.decode()}/x" if self._has_levels else "x"
            state = self._index.state(self._name_of(beginning)[:-1])
            if len(head) <= RESOURCE_BYTES:
                self._heads.hold(head, state, len(head))
        return state.next(tail.decode())


class RenderedQuery(CachedQuery):
    """A prepared query with its answers as JSON. It holds from moment `first` (ms) up to, without it, `end`.

    `for_every_id`: see `PreparedQuery`. `only`: its answer where that does not depend on the resource's id. `answers`:
    else by state, and by the grant that determines them. `request_text`: what its decisions repeat of the request.
    `quotes`: of a request in which nothing else stands, see `quotes_of`. `derived`: see `derived_reads`.
    """

    __slots__ = (
        "_effective",
        "_object",
        "_permission",
        "_resources",
        "_templates",
        "_via",
        "answers",
        "derived",
        "end",
        "first",
        "for_every_id",
        "only",
        "quotes",
        "request_text",
        "states",
    )

    def __init__(
        self,
        answers: "Answers",
        request: Request,
        snapshot: Snapshot,
        first: int,
        repeats_id: bool = False,
        quotes: int = 0,
    ) -> None:
        prepared = PreparedQuery(snapshot, request, answers.trust, repeats_id)
        name, text = answers.interned_system(request.system)
        super().__init__(name, prepared.reads)
        self.quotes, self.derived = quotes, derived_reads(prepared.reads)
        self.first = first if prepared.since is None else max(prepared.since, first)
        self.end = LAST if prepared.until is None else prepared.until
        self.for_every_id = prepared.for_every_id
        self.request_text: RenderedRequest = rendered_request(request, text, answers.form, repeats_id)
        self.only: RenderedAnswer | None = None
        self.states: dict[bytes, State] | None = None
        if prepared.atom is None:
            only = answers.form.answer(prepared.answer(request.resource.id))
            self.only = rendered(name, only, answers.form)
            prepared.release()
        else:
            assert prepared.objects is not None
            self.answers: dict[State | int, RenderedAnswer] = {}
            self._permission = inner(prepared.atom.permission_text)
            self._object = inner(prepared.objects.text(OBJECT))
            self._effective, self._via = prepared.effective, prepared.via
            self._templates = answers.templates(prepared)
            self._resources = answers.resources(name, prepared.objects)
            self.states = self._resources.states

    def holds(self, at: int | None) -> bool:
        """Whether it answers for a moment (ms; None: not known)."""
        return at is not None and self.first <= at < self.end

    def answer_for(self, resource: bytes) -> RenderedAnswer:
        """The answer for a resource's id as JSON has it, without escapes. Raises Unanswerable or ValueError for an
        invalid one."""
        if self.states is None:
            assert self.only is not None
            if self.for_every_id:
                check_resource(resource[1:-1].decode())
            return self.only
        state = self.states.get(resource)
        if state is None:
            state = self._resources.find(resource)
        return self.answers.get(state) or self.render(state)

    def render(self, state: State) -> RenderedAnswer:
        """The answer for the resources of a state."""
        grants = self._effective.at(state)
        grant = grants[0] if grants else None
        answer = self.answers.get(id(grant))  # grants live as long as the snapshot
        if answer is None:
            answer = self._templates.render(self._permission, self._object, self._via, grant)
            self.spend(STATE_BYTES + answer.size)
            self.answers[id(grant)] = answer
        self.spend(STATE_BYTES)
        self.answers[state] = answer
        return answer


class Answers:
    """The answers of a snapshot to producers with one trust. By `follow` it becomes another one: queries end
    whose facts have changed, and those of systems whose policies have.

    `most`: how many queries are kept. `form`: in which they are rendered.
    """

    def __init__(self, snapshot: Snapshot, trust: frozenset[str], most: int, form: Form = DECISION) -> None:
        self.snapshot, self.trust, self.form = snapshot, trust | TIME, form
        self._interned = {name: (name, _encode(name)) for name in snapshot.policy_sets}  # clients name others, too
        self._templates: Cache[Hashable, AnswerTemplates] = Cache()  # they name no policy
        self._prepared: PreparedQueries[RenderedQuery] = PreparedQueries(most)
        self._resources: Cache[tuple[str, str], Resources] = Cache()  # by system and scope

    def follow(self, snapshot: Snapshot, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Go on with other policies and facts; the facts of their layers differ in these lookups."""
        before, self.snapshot = self.snapshot.policy_sets, snapshot
        self._prepared.end(changed)
        for system in [
            name for name, policy_set in snapshot.policy_sets.items() if not policy_set.says_the_same(before[name])
        ]:
            self._prepared.end_all_of(system)
            for place in [place for place in self._resources if place[0] == system]:
                del self._resources[place]

    def interned_system(self, name: str) -> tuple[str, bytes]:
        """The name of a system, also as JSON: the same objects each time, where there is one with this name."""
        return self._interned.get(name) or (name, _encode(name))

    def templates(self, query: PreparedQuery) -> AnswerTemplates:
        """Those of the answers to a query of one permission check."""
        assert query.atom is not None
        key = (query.system, query.atom.rule, query.atom.because, *query.beside)
        found = self._templates.get(key)
        if found is None:
            found = AnswerTemplates(self.form, query)
            self._templates.hold(key, found, found.size + len(query.atom.because))
        return found

    def resources(self, system: str, objects: ObjectOf) -> Resources:
        """The resources of a system whose ids have names."""
        found = self._resources.get((system, objects.scope))
        if found is None:
            found = Resources(self.snapshot, system, objects)
            self._resources.hold((system, objects.scope), found, RESOURCES_BYTES + len(objects.scope))
        return found

    def snapshot_at(self, at: int) -> tuple[Snapshot, int]:
        """The snapshot to answer with at a moment (ms), and since when it holds. Requests are evaluated with the
        current facts.
        """
        return self.snapshot, FIRST

    def find(self, parts: QueryParts, resource: bytes, at: int) -> RenderedQuery | None:
        """The query that is prepared for a request and holds at a moment (ms)."""
        key, queries = _key(parts, resource), self._prepared.queries
        query = queries.get(key) or queries.get(own := b"\0".join((key, resource))) or self._recall(key, own)
        return query if query is not None and query.holds(at) else None

    def _recall(self, *keys: bytes) -> RenderedQuery | None:
        return next((query for key in keys if (query := self._prepared.recall(key)) is not None), None)

    def prepare(self, parts: QueryParts, resource: bytes, request: Request) -> RenderedQuery | None:
        """Prepare the query of a request, whose time is the time of evaluation; None: it is too large."""
        key = _key(parts, resource)
        if len(key) + len(resource) > KEY_BYTES:
            return None
        assert request.time is not None
        snapshot, first = self.snapshot_at(request.time)
        query = RenderedQuery(self, request, snapshot, first, repeats_id(parts, resource), quotes_of(parts))
        if not query.for_every_id:
            key = b"\0".join((key, resource))
        size = query.request_text.size + (query.only.size if query.only else 0)
        if query.request_text.size > REQUEST_BYTES:
            return None
        self._prepared.add(key, query, RENDERED_QUERY_BYTES + len(key) + size)
        return query

    def of(self, parsed: Request | Batch) -> Answer:
        """The answer to any request, whose `time` is the time of evaluation."""
        decision = answer(self.snapshot, parsed, self.trust)
        if isinstance(parsed, Batch):
            return to_json(decision), b"", evaluations(parsed, decision)
        return to_json(decision), echo(parsed), b""


def _key(parts: QueryParts, resource: bytes) -> bytes:
    """All that an answer reads but the resource's id and the time.

    Where the properties have the resource's id once, `ID` is in its place. That is injective: no part of a well-formed
    request holds a control character, and the id is known.
    """
    part = parts.resource
    properties: msgspec.Raw | bytes = part.properties
    if properties and repeats_id(parts, resource):
        properties = bytes(properties).replace(resource, ID)
    return b"\0".join((parts.system, parts.subject, parts.action, part.type, properties, parts.context))


def repeats_id(parts: QueryParts, resource: bytes) -> bool:
    """Whether the properties have the resource's id once, as JSON has it. Without escapes texts stand as they are."""
    properties = bytes(parts.resource.properties)
    return properties.count(resource) == 1 and b"\\" not in properties


MOMENT_QUOTES = {type(None): 0, int: 2, str: 4}
"""Of a member `time` or `deadline`, by its type; 0 where it is left out."""

_NAME_QUOTES = 2


def quotes_of(parts: QueryParts) -> int:
    """The quotes of a request in which each of these parts stands once and nothing else, its moments left out.

    A text with another member, known or not, has those of its name, too. So a request with just as many has no name
    twice among the members that are decoded (RFC 8259 leaves open which would count). The bytes of a part are checked
    when the query is prepared, by whose key they are the same from then on.
    """
    resource = parts.resource
    needed = (parts.id, parts.system, parts.subject, parts.action, resource.type, resource.id)
    optional = [part for part in (resource.properties, parts.context) if part]
    names = len(needed) + 1 + len(optional)  # one of them is `resource`
    return _NAME_QUOTES * names + sum(bytes(part).count(b'"') for part in (*needed, *optional))


def has_many_parts(parts: QueryParts, value: bytes) -> bool:
    """Whether a request has several queries, or perhaps parts that are nested too deep."""
    return bool(parts.evaluations or parts.options) or value.count(b"{") + value.count(b"[") > MAX_NESTING


def is_plain(text: bytes) -> bool:
    """Whether it is a text in JSON, not empty and without escapes: it is written as JSON writes it."""
    return len(text) > 2 and text[0] == text[-1] == QUOTE and b"\\" not in text
