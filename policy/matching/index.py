"""The index that finds everything filed under patterns which match a name, whatever their number.

Patterns are filed in a tree, part by part; a name is looked up by walking all branches that match it at once. Where
that leads is noted as a `TrieState`, so that names that are matched alike are walked with one look-up for each part.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from policy.core.pattern import Exact, Glob, Name, Part, Pattern, Prefix, match_part, part_overlaps

BEGINNING = 3  # parts of a name that are looked up together
BEGINNINGS_KNOWN = 64  # and no more than there are patterns, and a few
TEXTS_KNOWN = 16  # that no pattern of a place names; those that one names are always known
TEXTS_FOR_EACH = 4  # and of an index so many for each pattern …
TEXTS_FOR_NONE = 64  # … and so many beside
TEXT_KNOWN = 64  # characters: clients choose the texts
HELD = 200_000  # places, and values in tuples of their own, of which an index forgets all when there are more

Value = TypeVar("Value")

_numbers = itertools.count()


class Exits(NamedTuple):
    """How names go on from a state. ``texts``: that patterns have next, each by itself; any other goes on by the
    ``prefixes`` of its own among these. ``final``: all go on alike.
    """

    final: bool
    texts: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


class _Node(Generic[Value]):
    """One level of the index: children by exact text and by wildcard, values of patterns that end here."""

    __slots__ = ("closed", "exact", "open", "wild")

    def __init__(self) -> None:
        self.exact: dict[str, _Node[Value]] = {}
        self.wild: _Wild[Value] | None = None
        self.open: list[Value] | None = None
        self.closed: list[Value] | None = None

    def file(self, value: Value, is_open: bool) -> None:
        values = self.open if is_open else self.closed
        if values is not None:
            values.append(value)
        elif is_open:
            self.open = [value]
        else:
            self.closed = [value]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is filed here or below."""
        return not self.exact and self.wild is None and self.open is None and self.closed is None

    def copy(self) -> "_Node[Value]":
        """A node with the same children and values, whose own dictionaries may be changed."""
        other: _Node[Value] = _Node()
        other.exact, other.open, other.closed = dict(self.exact), self.open, self.closed
        other.wild = self.wild.copy() if self.wild is not None else None
        return other

    def only(self, part: Part) -> "_Node[Value] | None":
        """The child of exactly this part pattern."""
        if isinstance(part, Exact):
            return self.exact.get(part.text)
        return self.wild.only(part) if self.wild is not None else None

    def put(self, part: Part, node: "_Node[Value] | None") -> None:
        """Put a child in place of the one of a part pattern; None: there is none any more."""
        if not isinstance(part, Exact):
            self.wild = self.wild or _Wild()
            self.wild.put(part, node)
            self.wild = self.wild if self.wild.lengths else None
        elif node is None:
            self.exact.pop(part.text, None)
        else:
            self.exact[part.text] = node

    def children(self) -> Iterator["_Node[Value]"]:
        yield from self.exact.values()
        if self.wild is not None:
            yield from (node for _, node in self.wild.children())

    def meeting(self, part: Part) -> Iterator["_Node[Value]"]:
        """Every child whose part pattern has a text in common with ``part``."""
        if isinstance(part, Exact):
            yield from filter(None, [self.exact.get(part.text)])
        else:
            yield from (node for text, node in self.exact.items() if match_part(part, text))
        if self.wild is not None:
            yield from (node for other, node in self.wild.children() if part_overlaps(other, part))

    def child(self, part: Part) -> "_Node[Value]":
        if isinstance(part, Exact):
            if (node := self.exact.get(part.text)) is None:
                node = self.exact[part.text] = _Node()
            return node
        if self.wild is None:
            self.wild = _Wild()
        return self.wild.child(part)


