"""Spark searches a worker's memory for cycles after each task: caches are left out of it, and cycles do not stay."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from streaming.enforcer import process_cache


class Cycle:
    """Something that only a search for cycles lets go of."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_a_task_leaves_is_not_searched_again_until_the_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_cache, "_tasks", iter(range(1, 1000)))
    left = Cycle()
    known = weakref.ref(left)
    process_cache.freeze_caches()
    del left
    assert len(gc.get_objects()) < gc.get_freeze_count()
    for _ in range(process_cache.TASKS_BETWEEN_COLLECTIONS - 2):
        gc.collect()  # as Spark does after a task
        process_cache.freeze_caches()
    assert known() is not None
    process_cache.freeze_caches()
    gc.collect()
    assert known() is None
