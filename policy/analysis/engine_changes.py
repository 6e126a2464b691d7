"""What a change of documents opens in a system with an engine of its own, as far as its statements show it.

Reported are allows that came and denies that are gone, each unless a statement that does the same was, or is, in force
elsewhere. A statement that was edited counts as another one.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from policy.analysis.edits import Edit
from policy.core.limits import Work
from policy.core.model import ALLOW, DENY, StatementId
from policy.core.times import Window
from policy.store.policy_set import PolicySet
from policy.systems.kit.engine import Engine, Statement, statement_facts, statements_of

Written = tuple[StatementId, Statement]


class _InForce:
    """What statements do, and when."""

    def __init__(self) -> None:
        self._windows: dict[Hashable, list[Window]] = {}

    def add(self, statement: Statement) -> None:
        """Note a statement."""
        self._windows.setdefault(statement.compared, []).append(statement.window)

    def has(self, statement: Statement, window: Window) -> bool:
        """Whether one that does the same is in force all of this time."""
        return any(other.covers(window) for other in self._windows.get(statement.compared, ()))


def opened_statements(
    engine: Engine, policy_set: PolicySet, edits: Sequence[Edit], at: int, work: Work
) -> Iterator[Written]:
    """The allows that came, and the denies that went. ``policy_set``: after the edits, made at ``at``.

    Only where there are candidates all statements are gone through. Raises WorkExceeded.
    """
    said, says = (
        [entry for compiled in side for entry in statements_of(engine, compiled.facts)]
        for side in ((edit.before for edit in edits), (edit.after for edit in edits))
    )
    work.take(1 + len(said) + len(says))
    gained = [entry for entry in says if entry[1].effect == ALLOW]
    lost = [entry for entry in said if entry[1].effect == DENY]
    if not gained and not lost:
        return
    # What is elsewhere counts on both sides: so a statement that moved to another document opens nothing.
    before, after = _InForce(), _InForce()
    changed = {edit.document for edit in edits}
    for statement_id, statement in statements_of(engine, statement_facts(engine, policy_set.facts)):
        work.take(1)
        after.add(statement)
        if statement_id.document not in changed:
            before.add(statement)
    for _, statement in said:
        before.add(statement)
    yield from _new(gained, before, at)
    yield from _new(lost, after, at)


def _new(written: Iterable[Written], in_force: _InForce, at: int) -> Iterator[Written]:
    for statement_id, statement in written:
        window = Window(at).meet(statement.window)
        if window is not None and not in_force.has(statement, window):
            yield statement_id, statement
