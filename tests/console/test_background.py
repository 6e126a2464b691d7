"""What takes long goes on behind the page, once; its failure is not kept."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from streaming.console import background
from streaming.console.background import Background, BackgroundBusy
from tests.waiting import wait_until


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background[int]]:
    monkeypatch.setattr(background, "WAIT_SECONDS", 0.05)
    with contextlib.closing(Background[int]("test")) as found:
        yield found


def test_an_answer_that_is_quick_is_there_at_once_and_kept(worked: Background[int]) -> None:
    asked: list[int] = []
    for _ in range(3):
        assert worked.get("a", lambda: asked.append(1) or 5) == 5  # type: ignore[func-returns-value]
    assert asked == [1]


def test_an_answer_that_takes_long_is_worked_out_once(worked: Background[int]) -> None:
    done, begun = threading.Event(), list[int]()

    def slow() -> int:
        begun.append(1)
        assert done.wait(30)
        return 7

    assert worked.get("slow", slow) is None
    assert worked.get("slow", slow) is None
    done.set()
    wait_until(lambda: worked.get("slow", slow) == 7, "it is there")
    assert begun == [1]


def test_a_failure_is_raised_and_tried_again(worked: Background[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        worked.get("a", lambda: 1 // 0)
    assert worked.get("a", lambda: 1) == 1


def test_only_some_wait_and_only_some_are_kept(worked: Background[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MOST_WAITING", 2)
    done = threading.Event()
    for number in range(2):
        assert worked.get(number, lambda: int(done.wait(30))) is None
    with pytest.raises(BackgroundBusy):
        worked.get(3, lambda: 3)
    done.set()
    wait_until(lambda: worked.get(1, lambda: 0) == 1, "it is there")
    monkeypatch.setattr(background, "MOST_KEPT", 3)
    assert [worked.get(number, lambda: 9) for number in range(10, 14)] == [9] * 4
    assert worked.get(0, lambda: 5) == 5, "it was forgotten"


def test_an_answer_that_is_not_kept_and_that_nobody_came_back_for_is_not_given_later(
    worked: Background[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks the same then is somebody else, and what it rests on may have changed."""
    done = threading.Event()
    assert worked.get("draft", lambda: int(done.wait(30)), keep=False) is None
    done.set()
    wait_until(lambda: worked._answers["draft"].future.done(), "it is there")
    monkeypatch.setattr(background, "LATER_SECONDS", 0.0)
    assert worked.get("draft", lambda: 7, keep=False) == 7
