"""Before a batch is committed: a Kafka that answers late, and a Spark that has no executors because it needs none."""

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from streaming.commit.transaction import Outage
from streaming.enforcer import job
from streaming.enforcer.job import Enforcer
from streaming.errors import JobStopped, TopicChanged
from streaming.ops.watch import Watch
from streaming.settings import Settings

LATE = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _enforcer(monkeypatch: pytest.MonkeyPatch, answers: list[Exception], **settings: Any) -> Enforcer:
    """One that has not started. `answers`: what the first questions for the ids of the input topics end with."""
    enforcer = object.__new__(Enforcer)
    chosen = Settings(**settings)
    enforcer._settings, enforcer._watch, enforcer._spark = chosen, Watch(chosen), None  # type: ignore[assignment]
    enforcer._outage = Outage(threading.Event(), enforcer._watch)

    def check(_self: Enforcer) -> None:
        if answers:
            raise answers.pop(0)

    monkeypatch.setattr(Enforcer, "_check_inputs", check)
    return enforcer


def test_ids_that_come_late_are_asked_for_again_and_the_batch_is_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow machine each evaluation takes so long that the next answer is late, too: no batch was committed."""
    answers: list[Exception] = [LATE, LATE]
    _enforcer(monkeypatch, answers)._await_inputs()
    assert answers == []


def test_what_was_evaluated_long_ago_is_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "ANSWER_SECONDS", 0.0)
    answers: list[Exception] = [LATE, LATE]
    with pytest.raises(KafkaException):
        _enforcer(monkeypatch, answers)._await_inputs()
    assert answers == [LATE]


def test_another_topic_ends_the_job_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopicChanged):
        _enforcer(monkeypatch, [TopicChanged("re-created")])._await_inputs()


@pytest.mark.parametrize(
    ("dynamic", "waits", "ends"), [("true", False, False), ("true", True, True), ("false", False, True)]
)
def test_dynamic_allocation_may_have_no_executors_while_nothing_waits(
    monkeypatch: pytest.MonkeyPatch, dynamic: str, waits: bool, ends: bool
) -> None:
    spark = {"spark.dynamicAllocation.enabled": dynamic}
    enforcer = _enforcer(monkeypatch, [], spark=spark, progress_deadline_seconds=10.0)
    monkeypatch.setattr(job, "count_executors", lambda _spark: 0)
    now, health = [100.0], enforcer._watch.health
    monkeypatch.setattr(health, "_clock", lambda: now[0])
    if waits:
        health.undecided_now()
    for _ in range(3):
        now[0] += 6.0
        if ends and now[0] > 117:
            with pytest.raises(JobStopped, match="has had no executors for 12 s"):
                enforcer._check_executors()
        else:
            enforcer._check_executors()
