"""What a worker teaches Java of the answers it gives, see `KnownAnswers.java`: what Java says it does not know."""

import functools
import hashlib
import os
import secrets
import struct
from collections.abc import Iterable, Sequence

from policy.evaluation import AnswerCache, ByState, CachedQuery, Lookup, State
from streaming.enforcer.answers import RenderedDecision, encoded_text

NOTHING, QUERY, STATE = range(3)
"""What is not known of a request, as in `KnownAnswers.java`. QUERY: any answer; STATE: that to its resource."""

EXITS = 4_096  # of a state; of one with more only ids are taught
NO_ANSWER = -1
FINAL = b"\1"
GOES_ON = b"\0"
ID_SEPARATOR = b"\0"  # between content and id

Query = CachedQuery[RenderedDecision]

_number = struct.Struct("<i").pack
_long = struct.Struct("<q").pack


def _text(encoded: bytes) -> bytes:
    return _number(len(encoded)) + encoded


def _texts(encoded: Iterable[bytes]) -> bytes:
    return _items([*map(_text, encoded)])


def _items(encoded: Sequence[bytes]) -> bytes:
    return _number(len(encoded)) + b"".join(encoded)


def principal_lookup(principal: str) -> Lookup:
    """The lookup that a change of policies ends which affects a principal."""
    return "principal", principal


@functools.lru_cache(100_000)
def number_of(system: str, lookup: Lookup) -> int:
    """A lookup as Java knows it. Two that have the same number end more answers than they must."""
    return int.from_bytes(hashlib.blake2b(repr((system, lookup)).encode(), digest_size=8).digest(), signed=True)


@functools.cache
def _first_number(_process: int) -> int:
    """By which the states of a process are numbered, so that no two have the same. Workers are forks of one process."""
    return secrets.randbits(61)


class Lessons:
    """Of the answers on one Arrow batch."""

    def __init__(self, answers: AnswerCache[RenderedDecision]) -> None:
        self._kept, self._first = answers.kept, _first_number(os.getpid())
        self._answers: list[bytes] = []
        self._queries: list[bytes] = []
        self._heads: list[bytes] = []
        self._states: list[bytes] = []
        self._numbers: dict[int, int] = {}  # of answers, by their objects, which the queries hold
        self._taught: set[object] = set()

    def add(self, content: bytes, id_: str, missing: int) -> None:
        """Teach the answer to a request that was just given, if it is kept."""
        query = self._kept(content, id_)
        if query is None:
            return
        if not isinstance(query, ByState):
            self._add_query(content if query.for_any_id else content + ID_SEPARATOR + encoded_text(id_), query, id_)
            return
        if missing == QUERY:
            self._add_query(content, query, None)
        self._add_state(content, query, id_)

    def _add_query(self, key: bytes, query: Query, id_: str | None) -> None:
        if key in self._taught:
            return
        self._taught.add(key)
        basis, scope = query.basis, b"" if id_ is not None else _scope(query)
        only = NO_ANSWER if id_ is None else self._answer(query.answer(id_).rendered)
        rests_on = [*basis.lookups, *map(principal_lookup, basis.principals)]
        lookups = b"".join(_long(number_of(basis.system, lookup)) for lookup in rests_on)
        between = (_text(basis.system.encode()), _long(basis.since), _long(basis.until), _number(only), _text(scope))
        self._queries.append(b"".join((_text(key), *between, _number(len(rests_on)), lookups)))

    def _add_state(self, content: bytes, query: ByState[RenderedDecision], id_: str) -> None:
        if (content, id_) in self._taught:
            return
        self._taught.add((content, id_))
        branch = query.states.branch(id_)
        if branch is not None:
            self._add_head(_scope(query), *branch)
        state, answer = query.state(id_), query.answer(id_)
        numbers = _long(self._first + state.number) + _number(self._answer(answer.rendered))
        self._states.append(_text(content) + _text(id_.encode()) + numbers)

    def _add_head(self, scope: bytes, head: str, state: State) -> None:
        if (scope, head) in self._taught:
            return
        self._taught.add((scope, head))
        exits = _exits(state)
        if exits is not None:
            self._heads.append(_text(scope) + _text(head.encode()) + _long(self._first + state.number) + exits)

    def _answer(self, rendered: RenderedDecision) -> int:
        number = self._numbers.get(id(rendered))
        if number is None:
            number = self._numbers[id(rendered)] = len(self._answers)
            self._answers.append(_text(rendered.label.encode()) + _text(rendered.system) + _texts(rendered.pieces))
        return number

    def encode(self) -> bytes:
        """As `KnownAnswers.java` reads them; empty: there are none."""
        if not self._taught:
            return b""
        return b"".join(map(_items, (self._answers, self._queries, self._heads, self._states)))


def _scope(query: Query) -> bytes:
    """Of ids of resources. It ends with a slash where the last part of a name stands behind the last one of its id."""
    assert isinstance(query, ByState)
    return f"{query.basis.system}\n{query.states.scope}\n{'/' if query.states.has_levels else ''}".encode()


def _exits(state: State) -> bytes | None:
    """How names go on from a state; None: in too many ways, or by patterns that Java does not match.

    Each text begins with the empty prefix: by it those go on that begin with no other.
    """
    exits = state.exits(EXITS)
    if exits is None:
        return None
    exact, prefixes = ([text.encode() for text in part] for part in (exits.texts, {"", *exits.prefixes}))
    lengths = [*map(_number, sorted({len(prefix) for prefix in prefixes}, reverse=True))]
    return b"".join((FINAL if exits.final else GOES_ON, _items(lengths), _texts(exact), _texts(prefixes)))