class _Wild(Generic[Value]):
    """The children of a node by prefix and by glob, both filed under their literal head."""

    __slots__ = ("globs", "lengths", "prefixes")

    def __init__(self) -> None:
        self.prefixes: dict[str, _Node[Value]] = {}
        self.globs: dict[str, dict[Glob, _Node[Value]]] = {}
        self.lengths: dict[int, int] = {}  # of heads, each with how many have it

    def copy(self) -> "_Wild[Value]":
        other: _Wild[Value] = _Wild()
        other.prefixes, other.lengths = dict(self.prefixes), dict(self.lengths)
        other.globs = {head: dict(globs) for head, globs in self.globs.items()}
        return other

    def only(self, part: Prefix | Glob) -> _Node[Value] | None:
        if isinstance(part, Prefix):
            return self.prefixes.get(part.text)
        return self.globs.get(_literal_head(part), {}).get(part)

    def put(self, part: Prefix | Glob, node: _Node[Value] | None) -> None:
        if node is None:
            self._remove(part)
        elif isinstance(part, Prefix):
            self._count(part.text, part.text in self.prefixes)
            self.prefixes[part.text] = node
        else:
            head = _literal_head(part)
            self._count(head, head in self.globs)
            self.globs.setdefault(head, {})[part] = node

    def _remove(self, part: Prefix | Glob) -> None:
        if isinstance(part, Prefix):
            gone, head = self.prefixes.pop(part.text, None) is not None, part.text
        else:
            head = _literal_head(part)
            globs = self.globs.get(head, {})
            globs.pop(part, None)
            gone = head in self.globs and not globs
            if gone:
                del self.globs[head]
        if gone:
            self.lengths[len(head)] -= 1
            if not self.lengths[len(head)]:
                del self.lengths[len(head)]

    def _count(self, head: str, is_known: bool) -> None:
        if not is_known:
            self.lengths[len(head)] = self.lengths.get(len(head), 0) + 1

    def children(self) -> Iterator[tuple[Part, _Node[Value]]]:
        yield from ((Prefix(head), node) for head, node in self.prefixes.items())
        yield from (pair for globs in self.globs.values() for pair in globs.items())

    def child(self, part: Prefix | Glob) -> _Node[Value]:
        node = self.only(part)
        if node is None:
            node = _Node()
            self.put(part, node)
        return node

    def descend(self, text: str, found: list[_Node[Value]]) -> None:
        """Add every child whose part pattern matches ``text`` to ``found``."""
        size, prefixes, all_globs = len(text), self.prefixes, self.globs
        for length in self.lengths:
            if length > size:
                continue
            head = text[:length]
            if (node := prefixes.get(head)) is not None:
                found.append(node)
            if all_globs and (globs := all_globs.get(head)) is not None:
                found += [node for glob, node in globs.items() if match_part(glob, text)]


def _literal_head(glob: Glob) -> str:
    return re.split(r"[*?]" if glob.single else r"\*", glob.text, maxsplit=1)[0]


class _Edit(Generic[Value]):
    """Makes one tree out of another. `filed`: how many more patterns have values in it."""

    def __init__(self) -> None:
        self._made: dict[int, _Node[Value]] = {}  # by id: these may be changed
        self.filed = 0

    def put(self, root: _Node[Value], pattern: Pattern, value: Value | None) -> _Node[Value]:
        """The root of the tree in which a pattern has this value alone, or (None) none."""
        way = [self._own(root)]
        for part in pattern.parts:
            way.append(self._own(way[-1].only(part) or _Node()))
        node, values = way[-1], None if value is None else [value]
        before = node.open if pattern.open else node.closed
        if pattern.open:
            node.open = values
        else:
            node.closed = values
        self.filed += (values is not None) - (before is not None)
        for number in reversed(range(len(pattern.parts))):
            child = way[number + 1]
            way[number].put(pattern.parts[number], None if child.is_empty else child)
        return way[0]

    def _own(self, node: _Node[Value]) -> _Node[Value]:
        if id(node) in self._made:
            return node
        copy = node.copy()
        self._made[id(copy)] = copy
        return copy


