"""Which offsets are committed again though nothing was decided: of no partition whose producer is at work."""

from streaming.commit.partition_sets import PartitionSets
from streaming.enforcer.idle_offsets import COMMITTED_AT_ONCE, IdleOffsets

AT_ONCE, NEVER = -1.0, 3600.0  # seconds; all is overdue, and nothing
OFFSETS = {("requests", number): 10 * number for number in range(4)}
DOCUMENTS = {("policies", 0): 7}


def idle(seconds: float, sets: int = 0) -> IdleOffsets:
    return IdleOffsets(["requests"], PartitionSets("job", sets), seconds)


def test_only_input_partitions_that_are_overdue_are_committed_again() -> None:
    assert idle(AT_ONCE).overdue_alone({**OFFSETS, **DOCUMENTS}) == OFFSETS
    assert idle(NEVER).overdue_alone({**OFFSETS, **DOCUMENTS}) == {}


def test_no_more_at_once_than_a_batch_may_wait_for() -> None:
    many = {("requests", number): 0 for number in range(2 * COMMITTED_AT_ONCE)}
    assert len(idle(AT_ONCE).overdue_alone(many)) == COMMITTED_AT_ONCE


def test_of_a_set_of_which_something_was_committed_nothing_is_committed_alone_but_beside_it() -> None:
    """Its producer is an executor's, which a commit of the driver would fence."""
    offsets, active = idle(NEVER, sets=2), ("requests", 1)  # of the set of 1 and 3, as partitions alternate
    offsets.note_committed([active])
    offsets._began -= 2 * NEVER  # so long ago the job began
    assert offsets.overdue_alone(OFFSETS) == {at: OFFSETS[at] for at in (("requests", 0), ("requests", 2))}
    assert offsets.overdue_beside([active], OFFSETS) == {("requests", 3): 30}


def test_a_partition_with_an_id_of_its_own_has_none_beside_it() -> None:
    assert idle(AT_ONCE).overdue_beside([("requests", 1)], OFFSETS) == {}
