"""The tree in which patterns are filed, part by part. Trees share what they have in common: a node is copied once, by
the first tree that changes it, as each belongs to the *owner* that made it.
"""

import re
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from policy.core.pattern import Exact, Glob, Part, Pattern, Prefix, match_part, part_overlaps

Value = TypeVar("Value")


class Node(Generic[Value]):
    """One level: children by exact text and by wildcard, and the values of the patterns that end here.

    ``open``: of the pattern that also matches longer names; ``closed``: of the other one.
    """

    __slots__ = ("closed", "exact", "open", "owner", "wild")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.exact: dict[str, Node[Value]] = {}
        self.wild: Wildcards[Value] | None = None
        self.open: Value | None = None
        self.closed: Value | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is filed here or below."""
        return not self.exact and self.wild is None and self.open is None and self.closed is None

    def owned_by(self, owner: object) -> "Node[Value]":
        """The node itself if it is the owner's, else a copy that is."""
        if self.owner is owner:
            return self
        copy: Node[Value] = Node(owner)
        copy.exact, copy.open, copy.closed = dict(self.exact), self.open, self.closed
        copy.wild = self.wild.copy() if self.wild is not None else None
        return copy

    def child(self, part: Part) -> "Node[Value] | None":
        """The child of exactly this part pattern."""
        if isinstance(part, Exact):
            return self.exact.get(part.text)
        return self.wild.child(part) if self.wild is not None else None

    def own_child(self, part: Part) -> "Node[Value]":
        """The same as a node of this one's owner, made where there is none."""
        # No call for most parts: a build of 100,000 statements comes here 300,000 times.
        child = self.exact.get(part.text) if isinstance(part, Exact) else self.child(part)
        if child is not None and child.owner is self.owner:
            return child
        child = Node(self.owner) if child is None else child.owned_by(self.owner)
        if isinstance(part, Exact):
            self.exact[part.text] = child
        else:
            self.wild = self.wild or Wildcards()
            self.wild.put(part, child)
        return child

    def remove(self, part: Part) -> None:
        """Remove the child of exactly this part pattern, which is there."""
        if isinstance(part, Exact):
            del self.exact[part.text]
        elif self.wild is not None:
            self.wild.remove(part)
            self.wild = self.wild if self.wild.lengths else None

    def children(self) -> Iterator["Node[Value]"]:
        """All of them."""
        yield from self.exact.values()
        if self.wild is not None:
            yield from (node for _, node in self.wild.children())

    def meeting(self, part: Part) -> Iterator["Node[Value]"]:
        """Every child whose part pattern has a text in common with ``part``."""
        if isinstance(part, Exact):
            yield from filter(None, [self.exact.get(part.text)])
        else:
            yield from (node for text, node in self.exact.items() if match_part(part, text))
        if self.wild is not None:
            yield from (node for other, node in self.wild.children() if part_overlaps(other, part))


class Wildcards(Generic[Value]):
    """The children of a node by prefix and by glob, both filed under their literal head: what comes before the first
    wildcard. A text is cut to each of the ``lengths`` of these heads and looked up, so that the cost depends on how
    many lengths there are, which are few, and not on how many prefixes.
    """

    __slots__ = ("globs", "lengths", "prefixes")

    def __init__(self) -> None:
        self.prefixes: dict[str, Node[Value]] = {}
        self.globs: dict[str, dict[Glob, tuple[str, Node[Value]]]] = {}  # each with its longest literal behind the head
        self.lengths: dict[int, int] = {}  # of heads, each with how many have it

    def copy(self) -> "Wildcards[Value]":
        """The same children in dictionaries of its own."""
        copy: Wildcards[Value] = Wildcards()
        copy.prefixes, copy.lengths = dict(self.prefixes), dict(self.lengths)
        copy.globs = {head: dict(globs) for head, globs in self.globs.items()}
        return copy

    def child(self, part: Prefix | Glob) -> Node[Value] | None:
        """The child of exactly this part pattern."""
        if isinstance(part, Prefix):
            return self.prefixes.get(part.text)
        return self.globs.get(_literals(part)[0], {}).get(part, ("", None))[1]

    def put(self, part: Prefix | Glob, node: Node[Value]) -> None:
        """File a child, in place of the one of the same part pattern."""
        if isinstance(part, Prefix):
            head, is_new = part.text, part.text not in self.prefixes
            self.prefixes[head] = node
        else:
            head, *behind = _literals(part)
            is_new = head not in self.globs
            self.globs.setdefault(head, {})[part] = max(behind, key=len, default=""), node
        if is_new:
            self.lengths[len(head)] = self.lengths.get(len(head), 0) + 1

    def remove(self, part: Prefix | Glob) -> None:
        """Remove the child of exactly this part pattern, which is there."""
        if isinstance(part, Prefix):
            head = part.text
            del self.prefixes[head]
        else:
            head = _literals(part)[0]
            del self.globs[head][part]
            if self.globs[head]:
                return
            del self.globs[head]
        self.lengths[len(head)] -= 1
        if not self.lengths[len(head)]:
            del self.lengths[len(head)]

    def children(self) -> Iterator[tuple[Part, Node[Value]]]:
        """All of them with their part patterns."""
        yield from ((Prefix(head), node) for head, node in self.prefixes.items())
        yield from ((glob, node) for globs in self.globs.values() for glob, (_, node) in globs.items())

    def descend(self, text: str, nodes: list[Node[Value]]) -> None:
        """Add every child whose part pattern matches ``text`` to ``nodes``."""
        size, prefixes, all_globs = len(text), self.prefixes, self.globs
        for length in self.lengths:
            if length > size:
                continue
            head = text[:length]
            if (node := prefixes.get(head)) is not None:
                nodes.append(node)
            if all_globs and (globs := all_globs.get(head)) is not None:
                # Of many globs most do not match: `in` finds that 30 times sooner (1,200 of CDAP below one namespace).
                nodes += [node for glob, (literal, node) in globs.items() if literal in text and match_part(glob, text)]


def _literals(glob: Glob) -> list[str]:
    """What is before, between and behind its wildcards."""
    return re.split(r"[*?]" if glob.single else r"\*", glob.text)


def node_of(root: Node[Value], pattern: Pattern) -> Node[Value] | None:
    """The node at which exactly this pattern ends."""
    node: Node[Value] | None = root
    for part in pattern.parts:
        node = node.child(part) if node is not None else None
    return node


def change_value(root: Node[Value], pattern: Pattern, change: Callable[[Value | None], Value | None]) -> int:
    """Change what is filed under exactly this pattern; None: nothing is, and nodes that are empty then are removed.

    The root must be its owner's to change. Returns how many more patterns have values: 1, 0 or -1.
    """
    path = [root]
    for part in pattern.parts:
        path.append(path[-1].own_child(part))
    node = path[-1]
    if pattern.open:
        before, node.open = node.open, (value := change(node.open))
    else:
        before, node.closed = node.closed, (value := change(node.closed))
    if value is None:
        for parent, part, child in zip(path[-2::-1], reversed(pattern.parts), path[:0:-1], strict=True):
            if child.is_empty:
                parent.remove(part)
    return (value is not None) - (before is not None)