class TrieState(Generic[Value]):
    """Where a name leads to in an index: names that the same patterns match lead to the very same place.

    ``values``: what is filed under the patterns that match a name ending here; ``final``: longer names lead to it too.
    States are created when names are looked up, and never more than the patterns distinguish. ``number``: its own in
    this process.
    """

    __slots__ = ("_distinct", "_index", "_known", "_nodes", "_past", "final", "number", "values")

    def __init__(
        self, index: "PatternIndex[Value]", nodes: tuple[_Node[Value], ...], past: tuple[Value, ...] = ()
    ) -> None:
        opened: list[Value] = []
        closed: list[Value] = []
        final = True
        for node in nodes:  # most requests for a resource not seen before make a place: this is on their path
            if node.open is not None:
                opened += node.open
            if node.closed is not None:
                closed += node.closed
            if node.exact or node.wild is not None:
                final = False
        self._index, self._nodes, self.number = index, nodes, next(_numbers)
        self._past = (*past, *opened) if opened else past
        self.values = (*self._past, *closed) if closed else self._past
        index.held += 1 + (len(self._past) if opened else 0) + (len(self.values) if closed else 0)
        self.final = final and not closed
        self._known: dict[str | tuple[int, ...], TrieState[Value]] = {}
        self._distinct: frozenset[Value] | None = None

    @property
    def distinct(self) -> frozenset[Value]:
        """The values as a set, where they are hashable."""
        if self._distinct is None:
            self._distinct = frozenset(self.values)
            self._index.held += len(self._distinct)
        return self._distinct

    def known(self, text: str) -> "TrieState[Value] | None":
        """The place of the names that go on with ``text``, where it is made already."""
        return self if self.final else self._known.get(text)

    def find(self, texts: Name) -> Sequence[Value]:
        """The values for names that go on with ``texts`` and end there, without making places."""
        nodes: Sequence[_Node[Value]] = self._nodes
        found = list(self._past)
        for text in texts:
            below: list[_Node[Value]] = []
            for node in nodes:
                if (child := node.exact.get(text)) is not None:
                    below.append(child)
                if node.wild is not None:
                    node.wild.descend(text, below)
            nodes = below
            for node in nodes:
                if node.open is not None:
                    found += node.open
        for node in nodes:
            if node.closed is not None:
                found += node.closed
        return found

    def next(self, text: str) -> "TrieState[Value]":
        """The place of the names that go on with ``text``."""
        return self._known.get(text) or self._after(text)

    def _after(self, text: str) -> "TrieState[Value]":
        if self.final:
            return self
        below = [child for node in self._nodes if (child := node.exact.get(text)) is not None]
        is_named = bool(below)
        for node in self._nodes:
            if node.wild is not None:
                node.wild.descend(text, below)
        place = self._of(below)
        if is_named or (len(self._known) < TEXTS_KNOWN and self._index.may_know(text)):
            self._known[text] = place
        return place

    def exits(self, most: int) -> Exits | None:
        """How names go on from here; None: in more ways than ``most``, or also by globs."""
        if self.final:
            return Exits(True)
        wilds = [node.wild for node in self._nodes if node.wild is not None]
        if any(wild.globs for wild in wilds):
            return None
        if sum(len(node.exact) for node in self._nodes) + sum(len(wild.prefixes) for wild in wilds) > most:
            return None
        texts = {text for node in self._nodes for text in node.exact}
        return Exits(False, tuple(texts), tuple({prefix for wild in wilds for prefix in wild.prefixes}))

    def _of(self, nodes: list[_Node[Value]]) -> "TrieState[Value]":
        """Nodes live as long as the index: their ids name them."""
        key = tuple(map(id, nodes))
        place = self._known.get(key)
        if place is None:
            if self._index.held > HELD:
                self._index.forget()
            place = self._known[key] = TrieState(self._index, tuple(nodes), self._past)
        return place


