"""Which logs offsets count in: what is noticed, what is said of it, and what may be accepted."""

import shlex

import pytest

from streaming.errors import CannotStart
from streaming.kafka.reader import TopicLog, check_logs, parse_log
from streaming.settings import Settings, load_settings

SETTINGS = Settings()
POLICIES = SETTINGS.topics.policy_topics()["lenses6"]
HISTORY, [REQUESTS] = SETTINGS.topics.history, SETTINGS.topics.requests


@pytest.mark.parametrize(("log", "text"), [(TopicLog("-a_b"), "-a_b"), (TopicLog("a", 20), "a:20")])
def test_a_log_has_a_text_that_is_read_back(log: TopicLog, text: str) -> None:
    assert str(log) == text
    assert parse_log(text) == log


def _check(topic: str, known: TopicLog, found: TopicLog, *accepted: str) -> None:
    check_logs(SETTINGS, {topic: known}, {topic: found, "new": TopicLog("x")}, CannotStart, accepted)


def test_a_log_that_is_the_same_or_accepted_may_be_read() -> None:
    _check(POLICIES, TopicLog("a"), TopicLog("a"))
    _check(POLICIES, TopicLog("a", 20), TopicLog("a", 20))
    _check(POLICIES, TopicLog("a"), TopicLog("b"), "b")
    _check(POLICIES, TopicLog("a"), TopicLog("a", 20), "a:20")


REFUSED = {
    "re-created": (POLICIES, TopicLog("b"), r"id was a and is b\. .*policy apply.*\n.*TOPIC_IDS='\[\"b\"\]'"),
    "shortened": (POLICIES, TopicLog("a", 20), r"below offset 20 were deleted.*policy apply.*\n.*'\[\"a:20\"\]'"),
    "requests": (
        REQUESTS,
        TopicLog("b"),
        r"Requests on it.*move the checkpoint away with `lockkeeper checkpoint archive checkpoint`\n.*'\[\"b\"\]'",
    ),
    "history": (HISTORY, TopicLog("b"), r"id was a and is b.*\nThen start the job again"),
}


@pytest.mark.parametrize(("topic", "found", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_a_log_whose_records_are_gone_is_refused_with_the_fix(topic: str, found: TopicLog, why: str) -> None:
    """Also where another log was accepted."""
    with pytest.raises(CannotStart, match=why):
        _check(topic, TopicLog("a"), found, "a", "a:19", "c")


def test_the_setting_that_the_error_names_accepts_the_log() -> None:
    """An id may begin with a hyphen, and look like a number."""
    with pytest.raises(CannotStart) as refused:
        _check(POLICIES, TopicLog("a"), TopicLog("-12", 20))
    name, _, value = str(refused.value).split()[-1].partition("=")
    settings = load_settings(environment={name: shlex.split(value)[0]})
    _check(POLICIES, TopicLog("a"), TopicLog("-12", 20), *settings.accepted_topic_ids)
