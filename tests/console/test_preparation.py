"""What pages would wait for is done beforehand, again after each change, and again where it failed."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from streaming.console import preparation
from streaming.console.preparation import Preparation
from tests.waiting import wait_until


@contextlib.contextmanager
def _running(steps: Sequence[Callable[[], None]]) -> Iterator[Preparation]:
    stop = threading.Event()
    prepared = Preparation(steps, stop)
    prepared.start()
    try:
        yield prepared
    finally:
        stop.set()
        prepared._thread.join(30)
        assert not prepared._thread.is_alive()


def test_nothing_is_done_before_the_policies_are_read_and_all_of_it_after_each_change() -> None:
    done: list[str] = []
    with _running([lambda: done.append("a"), lambda: done.append("b")]) as prepared:
        assert done == []
        for times in (1, 2):
            prepared.begin()
            wait_until(lambda times=times: done == ["a", "b"] * times, "it is done")


def test_a_step_that_fails_is_tried_again_and_keeps_no_other_from_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "RETRY_SECONDS", 0.05)
    tries: list[int] = []
    done: list[int] = []

    def fail_twice() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError("Kafka does not answer")

    with _running([fail_twice, lambda: done.append(len(tries))]) as prepared:
        prepared.begin()
        wait_until(lambda: done == [1, 2, 3], "the third try did it")
