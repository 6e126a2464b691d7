"""What somebody's grants reach below an entity (CD-LIST, CD-GET), for one request.

Names say what lies below, and each document corrects them for its own entity. Where no document contradicts them,
nothing need be looked at: a grant counts by what it may name. Where one does, a grant with wildcards goes on counting
(`grants.SURELY_BELOW`), and what others name is looked up one by one, as is what lies below against its name. Programs
go with their application: below one that lies elsewhere they do so too, whether they have documents or not.
"""

from collections.abc import Iterator, Sequence

from policy.core.facts import Facts
from policy.core.limits import MAX_RELATED
from policy.core.pattern import Name
from policy.systems.cdap.catalogue import has_below
from policy.systems.cdap.entities import named_properly
from policy.systems.cdap.grants import BELOW, SURELY_BELOW, singled_out
from policy.systems.cdap.tree import Tree, bounded


class Descendants:
    """``principals``: all that the subject of the request is."""

    def __init__(self, facts: Facts, tree: Tree, principals: Sequence[str]) -> None:
        self._facts = facts
        self._tree = tree
        self._principals = principals

    def entities(self, entity: Name) -> list[Name]:
        """Entities below ``entity`` that must be checked one by one, whether something is held there."""
        descendants, todo = set[Name](), [entity]
        while todo:
            above = todo.pop()
            new = {other for other in self._candidates(above) if self._tree.lies_below(other, above)} - descendants
            descendants |= new
            todo += [other for other in new if has_below(other[0])]
            if len(descendants) > MAX_RELATED:  # what lies below these adds nothing to that there are too many
                break
        return bounded(descendants)

    def _candidates(self, above: Name) -> Iterator[Name]:
        yield from self._tree.linked_beyond(above)
        misnamed = self._tree.misnamed(above)
        if misnamed:
            yield from singled_out(self._facts, self._principals, above)
        for other in misnamed:  # not all that an application names goes with it: programs have documents of their own
            yield from self._tree.misnamed(other)

    def by_name(self, entity: Name) -> Name | None:
        """The permission on ``entity`` that gives one on something below; None: names say nothing there."""
        if not named_properly(entity):
            return None
        return SURELY_BELOW if self._tree.misnamed(entity) else BELOW