class PatternIndex(Generic[Value]):
    """Values filed under patterns; the cost of a look-up hardly depends on how many there are.

    Threads may share it once everything is filed. Places are complete before they can be found; one that is held while
    another thread lets go of all of them still leads on. ``held`` is a bound on memory alone: it may miss some.
    """

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()
        self._start: TrieState[Value] | None = None
        self._begun: dict[Name, TrieState[Value]] = {}
        self._filed = self._texts = 0
        self.held = 0  # places, and values in tuples of their own

    def add(self, pattern: Pattern, value: Value) -> None:
        """File ``value`` under ``pattern``."""
        node = self._root
        for part in pattern.parts:
            node = node.child(part)
        node.file(value, pattern.open)
        self._filed += 1
        self.forget()

    def only(self, pattern: Pattern) -> Value | None:
        """What is filed under exactly this pattern, where that is one value at most."""
        node: _Node[Value] | None = self._root
        for part in pattern.parts:
            node = node.only(part) if node is not None else None
        values = None if node is None else node.open if pattern.open else node.closed
        return values[0] if values else None

    def with_only(self, values: Mapping[Pattern, Value | None]) -> "PatternIndex[Value]":
        """An index in which each of these patterns has this one value, or (None) none. This one does not change.

        Both share all nodes that are alike: it costs as much as there are patterns, and nodes on the way to them.
        """
        other, edit = PatternIndex[Value](), _Edit[Value]()
        other._root = self._root
        for pattern, value in values.items():
            other._root = edit.put(other._root, pattern, value)
        other._filed = self._filed + edit.filed
        return other

    def find(self, name: Name) -> Sequence[Value]:
        """All values filed under patterns that match ``name``, in no particular order.

        It makes no places, but for the beginnings of names: what is asked once costs no memory.
        """
        beginning = name[:BEGINNING]
        place = self._begun.get(beginning) or self._begin(beginning)
        for number in range(BEGINNING, len(name)):
            following = place.known(name[number])
            if following is None:
                return place.find(name[number:])
            place = following
        return place.values

    def place(self, name: Name) -> TrieState[Value]:
        """Where ``name`` leads to."""
        beginning = name[:BEGINNING]
        place = self._begun.get(beginning) or self._begin(beginning)
        for text in name[BEGINNING:]:
            if place.final:
                return place
            place = place.next(text)
        return place

    def _begin(self, beginning: Name) -> TrieState[Value]:
        """Names begin alike: their first parts are gone through once."""
        place = self._start
        if place is None:
            place = self._start = TrieState(self, (self._root,))
        for text in beginning:
            place = place.next(text)
        room = min(BEGINNINGS_KNOWN, TEXTS_FOR_EACH + self._filed)
        if len(self._begun) < room and all(len(text) <= TEXT_KNOWN for text in beginning):
            self._begun[beginning] = place
        return place

    def may_know(self, text: str) -> bool:
        """Whether there is room for a text that no pattern names; it is taken."""
        if len(text) > TEXT_KNOWN or self._texts >= TEXTS_FOR_NONE + TEXTS_FOR_EACH * self._filed:
            return False
        self._texts += 1
        return True

    def forget(self) -> None:
        """Let go of all places; look-ups make new ones."""
        self._start = None
        self._begun.clear()
        self.held = self._texts = 0

    def meeting(self, pattern: Pattern) -> list[Value]:
        """All values filed under patterns that some name matches beside ``pattern``, in no particular order."""
        found: list[Value] = []
        level = [self._root]
        for part in pattern.parts:
            for node in level:
                found += node.open or ()
            level = [child for node in level for child in node.meeting(part)]
        while level:
            for node in level:
                found += node.open or ()
                found += node.closed or ()
            level = [child for node in level for child in node.children()] if pattern.open else []
        return found
