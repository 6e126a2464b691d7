"""What changes of facts open, as their systems say, and in words."""

from collections.abc import Iterable, Sequence

from policy.core.facts import Facts
from policy.core.model import Unanswerable
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.system import System

ANYTHING = (Opening(),)


def openings(system: System, change: FactChange, facts: Facts) -> Sequence[Opening]:
    """What a change of facts opens; where that is not known, anything. ``facts``: after the change."""
    if not _is_timeless(change):
        return ANYTHING
    try:
        return sorted(set(system.opened_by(change, facts)))
    except Unanswerable:
        return ANYTHING


def opening_text(opening: Opening, change: FactChange) -> str:
    """In words, for differences and alerts."""
    if not opening.lifts:
        return f"what is known of {change.kind} {change.name}"
    on = f" on {opening.resource}" if opening.resource else ""
    return f"{opening.who} is no longer denied {opening.action}{on}: {opening.lifts}"


def _is_timeless(change: FactChange) -> bool:
    # A fact of several versions, or with an end, opens something else at each of its moments: no system works that out.
    facts: Iterable[bool] = (fact.timeless for fact in (*change.before, *change.after))
    return all(facts) and len(change.before) < 2 and len(change.after) < 2
