"""Before a batch is committed: a Kafka that answers late."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from streaming.commit.transaction import Outage
from streaming.enforcer import job
from streaming.enforcer.job import Enforcer
from streaming.errors import TopicChanged
from streaming.ops.watch import Watch
from streaming.settings import Settings

LATE = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _enforcer(monkeypatch: pytest.MonkeyPatch, answers: list[Exception]) -> Enforcer:
    """One that has not started. `answers`: what the first questions for the ids of the input topics end with."""
    enforcer = object.__new__(Enforcer)
    enforcer._watch = Watch(Settings())
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
