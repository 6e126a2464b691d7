"""Finds the values of all patterns that match a name, at a cost that hardly depends on how many patterns there are.

Patterns are filed in a trie, part by part (`policy.matching.trie`). An example of the search, with these patterns:

    A  (kafka, topic, prod, main, orders)       D  (kafka, topic, *, main, *-dlq)
    B  (kafka, topic, prod, main, ord*)         E  (kafka, topic, test, main, orders)
    C  (kafka, topic, prod), open: it also matches all longer names that begin so

1. The name is (kafka, topic, prod, main, orders). The search starts with the set {root} and goes on from all nodes of a
   set at once, part by part. So no node is visited twice, as it would be by following one branch after the other.
2. "kafka" and "topic" lead to one node each.
3. "prod" leads to the node of A, B and C by its text, and to that of D, since `*` is the prefix "": a set of two. E is
   left behind. C ends here; it is open, so its value counts whatever follows.
4. "main" leads on from both nodes.
5. "orders" leads to the end of A by its text. Prefixes are not tried one after the other: the only length that one has
   here is 3, so "ord" is looked up, which leads to B. `*-dlq` is filed under what comes before its star, which is "",
   and is tried as the text begins so; it does not match.
6. The name ends: the values are that of C, and those of the patterns that end here, A and B.

Most names begin like names before them. So the set of nodes to which a name leads is kept as a `TrieState`, with the
states that follow it by text: a name that leads through states known already costs one look-up for each part, and all
names that the same patterns match end in one state, for which decisions are worked out once
(`policy.evaluation.answers`). Untrusted clients choose the names: so what is kept is bounded by what the patterns
distinguish, by numbers in proportion to theirs for texts that none of them names, and by `STATES_KEPT` in all.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from policy.core.pattern import Name, Pattern
from policy.matching.trie import Node, Value, change_value, node_of

BEGINNING = 3  # parts of a name that are looked up together
BEGINNINGS_KNOWN = 64  # and no more than there are patterns, and a few
TEXTS_KNOWN = 16  # that no pattern names at a state; those that one names are always known
TEXTS_FOR_EACH = 4  # and of an index so many for each pattern …
TEXTS_FOR_NONE = 64  # … and so many beside
TEXT_KNOWN = 64  # characters: clients choose the texts
STATES_KEPT = 200_000  # states, and values in tuples of their own; an index that has more forgets them all

_numbers = itertools.count()


class Exits(NamedTuple):
    """How names go on from a state. ``texts``: that patterns have next, each by itself; any other goes on by the
    ``prefixes`` of its own among these. ``final``: all go on alike.
    """

    final: bool
    texts: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


class TrieState(Generic[Value]):
    """Where a name leads to in an index: names that the same patterns match lead to the very same state.

    ``values``: what is filed under the patterns that match a name ending here; ``final``: longer names lead to it too.
    States are created when names are looked up, and never more than the patterns distinguish. ``number``: its own in
    this process.
    """

    __slots__ = ("_distinct", "_following", "_index", "_nodes", "_open", "final", "number", "values")

    def __init__(
        self, index: "PatternIndex[Value]", nodes: tuple[Node[Value], ...], opened_before: tuple[Value, ...] = ()
    ) -> None:
        opened: list[Value] = []
        closed: list[Value] = []
        final = True
        for node in nodes:  # most requests for a resource not seen before make a state: this is on their path
            if node.open is not None:
                opened.append(node.open)
            if node.closed is not None:
                closed.append(node.closed)
            if node.exact or node.wild is not None:
                final = False
        self._index, self._nodes, self.number = index, nodes, next(_numbers)
        self._open = (*opened_before, *opened) if opened else opened_before
        self.values = (*self._open, *closed) if closed else self._open
        index.states_kept += 1 + (len(self._open) if opened else 0) + (len(self.values) if closed else 0)
        self.final = final and not closed
        # By the texts that lead on, and by the ids of the nodes to which several of them do.
        self._following: dict[str | tuple[int, ...], TrieState[Value]] = {}
        self._distinct: frozenset[Value] | None = None

    @property
    def distinct(self) -> frozenset[Value]:
        """The values as a set, where they are hashable."""
        if self._distinct is None:
            self._distinct = frozenset(self.values)
            self._index.states_kept += len(self._distinct)
        return self._distinct

    def known(self, text: str) -> "TrieState[Value] | None":
        """The state of the names that go on with ``text``, where it is there already."""
        return self if self.final else self._following.get(text)

    def find(self, texts: Name) -> Sequence[Value]:
        """The values for names that go on with ``texts`` and end there, without making states."""
        nodes: Sequence[Node[Value]] = self._nodes
        values = list(self._open)
        for text in texts:
            below: list[Node[Value]] = []
            for node in nodes:
                if (child := node.exact.get(text)) is not None:
                    below.append(child)
                if node.wild is not None:
                    node.wild.descend(text, below)
            nodes = below
            values += [node.open for node in nodes if node.open is not None]
        values += [node.closed for node in nodes if node.closed is not None]
        return values

    def next(self, text: str) -> "TrieState[Value]":
        """The state of the names that go on with ``text``."""
        return self._following.get(text) or self._after(text)

    def _after(self, text: str) -> "TrieState[Value]":
        if self.final:
            return self
        below = [child for node in self._nodes if (child := node.exact.get(text)) is not None]
        is_named = bool(below)
        for node in self._nodes:
            if node.wild is not None:
                node.wild.descend(text, below)
        state = self._of(below)
        if is_named or (len(self._following) < TEXTS_KNOWN and self._index.may_know(text)):
            self._following[text] = state
        return state

    def exits(self, most: int) -> Exits | None:
        """How names go on from here; None: by more texts and prefixes than ``most``, or also by globs."""
        if self.final:
            return Exits(True)
        wilds = [node.wild for node in self._nodes if node.wild is not None]
        if any(wild.globs for wild in wilds):
            return None
        if sum(len(node.exact) for node in self._nodes) + sum(len(wild.prefixes) for wild in wilds) > most:
            return None
        texts = {text for node in self._nodes for text in node.exact}
        return Exits(False, tuple(texts), tuple({prefix for wild in wilds for prefix in wild.prefixes}))

    def _of(self, nodes: list[Node[Value]]) -> "TrieState[Value]":
        """Nodes live as long as the index: their ids name them."""
        key = tuple(map(id, nodes))
        state = self._following.get(key)
        if state is None:
            if self._index.states_kept > STATES_KEPT:
                self._index.forget()
            state = self._following[key] = TrieState(self._index, tuple(nodes), self._open)
        return state


class PatternIndex(Generic[Value]):
    """One value for each pattern; those that have several keep a list. Empty at first, changed by `change` and `put`.

    A `copy` shares all nodes with it until one of the two changes them, so a change costs as much as the nodes on the
    way to its pattern. Threads may share an index that nothing is put into any more: states are complete before they
    can be found, and one that is kept while another thread forgets them all still leads on.
    """

    def __init__(self) -> None:
        self._owner = object()  # of the nodes that no other index has
        self._root: Node[Value] = Node(self._owner)
        self._size = 0
        self._start: TrieState[Value] | None = None
        self._beginnings: dict[Name, TrieState[Value]] = {}
        self._texts = 0
        self.states_kept = 0  # states, and values in tuples of their own: a bound on memory, which may miss some

    def copy(self) -> "PatternIndex[Value]":
        """The same values, without states; what is put into either from now on does not show in the other."""
        other = PatternIndex[Value]()
        other._root, other._size = self._root, self._size
        self._owner = object()
        return other

    def put(self, pattern: Pattern, value: Value) -> None:
        """File ``value`` under ``pattern``, in place of the one there is."""
        self.change(pattern, lambda _: value)

    def change(self, pattern: Pattern, change: Callable[[Value | None], Value | None]) -> None:
        """File what ``change`` makes of the value of exactly this pattern; None: there is none."""
        self._root = self._root.owned_by(self._owner)
        self._size += change_value(self._root, pattern, change)
        self.forget()

    def get(self, pattern: Pattern) -> Value | None:
        """What is filed under exactly this pattern."""
        node = node_of(self._root, pattern)
        return None if node is None else node.open if pattern.open else node.closed

    def find(self, name: Name) -> Sequence[Value]:
        """All values filed under patterns that match ``name``, in no particular order.

        It makes no states, but for the beginnings of names: what is asked once costs no memory.
        """
        beginning = name[:BEGINNING]
        state = self._beginnings.get(beginning) or self._begin(beginning)
        for number in range(BEGINNING, len(name)):
            following = state.known(name[number])
            if following is None:
                return state.find(name[number:])
            state = following
        return state.values

    def state(self, name: Name) -> TrieState[Value]:
        """Where ``name`` leads to."""
        beginning = name[:BEGINNING]
        state = self._beginnings.get(beginning) or self._begin(beginning)
        for text in name[BEGINNING:]:
            if state.final:
                return state
            state = state.next(text)
        return state

    def _begin(self, beginning: Name) -> TrieState[Value]:
        """Names begin alike: their first parts are gone through once."""
        state = self._start
        if state is None:
            state = self._start = TrieState(self, (self._root,))
        for text in beginning:
            state = state.next(text)
        room = min(BEGINNINGS_KNOWN, TEXTS_FOR_EACH + self._size)
        if len(self._beginnings) < room and all(len(text) <= TEXT_KNOWN for text in beginning):
            self._beginnings[beginning] = state
        return state

    def may_know(self, text: str) -> bool:
        """Whether there is room for a text that no pattern names; it is taken."""
        if len(text) > TEXT_KNOWN or self._texts >= TEXTS_FOR_NONE + TEXTS_FOR_EACH * self._size:
            return False
        self._texts += 1
        return True

    def forget(self) -> None:
        """Let go of all states; look-ups make new ones."""
        self._start = None
        self._beginnings = {}
        self._texts = self.states_kept = 0

    def meeting(self, pattern: Pattern) -> list[Value]:
        """All values filed under patterns that some name matches beside ``pattern``, in no particular order."""
        values: list[Value] = []
        level = [self._root]
        for part in pattern.parts:
            values += [node.open for node in level if node.open is not None]
            level = [child for node in level for child in node.meeting(part)]
        while level:
            values += [node.open for node in level if node.open is not None]
            values += [node.closed for node in level if node.closed is not None]
            level = [child for node in level for child in node.children()] if pattern.open else []
        return values
