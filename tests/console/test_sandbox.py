"""Drafts are evaluated in processes that may die, or be ended, with any of them."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from policy.testing import Draft, DraftRequest
from streaming.console import sandbox
from streaming.console.draft_program import Job
from streaming.console.sandbox import DraftFailed, DraftRefused, Sandbox
from tests.waiting import wait_until

ROLE = "{kind: Role, name: r, spec: {statements: [{effect: allow, action: '*', resource: '*'}]}}"
DRAFT = Draft("lenses6", ROLE, (DraftRequest("user:dana", "", "kafka:ListTopic", "kafka:topic:a/b/c", answer="deny"),))

LARGE = Draft("lenses6", "\n---\n".join(ROLE.replace("name: r", f"name: r{number}") for number in range(1000)))


@contextlib.contextmanager
def _sandbox(seconds: float = 30.0) -> Iterator[Sandbox]:
    found = Sandbox(1, seconds)
    try:
        yield found
    finally:
        found.close()


def _passed(box: Sandbox) -> list[bool | None]:
    return [one["passed"] for one in box.ask(Job("evaluate", DRAFT))["answers"]]


def test_a_process_answers_again_and_again() -> None:
    with _sandbox() as box:
        assert [_passed(box), _passed(box)] == [[True], [True]]
        assert "cases:" in box.ask(Job("save", DRAFT))["text"]


def test_a_draft_that_is_none_is_refused_with_its_line() -> None:
    with _sandbox() as box, pytest.raises(DraftRefused) as refused:
        box.ask(Job("evaluate", Draft("lenses6", "kind: Role\nname: [")))
    assert refused.value.problem["line"] == 2


def test_what_takes_too_long_ends_its_process_and_the_next_draft_is_evaluated() -> None:
    with _sandbox() as box:
        assert _passed(box) == [True]
        box._seconds = 0.01
        with pytest.raises(DraftFailed, match="takes more than"):
            box.ask(Job("evaluate", LARGE))
        box._seconds = 30.0
        assert _passed(box) == [True]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_hangs_or_dies_is_replaced(number: int) -> None:
    with _sandbox() as box:
        assert _passed(box) == [True]
        with box._process() as process:
            running = process._running
        assert running is not None
        os.killpg(running.pid, number)
        box._seconds = 0.5
        if number == signal.SIGSTOP:
            with pytest.raises(DraftFailed, match="takes more than"):
                box.ask(Job("evaluate", DRAFT))
        wait_until(lambda: running.poll() == -signal.SIGKILL, "the process has ended")
        box._seconds = 30.0
        assert _passed(box) == [True]


def test_a_process_has_no_setting_and_ends_with_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_KAFKA", "{sasl.password: hidden}")
    assert not [name for name in sandbox._environment() if name.startswith("LOCKKEEPER_")]
    with _sandbox() as box:
        _passed(box)
        with box._process() as process:
            running = process._running
    assert running is not None
    wait_until(lambda: running.poll() is not None, "the process ends")


def test_a_sandbox_without_a_free_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "WAIT_SECONDS", 0.05)
    with _sandbox() as box, box._process(), pytest.raises(DraftFailed, match="busy"):
        box.ask(Job("evaluate", DRAFT))


@pytest.mark.parametrize(
    "documents",
    [
        "[" * 5000,
        "kind: Role\nname: \u202e\u0000x",
        "&a [*a]",
        "!!python/object/apply:os.system [id]",
        "{kind: PolicySet, name: p, system: cedar, spec: {policies: 'permit(principal, action, resource) when { "
        + "!" * 30_000
        + "true };'}}",
    ],
    ids=["deep", "control", "alias", "tag", "cedar"],
)
def test_hostile_documents_leave_the_next_draft_alone(documents: str) -> None:
    with _sandbox() as box:
        with contextlib.suppress(DraftRefused, DraftFailed):
            found = box.ask(Job("evaluate", Draft("cedar", documents)))
            assert [one["level"] for one in found["problems"]][:1] == ["error"]
        assert _passed(box) == [True]
